r"""LOORF: leave-one-out REINFORCE, every sample's baseline being the mean of the others.

$$ g = \frac{1}{n-1} \sum_i \Big(f(b_i) - \frac{1}{n}\sum_j f(b_j)\Big)\,(b_i - \sigma(\phi)) $$

Unbiased because the baseline of sample i, the mean of the other n - 1 values, is independent of b_i; the formula is
that average with the n/(n-1) taken out. It equals the average over all pairs of (f(b_i) - f(b_j)) (b_i - b_j) / 2.
Reference: Kool, van Hoof & Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator
from arms.latents import Latent


@dataclass(frozen=True)
class LOORF(Estimator):
    """Leave-one-out REINFORCE (RLOO), n independent samples.

    Args:
        num_samples: n, at least 2.

    >>> import torch
    >>> grad, *_ = LOORF(4)(lambda b: torch.full(b.shape[:-1], 7.0), torch.zeros(3))
    >>> grad  # a constant objective has gradient zero, in every draw
    tensor([0., 0., 0.])
    """

    min_samples: ClassVar[int] = 2
    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "sum_i (f(b_i) - mean f) (b_i - p) / (n - 1)"
    reference: ClassVar[str] = "Kool, van Hoof & Welling 2019"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return leave_one_out(draw.latent, draw.points, values)


def leave_one_out(latent: Latent, samples: Tensor, values: Tensor) -> Tensor:
    """Return the leave-one-out REINFORCE estimate `[*batch, *event]`."""
    values = at_least_float32(values)
    centred = (values - values.mean(0)) / (len(values) - 1)
    # In place: a score is a new tensor, and another one of its size would take a tenth of the time.
    return latent.score(samples).mul_(latent.with_event_axes(centred)).sum(0)
