r"""Latents: what is random. `Bernoulli` bits, and choices among K categories, `OneHot` or by index (`Categorical`).

A latent holds its logits and knows its event axes; everything an estimator needs to know of the distribution is asked
here. Samples have the sample axis first and the event axes last: `[n, *batch, d]` or `[n, *batch, d, K]`.

The dataclasses are thin and frozen, so that compiled code passes through them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeAlias

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution

from arms.arguments import at_least_float32, check_logits, logits_of, true_or_unreadable
from arms.noise import indicator, uniform

__all__ = ["Bernoulli", "Categorical", "Latent", "Logits", "OneHot", "as_latent", "softmax_slope"]


@dataclass(frozen=True, eq=False)
class Latent(ABC):
    """Independent discrete variables given by logits.

    Args:
        logits: `[*batch, *event]`, still attached to the graph that made them.
        context: `[*batch, c]`, what made the logits (an image, say), for estimators with a network that looks at it.
    """

    logits: Tensor
    context: Tensor | None = None

    event_dims: ClassVar[int]
    """How many trailing axes of the logits belong to one draw."""
    event_axes: ClassVar[str]
    """Their names in messages."""
    has_slopes: ClassVar[bool] = True
    """Whether the objective can be differentiated with respect to what it gets."""

    @property
    def batch_shape(self) -> torch.Size:
        """The axes of the logits before the event axes."""
        return self.logits.shape[: self.logits.ndim - self.event_dims]

    def detach(self) -> Self:
        """Return the same latent without its graph."""
        return replace(self, logits=self.logits.detach())

    def with_event_axes(self, values: Tensor) -> Tensor:
        """Return values `[..., *batch]` with axes of length one for the event, to broadcast against samples."""
        return values[(..., *[None] * self.event_dims)]

    def shown(self, points: Tensor) -> Tensor:
        """Return points `[m, *batch, *event]` as the objective gets them."""
        return points

    def sum_event(self, tensor: Tensor) -> Tensor:
        """Sum `[..., *event]` over the event axes."""
        return tensor.sum(tuple(range(-self.event_dims, 0)))

    @abstractmethod
    def sum_variable(self, tensor: Tensor) -> Tensor:
        """Sum `[..., *event]` over the categories of each variable, which stay as an axis of one; a bit has none."""

    @abstractmethod
    def covary(self, vector: Tensor) -> Tensor:
        """Return the covariance matrix of one draw times a vector `[..., *event]`, at least in float32."""

    @abstractmethod
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n independent samples `[n, *batch, *event]` in the dtype of the logits, detached."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the expected sample `[*batch, *event]`, at least in float32."""

    def undefined(self) -> Tensor:
        """Return where the logits define no law `[*batch, *event]`: where they are NaN."""
        return self.logits.isnan()

    @abstractmethod
    def score(self, samples: Tensor) -> Tensor:
        """Return the gradient of log p(sample) with respect to the logits, `[n, *batch, *event]`, a new tensor."""

    @abstractmethod
    def log_prob(self, samples: Tensor) -> Tensor:
        """Return log p(sample) `[n, *batch]`, attached to the logits."""

    @abstractmethod
    def states(self) -> Tensor:
        """Return every joint state of one draw `[states, *event]`."""

    @abstractmethod
    def count_states(self) -> int:
        """Return how many joint states there are."""


