r"""ARMS: leave-one-out REINFORCE over n mutually antithetic samples, its correlation divided out.

$$ g = \frac{1}{1-\rho} \cdot \frac{1}{n-1} \sum_i \Big(f(b_i) - \frac{1}{n}\sum_j f(b_j)\Big)\,(b_i - \sigma(\phi)) $$

Unbiased because LOORF is the average over pairs of (f(b_i) - f(b_j)) (b_i - b_j) / 2, whose expectation is
(f(1) - f(0)) P(b_i = 1, b_j = 0) = (f(1) - f(0)) p (1-p) (1-rho): the true gradient times 1 - rho, for any coupling
in which all pairs share the correlation rho. Latents are coupled one by one: the argument holds given all others.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", ICML 2021.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Generator, Tensor

from arms.couplings import Coupling, Systematic
from arms.couplings.base import coupled_samples
from arms.estimators.base import Draw
from arms.estimators.coupled import Coupled
from arms.estimators.loorf import leave_one_out
from arms.latents import Latent


@dataclass(frozen=True)
class ARMS(Coupled):
    """Antithetic-REINFORCE-Multi-Sample with any coupling; the independent one makes it LOORF, n = 2 makes it DisARM.

    Args:
        num_samples: n, at least 2.
        coupling: Of the n samples; the systematic one unless given.

    >>> import torch
    >>> ARMS(2)(lambda b: b[..., 0], torch.zeros(1)).grad  # an antithetic pair at p = 1/2 knows this gradient exactly
    tensor([0.2500])
    """

    coupling: Coupling = field(default_factory=Systematic)

    min_samples: ClassVar[int] = 2
    formula: ClassVar[str] = "sum_i (f(b_i) - mean f) (b_i - p) / ((n - 1) (1 - rho)), coupled b_i"
    reference: ClassVar[str] = "Dimitriev & Zhou 2021"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, coupled_samples(self.coupling, latent, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return self.coupling.undo(draw.latent, self.num_samples, leave_one_out(draw.latent, draw.points, values))
