r"""ST-GUMBEL: bits forward, the Concrete relaxation of the same noise backward (straight-through Gumbel-softmax).

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i)\, \frac{y_i (1 - y_i)}{\tau},
   \qquad b_i = 1[z_i > 0], \quad y_i = \sigma(z_i/\tau), \quad z_i = \phi + \text{logistic noise} $$

Biased because the derivative is taken at the bit and the path at the relaxed point, and neither sees the difference of
f between 0 and 1; not even a multilinear f is exact, since E[y (1 - y)] / tau is p (1 - p) only as tau falls to 0. Of
categories, b_i is the largest of z = log p + Gumbel noise, and y = softmax(z / tau).
Reference: Jang, Gu & Poole, "Categorical reparameterization with Gumbel-softmax", ICLR 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from arms.estimators.biased import RelaxedEstimator
from arms.latents import Latent, OneHot
from arms.noise import indicator


@dataclass(frozen=True)
class GumbelStraightThrough(RelaxedEstimator):
    """Straight-through Gumbel-softmax, n independent samples. Biased.

    Args:
        num_samples: n.
        temperature: tau of the relaxation behind the bits.

    >>> import torch
    >>> GumbelStraightThrough(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    formula: ClassVar[str] = "mean of df/db y (1 - y) / tau, b = 1[z > 0], y = sigmoid(z / tau)"
    reference: ClassVar[str] = "Jang et al. 2017"

    def points_at(self, latent: Latent, z: Tensor) -> Tensor:
        return latent.one_hot(z.argmax(-1)) if isinstance(latent, OneHot) else indicator(z)
