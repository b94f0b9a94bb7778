r"""REINFORCE, the score-function estimator without a baseline.

$$ g = \frac{1}{n} \sum_i f(b_i)\,(b_i - \sigma(\phi)) $$

Unbiased because b - sigma(phi) is the gradient of log p(b) with respect to the logit, and E[f grad log p] = grad E[f].
Its variance grows with the square of f itself, not of its differences: it is here to be compared with.
Reference: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from arms.arguments import widen
from arms.couplings import Independent
from arms.estimators.base import Draw, Estimator, score


@dataclass(frozen=True)
class Reinforce(Estimator):
    """REINFORCE without a baseline, n independent samples.

    >>> import torch
    >>> grad, values = Reinforce(4)(lambda b: b.sum(-1), torch.zeros(3))
    >>> grad.shape, values.shape
    (torch.Size([3]), torch.Size([4]))
    """

    formula: ClassVar[str] = "mean_i f(b_i) (b_i - p)"
    reference: ClassVar[str] = "Williams 1992"

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return Draw(self, logits, Independent().sample(logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return (widen(values).unsqueeze(-1) * score(draw)).mean(0)
