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

import torch
from torch import Generator, Tensor

from arms.arguments import as_positive
from arms.estimators.base import Draw
from arms.estimators.biased import SlopeEstimator, gumbel_draw, logistic_draw, sigmoid_slope, softmax_slope
from arms.latents import Latent, OneHot


@dataclass(frozen=True)
class Concrete(SlopeEstimator):
    """The Concrete (Gumbel-softmax) relaxation, n relaxed points in place of samples. Biased.

    Args:
        num_samples: n, how many relaxed points.
        temperature: tau, low for a small bias, high for a small variance.

    >>> Concrete(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    temperature: float = 0.5

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "mean of df/db(y) y (1 - y) / tau, y = sigmoid((phi + logistic) / tau)"
    reference: ClassVar[str] = "Maddison et al. 2017, Jang et al. 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", as_positive(self.temperature, "temperature"))

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        if isinstance(latent, OneHot):
            z = gumbel_draw(latent, self.num_samples, generator)
            points = torch.softmax(z / self.temperature, -1).to(latent.logits.dtype)
        else:
            z = logistic_draw(latent, self.num_samples, generator)
            points = torch.sigmoid(z / self.temperature).to(latent.logits.dtype)
        return Draw(self, latent, points, memory=(z,))

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        (z,) = draw.memory
        return softmax_slope(torch.softmax(z / self.temperature, -1), slopes) / self.temperature

    def factor(self, draw: Draw) -> Tensor:
        (z,) = draw.memory
        return sigmoid_slope(z / self.temperature) / self.temperature
