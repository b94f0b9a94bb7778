r"""ST: straight through, the derivative of the objective taken for the gradient of its mean.

$$ g = \frac{1}{n} \sum_i \frac{\partial f}{\partial b}(b_i) $$

Biased because nothing of the law of b is in it: even for f(b) = b, whose gradient is p (1 - p), it says 1. For a linear
f each component has the right sign, so that ascent still leads upwards. Slopes of K categories have a part in common
that no logit can feel: there, it goes on through the softmax, (diag p - p p') df/db.
Reference: Bengio, Leonard & Courville, "Estimating or propagating gradients through stochastic neurons for conditional
computation", 2013.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from arms.estimators.base import Draw
from arms.estimators.biased import SlopeEstimator
from arms.latents import Bernoulli, Latent, OneHot


@dataclass(frozen=True)
class StraightThrough(SlopeEstimator):
    """The plain straight-through estimator, n independent samples. Biased.

    Args:
        num_samples: n.

    >>> import torch
    >>> StraightThrough(4)(lambda b: b @ torch.tensor([1.0, -3.0]), torch.zeros(2)).grad
    tensor([ 1., -3.])
    """

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)
    formula: ClassVar[str] = "mean of df/db"
    reference: ClassVar[str] = "Bengio et al. 2013"

    def pull_back(self, draw: Draw, slopes: Tensor) -> Tensor:
        return draw.latent.covary(slopes) if isinstance(draw.latent, OneHot) else slopes
