r"""CONCRETE: the gradient of a relaxed objective, bits replaced by a point between 0 and 1 (also: Gumbel-softmax).

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(y_i)\, \frac{y_i (1 - y_i)}{\tau},
   \qquad y_i = \sigma\big((\phi + \ell_i)/\tau\big), \quad \ell_i \text{ logistic} $$

Biased because it is the exact gradient of another quantity, E[f(y)]: the bits are the limit of y as tau falls to 0,
where the bias vanishes and the variance grows without bound. Of categories, y = softmax((log p + Gumbel noise) / tau).

The relaxed points stand where other estimators have their samples: `samples` of a draw are the y, the estimate's value
and values are f there, and what else f depends on learns from them.
Reference: Maddison, Mnih & Teh, "The concrete distribution: A continuous relaxation of discrete random variables", ICLR
2017; Jang, Gu & Poole, "Categorical reparameterization with Gumbel-softmax", ICLR 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from arms.estimators.biased import RelaxedEstimator
from arms.latents import Latent


@dataclass(frozen=True)
class Concrete(RelaxedEstimator):
    """The Concrete (Gumbel-softmax) relaxation, n relaxed points in place of samples. Biased.

    Args:
        num_samples: n, how many relaxed points.
        temperature: tau, low for a small bias, high for a small variance.

    >>> import torch
    >>> Concrete(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    formula: ClassVar[str] = "mean of df/db(y) y (1 - y) / tau, y = sigmoid((phi + logistic) / tau)"
    reference: ClassVar[str] = "Maddison et al. 2017, Jang et al. 2017"

    def points_at(self, latent: Latent, z: Tensor) -> Tensor:
        return self.relaxed(latent, z).mean()
