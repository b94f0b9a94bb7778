"""Pairs of bits with a given correlation: what DisARM draws."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.designs.couplings.base import BitCoupling, flip
from arms.random import indicator, uniform


@dataclass(frozen=True)
class CorrelatedPair(BitCoupling):
    """Two Bernoulli(p) with a given correlation, or with the most negative one that p allows.

    Args:
        target: The correlation, at least -1 and below 1.
    """

    target: float = -1.0

    def __post_init__(self) -> None:
        target: object = self.target
        if not (isinstance(target, int | float) and -1 <= target < 1):
            raise ValueError(f"correlation must lie in [-1, 1), got {target!r}")

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        _check(n)
        return self.sample_many(logits, 1, generator)[:, 0]

    def sample_many(self, logits: Tensor, count: int, generator: Generator | None = None) -> Tensor:
        """Draw that many independent pairs, `[2, count, *logits.shape]`."""
        phi = at_least_float32(logits.detach())
        smaller, larger = torch.sigmoid(-phi.abs()), torch.sigmoid(phi.abs())
        differ = smaller * (larger / self.debias(phi, 2))  # P(1, 0) = P(0, 1)
        noise = uniform(count, phi, generator)
        # The first is one on [0, q), the second on [P(1, 0), q + P(1, 0)); both where they overlap.
        second = indicator(smaller + differ - noise) - indicator(differ - noise)
        return flip(torch.stack([indicator(smaller - noise), second]), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        _check(n)
        phi = at_least_float32(logits.detach())
        return torch.sigmoid(phi.abs()).clamp(min=1 / (1 - self.target)).to(logits.dtype)

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        phi = logits.double()
        one, zero = torch.sigmoid(phi), torch.sigmoid(-phi)
        differ = one * zero / self.debias(phi, n)
        return torch.stack([zero - differ, 2 * differ, one - differ])


def _check(n: int) -> None:
    if n != 2:
        raise ValueError(f"a correlated pair has n = 2 samples, got {n}")
