"""Independent bits, and what estimators may ask of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.latents.base import Binary, Couplable, Enumerable, ExchangeablePairs, HasMean, Relaxable
from arms.random import indicator, uniform

if TYPE_CHECKING:
    from arms.designs.couplings.base import BitCoupling, Coupling

LARGEST_PERTURBED = 1000.0
"""Logits are clamped to this before noise is added. The largest noise in float64 is 708."""


@dataclass(frozen=True, eq=False)
class Bits(HasMean, Enumerable, ExchangeablePairs, Couplable, Binary, Relaxable):
    """Bits b ~ Bernoulli(sigmoid(logits)), logits `[*batch, d]`, samples of 0 and 1.

    Args:
        logits: `[*batch, d]`. Infinite logits are allowed.
        context: `[*batch, c]`, what produced the logits, for estimators with a network that looks
            at it (`RELAX`).

    >>> Bits(torch.zeros(5, 3)).sample(4).shape
    torch.Size([4, 5, 3])
    """

    context: Tensor | None = None

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        probs = torch.sigmoid(at_least_float32(self.logits.detach()))
        return indicator(probs - uniform(n, probs, generator)).to(self.logits.dtype)

    def log_prob(self, samples: Tensor) -> Tensor:
        """Return log p(sample), which is linear in the sample and defined at midpoints too."""
        logits = at_least_float32(self.logits)
        log_sigmoid = torch.nn.functional.logsigmoid
        # The value that was not drawn may have log-probability -inf, and 0 * inf would be NaN.
        of_one = torch.where(samples > 0, log_sigmoid(logits), 0.0)
        of_zero = torch.where(samples < 1, log_sigmoid(-logits), 0.0)
        return (samples * of_one + (1 - samples) * of_zero).sum(-1)

    def score(self, samples: Tensor) -> Tensor:
        """Return b - p. For b = 1 this is sigmoid(-logits), because 1 - p would round to 0.

        >>> Bits(torch.tensor([20.0])).score(torch.tensor([[0.0], [1.0]])).flatten()
        tensor([-1.0000e+00,  2.0612e-09])
        """
        logits = at_least_float32(self.logits)
        # lerp returns either end exactly, in one pass; torch.where takes twice as long.
        return torch.lerp(-torch.sigmoid(logits), torch.sigmoid(-logits), samples.to(logits.dtype))

    def mean(self) -> Tensor:
        return torch.sigmoid(at_least_float32(self.logits))

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        """Return p (1 - p) times the vector.

        >>> Bits(torch.tensor([0.0, 40.0])).covariance_matvec(torch.ones(2))
        tensor([2.5000e-01, 4.2484e-18])
        """
        logits = at_least_float32(self.logits)
        return torch.sigmoid(logits) * torch.sigmoid(-logits) * vector

    def states(self) -> Tensor:
        d = self.logits.shape[-1]
        shifts = torch.arange(d - 1, -1, -1, device=self.logits.device)
        index = torch.arange(2**d, device=self.logits.device).unsqueeze(-1)
        return (index >> shifts & 1).to(self.logits.dtype)  # the first bit changes slowest

    def count_states(self) -> int:
        return int(2 ** self.logits.shape[-1])

    def variable_log_probs(self) -> list[Tensor]:
        logits = self.logits.detach().double()
        both = torch.nn.functional.logsigmoid(torch.stack([-logits, logits], -1))
        return list(both.unbind(-2))

    def from_states(self, chosen: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(chosen), -1).movedim(-2, 0).to(self.logits.dtype)

    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        # Bits are swapped independently of each other, so only the diagonal remains.
        return vector * step * step

    def is_coupled_by(self, coupling: "Coupling") -> bool:
        return hasattr(coupling, "sample_bits")

    def sample_coupled(self, coupling: "Coupling", n: int, generator: Generator | None) -> Tensor:
        return cast("BitCoupling", coupling).sample_bits(self.logits, n, generator)

    def undo_coupling(self, coupling: "Coupling", n: int, grad: Tensor) -> Tensor:
        return cast("BitCoupling", coupling).undo_bits(self.logits, n, grad)

    def coupled_outcomes(self, coupling: "Coupling", n: int) -> tuple[Tensor, Tensor] | None:
        counts = cast("BitCoupling", coupling).count_distribution(self.logits, n)
        if counts is None:
            return None
        patterns = torch.cartesian_prod(*[torch.arange(2)] * n).view(-1, n)
        # Samples are exchangeable: patterns with the same number of ones are equally likely.
        ways = torch.tensor([math.comb(n, ones) for ones in range(n + 1)])
        return patterns.T.unsqueeze(-1).double(), (counts.squeeze(-1) / ways)[patterns.sum(-1)]

    def perturb(self, n: int, generator: Generator | None) -> Tensor:
        phi = at_least_float32(self.logits.detach()).clamp(-LARGEST_PERTURBED, LARGEST_PERTURBED)
        # A uniform 0 has the logit -inf. Clamped, it is larger than -709, and a bit whose logit is
        # infinite stays what it is.
        noise = uniform(n, phi, generator).clamp(min=torch.finfo(phi.dtype).tiny).logit()
        return phi + noise

    def harden(self, perturbed: Tensor) -> Tensor:
        return indicator(perturbed).to(self.logits.dtype)

    def variables(self) -> list["Bits"]:
        return [Bits(logit) for logit in self.logits.split(1)]

    def split_rows(self, widths: Sequence[int]) -> list[Self]:
        parts = super().split_rows(widths)
        if self.context is None:
            return parts
        contexts = self.context.split(list(widths))
        return [replace(part, context=own) for part, own in zip(parts, contexts, strict=True)]
