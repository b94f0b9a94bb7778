r"""GAPPED-ST: straight-through Gumbel-softmax with a deterministic step instead of noise.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i)\, \frac{y_i (1 - y_i)}{\tau},
   \qquad y_i = \sigma(m_i/\tau), \quad m_i = \max\big((2 b_i - 1)\,\phi,\ \gamma\big) $$

A bit chooses between the logits 0 and phi. The step raises the logit of the chosen value until it
exceeds the other logit by at least the gap gamma. The step is treated as a constant, and the
gradient passes through the softmax of the raised logits. This removes the variance of the noise.

Biased because the derivative at b differs from f(1) - f(0), and because the factor y (1 - y) / tau
is not p (1 - p) even on average.
Reference: Fan, Chi, Rudnicky & Ramadge, "Training discrete deep generative models via gapped
straight-through estimator", ICML 2022.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.arguments import at_least_float32
from arms.estimators.biased.path import PathEstimator, sigmoid_derivative
from arms.latents import Binary, Latent


@dataclass(frozen=True)
class GappedStraightThrough(PathEstimator):
    """The gapped straight-through estimator for bits. It uses n independent samples. Biased.

    Args:
        temperature: tau, the temperature of the softmax.
        gap: gamma. The logit of the chosen value exceeds the other logit by at least this gap.

    >>> import torch
    >>> GappedStraightThrough(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    temperature: float = 1.0
    gap: float = 1.0
    requires = (Binary,)

    def path(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        phi = at_least_float32(part.logits)
        margin = ((2 * samples.to(phi.dtype) - 1) * phi).clamp(min=self.gap)
        return derivatives * (sigmoid_derivative(margin / self.temperature) / self.temperature)
