r"""ARMS for the multi-sample bound: K independent samples, and m = n - K antithetic ones tried in every slot.

$$ g = \frac{1}{1-\rho} \sum_k \frac{1}{m-1} \sum_i \Big(f_{-k}(\tilde b_i) - \frac1m \sum_j f_{-k}(\tilde b_j)\Big)
       (\tilde b_i - \sigma(\phi)) $$

where f_{-k}(b) is the bound with b in slot k and b_l in every other slot: the score part, as in the paper. Folded (the
default) it has h_{-k}, with the direct term in it, in place of f_{-k}: see `multi_sample`. Unbiased because, given the
other slots, each term is ARMS for a function of slot k. The bound itself needs independent samples: coupled ones would
change it. The sum over slots is a sum; the authors' released code takes a mean, which is biased once the direct term is
added.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", ICML 2021, s. 3.3.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.couplings import Coupling, Dirichlet
from arms.couplings.base import coupled_samples
from arms.estimators.base import Draw
from arms.estimators.coupled import Coupled
from arms.estimators.loorf_ms import MultiSampleLOORF
from arms.latents import Latent


@dataclass(frozen=True)
class MultiSampleARMS(Coupled, MultiSampleLOORF):  # type: ignore[override]
    """ARMS of the K-sample bound, K = n/2 unless given; with `bound_samples=1` it is ARMS of n - 1 samples.

    Args:
        num_samples: n, even, at least 4.
        bound_samples: K; n/2 unless given.
        coupling: Of the n - K samples that are tried; the Dirichlet copula unless given.
        folded: Whether the direct term is folded into the slots; without, it is the form of the paper.

    >>> MultiSampleARMS(10)
    MultiSampleARMS(num_samples=10, folded=True, bound_samples=5, coupling=Dirichlet())
    """

    coupling: Coupling = field(default_factory=Dirichlet)

    formula: ClassVar[str] = (
        "sum_i (F(b'_i) - mean F) (b'_i - p) / ((n/2 - 1) (1 - rho)), coupled b'_i, F as in loorf-ms"
    )

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        bound = latent.sample(self.bound_samples, generator)
        tried = coupled_samples(self.coupling, latent, self.num_samples - self.bound_samples, generator)
        return Draw(self, latent, torch.cat([bound, tried]))

    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        tried = self.num_samples - self.bound_samples
        return self.coupling.undo(draw.latent, tried, super().combine_slots(draw, values, slopes))
