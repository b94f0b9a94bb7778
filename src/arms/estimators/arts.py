r"""ARTS: antithetic-REINFORCE-two-sample, pairs of any correlation.

$$ g = \big(f(b) - f(b')\big)\,\frac{b - b'}{2(1-\rho)} $$

averaged over n/2 pairs. Unbiased because (f(b) - f(b'))(b - b')/2 has expectation (f(1) - f(0)) P(b = 1, b' = 0), and
P(b = 1, b' = 0) = p(1-p)(1-rho) whatever the dependence. The variance increases with rho, so the most negative
correlation is best, and that is DisARM.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", ICML 2021, thm. 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.couplings.pair import CorrelatedPair, sample_pairs
from arms.estimators.base import Draw, Estimator
from arms.latents import Latent


@dataclass(frozen=True)
class ARTS(Estimator):
    """Antithetic-REINFORCE-two-sample, the average of n/2 pairs of a chosen correlation.

    Args:
        num_samples: n, even.
        correlation: Of a pair's bits, from -1 to below 1; as negative as each bit allows where that is less.

    >>> import torch
    >>> ARTS(2, correlation=0.0)(lambda b: b.sum(-1), torch.zeros(3)).grad.shape
    torch.Size([3])
    """

    correlation: float = -1.0

    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "mean over pairs of (f(b) - f(b')) (b - b') / (2 (1 - rho))"
    reference: ClassVar[str] = "Dimitriev & Zhou 2021, theorem 1"

    def __post_init__(self) -> None:
        super().__post_init__()
        CorrelatedPair(self.correlation)

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(
            self, latent, sample_pairs(CorrelatedPair(self.correlation), latent.logits, self.num_samples, generator)
        )

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        debias = CorrelatedPair(self.correlation).debias(at_least_float32(draw.logits), 2)
        return half_difference(draw.points, values) * debias


def half_difference(samples: Tensor, values: Tensor) -> Tensor:
    """Return the mean over pairs of (f(b) - f(b')) (b - b') / 2."""
    first, second = at_least_float32(values).chunk(2)
    one, other = samples.chunk(2)
    return ((first - second).unsqueeze(-1) * (one - other)).mean(0) / 2
