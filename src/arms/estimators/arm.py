r"""ARM: augment-REINFORCE-merge, antithetic pairs with the noise left in.

$$ g = \big(f(b') - f(b)\big)\,(u - \tfrac12), \qquad b = 1[u < \sigma(\phi)], \quad b' = 1[1 - u < \sigma(\phi)] $$

averaged over n/2 pairs. Unbiased because it is REINFORCE on the logistic noise behind b, averaged over the antithetic
pair u, 1 - u. Given the bits, u - 1/2 is noise only; DisARM integrates it out and is never worse.
Reference: Yin & Zhou, "ARM: Augment-REINFORCE-merge gradient for stochastic binary networks", ICLR 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import widen
from arms.couplings import step, uniform
from arms.estimators.base import Draw, Estimator


@dataclass(frozen=True)
class ARM(Estimator):
    """Augment-REINFORCE-merge, the average of n/2 antithetic pairs.

    >>> ARM(4)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    least: ClassVar[int] = 2
    pairs: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    formula: ClassVar[str] = "mean over pairs of (f(b') - f(b)) (u - 1/2)"
    reference: ClassVar[str] = "Yin & Zhou 2019"

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        phi = widen(logits.detach())
        noise = uniform(self.num_samples // 2, phi, generator)
        samples = torch.cat([step(torch.sigmoid(phi) - noise), 1 - step(torch.sigmoid(-phi) - noise)])
        return Draw(self, logits, samples.to(logits.dtype), noise)

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        assert draw.noise is not None
        return augmented_difference(draw.noise, values, torch.sigmoid(-widen(draw.logits).abs()))


def augmented_difference(noise: Tensor, values: Tensor, smaller: Tensor) -> Tensor:
    """Return the mean over pairs of (f(b') - f(b)) (u - 1/2); `smaller` is min(p, 1-p)."""
    first, second = widen(values).chunk(2)
    # A latent that cannot change has no gradient; without this its noise would still be multiplied with the others' f.
    free = torch.where(smaller > 0, noise - 0.5, 0.0)
    return ((second - first).unsqueeze(-1) * free).mean(0)
