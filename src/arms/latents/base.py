"""The contract of a latent, and its capabilities: mixins that estimators name in `requires`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.random import indicator, uniform

MOST_STATES = 2**16  # that are listed


@dataclass(frozen=True, eq=False)
class Latent(ABC):
    """Discrete random variables given by logits."""

    logits: Tensor
    """`[*batch, *event]`, attached to the graph that produced them."""

    event_dims: ClassVar[int] = 1  # the trailing axes of the logits that belong to one draw
    event_axes: ClassVar[str] = "d"  # their names in error messages
    differentiable: ClassVar[bool] = True  # whether df/db makes sense for what f receives
    allowed: ClassVar[str] = "infinite logits are allowed"  # for error messages

    @abstractmethod
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n independent samples `[n, *batch, *event]` in the dtype of the logits, detached."""

    @abstractmethod
    def log_prob(self, samples: Tensor) -> Tensor:
        """Return log p(sample) `[n, *batch]`, attached to the logits."""

    @abstractmethod
    def score(self, samples: Tensor) -> Tensor:
        """Return the gradient of log p(sample) with respect to the logits, at least in float32.

        It must be a new tensor, since estimators multiply it in place.
        """

    def to_objective(self, points: Tensor) -> Any:
        """Return points `[m, *batch, *event]` in the form in which the objective receives them."""
        return points

    def split_gradient(self, grad: Tensor) -> Any:
        """Return a gradient `[*batch, *event]` in the form in which users receive it."""
        return grad

    def join_gradient(self, grad: Any) -> Any:
        """Undo `split_gradient`."""
        return grad

    def with_logits(self, logits: Tensor) -> Self:
        """Return the same kind of latent with other logits, of any batch shape."""
        return replace(self, logits=logits)

    def undefined(self) -> Tensor:
        """Return where the logits define no distribution, `[*batch, *event]`.

        Finite logits always define one.
        """
        return self.logits.isnan()

    def has(self, capability: type) -> bool:
        """Return whether this latent offers a capability."""
        return isinstance(self, capability)

    def has_all(self, capabilities: tuple[type, ...]) -> bool:
        """Return whether this latent offers all of these capabilities."""
        return not capabilities or all(map(self.has, capabilities))

    def elements(self) -> Sequence["Latent"]:
        """Return the latents that this one is made of: itself, or the parts of a joint latent."""
        return [self]

    def map_parts(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Join the results of `function(part, *its share of the tensors)` over the elements."""
        return function(self, *tensors)

    def map_parts_to_many(
        self, function: Callable[..., Sequence[Tensor]], *tensors: Tensor
    ) -> Sequence[Tensor]:
        """Join several results of `function(part, *its share of the tensors)` over the elements."""
        return function(self, *tensors)

    def variables(self) -> Sequence["Latent"]:
        """Return the independent variables of a latent without batch axes, in the event's order."""
        return [self]

    @property
    def batch_shape(self) -> torch.Size:
        """The axes of the logits before the event axes."""
        return self.logits.shape[: self.logits.ndim - self.event_dims]

    @property
    def event_shape(self) -> torch.Size:
        """The axes of the logits that belong to one draw."""
        return self.logits.shape[self.logits.ndim - self.event_dims :]

    def detach(self) -> Self:
        """Return the same latent without its graph."""
        return self.with_logits(self.logits.detach())

    def expand(self, *batch: int) -> Self:
        """Return the latent with more batch axes in front."""
        return self.with_logits(self.logits.expand(*batch, *self.logits.shape))

    def split_rows(self, widths: Sequence[int]) -> list[Self]:
        """Split the latent along its first batch axis."""
        return [self.with_logits(part) for part in self.logits.split(list(widths))]

    def with_event_axes(self, values: Tensor) -> Tensor:
        """Return values `[..., *batch]` with trailing axes of length one, to multiply samples."""
        return values[(..., *[None] * self.event_dims)]

    def sum_event(self, tensor: Tensor) -> Tensor:
        """Sum `[..., *event]` over the event axes."""
        return tensor.sum(tuple(range(-self.event_dims, 0)))


class HasMean(Latent):
    """Capability: the score is the sample minus its mean, as in an exponential family."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the expected sample `[*batch, *event]`, at least in float32."""

    @abstractmethod
    def covariance_matvec(self, vector: Tensor) -> Tensor:
        """Return the covariance matrix of one draw times `[..., *event]`, at least in float32."""


class Enumerable(Latent):
    """Capability: all joint states of one draw can be listed."""

    @abstractmethod
    def states(self) -> Tensor:
        """Return every joint state of one draw, `[states, *event]`."""

    @abstractmethod
    def count_states(self) -> int:
        """Return the number of joint states."""

    def states_per_row(self) -> Tensor:
        """Return every joint state for every row of the batch, `[states, *batch, *event]`."""
        if self.count_states() > MOST_STATES:
            got = f"logits {list(self.logits.shape)} with more: use arms or loorf"
            raise ValueError(f"at most {MOST_STATES} joint states are listed, got {got}")
        states = self.states()[(slice(None), *[None] * len(self.batch_shape))]
        return states.expand(-1, *self.logits.shape)

    def variable_log_probs(self) -> list[Tensor]:
        """Return the log-probabilities `[*batch, K]` of each variable's states, in float64."""
        wide = self.with_logits(self.logits.detach().double())
        return [wide.log_prob(self.states_per_row().double()).movedim(0, -1)]

    def from_states(self, chosen: Sequence[Tensor]) -> Tensor:
        """Return the samples `[n, *batch, *event]` for each variable's states `[*batch, n]`."""
        (only,) = chosen
        return self.states()[only].movedim(len(self.batch_shape), 0)


class ExchangeablePairs(Latent):
    """Capability: given the sum of two samples, all pairs with that sum are equally likely."""

    def exchange(self, first: Tensor, second: Tensor, generator: Generator | None) -> Tensor:
        """Draw the firsts of pairs with the sums of the given ones, `[pairs, *batch, *event]`."""
        # Every entry, or one-hot choice, is swapped or not, independently of the others.
        like = at_least_float32(first[0, ..., :1] if self.has(Choices) else first[0])
        swap = indicator(uniform(len(first), like, generator) - 0.5).to(first.dtype)
        return torch.lerp(first, second, swap)  # exact at 0 and 1, and fast

    def step_product(self, step: Tensor, vector: Tensor) -> Tensor:
        """Return the inner product `[pairs, *batch]` of each difference s with a vector."""
        return self.sum_event(step * vector)

    @abstractmethod
    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        """Return E[s s' | sum] times a vector, for differences s = `step` of pairs up to sign."""


class Neighbors(HasMean):
    """Capability: independent variables, each of which can change while the others stay.

    `samples` are `[m, *batch, *event]`. `variable` and `value` are indices `[m, *batch]`; variables
    are numbered in the order of the event.
    """

    def count_variables(self) -> int:
        """Return the number of variables."""
        return self.event_shape[0]

    def count_values(self) -> int:
        """Return the largest number of values that a variable has."""
        return 2

    @abstractmethod
    def uncertainty(self) -> Tensor:
        """Return for each variable P(two draws differ), `[*batch, variables]`: do not change it."""

    @abstractmethod
    def evidence(self) -> Tensor:
        """Return how far each variable's logits go, `[*batch, variables]`, in a new tensor.

        It is the squared logit of a bit, or 1 for a choice, of whose logits nothing is known to say
        more.
        """

    @abstractmethod
    def probs_at(self, variable: Tensor) -> Tensor:
        """Return the probability of every value of a variable `[m, *batch, K]`, in float64."""

    @abstractmethod
    def values_at(self, samples: Tensor, variable: Tensor) -> Tensor:
        """Return the value of one variable of each sample, `[m, *batch]`."""

    @abstractmethod
    def change_(self, samples: Tensor, variable: Tensor, value: Tensor) -> None:
        """Set one variable of each sample to a value, in place."""

    @abstractmethod
    def rises(self, samples: Tensor, derivatives: Tensor) -> Tensor:
        """Return by how much f would rise if it were linear, for every change of a single variable.

        Like the samples: the entry of a bit is for its other value, and that of a category is for
        a change to this category.
        """

    @abstractmethod
    def trapezoid(self, samples: Tensor, rises: Tensor) -> Tensor:
        """Return half of each sample's rises as a gradient with respect to the logits.

        For a sample b and changes to other values a of a variable, 1/2 sum_a p_a rise (e_a - e_b).
        """


class Couplable(Latent):
    """Capability: made of bits or choices, several samples of which a coupling can draw."""

    def variables(self) -> Sequence[Latent]:
        return [self.with_logits(logits) for logits in self.logits.split(1)]


class Binary(Couplable, HasMean):
    """Capability: every entry of the event is an independent bit with its own logit."""

    @abstractmethod
    def rest(self) -> Tensor:
        """Return 1 - p, which a subtraction would round to 0."""


class Choices(Couplable):
    """Capability: every last axis of the event is an independent one-hot choice."""


class Relaxable(Latent):
    """Capability: a sample is a discontinuous function of the logits plus noise."""

    @abstractmethod
    def perturb(self, n: int, generator: Generator | None) -> Tensor:
        """Return logits plus noise `[n, *batch, *event]`, at least in float32, detached."""

    @abstractmethod
    def harden(self, perturbed: Tensor) -> Tensor:
        """Return the samples given by perturbed logits, in the dtype of the logits."""
