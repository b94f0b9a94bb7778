r"""ARM: augment-REINFORCE-merge, antithetic pairs that keep their continuous noise.

$$ g = \big(f(b') - f(b)\big)\,(u - \tfrac12), \qquad
   b = 1[u < \sigma(\phi)], \quad b' = 1[1 - u < \sigma(\phi)] $$

The estimate is averaged over n/2 pairs. The noise u is uniform.

Unbiased because the estimate is REINFORCE for the noise behind b, averaged over the pair u and
1 - u. DisARM takes the expectation over u given the bits, so its variance is never higher.
Reference: Yin & Zhou, "ARM: Augment-REINFORCE-merge gradient for stochastic binary networks",
ICLR 2019.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import at_least_float32
from arms.designs import AntitheticNoise, Draw
from arms.estimators.base import Estimator, count_samples, set_design


@dataclass(frozen=True)
class ARM(Estimator):
    """The ARM estimator (augment-REINFORCE-merge) for bits: a mean over n/2 antithetic pairs.

    >>> ARM(4)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    num_samples: int
    """n, the number of samples; even."""

    def __post_init__(self) -> None:
        set_design(self, AntitheticNoise(count_samples(self, 2, even=True)))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        first, second = values.chunk(2)
        # A bit with p = 0 or 1 has no gradient, but its noise is random.
        smaller = torch.sigmoid(-at_least_float32(draw.latent.logits).abs())
        free = torch.where(smaller > 0, draw.memory - 0.5, 0.0)
        return ((second - first).unsqueeze(-1) * free).mean(0)
