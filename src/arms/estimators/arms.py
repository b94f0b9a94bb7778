r"""ARMS: leave-one-out REINFORCE over n mutually antithetic samples, its correlation divided out.

$$ g = \frac{1}{1-\rho} \cdot \frac{1}{n-1} \sum_i \Big(f(b_i) - \frac{1}{n}\sum_j f(b_j)\Big)\,(b_i - \sigma(\phi)) $$

Unbiased because LOORF is the average over pairs of (f(b_i) - f(b_j)) (b_i - b_j) / 2, whose expectation is
(f(1) - f(0)) P(b_i = 1, b_j = 0) = (f(1) - f(0)) p (1-p) (1-rho): the true gradient times 1 - rho, for any coupling
in which all pairs share the correlation rho. Latents are coupled one by one: the argument holds given all others.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", ICML 2021.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import widen
from arms.couplings import Coupling, Systematic
from arms.estimators.base import Draw, Estimator
from arms.estimators.loorf import leave_one_out


@dataclass(frozen=True)
class ARMS(Estimator):
    """Antithetic-REINFORCE-Multi-Sample with any coupling; the independent one makes it LOORF, n = 2 makes it DisARM.

    >>> ARMS(2)(lambda b: b[..., 0], torch.zeros(1)).grad  # an antithetic pair at p = 1/2 knows this gradient exactly
    tensor([0.2500])
    """

    coupling: Coupling = field(default_factory=Systematic)

    least: ClassVar[int] = 2
    formula: ClassVar[str] = "sum_i (f(b_i) - mean f) (b_i - p) / ((n - 1) (1 - rho)), coupled b_i"
    reference: ClassVar[str] = "Dimitriev & Zhou 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_coupling(self.coupling)

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return Draw(self, logits, coupled_samples(self.coupling, logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        logits = widen(draw.logits)
        debias = debias_factor(self.coupling, logits, self.num_samples)
        return leave_one_out(draw.samples, values, torch.sigmoid(logits)) * debias


def require_coupling(coupling: object) -> None:
    """Refuse what cannot be a coupling."""
    if not all(callable(getattr(coupling, name, None)) for name in ("sample", "debias")):
        raise ValueError(
            f"coupling must be an object with methods sample and debias, got {coupling!r}: "
            "for example arms.Systematic()"
        )


def coupled_samples(coupling: Coupling, logits: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw n samples of a coupling that may be the user's own."""
    samples = coupling.sample(logits, n, generator)
    expected = (n, *logits.shape)
    if samples.shape != expected:
        raise ValueError(f"{coupling!r} must return samples of shape {list(expected)}, got {list(samples.shape)}")
    return samples


def debias_factor(coupling: Coupling, logits: Tensor, n: int) -> Tensor:
    """Return 1/(1 - rho) of a coupling that may be the user's own."""
    debias = coupling.debias(logits, n)
    if debias.shape != logits.shape:
        raise ValueError(
            f"{coupling!r} must return a debias factor for every latent, shape {list(logits.shape)}, "
            f"got {list(debias.shape)}"
        )
    return debias
