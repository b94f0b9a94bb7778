r"""REINFORCE for the multi-sample bound: every slot's score times the whole bound.

$$ g = \Big(\log \frac1n \sum_j w(b_j)\Big) \sum_k (b_k - \sigma(\phi)) $$

Unbiased because it is the score-function estimator of all n samples taken as one; K = n. With no baseline the signal
of every slot is the bound itself: it is here to be compared with.
Reference: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992;
Mnih & Rezende, "Variational inference for Monte Carlo objectives", ICML 2016.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import widen
from arms.couplings import Independent
from arms.estimators.base import Draw, score
from arms.estimators.multi_sample import MultiSample, log_mean_exp


@dataclass(frozen=True)
class MultiSampleReinforce(MultiSample):
    """REINFORCE of the n-sample bound, without a baseline.

    >>> import torch
    >>> MultiSampleReinforce(4)(lambda b: b.sum(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    formula: ClassVar[str] = "log mean_j w(b_j) * sum_k (b_k - p)"
    reference: ClassVar[str] = "Williams 1992; Mnih & Rezende 2016"

    @property
    def bound_samples(self) -> int:
        return self.num_samples

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return Draw(self, logits, Independent().sample(logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return log_mean_exp(widen(values)).unsqueeze(-1) * score(draw).sum(0)
