r"""VIMCO: the n-sample bound, every slot's baseline being the bound with that slot guessed from the others.

$$ g = \sum_k \Big(\log \frac1n \sum_j w_j - \log \frac1n \big(\textstyle\sum_{j \ne k} w_j + \hat w_{-k}\big)\Big)
       (b_k - \sigma(\phi)), \qquad \log \hat w_{-k} = \frac{1}{n-1} \sum_{j \ne k} \log w_j $$

(geometric), or w-hat the arithmetic mean of the others. Unbiased because slot k's baseline is a function of the other
samples only, which are independent of b_k. K = n; a single sample has no others, and no baseline.
Reference: Mnih & Rezende, "Variational inference for Monte Carlo objectives", ICML 2016.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw
from arms.estimators.multi_sample import MultiSample, diagonal_mask, others_of_each, replace_slots
from arms.latents import Latent


@dataclass(frozen=True)
class VIMCO(MultiSample):
    """VIMCO, n independent samples, n-sample bound.

    Args:
        num_samples: n, which is K too.
        baseline: How a slot is guessed from the others: by their geometric or their arithmetic mean.

    >>> grad, *_ = VIMCO(4)(lambda b: torch.full(b.shape[:-1], 7.0), torch.zeros(3))
    >>> grad  # equal weights carry no signal
    tensor([0., 0., 0.])
    """

    baseline: Literal["geometric", "arithmetic"] = "geometric"

    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "sum_k (L - L with w_k guessed from the others) (b_k - p), L = log mean w"
    reference: ClassVar[str] = "Mnih & Rezende 2016"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline not in ("geometric", "arithmetic"):
            raise ValueError(f"baseline must be 'geometric' or 'arithmetic', got {self.baseline!r}")

    @property
    def bound_samples(self) -> int:
        return self.num_samples

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        signals = local_signals(at_least_float32(values), self.baseline)
        return (draw.latent.with_event_axes(signals) * draw.latent.score(draw.points)).sum(0)


def local_signals(values: Tensor, baseline: Literal["geometric", "arithmetic"]) -> Tensor:
    """Return every slot's learning signal `[n, *batch]`: the bound minus the bound with that slot guessed."""
    if len(values) == 1:
        return values
    top, others = others_of_each(values)
    if baseline == "arithmetic":
        guess = others.logsumexp(1) - math.log(len(values) - 1)
    else:
        guess = torch.where(diagonal_mask(values), 0.0, others).sum(1) / (len(values) - 1)
    bounds = replace_slots(others, torch.stack([values - top, guess]))
    return bounds[0] - bounds[1]
