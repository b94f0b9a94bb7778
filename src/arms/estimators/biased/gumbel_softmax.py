r"""Gumbel-softmax (Concrete): the gradient of a relaxed objective, or straight-through.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(x_i)\, \frac{y_i (1 - y_i)}{\tau},
   \qquad y_i = \sigma\big((\phi + \ell_i)/\tau\big), \quad \ell_i \text{ logistic} $$

The relaxed form evaluates f at x = y. The straight-through form evaluates f at the bits
x = 1[y > 1/2]. For categories, y = softmax((log p + Gumbel noise) / tau).

Biased because the relaxed form is the exact gradient of another quantity, E[f(y)]. As tau goes to
0, the bias of this form vanishes, and its variance grows without bound. The straight-through form
uses the derivative at a bit, which differs from f(1) - f(0).
Reference: Maddison, Mnih & Teh, "The concrete distribution: A continuous relaxation of discrete
random variables", 2017; Jang, Gu & Poole, "Categorical reparameterization with Gumbel-softmax",
2017.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.designs import Perturbed
from arms.designs.samples import relaxed
from arms.estimators.base import set_design
from arms.estimators.biased.path import PathEstimator
from arms.latents import Latent


@dataclass(frozen=True)
class GumbelSoftmax(PathEstimator):
    """Gumbel-softmax with n relaxed points, or its straight-through form with n samples. Biased.

    Args:
        temperature: tau. A low value gives a small bias, a high value a small variance.
        hard: Whether f is evaluated at samples (straight-through) instead of relaxed points.

    >>> import torch
    >>> GumbelSoftmax(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    temperature: float = 0.5
    hard: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_design(self, Perturbed(self.design.num_samples, self.temperature, self.hard))

    def path(self, part: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
        point = relaxed(part, samples, self.temperature)
        return point.covariance_matvec(derivatives) / self.temperature
