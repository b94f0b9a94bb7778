r"""REINMAX: straight through, second-order accurate: the trapezoid rule for the step between 0 and 1.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i)\, \frac{|b_i - \sigma(\phi)|}{2} $$

at temperature 1. For two categories with logits (0, phi) the published estimate is df/db (2 q (1 - q) - p (1 - p) / 2)
with q = (s + b)/2 and s = sigma(phi / tau). Written with r = |b - s| that is df/db (r + s (1 - s) - p (1 - p)) / 2, and
at tau = 1 the last two terms cancel. Of K categories it is 2 (diag q - q q') df/db - 1/2 (diag p - p p') df/db, with
q = (softmax(phi / tau) + b)/2.

Biased because the trapezoid rule is: in expectation it is p (1 - p) (df/db at 1 + df/db at 0) / 2, where the gradient
has f(1) - f(0). The two are equal where f is quadratic in every single bit, at tau = 1.
Reference: Liu et al., "Bridging discrete and backpropagation: Straight-through and beyond", NeurIPS 2023.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from arms.arguments import as_positive, at_least_float32
from arms.estimators.base import Draw
from arms.estimators.biased import SlopeEstimator, sigmoid_slope
from arms.latents import Bernoulli, Latent, OneHot, softmax_slope


@dataclass(frozen=True)
class ReinMax(SlopeEstimator):
    """ReinMax, n independent samples. Biased.

    Args:
        num_samples: n.
        temperature: tau; the authors advise 1 or more.

    >>> ReinMax(1)(lambda b: b.sum(-1), torch.zeros(3)).grad
    tensor([0.2500, 0.2500, 0.2500])
    """

    temperature: float = 1.0

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)
    formula: ClassVar[str] = "mean of df/db |b - p| / 2"
    reference: ClassVar[str] = "Liu et al. 2023"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", as_positive(self.temperature, "temperature"))

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        phi = at_least_float32(draw.logits)
        points, tempered = draw.points.to(phi.dtype), phi / self.temperature
        if isinstance(draw.latent, OneHot):
            middle = (torch.softmax(tempered, -1) + points) / 2
            return 2 * softmax_slope(middle, slopes) - draw.latent.covary(slopes) / 2
        distance = torch.sigmoid((1 - 2 * points) * tempered)  # |b - s|, all digits
        return slopes * ((distance + (sigmoid_slope(tempered) - sigmoid_slope(phi))) / 2)