@dataclass(frozen=True, eq=False)
class Bernoulli(Latent):
    """Bits b ~ Bernoulli(sigmoid(logits)), logits `[*batch, d]`, samples of 0 and 1 `[n, *batch, d]`.

    Args:
        logits: `[*batch, d]`.
        context: `[*batch, c]`, what made the logits, for estimators with a network that looks at it.

    >>> Bernoulli(torch.zeros(5, 3)).sample(4).shape
    torch.Size([4, 5, 3])
    """

    event_dims: ClassVar[int] = 1
    event_axes: ClassVar[str] = "d"

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        probs = torch.sigmoid(at_least_float32(self.logits.detach()))
        return indicator(probs - uniform(n, probs, generator)).to(self.logits.dtype)

    def mean(self) -> Tensor:
        return torch.sigmoid(at_least_float32(self.logits))

    def sum_variable(self, tensor: Tensor) -> Tensor:
        return tensor

    def covary(self, vector: Tensor) -> Tensor:
        """Return p (1 - p) times the vector; 1 - p is not left to a difference.

        >>> Bernoulli(torch.tensor([0.0, 40.0])).covary(torch.ones(2))
        tensor([2.5000e-01, 4.2484e-18])
        """
        logits = at_least_float32(self.logits)
        return torch.sigmoid(logits) * torch.sigmoid(-logits) * vector

    def score(self, samples: Tensor) -> Tensor:
        """Return b - p; 1 - p of the ones is not left to a difference.

        >>> Bernoulli(torch.tensor([20.0])).score(torch.tensor([[0.0], [1.0]])).flatten()
        tensor([-1.0000e+00,  2.0612e-09])
        """
        logits = at_least_float32(self.logits)
        # Between two ends, lerp takes either exactly, in one pass: torch.where costs twice the time.
        return torch.lerp(-torch.sigmoid(logits), torch.sigmoid(-logits), samples.to(logits.dtype))

    def log_prob(self, samples: Tensor) -> Tensor:
        """Return log p(sample), between 0 and 1 a straight line: what is impossible and not chosen costs nothing."""
        logits, log_sigmoid = at_least_float32(self.logits), torch.nn.functional.logsigmoid
        of_one = torch.where(samples > 0, log_sigmoid(logits), 0.0)
        of_zero = torch.where(samples < 1, log_sigmoid(-logits), 0.0)
        return (samples * of_one + (1 - samples) * of_zero).sum(-1)

    def states(self) -> Tensor:
        d = self.logits.shape[-1]
        shifts = torch.arange(d - 1, -1, -1, device=self.logits.device)
        counts = torch.arange(2**d, device=self.logits.device).unsqueeze(-1)
        return (counts >> shifts & 1).to(self.logits.dtype)  # the first bit is the highest

    def count_states(self) -> int:
        return int(2 ** self.logits.shape[-1])


@dataclass(frozen=True, eq=False)
class OneHot(Latent):
    """Choices among K categories, logits `[*batch, d, K]` (softmax), one-hot samples `[n, *batch, d, K]`.

    Args:
        logits: `[*batch, d, K]`; minus infinity is a category that cannot happen.
        context: `[*batch, c]`, what made the logits, for estimators with a network that looks at it.

    >>> OneHot(torch.zeros(5, 3, 4)).sample(2).sum(-1).unique()
    tensor([1.])
    """

    event_dims: ClassVar[int] = 2
    event_axes: ClassVar[str] = "d, K"

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        return self.one_hot(self.perturbed(n, generator).argmax(-1))

    def perturbed(self, n: int, generator: Generator | None = None) -> Tensor:
        """Return log p + Gumbel noise `[n, *batch, d, K]`, at least in float32, detached: the largest is a sample."""
        log_probs = torch.log_softmax(at_least_float32(self.logits.detach()), -1)
        # The first of K exponential clocks of rates p rings: the largest of log p - log(exponential).
        clocks = -torch.log1p(-uniform(n, log_probs, generator))
        return log_probs - clocks.clamp(min=torch.finfo(clocks.dtype).tiny).log()

    def one_hot(self, indices: Tensor) -> Tensor:
        """Return categories `[..., d]` as samples `[..., d, K]`, in the dtype of the logits.

        By comparison: an index beyond the last, as logits that are NaN make it, is no category, and stops no others.
        """
        every = torch.arange(self.logits.shape[-1], device=indices.device)
        return (indices.unsqueeze(-1) == every).to(self.logits.dtype)

    def _as_one_hot(self, samples: Tensor) -> Tensor:
        """Return samples `[..., d, K]`, of which indices `[..., d]` are another form."""
        event = self.logits.shape[-2:]
        if not samples.is_floating_point() and samples.shape[-1:] == event[:1]:
            return self.one_hot(samples)
        if samples.shape[-2:] != event:
            raise ValueError(
                f"samples must be one-hot [..., {event[0]}, {event[1]}], or indices [..., {event[0]}] of an integer "
                f"type, got {list(samples.shape)} of {samples.dtype}"
            )
        return samples

    def mean(self) -> Tensor:
        return torch.softmax(at_least_float32(self.logits), -1)

    def sum_variable(self, tensor: Tensor) -> Tensor:
        return tensor.sum(-1, keepdim=True)

    def covary(self, vector: Tensor) -> Tensor:
        """Return (diag p - p p') times the vector.

        >>> OneHot(torch.zeros(1, 2)).covary(torch.tensor([[1.0, -1.0]]))
        tensor([[ 0.5000, -0.5000]])
        """
        return softmax_slope(self.mean(), vector)

    def undefined(self) -> Tensor:
        return self.mean().isnan()  # a category of logit inf, or a choice among none but -inf, has no law either

    def score(self, samples: Tensor) -> Tensor:
        """Return b - p; 1 - p of the likeliest category is the sum of the others, not left to a difference.

        >>> OneHot(torch.tensor([[20.0, 0.0]])).score(torch.tensor([[[1.0, 0.0]]])).flatten()
        tensor([ 2.0612e-09, -2.0612e-09])
        """
        samples, probs = self._as_one_hot(samples), self.mean()
        likeliest = probs.argmax(-1, keepdim=True)
        others = probs.scatter(-1, likeliest, 0.0).sum(-1, keepdim=True)
        return torch.where(samples > 0, (1 - probs).scatter(-1, likeliest, others), -probs)

    def log_prob(self, samples: Tensor) -> Tensor:
        samples, log_probs = self._as_one_hot(samples), torch.log_softmax(at_least_float32(self.logits), -1)
        of_chosen = torch.where(samples > 0, log_probs, 0.0)  # an impossible category not chosen costs nothing
        return (samples * of_chosen).sum((-1, -2))

    def states(self) -> Tensor:
        d, k = self.logits.shape[-2:]
        powers = k ** torch.arange(d - 1, -1, -1, device=self.logits.device)
        digits = torch.arange(k**d, device=self.logits.device).unsqueeze(-1) // powers % k
        return torch.nn.functional.one_hot(digits, k).to(self.logits.dtype)

    def count_states(self) -> int:
        d, k = self.logits.shape[-2:]
        return int(k**d)


