"""Independent bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from arms.arguments import at_least_float32, lazy_property
from arms.latents.base import Binary, Enumerable, ExchangeablePairs, Neighbors, Relaxable
from arms.random import indicator, indicator_below, uniform

LARGEST_PERTURBED = 1000.0  # logits are clamped here before logistic noise (at most 708) is added


@dataclass(frozen=True, eq=False)
class Bits(Neighbors, Enumerable, ExchangeablePairs, Binary, Relaxable):
    """Independent bits b ~ Bernoulli(sigmoid(logits)), with samples of 0 and 1.

    Args:
        logits: `[*batch, d]`. Infinite logits are allowed.
        context: `[*batch, c]`, the input that the logits were computed from. Only estimators whose
            network takes a context need this argument (`RELAX`).

    >>> Bits(torch.zeros(5, 3)).sample(4).shape
    torch.Size([4, 5, 3])
    """

    context: Tensor | None = None

    _remembers: ClassVar[bool] = False  # whether this object caches what it computes from logits

    def detach(self) -> Self:
        found = super().detach()  # a new object, because users may modify their logits in place
        object.__setattr__(found, "_remembers", True)
        return found

    def with_logits(self, logits: Tensor) -> Self:
        return type(self)(logits, self.context)  # faster than `dataclasses.replace`

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        probs = self.mean().detach()
        return indicator_below(uniform(n, probs, generator), probs).to(self.logits.dtype)

    def log_prob(self, samples: Tensor) -> Tensor:
        """Return log p(sample). This function is linear in the samples, also between 0 and 1."""
        logits = at_least_float32(self.logits)
        of_one, of_zero = logsigmoid(logits), logsigmoid(-logits)
        # The value that was not drawn may have log-probability -inf, and 0 * -inf would be NaN.
        # Finite terms are kept, because the derivative with respect to the samples needs them.
        of_one = torch.where((samples > 0) | (of_one > -torch.inf), of_one, 0.0)
        of_zero = torch.where((samples < 1) | (of_zero > -torch.inf), of_zero, 0.0)
        return (samples * of_one + (1 - samples) * of_zero).sum(-1)

    def score(self, samples: Tensor) -> Tensor:
        """Return b - p. For b = 1, sigmoid(-logits) is used, because 1 - p could round to 0."""
        of_zero, of_one = -self.mean(), self.rest()
        # lerp is exact for weights 0 and 1, and takes one pass. torch.where takes twice as long.
        return torch.lerp(of_zero, of_one, samples.to(of_one.dtype))

    def mean(self) -> Tensor:
        if self._remembers:
            return self._constant_mean
        return torch.sigmoid(at_least_float32(self.logits))

    @lazy_property
    def _constant_mean(self) -> Tensor:
        return torch.sigmoid(at_least_float32(self.logits))

    def rest(self) -> Tensor:
        if self._remembers:
            return self._constant_rest
        return torch.sigmoid(-at_least_float32(self.logits))

    @lazy_property
    def _constant_rest(self) -> Tensor:
        return torch.sigmoid(-at_least_float32(self.logits))

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        return self.mean() * self.rest() * vector

    def states(self) -> Tensor:
        d = self.logits.shape[-1]
        shifts = torch.arange(d - 1, -1, -1, device=self.logits.device)
        index = torch.arange(2**d, device=self.logits.device).unsqueeze(-1)
        return (index >> shifts & 1).to(self.logits.dtype)  # the first bit changes slowest

    def count_states(self) -> int:
        return int(2 ** self.logits.shape[-1])

    def variable_log_probs(self) -> list[Tensor]:
        logits = self.logits.detach().double()
        return list(logsigmoid(torch.stack([-logits, logits], -1)).unbind(-2))

    def from_states(self, chosen: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(chosen), -1).movedim(-2, 0).to(self.logits.dtype)

    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        return vector * step * step  # bits are swapped independently: only the diagonal remains

    def uncertainty(self) -> Tensor:
        return self._constant_uncertainty if self._remembers else self.detach().uncertainty()

    @lazy_property
    def _constant_uncertainty(self) -> Tensor:
        return (self.mean() * self.rest()).mul_(2)

    def evidence(self) -> Tensor:
        return at_least_float32(self.logits.detach()).square()

    def probs_at(self, variable: Tensor) -> Tensor:
        logits = self.logits.detach().expand(len(variable), *self.logits.shape)
        chosen = logits.gather(-1, variable.unsqueeze(-1)).double()
        return torch.sigmoid(torch.cat([-chosen, chosen], -1))

    def values_at(self, samples: Tensor, variable: Tensor) -> Tensor:
        return samples.gather(-1, variable.unsqueeze(-1)).squeeze(-1)

    def change_(self, samples: Tensor, variable: Tensor, value: Tensor) -> None:
        source = value.unsqueeze(-1).to(samples.dtype)
        samples.scatter_(-1, variable.unsqueeze(-1), source)

    def rises(self, samples: Tensor, derivatives: Tensor) -> Tensor:
        return torch.addcmul(derivatives, samples.to(derivatives.dtype), derivatives, value=-2)

    def trapezoid(self, samples: Tensor, rises: Tensor) -> Tensor:
        return self.score(samples).mul_(rises).mul_(-0.5)

    def perturb(self, n: int, generator: Generator | None) -> Tensor:
        phi = at_least_float32(self.logits.detach()).clamp(-LARGEST_PERTURBED, LARGEST_PERTURBED)
        # The clamp makes the noise finite if the uniform number is 0. Bits with infinite logits
        # keep their value.
        return phi + uniform(n, phi, generator).clamp(min=torch.finfo(phi.dtype).tiny).logit()

    def harden(self, perturbed: Tensor) -> Tensor:
        return indicator(perturbed).to(self.logits.dtype)

    def split_rows(self, widths: Sequence[int]) -> list[Self]:
        if self.context is None:
            return super().split_rows(widths)
        parts = zip(*(one.split(list(widths)) for one in (self.logits, self.context)), strict=True)
        return [replace(self, logits=logits, context=context) for logits, context in parts]
