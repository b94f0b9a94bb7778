r"""Straight-through: the derivative of f at the samples, used as if samples were continuous.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i), \qquad \text{or scaled:} \qquad
   g = \mathrm{Cov}(b)\, \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i) $$

For bits, Cov(b) = p (1 - p). For K categories, both forms multiply by the derivative of the
softmax, so that a constant added to all derivatives has no effect.

Biased because the plain form ignores the distribution of b. For f(b) = b, the gradient is p (1 -
p), but the plain form returns 1. The scaled form is biased if f is not linear in every bit: the
gradient contains the difference f(1) - f(0) for each bit, which differs from the derivative at one
end.
Reference: Bengio, Leonard & Courville, "Estimating or propagating gradients through stochastic
neurons for conditional computation", 2013.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.estimators.biased.path import PathEstimator
from arms.latents import Binary, HasMean, Latent


@dataclass(frozen=True)
class StraightThrough(PathEstimator):
    """The straight-through estimator. It uses n independent samples. Biased.

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
