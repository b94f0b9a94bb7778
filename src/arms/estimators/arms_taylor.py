r"""ARMS with the objective's slope at the mean as a linear control variate: for differentiable f of few latents.

$$ g - \alpha Z, \qquad Z = \mathrm{ARMS}[c \cdot (b - p)] - \mathrm{Cov}(b)\, c, \qquad c = \nabla f(p) $$

Unbiased because c does not know the samples: ARMS is unbiased for the function c . b too, with any coupling, and the
gradient of its expectation c . p is Cov(b) c. The coefficient alpha comes from the other rows of the batch, 1/2 where
there are none: 1 can do harm where f is far from linear.
Reference: the first-order expansion at the mean is MuProp's (Gu et al. 2016), here with coupled samples and a fitted
coefficient.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.arms import ARMS
from arms.estimators.base import Draw, Slopes
from arms.estimators.controls import fitted
from arms.estimators.loorf import leave_one_out
from arms.latents import Latent


@dataclass(frozen=True)
class ARMSTaylor(ARMS):
    """ARMS with a first-order control variate at the mean: n + 1 evaluations, the last one differentiated.

    Args:
        num_samples: n, at least 2; one evaluation comes on top.
        coupling: Of the n samples; the systematic one unless given.

    >>> ARMSTaylor(4)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    formula: ClassVar[str] = "arms - alpha (arms of c.(b - p) - Cov(b) c), c = df(p)"
    reference: ClassVar[str] = "this project, after Gu et al. 2016"

    @property
    def slopes(self) -> Slopes:
        return "extra"

    @property
    def evaluations(self) -> int:
        return self.num_samples + 1

    @property
    def derivatives(self) -> int:
        return 1

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        samples = super().draw(latent, generator).points
        mean = latent.mean().to(samples.dtype).unsqueeze(0)
        return Draw(self, latent, torch.cat([samples, mean]), extra=1)

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        latent, samples = draw.latent, draw.points[: self.num_samples]
        c = at_least_float32(slopes[0])
        linear = latent.sum_event(c * (samples - latent.mean()))
        found, control = (
            self.coupling.undo(latent, self.num_samples, leave_one_out(latent, samples, seen))
            for seen in (values[: self.num_samples], linear)
        )
        return fitted(latent, found, control - latent.covary(c), prior=0.5)
