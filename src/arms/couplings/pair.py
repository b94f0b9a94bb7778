"""Pairs of a given correlation: what ARTS and DisARM draw."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.couplings.base import BinaryCoupling, flip
from arms.latents import Latent
from arms.noise import indicator, uniform


@dataclass(frozen=True)
class CorrelatedPair(BinaryCoupling):
    """Two Bernoulli(p) of a given correlation, or of the most negative one that p allows."""

    target: float = -1.0

    def __post_init__(self) -> None:
        target: object = self.target
        if not (isinstance(target, int | float) and -1 <= target < 1):
            raise ValueError(f"correlation must lie in [-1, 1), got {self.target!r}: at 1 both samples are the same")

    def sample(self, latent: Latent, n: int, generator: Generator | None = None) -> Tensor:
        self._check(n)
        return self.sample_many(latent.logits, 1, generator)[:, 0]

    def sample_many(self, logits: Tensor, count: int, generator: Generator | None = None) -> Tensor:
        """Draw that many independent pairs, `[2, count, *logits.shape]`."""
        phi = at_least_float32(logits.detach())
        smaller, larger = torch.sigmoid(-phi.abs()), torch.sigmoid(phi.abs())
        differ = smaller * (larger / self.debias(phi, 2))  # P(1, 0) = P(0, 1)
        noise = uniform(count, phi, generator)
        # The first is one on [0, q), the second on [P(1, 0), q + P(1, 0)): both are where these overlap.
        ones = [indicator(smaller - noise), indicator(smaller + differ - noise) - indicator(differ - noise)]
        return flip(torch.stack(ones), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        self._check(n)
        phi = at_least_float32(logits.detach())
        return torch.sigmoid(phi.abs()).clamp(min=1 / (1 - self.target)).to(logits.dtype)

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        phi = logits.double()
        one, zero = torch.sigmoid(phi), torch.sigmoid(-phi)
        differ = one * zero / self.debias(phi, n)
        return torch.stack([zero - differ, 2 * differ, one - differ])

    def _check(self, n: int) -> None:
        if n != 2:
            raise ValueError(f"a correlated pair has n = 2, got {n}")


def sample_pairs(coupling: CorrelatedPair, logits: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw n/2 independent pairs `[n, *batch, d]`; sample i and sample i + n/2 belong together."""
    return coupling.sample_many(logits, n // 2, generator).flatten(0, 1)
