r"""DisARM, also called U2G: antithetic pairs with the noise integrated out.

$$ g = \tfrac12 \big(f(b) - f(b')\big)\,(b - b')\,\max(p, 1-p) $$

averaged over n/2 pairs. Unbiased because it is the conditional expectation of ARM given the bits. It is ARTS at the
most negative correlation a pair can have, rho = -min(p, 1-p)/max(p, 1-p), and ARMS with n = 2.
Reference: Dong, Mnih & Tucker, "DisARM: An antithetic gradient estimator for binary latent variables", NeurIPS 2020;
Yin et al., "Probabilistic best subset selection via gradient-based optimization", 2020.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.couplings.pair import CorrelatedPair, sample_pairs
from arms.estimators.arts import half_difference
from arms.estimators.base import Draw, Estimator
from arms.latents import Latent


@dataclass(frozen=True)
class DisARM(Estimator):
    """DisARM / U2G, the average of n/2 antithetic pairs.

    Args:
        num_samples: n, even.

    >>> DisARM(2)(lambda b: b[..., 0], torch.zeros(1)).grad
    tensor([0.2500])
    """

    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "mean over pairs of (f(b) - f(b')) (b - b') max(p, 1 - p) / 2"
    reference: ClassVar[str] = "Dong, Mnih & Tucker 2020; Yin et al. 2020"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, sample_pairs(CorrelatedPair(), latent.logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return half_difference(draw.points, values) * torch.sigmoid(at_least_float32(draw.logits).abs())