@dataclass(frozen=True, eq=False)
class Categorical(OneHot):
    """The same choices for an objective that gets the categories' indices `[n, *batch, d]`, integers from 0.

    Args:
        logits: `[*batch, d, K]`; minus infinity is a category that cannot happen.
        context: `[*batch, c]`, what made the logits, for estimators with a network that looks at it.

    >>> latent = Categorical(torch.zeros(5, 3, 4))
    >>> latent.shown(latent.sample(2)).shape
    torch.Size([2, 5, 3])
    """

    has_slopes: ClassVar[bool] = False

    def shown(self, points: Tensor) -> Tensor:
        return points.argmax(-1)


def softmax_slope(probs: Tensor, vector: Tensor) -> Tensor:
    """Return (diag p - p p') times a vector `[..., K]`: the derivative of a softmax, and a choice's covariance."""
    return probs * (vector - (probs * vector).sum(-1, keepdim=True))


KINDS: dict[str, type[Latent]] = {"bits": Bernoulli, "one-hot": OneHot, "indices": Categorical}
Logits: TypeAlias = "Tensor | Latent | Distribution"
"""What a user may give for the latent: logits of Bernoullis, a latent, or a distribution of torch."""


def as_latent(logits: Logits, *, validate: bool = True) -> Latent:
    """Return the latent behind what a user gave, its shape and, if they can be read, its values checked.

    Args:
        logits: A tensor of logits, which means bits; a distribution of torch; or a latent, which is returned.
        validate: Look for NaN, which on a GPU waits for the device.

    >>> as_latent(torch.zeros(3))
    Bernoulli(logits=tensor([0., 0., 0.]), context=None)
    """
    if isinstance(logits, Latent):
        latent = logits
    elif isinstance(logits, Distribution):
        tensor, kind = logits_of(logits)
        latent = KINDS[kind](tensor)
    else:
        latent = Bernoulli(logits)
    check_logits(latent.logits, latent.event_axes)
    if validate and not true_or_unreadable(~latent.undefined().any()):
        raise ValueError(
            "logits must not be NaN: look for the step that made them so (infinite logits are fine, but of categories "
            "the largest must be finite)"
        )
    return latent
