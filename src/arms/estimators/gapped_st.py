r"""GAPPED-ST: straight-through Gumbel-softmax with the noise replaced by the least move of the logits that explains b.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i)\, \frac{y_i (1 - y_i)}{\tau},
   \qquad y_i = \sigma(m_i/\tau), \quad m_i = \max\big((2 b_i - 1)\,\phi,\ \gamma\big) $$

For K categories the logit of the chosen one is raised to the largest logit, and every other is lowered until it is a
gap gamma below that; both moves are constants, and the gradient goes through the softmax of the moved logits. Two
categories with logits (0, phi) are a bit. Let s = (2b - 1) phi be the chosen logit minus the other. If s >= 0 the
chosen one is the largest and stays, and the other is lowered by max(0, gamma - s); if s < 0 the chosen one is raised by
-s and the other lowered by gamma. The difference is max(s, gamma) either way, and the derivative in phi of the
softmax's second entry is y (1 - y) / tau.

Biased because the derivative at b is no difference, as for st-gumbel, and the factor is not p (1 - p) even on average:
what is saved is the variance of the noise.
Reference: Fan, Chi, Rudnicky & Ramadge, "Training discrete deep generative models via gapped straight-through
estimator", ICML 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from arms.arguments import as_positive, at_least_float32
from arms.estimators.base import Draw
from arms.estimators.biased import SlopeEstimator, sigmoid_slope


@dataclass(frozen=True)
class GappedStraightThrough(SlopeEstimator):
    """The gapped straight-through estimator, n independent samples. Biased.

    Args:
        num_samples: n.
        temperature: tau of the softmax behind the bits.
        gap: gamma, the least difference between the logit of the chosen value and the other.

    >>> import torch
    >>> GappedStraightThrough(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    temperature: float = 1.0
    gap: float = 1.0

    formula: ClassVar[str] = "mean of df/db y (1 - y) / tau, y = sigmoid(max((2b - 1) phi, gap) / tau)"
    reference: ClassVar[str] = "Fan et al. 2022"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "gap"):
            object.__setattr__(self, name, as_positive(getattr(self, name), name))

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        phi = at_least_float32(draw.logits)
        margin = ((2 * draw.points.to(phi.dtype) - 1) * phi).clamp(min=self.gap)
        return slopes * (sigmoid_slope(margin / self.temperature) / self.temperature)
