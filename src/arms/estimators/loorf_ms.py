r"""LOORF for the multi-sample bound: K samples make the bound, m = n - K fresh ones are tried in every slot.

$$ g = \sum_k \frac{1}{m-1} \sum_i \Big(f_{-k}(\tilde b_i) - \frac1m \sum_j f_{-k}(\tilde b_j)\Big)
       (\tilde b_i - \sigma(\phi)) $$

where f_{-k}(b) is the bound with b in slot k and b_l in every other slot: the score part, as in the paper. Folded (the
default) it has h_{-k}, with the direct term in it, in place of f_{-k}: see `multi_sample`. Unbiased because, given the
other slots, each term is LOORF for a function of slot k, and the fresh samples are independent of them. All slots share
the score of sample i, so the sum over slots is taken first: g is LOORF for the function sum_k f_{-k}, or sum_k h_{-k}.
Reference: the independent case of multi-sample ARMS, Dimitriev & Zhou 2021, section 3.3.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import as_count
from arms.estimators.base import Draw
from arms.estimators.loorf import leave_one_out
from arms.estimators.multi_sample import SlotEstimator, others_of_each, replace_slots
from arms.latents import Latent


@dataclass(frozen=True)
class MultiSampleLOORF(SlotEstimator):
    """LOORF of the K-sample bound, K = n/2 unless given; the other n - K samples, at least two, are tried in its slots.

    Args:
        num_samples: n, even, at least 4.
        bound_samples: K; n/2 unless given.
        folded: Whether the direct term is folded into the slots; without, it stays apart.

    >>> MultiSampleLOORF(10)
    MultiSampleLOORF(num_samples=10, folded=True, bound_samples=5)
    >>> import torch
    >>> MultiSampleLOORF(10, bound_samples=1)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    bound_samples: int = None  # type: ignore[assignment]  # None, n/2, becomes a number at once

    min_samples: ClassVar[int] = 4
    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "sum_i (F(b'_i) - mean F) (b'_i - p) / (n/2 - 1), F(b) = sum_k (log mean w - share of b, b as b_k)"
    )
    reference: ClassVar[str] = "Dimitriev & Zhou 2021, section 3.3"

    def __post_init__(self) -> None:
        bound = self._half() if self.bound_samples is None else self.bound_samples
        bound = as_count(bound, 1, f"bound_samples of {type(self).__name__}")
        what = f"num_samples of {type(self).__name__} with bound_samples={bound}"
        object.__setattr__(self, "num_samples", as_count(self.num_samples, bound + 2, what))
        object.__setattr__(self, "bound_samples", bound)

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        tried = draw.points[self.bound_samples :]
        return leave_one_out(draw.latent, tried, slot_sums(values, self.bound_samples, self.folded))

    def _half(self) -> int:
        count = as_count(self.num_samples, self.min_samples, f"num_samples of {type(self).__name__}")
        if count % 2:
            raise ValueError(
                f"num_samples of {type(self).__name__} must be even, half for the bound and half to try in its slots, "
                f"got {count}: try {count + 1}, or give bound_samples"
            )
        return count // 2


def slot_sums(values: Tensor, bound_samples: int, folded: bool = False) -> Tensor:
    """Return the sum over slots of their functions at every tried sample, `[n - K, *batch]`, up to a constant."""
    top, others = others_of_each(values[:bound_samples])
    return replace_slots(others, values[bound_samples:].unsqueeze(1) - top, folded).sum(1)
