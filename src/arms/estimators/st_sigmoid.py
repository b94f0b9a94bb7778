r"""ST-SIGMOID: straight through the bit and on through the sigmoid, as if b were p.

$$ g = \sigma(\phi)\,(1 - \sigma(\phi)) \, \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i) $$

Biased because the gradient is p (1 - p) E[f(b with bit 1) - f(b with bit 0)], and the derivative at one end of that
step is not the difference between both ends. Where f is linear in every single bit (multilinear) it is, and the
estimate is exact in expectation.
Reference: Bengio, Leonard & Courville, "Estimating or propagating gradients through stochastic neurons for conditional
computation", 2013.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from arms.estimators.base import Draw
from arms.estimators.biased import SlopeEstimator


@dataclass(frozen=True)
class SigmoidStraightThrough(SlopeEstimator):
    """The straight-through estimator times p (1 - p), n independent samples. Biased.

    Args:
        num_samples: n.

    >>> import torch
    >>> SigmoidStraightThrough(4)(lambda b: b @ torch.tensor([1.0, -3.0]), torch.zeros(2)).grad
    tensor([ 0.2500, -0.7500])
    """

    formula: ClassVar[str] = "p (1 - p) mean of df/db"
    reference: ClassVar[str] = "Bengio et al. 2013"

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        return draw.latent.covary(slopes)
