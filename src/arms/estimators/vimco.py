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

from arms.arguments import widen
from arms.couplings import Independent
from arms.estimators.base import Draw, score
from arms.estimators.multi_sample import MultiSample, own, replace_slots, without_each


@dataclass(frozen=True)
class VIMCO(MultiSample):
    """VIMCO, n independent samples, n-sample bound.

    >>> grad, _ = VIMCO(4)(lambda b: torch.full(b.shape[:-1], 7.0), torch.zeros(3))
    >>> grad  # equal weights carry no signal
    tensor([0., 0., 0.])
    """

    baseline: Literal["geometric", "arithmetic"] = "geometric"

    formula: ClassVar[str] = "sum_k (L - L with w_k guessed from the others) (b_k - p), L = log mean w"
    reference: ClassVar[str] = "Mnih & Rezende 2016"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline not in ("geometric", "arithmetic"):
            raise ValueError(f"baseline must be 'geometric' or 'arithmetic', got {self.baseline!r}")

    @property
    def bound_samples(self) -> int:
        return self.num_samples

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return Draw(self, logits, Independent().sample(logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        signals = local_signals(widen(values), self.baseline)
        return (signals.unsqueeze(-1) * score(draw)).sum(0)


def local_signals(values: Tensor, baseline: Literal["geometric", "arithmetic"]) -> Tensor:
    """Return every slot's learning signal `[n, *batch]`: the bound minus the bound with that slot guessed."""
    if len(values) == 1:
        return values
    top, others = without_each(values)
    if baseline == "arithmetic":
        guess = others.logsumexp(1) - math.log(len(values) - 1)
    else:
        guess = torch.where(own(values), 0.0, others).sum(1) / (len(values) - 1)
    bounds = replace_slots(others, torch.stack([values - top, guess]))
    return bounds[0] - bounds[1]
