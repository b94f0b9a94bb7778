"""The interface of latents, and their capabilities: base classes that an estimator may require."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.random import indicator, uniform

MOST_STATES = 2**16  # latents with more joint states are not enumerated


@dataclass(frozen=True, eq=False)
class Latent(ABC):
    """Discrete random variables, parametrized by logits."""

    logits: Tensor
    """The parameters, `[*batch, *event]`, attached to the graph that computed them."""

    event_dims: ClassVar[int] = 1  # number of trailing axes of the logits that form one draw
    event_axes: ClassVar[str] = "d"  # names of the event axes in error messages
    differentiable: ClassVar[bool] = True  # whether f can be differentiated at its input
    allowed: ClassVar[str] = "infinite logits are allowed"  # part of error messages

    @abstractmethod
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n independent, detached samples `[n, *batch, *event]` in the dtype of the logits."""

    @abstractmethod
    def log_prob(self, samples: Tensor) -> Tensor:
        """Return log p(sample) `[n, *batch]`, attached to the logits."""

    @abstractmethod
    def score(self, samples: Tensor) -> Tensor:
        """Return the gradient of log p(sample) with respect to the logits, at least in float32.

        The result is `[n, *batch, *event]`. It must be a new tensor, because estimators modify it
        in place.
        """

    def to_objective(self, points: Tensor) -> Any:
        """Convert points `[m, *batch, *event]` to the form that the objective expects."""
        return points

    def split_gradient(self, grad: Tensor) -> Any:
        """Convert a gradient `[*batch, *event]` to the form that users receive.

        A joint latent gives a dictionary of gradients. Other latents return the tensor unchanged.
        """
        return grad

    def join_gradient(self, grad: Any) -> Any:
        """Convert a gradient from the form that users receive to a tensor `[*batch, *event]`."""
        return grad

    def with_logits(self, logits: Tensor) -> Self:
        """Return a latent of the same kind with other logits, of any batch shape."""
        return replace(self, logits=logits)

    def undefined(self) -> Tensor:
        """Return a mask `[*batch, *event]` that is True where the logits define no distribution.

        Finite logits always define a distribution.
        """
        return self.logits.isnan()

    def has(self, capability: type) -> bool:
        """Return whether this latent has a capability, such as `HasMean`."""
        return isinstance(self, capability)

    def has_all(self, capabilities: tuple[type, ...]) -> bool:
        """Return whether this latent has all of these capabilities."""
        return not capabilities or all(map(self.has, capabilities))

    def elements(self) -> Sequence["Latent"]:
        """Return a list: the parts of a joint latent, or only this latent if it is not joint."""
        return [self]

    def map_parts(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Call `function(part, *slices)` for each part of a joint latent, and join the results.

        `slices` are the slices of `tensors` that belong to the part. Any other latent counts as a
        single part.
        """
        return function(self, *tensors)

    def map_parts_to_many(
        self, function: Callable[..., Sequence[Tensor]], *tensors: Tensor
    ) -> Sequence[Tensor]:
        """Do the same as `map_parts` for a function that returns several tensors.

        The first tensors of all parts are joined, then the second tensors, and so on.
        """
        return function(self, *tensors)

    def variables(self) -> Sequence["Latent"]:
        """Return a list with one latent for each independent variable of this latent, in order.

        This latent must not have batch axes.
        """
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
        """Return this latent with detached logits."""
        return self.with_logits(self.logits.detach())

    def expand(self, *batch: int) -> Self:
        """Return this latent with new batch axes of these lengths in front of the existing ones."""
        return self.with_logits(self.logits.expand(*batch, *self.logits.shape))

    def split_rows(self, widths: Sequence[int]) -> list[Self]:
        """Split this latent along the first batch axis into latents with the given widths."""
        return [self.with_logits(part) for part in self.logits.split(list(widths))]

    def with_event_axes(self, values: Tensor) -> Tensor:
        """Append an axis of length 1 to values `[..., *batch]` for each event axis.

        The result can be multiplied with samples `[..., *batch, *event]`.
        """
        return values[(..., *[None] * self.event_dims)]

    def sum_event(self, tensor: Tensor) -> Tensor:
        """Sum `[..., *event]` over the event axes."""
        return tensor.sum(tuple(range(-self.event_dims, 0)))


class HasMean(Latent):
    """Capability: the score is the sample minus the mean, as in an exponential family."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the mean of the distribution, `[*batch, *event]`, at least in float32."""

    @abstractmethod
    def covariance_matvec(self, vector: Tensor) -> Tensor:
        """Multiply a vector `[..., *event]` by the covariance matrix of the distribution.

        The result is at least in float32.
        """


class Enumerable(Latent):
    """Capability: all joint states of the latent can be listed."""

    @abstractmethod
    def states(self) -> Tensor:
        """Return all joint states of the latent, `[states, *event]`."""

    @abstractmethod
    def count_states(self) -> int:
        """Return the number of joint states."""

    def states_per_row(self) -> Tensor:
        """Return all joint states for every row of the batch, `[states, *batch, *event]`."""
        if self.count_states() > MOST_STATES:
            limit = f"only latents with at most {MOST_STATES} joint states can be enumerated"
            got = f"logits of shape {list(self.logits.shape)}, which have more"
            alone = len(self.event_shape) == 2 and not self.batch_shape
            hint = ". If each row makes one choice, pass logits.unsqueeze(-2)" if alone else ""
            raise ValueError(f"{limit}, got {got}: use arms or loorf{hint}")
        states = self.states()[(slice(None), *[None] * len(self.batch_shape))]
        return states.expand(-1, *self.logits.shape)

    def variable_log_probs(self) -> list[Tensor]:
        """Return one tensor `[*batch, K]` for each variable, in float64.

        The tensor contains the log-probabilities of the variable's K states.
        """
        wide = self.with_logits(self.logits.detach().double())
        return [wide.log_prob(self.states_per_row().double()).movedim(0, -1)]

    def from_states(self, chosen: Sequence[Tensor]) -> Tensor:
        """Build samples `[n, *batch, *event]` from the indices of states.

        `chosen` contains one tensor of indices `[*batch, n]` for each variable.
        """
        (only,) = chosen
        return self.states()[only].movedim(len(self.batch_shape), 0)


class ExchangeablePairs(Latent):
    """Capability: all pairs of samples with the same sum are equally likely."""

    def exchange(self, first: Tensor, second: Tensor, generator: Generator | None) -> Tensor:
        """Draw a new pair with the same sum for each given pair `(first[i], second[i])`.

        Return the first sample of each new pair, `[pairs, *batch, *event]`.
        """
        # The two samples swap each bit, or each one-hot choice, independently with probability 1/2.
        like = at_least_float32(first[0, ..., :1] if self.has(Choices) else first[0])
        swap = indicator(uniform(len(first), like, generator) - 0.5).to(first.dtype)
        return torch.lerp(first, second, swap)  # exact at 0 and 1, and fast

    def step_product(self, step: Tensor, vector: Tensor) -> Tensor:
        """Return the inner product of `step` and `vector` for each pair, `[pairs, *batch]`.

        `step` is the difference of the two samples of each pair.
        """
        return self.sum_event(step * vector)

    @abstractmethod
    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        """Multiply `vector` by the matrix E[s s'], where s' is the transpose of s.

        The expectation is over random pairs of samples with a given sum, and s is the difference of
        the two samples. `step` is the difference of any pair with this sum. The signs of the
        entries of `step` do not matter.
        """


class Neighbors(HasMean):
    """Capability: variables are independent, and each can be changed separately.

    In all methods, `samples` are `[m, *batch, *event]`. For each sample, `variable` is the index of
    one variable, and `value` is the index of one of this variable's values; both are `[m, *batch]`.
    Variables are numbered in the order of the event axes.
    """

    def count_variables(self) -> int:
        """Return the number of variables."""
        return self.event_shape[0]

    def count_values(self) -> int:
        """Return the largest number of values of any variable."""
        return 2

    @abstractmethod
    def uncertainty(self) -> Tensor:
        """Return, for each variable, the probability that two independent samples differ in it.

        The result is `[*batch, variables]`. Callers must not modify it.
        """

    @abstractmethod
    def evidence(self) -> Tensor:
        """Return a measure of how far each variable is from uniform, `[*batch, variables]`.

        For a bit, this is the squared logit. For a choice, it is 1, because no better measure is
        known. The result is a new tensor.
        """

    @abstractmethod
    def probs_at(self, variable: Tensor) -> Tensor:
        """Return the probabilities of the K values of the given variables, `[m, *batch, K]`.

        The result is in float64.
        """

    @abstractmethod
    def values_at(self, samples: Tensor, variable: Tensor) -> Tensor:
        """Return the value that the given variable has in each sample, `[m, *batch]`."""

    @abstractmethod
    def change_(self, samples: Tensor, variable: Tensor, value: Tensor) -> None:
        """Set the given variable of each sample to a new value, in place."""

    @abstractmethod
    def rises(self, samples: Tensor, derivatives: Tensor) -> Tensor:
        """Return how much a linear f would increase if a single variable changed its value.

        `derivatives` is df/db at the samples. The result has the shape of the samples: one entry
        for every possible change. The entry of a bit is the increase if the bit is flipped. The
        entry of a category is the increase if the variable changes to this category.
        """

    @abstractmethod
    def trapezoid(self, samples: Tensor, rises: Tensor) -> Tensor:
        """Return estimates of the gradient by the trapezoid rule, in the shape of the samples.

        `rises` is the result of the method `rises`. For a variable with the value b, the estimate
        is 1/2 sum_a p_a rise_a (e_a - e_b). The sum runs over the other values a. The vector e_a
        contains the variable's entries in a sample with value a.
        """


class Couplable(Latent):
    """Capability: the latent consists of bits or choices, whose samples can be coupled."""

    def variables(self) -> Sequence[Latent]:
        return [self.with_logits(logits) for logits in self.logits.split(1)]


class Binary(Couplable, HasMean):
    """Capability: every entry of the event is an independent bit with its own logit."""

    @abstractmethod
    def rest(self) -> Tensor:
        """Return 1 - p, where p is the mean. No subtraction is used, so no digits are lost."""


class Choices(Couplable):
    """Capability: the last axis of the event is an independent one-hot choice."""


class Relaxable(Latent):
    """Capability: samples can be computed from the logits plus noise."""

    @abstractmethod
    def perturb(self, n: int, generator: Generator | None) -> Tensor:
        """Return n perturbed logits, which are logits plus noise, `[n, *batch, *event]`.

        They are detached, and at least in float32.
        """

    @abstractmethod
    def harden(self, perturbed: Tensor) -> Tensor:
        """Convert the result of `perturb` to samples in the dtype of the logits."""
