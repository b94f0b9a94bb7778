"""Independent choices among K categories. Samples are one-hot vectors or category indices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.latents.base import Choices, Enumerable, ExchangeablePairs, Neighbors, Relaxable
from arms.random import uniform


@dataclass(frozen=True, eq=False)
class OneHot(Neighbors, Enumerable, ExchangeablePairs, Choices, Relaxable):
    """Independent choices among K categories (softmax), with one-hot samples.

    Args:
        logits: `[*batch, d, K]`. A logit of minus infinity makes a category impossible.

    >>> OneHot(torch.zeros(5, 3, 4)).sample(2).sum(-1).unique()
    tensor([1.])
    """

    event_dims: ClassVar[int] = 2
    event_axes: ClassVar[str] = "d, K"
    allowed: ClassVar[str] = "-inf is allowed, but the largest logit of a category must be finite"

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        return self.harden(self.perturb(n, generator))

    def perturb(self, n: int, generator: Generator | None) -> Tensor:
        """Return log p plus Gumbel noise. The category with the largest entry is a sample."""
        log_probs = torch.log_softmax(at_least_float32(self.logits.detach()), -1)
        # The index of the smallest of K exponential variables with rates p is a sample.
        clocks = -torch.log1p(-uniform(n, log_probs, generator))
        return log_probs - clocks.clamp(min=torch.finfo(clocks.dtype).tiny).log()

    def harden(self, perturbed: Tensor) -> Tensor:
        return one_hot(perturbed.argmax(-1), self.logits)

    def log_prob(self, samples: Tensor) -> Tensor:
        samples = self._as_one_hot(samples)
        log_probs = torch.log_softmax(at_least_float32(self.logits), -1)
        # 0 * -inf would be NaN. Finite terms are kept, because the derivative with respect to the
        # samples needs them.
        inside = torch.where((samples > 0) | (log_probs > -torch.inf), log_probs, 0.0)
        return (samples * inside).sum((-1, -2))

    def score(self, samples: Tensor) -> Tensor:
        """Return b - p. Where b = 1, this is the sum of the other categories' probabilities.

        The sum keeps its digits if p is close to 1.
        """
        samples, probs = self._as_one_hot(samples), self.mean()
        return torch.where(samples > 0, rest_of(probs), -probs)

    def mean(self) -> Tensor:
        return torch.softmax(at_least_float32(self.logits), -1)

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        return softmax_derivative(self.mean(), vector)

    def undefined(self) -> Tensor:
        # A logit of +inf, or logits that are all -inf, define no distribution either.
        return self.mean().isnan()

    def states(self) -> Tensor:
        d, k = self.logits.shape[-2:]
        powers = k ** torch.arange(d - 1, -1, -1, device=self.logits.device)
        digits = torch.arange(k**d, device=self.logits.device).unsqueeze(-1) // powers % k
        return torch.nn.functional.one_hot(digits, k).to(self.logits.dtype)

    def count_states(self) -> int:
        return int(self.logits.shape[-1] ** self.logits.shape[-2])

    def variable_log_probs(self) -> list[Tensor]:
        return list(torch.log_softmax(self.logits.detach().double(), -1).unbind(-2))

    def from_states(self, chosen: Sequence[Tensor]) -> Tensor:
        return one_hot(torch.stack(list(chosen), -1).movedim(-2, 0), self.logits)

    def step_product(self, step: Tensor, vector: Tensor) -> Tensor:
        # Sum over categories first. Each choice has one positive and one negative term, or none.
        return (vector * step).sum(-1).sum(-1)

    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        return (vector * step).sum(-1, keepdim=True) * step

    def count_values(self) -> int:
        return self.logits.shape[-1]

    def uncertainty(self) -> Tensor:
        probs = torch.softmax(self.logits.detach().double(), -1)
        return (probs * rest_of(probs)).sum(-1)

    def evidence(self) -> Tensor:
        return torch.ones_like(self.logits.detach()[..., 0], dtype=torch.float64)

    def probs_at(self, variable: Tensor) -> Tensor:
        logits = self.logits.detach().expand(len(variable), *self.logits.shape)
        chosen = logits.gather(-2, _rows_of(logits, variable)).squeeze(-2)
        return torch.softmax(chosen.double(), -1)

    def values_at(self, samples: Tensor, variable: Tensor) -> Tensor:
        return samples.gather(-2, _rows_of(samples, variable)).squeeze(-2).argmax(-1)

    def change_(self, samples: Tensor, variable: Tensor, value: Tensor) -> None:
        where = _rows_of(samples, variable)
        samples.scatter_(-2, where, one_hot(value.unsqueeze(-1), samples))

    def rises(self, samples: Tensor, derivatives: Tensor) -> Tensor:
        here = (samples.to(derivatives.dtype) * derivatives).sum(-1, keepdim=True)
        return derivatives - here

    def trapezoid(self, samples: Tensor, rises: Tensor) -> Tensor:
        up = self.mean() * rises / 2
        return torch.addcmul(up, samples.to(up.dtype), up.sum(-1, keepdim=True), value=-1)

    def _as_one_hot(self, samples: Tensor) -> Tensor:
        """Convert samples, which may be indices `[..., d]`, to one-hot samples `[..., d, K]`."""
        d, k = self.logits.shape[-2:]
        if not samples.is_floating_point() and samples.shape[-1:] == (d,):
            return one_hot(samples, self.logits)
        if samples.shape[-2:] != (d, k):
            wanted = f"one-hot [..., {d}, {k}], or integer indices [..., {d}]"
            got = f"{list(samples.shape)} of {samples.dtype}"
            raise ValueError(f"samples must be {wanted}, got {got}")
        return samples


@dataclass(frozen=True, eq=False)
class Indices(OneHot):
    """Independent choices among K categories; the objective receives category indices.

    Args:
        logits: `[*batch, d, K]`.

    >>> latent = Indices(torch.zeros(5, 3, 4))
    >>> latent.to_objective(latent.sample(2)).shape
    torch.Size([2, 5, 3])
    """

    differentiable: ClassVar[bool] = False

    def to_objective(self, points: Tensor) -> Tensor:
        return points.argmax(-1)


def one_hot(indices: Tensor, logits: Tensor) -> Tensor:
    """Convert indices `[..., d]` to one-hot samples `[..., d, K]` in the dtype of the logits."""
    every = torch.arange(logits.shape[-1], device=indices.device)
    # NaN logits can cause an index out of range, which gives zeros here instead of an error.
    return (indices.unsqueeze(-1) == every).to(logits.dtype)


def rest_of(probs: Tensor) -> Tensor:
    """Return 1 - p for the probabilities p of all categories, `[..., K]`.

    For the likeliest category, the sum of the other probabilities is returned instead, because it
    has smaller rounding errors than the difference.
    """
    likeliest = probs.argmax(-1, keepdim=True)
    others = probs.scatter(-1, likeliest, 0.0).sum(-1, keepdim=True)
    return (1 - probs).scatter(-1, likeliest, others)


def _rows_of(samples: Tensor, variable: Tensor) -> Tensor:
    """Expand indices of variables `[m, *batch]` to `[m, *batch, 1, K]`.

    With this index, gather and scatter on axis -2 access the K entries of each variable.
    """
    return variable[..., None, None].expand(*variable.shape, 1, samples.shape[-1])


def softmax_derivative(probs: Tensor, vector: Tensor) -> Tensor:
    """Multiply `vector` `[..., K]` by the matrix diag p - p p', where p is `probs`.

    This matrix is the derivative of a softmax, and also the covariance of a one-hot sample.
    """
    return probs * (vector - (probs * vector).sum(-1, keepdim=True))
