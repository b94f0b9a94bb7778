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

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator
from arms.latents import Latent
from arms.noise import indicator, uniform


@dataclass(frozen=True)
class ARM(Estimator):
    """Augment-REINFORCE-merge, the average of n/2 antithetic pairs.

    Args:
        num_samples: n, even.

    >>> ARM(4)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "mean over pairs of (f(b') - f(b)) (u - 1/2)"
    reference: ClassVar[str] = "Yin & Zhou 2019"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        phi = at_least_float32(latent.logits.detach())
        noise = uniform(self.num_samples // 2, phi, generator)
        samples = torch.cat([indicator(torch.sigmoid(phi) - noise), 1 - indicator(torch.sigmoid(-phi) - noise)])
        return Draw(self, latent, samples.to(latent.logits.dtype), memory=(noise,))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        (noise,) = draw.memory
        return augmented_difference(noise, values, torch.sigmoid(-at_least_float32(draw.logits).abs()))


def augmented_difference(noise: Tensor, values: Tensor, smaller: Tensor) -> Tensor:
    """Return the mean over pairs of (f(b') - f(b)) (u - 1/2); `smaller` is min(p, 1-p)."""
    first, second = at_least_float32(values).chunk(2)
    # A latent that cannot change has no gradient; without this its noise would still be multiplied with the others' f.
    free = torch.where(smaller > 0, noise - 0.5, 0.0)
    return ((second - first).unsqueeze(-1) * free).mean(0)
