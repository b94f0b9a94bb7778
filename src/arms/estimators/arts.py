r"""ARTS: antithetic-REINFORCE-two-sample, pairs of any correlation.

$$ g = \big(f(b) - f(b')\big)\,\frac{b - b'}{2(1-\rho)} $$

averaged over n/2 pairs. Unbiased because (f(b) - f(b'))(b - b')/2 has expectation (f(1) - f(0)) P(b = 1, b' = 0), and
P(b = 1, b' = 0) = p(1-p)(1-rho) whatever the dependence. The variance increases with rho, so the most negative
correlation is best, and that is DisARM.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", ICML 2021, thm. 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import widen
from arms.couplings import Coupling, flip, step, uniform
from arms.estimators.base import Draw, Estimator


@dataclass(frozen=True)
class CorrelatedPair(Coupling):
    """Two Bernoulli(p) of a given correlation, or of the most negative one that p allows."""

    target: float = -1.0

    def __post_init__(self) -> None:
        if not -1 <= self.target < 1:
            raise ValueError(f"correlation must lie in [-1, 1), got {self.target}: at 1 both samples are the same")

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        self._check(n)
        return self.sample_many(logits, 1, generator)[:, 0]

    def sample_many(self, logits: Tensor, count: int, generator: Generator | None = None) -> Tensor:
        """Draw that many independent pairs, `[2, count, *logits.shape]`."""
        phi = widen(logits.detach())
        smaller, larger = torch.sigmoid(-phi.abs()), torch.sigmoid(phi.abs())
        differ = smaller * (larger / self.debias(phi, 2))  # P(1, 0) = P(0, 1)
        noise = uniform(count, phi, generator)
        # The first is one on [0, q), the second on [P(1, 0), q + P(1, 0)): both are where these overlap.
        ones = [step(smaller - noise), step(smaller + differ - noise) - step(differ - noise)]
        return flip(torch.stack(ones), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        self._check(n)
        phi = widen(logits.detach())
        return torch.sigmoid(phi.abs()).clamp(min=1 / (1 - self.target)).to(logits.dtype)

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        phi = logits.double()
        one, zero = torch.sigmoid(phi), torch.sigmoid(-phi)
        differ = one * zero / self.debias(phi, n)
        return torch.stack([zero - differ, 2 * differ, one - differ])

    def _check(self, n: int) -> None:
        if n != 2:
            raise ValueError(f"a correlated pair has n = 2, got {n}")


@dataclass(frozen=True)
class ARTS(Estimator):
    """Antithetic-REINFORCE-two-sample, the average of n/2 pairs of a chosen correlation.

    >>> ARTS(2, correlation=0.0)(lambda b: b.sum(-1), torch.zeros(3)).grad.shape
    torch.Size([3])
    """

    correlation: float = -1.0

    least: ClassVar[int] = 2
    pairs: ClassVar[bool] = True
    formula: ClassVar[str] = "mean over pairs of (f(b) - f(b')) (b - b') / (2 (1 - rho))"
    reference: ClassVar[str] = "Dimitriev & Zhou 2021, theorem 1"

    def __post_init__(self) -> None:
        super().__post_init__()
        CorrelatedPair(self.correlation)

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return Draw(self, logits, sample_pairs(CorrelatedPair(self.correlation), logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        debias = CorrelatedPair(self.correlation).debias(widen(draw.logits), 2)
        return half_difference(draw.samples, values) * debias


def sample_pairs(coupling: CorrelatedPair, logits: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw n/2 independent pairs `[n, *batch, d]`; sample i and sample i + n/2 belong together."""
    return coupling.sample_many(logits, n // 2, generator).flatten(0, 1)


def half_difference(samples: Tensor, values: Tensor) -> Tensor:
    """Return the mean over pairs of (f(b) - f(b')) (b - b') / 2."""
    first, second = widen(values).chunk(2)
    one, other = samples.chunk(2)
    return ((first - second).unsqueeze(-1) * (one - other)).mean(0) / 2
