r"""ARM: augment-REINFORCE-merge, antithetic pairs with the noise left in.

$$ g = \big(f(b') - f(b)\big)\,(u - \tfrac12), \qquad
   b = 1[u < \sigma(\phi)], \quad b' = 1[1 - u < \sigma(\phi)] $$

averaged over n/2 pairs. Unbiased because it is REINFORCE on the logistic noise behind b, averaged
over the antithetic pair u, 1 - u. DisARM integrates out u given the bits, and is never worse.
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
    """Augment-REINFORCE-merge, the average of n/2 antithetic pairs of bits.

    >>> ARM(4)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    num_samples: int
    """n, even."""

    def __post_init__(self) -> None:
        set_design(self, AntitheticNoise(count_samples(self, 2, even=True)))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        first, second = values.chunk(2)
        # A bit that cannot change has no gradient. Its noise would still multiply the others' f.
        smaller = torch.sigmoid(-at_least_float32(draw.latent.logits).abs())
        free = torch.where(smaller > 0, draw.memory - 0.5, 0.0)
        return ((second - first).unsqueeze(-1) * free).mean(0)
