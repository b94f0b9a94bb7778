r"""REINFORCE, the score-function estimator without a baseline.

$$ g = \frac{1}{n} \sum_i f(b_i)\,(b_i - \sigma(\phi)) $$

Unbiased because b - sigma(phi) is the gradient of log p(b) with respect to the logit, and E[f grad log p] = grad E[f].
Its variance grows with the square of f itself, not of its differences: it is here to be compared with.
Reference: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import widen
from arms.couplings import Independent
from arms.estimators.base import Draw, Estimator


@dataclass(frozen=True)
class Reinforce(Estimator):
    """REINFORCE without a baseline, n independent samples.

    >>> grad, values = Reinforce(4)(lambda b: b.sum(-1), torch.zeros(3))
    >>> grad.shape, values.shape
    (torch.Size([3]), torch.Size([4]))
    """

    formula: ClassVar[str] = "mean_i f(b_i) (b_i - p)"
    reference: ClassVar[str] = "Williams 1992"

    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return Draw(self, logits, Independent().sample(logits, self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return score_mean(draw.samples, values, torch.sigmoid(widen(draw.logits)))


def score_mean(samples: Tensor, values: Tensor, probs: Tensor) -> Tensor:
    """Return the mean over samples of f(b) (b - p)."""
    return (widen(values).unsqueeze(-1) * (samples - probs)).mean(0)
