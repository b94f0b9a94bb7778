r"""REPAIRED: the midpoint estimator without points between 0 and 1: several pairs of one midpoint control each other.

$$ g_k = \frac1K \sum_{a=1}^K \tfrac12 \Big[ f(b_a) - f(b'_a) - \sum_{l \ne k} C_{a,l}\, s_{a,l} \Big]\, s_{a,k}, \qquad
   C_a = \frac{1}{K-1} \sum_{c \ne a} \tfrac12 \big(\nabla f(b_c) + \nabla f(b'_c)\big), \qquad s_a = b_a - b'_a $$

The first pair is drawn, the others exchange each of its latents with probability 1/2. Unbiased because, given b + b',
the pairs are independent and uniformly oriented, so that the slopes at the others are untouched by an exchange inside
pair a: the argument of the midpoint estimator. Pairs of one midpoint do not average out which latents differ at all,
one part in d of the noise: it is for many latents, 50 and more.
Reference: this project (docs/midpoint.md).
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.couplings import Coupling, Independent
from arms.estimators.base import Draw, Slopes
from arms.estimators.coupled import CoupledPairs
from arms.estimators.midpoint import combine_pairs, draw_pairs, others
from arms.latents import Latent

PAIRS = 3
"""Pairs of one midpoint: with more, the noise of which latents differ outweighs the better slope."""


@dataclass(frozen=True)
class Repaired(CoupledPairs):
    """Re-paired samples, n evaluations of the objective, all differentiated, at corners only.

    The objective needs a slope at 0 and 1, and no value in between.

    Args:
        num_samples: n, even, at least 4: three pairs share a midpoint, more of them where n/6 is not whole.
        coupling: Of the samples that make the midpoints.

    >>> Repaired(6)(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    coupling: Coupling = field(default_factory=Independent)

    min_samples: ClassVar[int] = 4
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "as midpoint, C = mean slope at the other pairs of the same midpoint"
    reference: ClassVar[str] = "this project"

    @property
    def midpoints(self) -> int:
        """How many different midpoints are drawn."""
        return max(1, self.num_samples // (2 * PAIRS))

    @property
    def slopes(self) -> Slopes:
        return "all"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        pairs = draw_pairs(self.coupling, latent, self.num_samples // 2, self.midpoints, generator)
        return Draw(self, latent, torch.cat(pairs))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        first, second = at_least_float32(slopes).chunk(2)
        control = others((first + second) / 2, self.midpoints)
        start, end = draw.points.chunk(2)
        found = combine_pairs(draw.latent, (start - end).to(control.dtype), values, control)
        return self.coupling.undo(draw.latent, 2 * self.midpoints, found)
