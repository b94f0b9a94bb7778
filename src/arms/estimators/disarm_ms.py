r"""DisARM for the multi-sample bound: K = n/2 slots, each with an antithetic partner.

$$ g = \sum_k \tfrac12 \big(f_{-k}(b_k) - f_{-k}(\tilde b_k)\big)\,(b_k - \tilde b_k)\,\max(p, 1-p) $$

where f_{-k}(b) is the bound with b in slot k and b_l in every other slot: the score part, as in the paper. Folded (the
default) it has h_{-k}, with the direct term in it, in place of f_{-k}: see `multi_sample`. Unbiased because, given the
other slots, each term is DisARM for a function of slot k: its pair is independent of them.
Reference: Dong, Mnih & Tucker, "DisARM: An antithetic gradient estimator for binary latent variables", NeurIPS 2020.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.couplings.pair import CorrelatedPair, sample_pairs
from arms.estimators.base import Draw
from arms.estimators.multi_sample import SlotEstimator, others_of_each, replace_slots
from arms.latents import Latent


@dataclass(frozen=True)
class MultiSampleDisARM(SlotEstimator):
    """DisARM of the n/2-sample bound, n/2 antithetic pairs; the first of each pair makes the bound.

    Args:
        num_samples: n, even; K is half of it.
        folded: Whether the direct term is folded into the slots; without, it is the form of the paper.

    >>> MultiSampleDisARM(4).bound_samples
    2
    """

    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "sum_k (h with b_k - h with b'_k) (b_k - b'_k) max(p, 1 - p) / 2, h = log mean w - share"
    reference: ClassVar[str] = "Dong, Mnih & Tucker 2020"

    @property
    def bound_samples(self) -> int:
        return self.num_samples // 2

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, sample_pairs(CorrelatedPair(), latent.logits, self.num_samples, generator))

    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        first, second = draw.points.chunk(2)
        halves = pair_differences(values, self.folded).unsqueeze(-1) * (first - second)
        return halves.sum(0) * torch.sigmoid(at_least_float32(draw.logits).abs())


def pair_differences(values: Tensor, folded: bool = False) -> Tensor:
    """Return half of what each slot's function falls from b_k to b'_k, `[n/2, *batch]`, from values `[n, *batch]`."""
    pairs = torch.stack(values.chunk(2))
    top, others = others_of_each(pairs[0])
    bounds = replace_slots(others, pairs - top, folded)
    return (bounds[0] - bounds[1]) / 2
