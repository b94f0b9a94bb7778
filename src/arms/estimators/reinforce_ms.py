r"""REINFORCE for the multi-sample bound: every slot's score times the whole bound.

$$ g = \Big(\log \frac1n \sum_j w(b_j)\Big) \sum_k (b_k - \sigma(\phi)) $$

Unbiased because it is the score-function estimator of all n samples taken as one; K = n. With no baseline the signal
of every slot is the bound itself: it is here to be compared with.
Reference: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992;
Mnih & Rezende, "Variational inference for Monte Carlo objectives", ICML 2016.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw
from arms.estimators.multi_sample import MultiSample
from arms.latents import Latent


@dataclass(frozen=True)
class MultiSampleReinforce(MultiSample):
    """REINFORCE of the n-sample bound, without a baseline.

    Args:
        num_samples: n, which is K too.

    >>> import torch
    >>> MultiSampleReinforce(4)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "log mean_j w(b_j) * sum_k (b_k - p)"
    reference: ClassVar[str] = "Williams 1992; Mnih & Rezende 2016"

    @property
    def bound_samples(self) -> int:
        return self.num_samples

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        bound = self.target.value(at_least_float32(values))
        return draw.latent.with_event_axes(bound) * draw.latent.score(draw.points).sum(0)
