r"""Straight-through: the derivative of the objective, taken as the gradient of its mean.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i), \qquad \text{or scaled:} \qquad
   g = \mathrm{Cov}(b)\, \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i) $$

Biased because the plain form ignores the distribution of b: for f(b) = b, whose gradient is
p (1 - p), it returns 1. The scaled form multiplies by Cov(b), which is p (1 - p) for
bits. The gradient is p (1 - p) E[f(b with bit 1) - f(b with bit 0)], and a derivative at one end
equals that difference only if f is linear in every bit. For K categories both forms multiply by the
derivative of the softmax, so that a common part of all derivatives has no effect.
Reference: Bengio, Leonard & Courville, "Estimating or propagating gradients through stochastic
neurons for conditional computation", 2013.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.estimators.biased.path import PathEstimator
from arms.latents import Binary, HasMean, Latent


@dataclass(frozen=True)
class StraightThrough(PathEstimator):
    """The straight-through estimator on n independent samples. Biased.

    Args:
        scaled: Whether to multiply derivatives by p (1 - p), the derivative of the sigmoid.

    >>> import torch
    >>> StraightThrough(4)(lambda b: b @ torch.tensor([1.0, -3.0]), torch.zeros(2)).grad
    tensor([ 1., -3.])
    """

    scaled: bool = False
    requires = (HasMean,)

    def path(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        assert isinstance(part, HasMean)
        through = self.scaled or not part.has(Binary)
        return part.covariance_matvec(derivatives) if through else derivatives
