r"""DisARM for the K-sample bound: each of the K = n/2 samples has an antithetic partner.

$$ g = \sum_k \tfrac12 \big(h_{-k}(b_k) - h_{-k}(b'_k)\big)\,(b_k - b'_k)\,\max(p, 1-p) $$

Here f_{-k}(b) is the bound as a function of the sample b in slot k, and h_{-k}(b) also includes the
direct term; `arms.estimators.bound.slots` defines both. With `folded=False`, the formula contains
f_{-k} instead of h_{-k}, and the direct term is added separately, as in the paper.

Unbiased because, given all other samples, each term is DisARM for a function of sample k, and the
pair of sample k is independent of the other samples.
Reference: Dong, Mnih & Tucker, "DisARM: An antithetic gradient estimator for binary latent
variables", NeurIPS 2020.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arms.designs import Draw, Pairs
from arms.designs.pairs import Tree
from arms.estimators.base import Estimator, count_samples, set_design
from arms.estimators.bound.slots import direct_term, others_of_each, replace_slots
from arms.estimators.score.disarm import mean_over_pairs
from arms.targets import ImportanceBound


@dataclass(frozen=True)
class DisARMOnBound(Estimator):
    """The DisARM estimator for the bound with n/2 samples.

    The first samples of all pairs form the bound.

    Args:
        num_samples: n, even. The bound has K = n/2 samples.
        folded: Whether DisARM handles the direct term together with the score part. If not, the
            direct term is added separately, as in the paper.
        tree: The binary tree over categories, "balanced" or "stick": see `arms.designs.Pairs`.

    >>> DisARMOnBound(4).target
    ImportanceBound(samples=2)
    """

    num_samples: int
    folded: bool = True
    tree: Tree = "balanced"

    def __post_init__(self) -> None:
        count = count_samples(self, 2, even=True)
        set_design(self, Pairs(count, tree=self.tree), target=ImportanceBound(count // 2))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert isinstance(self.design, Pairs)
        slots, pairs = self.design.num_samples // 2, torch.stack(values.chunk(2))
        top, others = others_of_each(pairs[0])
        bounds = replace_slots(others, pairs - top, self.folded)
        found = slots * mean_over_pairs(self.design, draw, bounds[0] - bounds[1])
        if self.folded:
            return found
        return found + direct_term(draw.latent, draw.points[:slots], pairs[0].softmax(0))
