r"""DOUBLE-CV: leave-one-out REINFORCE with a linear control variate for every sample, its slope taken at the others.

$$ g = \mathrm{LOORF}[f] - \alpha \Big(\mathrm{LOORF}[h] - p (1 - p)\,\frac{1}{n} \sum_i G_i\Big),
   \qquad h_i = c_i \cdot (b_i - p), \quad c_i = \frac{1}{n-1} \sum_{j \ne i} G_j,
   \quad G_i = \frac{\partial f}{\partial b}(b_i) $$

LOORF of h puts h_i beside f(b_i) and the other h_j into its baseline: two control variates, hence the name.

Unbiased because the bracket has mean zero: given the other samples c_i is fixed, and E[h_i (b_i - p)] = p (1 - p) c_i;
h_j in the baseline of i has mean zero given all samples but b_j. That needs E[b_i | others] = p, so the samples are
independent: on coupled ones it is biased. The coefficient alpha is fitted from other rows of the batch
(`arms.estimators.controls.fitted`), where the published one learns a number for all.
Reference: Titsias & Shi, "Double control variates for gradient estimation in discrete latent variable models", AISTATS
2022.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator, Slopes
from arms.estimators.controls import fitted, sum_of_others
from arms.estimators.loorf import leave_one_out
from arms.latents import Latent


@dataclass(frozen=True)
class DoubleCV(Estimator):
    """Double control variates, n independent samples, all differentiated.

    Args:
        num_samples: n.
        coefficient: alpha where there is no other row to fit it from, and what it is drawn to where there are few.

    >>> DoubleCV(4)(lambda b: b @ torch.tensor([1.0, -3.0]), torch.zeros(2)).grad.shape
    torch.Size([2])
    """

    coefficient: float = 1.0

    min_samples: ClassVar[int] = 2
    formula: ClassVar[str] = (
        "loorf of f - alpha c_i.(b_i - p), + alpha p (1 - p) mean df/db, c_i = mean of others' df/db"
    )
    reference: ClassVar[str] = "Titsias & Shi 2022"

    @property
    def slopes(self) -> Slopes:
        return "all"

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, latent.sample(self.num_samples, generator))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        estimate = leave_one_out(draw.latent, draw.points, values)
        return fitted(draw.latent, estimate, linear_control(draw.latent, draw.points, slopes), self.coefficient)


def linear_control(latent: Latent, samples: Tensor, slopes: Tensor) -> Tensor:
    """Return LOORF[h] - p (1 - p) mean_i G_i `[*batch, d]`, of mean zero for independent samples."""
    phi, slopes = at_least_float32(latent.logits), at_least_float32(slopes)
    of_others = sum_of_others(slopes, 0) / (len(slopes) - 1)
    linear = (of_others * latent.score(samples)).sum(-1)
    return leave_one_out(latent, samples, linear) - torch.sigmoid(phi) * torch.sigmoid(-phi) * slopes.mean(0)
