r"""REINMAX: straight-through with second-order accuracy, by the trapezoid rule.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i)\, \frac{|b_i - \sigma(\phi)|}{2} $$

This is the formula for bits at temperature tau = 1. For K categories, the estimate is 2 (diag q - q
q') df/db - 1/2 (diag p - p p') df/db with q = (softmax(phi / tau) + b)/2. Two categories with
logits (0, phi) are a bit. Their estimate is df/db (r + s (1 - s) - p (1 - p)) / 2 with s =
sigma(phi / tau) and r = |b - s|.

Biased because the trapezoid rule is an approximation. The expectation of the estimate is
p (1 - p) (df/db at 1 + df/db at 0) / 2, and the gradient contains f(1) - f(0) instead of the mean
derivative. At tau = 1, these two are equal if f is quadratic in every bit.
Reference: Liu et al., "Bridging discrete and backpropagation: Straight-through and beyond",
NeurIPS 2023.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.estimators.biased.path import PathEstimator, sigmoid_derivative
from arms.latents import Binary, HasMean, Latent, Relaxable
from arms.latents.categories import softmax_derivative


@dataclass(frozen=True)
class ReinMax(PathEstimator):
    """The ReinMax estimator for bits or categories. It uses n independent samples. Biased.

    Args:
        temperature: tau; the authors advise 1 or more.

    >>> ReinMax(1)(lambda b: b.sum(-1), torch.zeros(3)).grad
    tensor([0.2500, 0.2500, 0.2500])
    """

    temperature: float = 1.0
    requires = (HasMean, Relaxable)

    def path(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        phi = at_least_float32(part.logits)
        points, tempered = samples.to(phi.dtype), phi / self.temperature
        if part.has(Binary):
            distance = torch.sigmoid((1 - 2 * points) * tempered)  # |b - s| without rounding error
            excess = sigmoid_derivative(tempered) - sigmoid_derivative(phi)
            return derivatives * ((distance + excess) / 2)
        assert isinstance(part, HasMean)
        middle = (torch.softmax(tempered, -1) + points) / 2
        return 2 * softmax_derivative(middle, derivatives) - part.covariance_matvec(derivatives) / 2
