r"""REINFORCE, the score-function estimator without a baseline.

$$ g = \frac{1}{n} \sum_i f(b_i)\,\nabla \log p(b_i) $$

Unbiased because E[f grad log p] = grad E[f]. The variance depends on the size of f itself, not only
on differences of f. The estimator is therefore used only for comparison.
Reference: Williams, "Simple statistical gradient-following algorithms for connectionist
reinforcement learning", 1992.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.designs import Draw, Independent
from arms.estimators.base import Estimator, count_samples, set_design


@dataclass(frozen=True)
class Reinforce(Estimator):
    """The REINFORCE estimator without a baseline. It uses n independent samples.

    >>> import torch
    >>> grad, value, values = Reinforce(4)(lambda b: b.sum(-1), torch.zeros(3))
    >>> grad.shape, values.shape
    (torch.Size([3]), torch.Size([4]))
    """

    num_samples: int
    """n, the number of samples."""

    def __post_init__(self) -> None:
        set_design(self, Independent(count_samples(self, 1)))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        signal = draw.latent.with_event_axes(values)
        return (signal * draw.latent.score(draw.points)).mean(0)
