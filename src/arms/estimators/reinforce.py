r"""REINFORCE, the score-function estimator without a baseline.

$$ g = \frac{1}{n} \sum_i f(b_i)\,(b_i - \sigma(\phi)) $$

Unbiased because b - sigma(phi) is the gradient of log p(b) with respect to the logit, and E[f grad log p] = grad E[f].
Its variance grows with the square of f itself, not of its differences: it is here to be compared with.
Reference: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator
from arms.latents import Latent


@dataclass(frozen=True)
class Reinforce(Estimator):
    """REINFORCE without a baseline, n independent samples.

    Args:
        num_samples: n.

    >>> import torch
    >>> grad, value, values = Reinforce(4)(lambda b: b.sum(-1), torch.zeros(3))
    >>> grad.shape, values.shape
    (torch.Size([3]), torch.Size([4]))
    """

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "mean_i f(b_i) (b_i - p)"
    reference: ClassVar[str] = "Williams 1992"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        latent = draw.latent
        return (latent.with_event_axes(at_least_float32(values)) * latent.score(draw.points)).mean(0)
