r"""VIMCO: the K-sample bound, with a baseline that predicts each log-weight from the others.

$$ g = \sum_k \Big(\log \frac1n \sum_j w_j
       - \log \frac1n \big(\textstyle\sum_{j \ne k} w_j + \hat w_{-k}\big)\Big)
       \nabla \log q(b_k) - \sum_k \frac{w_k}{\sum_j w_j} \nabla \log q(b_k),
   \qquad \log \hat w_{-k} = \frac{1}{n-1} \sum_{j \ne k} \log w_j $$

The prediction w-hat is the geometric mean of the other weights, or optionally their arithmetic
mean. The second sum is the direct term: the gradient through log q inside the weights.

Unbiased because the baseline of sample k depends only on the other samples, which are independent
of b_k. Without a baseline, which is also the case for a single sample, this is REINFORCE for the
bound.
Reference: Mnih & Rezende, "Variational inference for Monte Carlo objectives", ICML 2016.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from arms.designs import Draw, Independent
from arms.estimators.base import Estimator, count_samples, set_design
from arms.estimators.bound.slots import diagonal_mask, direct_term, others_of_each, replace_slots
from arms.targets import ImportanceBound

Baseline: TypeAlias = Literal["geometric", "arithmetic", "none"]


@dataclass(frozen=True)
class VIMCO(Estimator):
    """The VIMCO estimator for the n-sample bound. It uses n independent samples.

    Args:
        num_samples: n. All samples form the bound, so K = n.
        baseline: How to predict a slot's weight from the others: by their "geometric" or
            "arithmetic" mean. With "none", there is no baseline, and this is REINFORCE.

    >>> VIMCO(4)(lambda b: b.sum(-1), torch.zeros(3)).grad.shape
    torch.Size([3])
    """

    num_samples: int
    baseline: Baseline = "geometric"

    def __post_init__(self) -> None:
        if self.baseline not in get_args(Baseline):
            raise ValueError(f"baseline must be one of {get_args(Baseline)}, got {self.baseline!r}")
        count = count_samples(self, 1)
        set_design(self, Independent(count), target=ImportanceBound(count))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        latent = draw.latent
        if self.baseline == "none":
            bound = latent.with_event_axes(self.target.value(values))
            found = bound * latent.score(draw.points).sum(0)
        else:
            signal = latent.with_event_axes(local_signals(values, self.baseline))
            found = (signal * latent.score(draw.points)).sum(0)
        return found + direct_term(latent, draw.points, values.softmax(0))


def local_signals(values: Tensor, baseline: Baseline) -> Tensor:
    """Return the learning signal of each slot, `[n, *batch]`.

    The signal is the difference of two bounds. In the second one, the slot's weight is replaced by
    a prediction from the other weights. `values` `[n, *batch]` are the log-weights. `baseline` says
    whether the prediction is the "geometric" or the "arithmetic" mean of the other weights.
    """
    if len(values) == 1:
        return values
    top, others = others_of_each(values)
    if baseline == "arithmetic":
        guess = others.logsumexp(1) - math.log(len(values) - 1)
    else:
        guess = torch.where(diagonal_mask(values), 0.0, others).sum(1) / (len(values) - 1)
    bounds = replace_slots(others, torch.stack([values - top, guess]))
    return bounds[0] - bounds[1]
