r"""DOUBLE-CV: leave-one-out REINFORCE with a linear control variate for every sample.

$$ g = \mathrm{LOORF}[f]
     - \alpha \Big(\mathrm{LOORF}[h] - \mathrm{Cov}(b)\,\frac{1}{n} \sum_i G_i\Big),
   \qquad h_i = c_i \cdot (b_i - p), \quad c_i = \frac{1}{n-1} \sum_{j \ne i} G_j,
   \quad G_i = \frac{\partial f}{\partial b}(b_i) $$

LOORF[h] is the leave-one-out estimate with h in place of f. The coefficient alpha is fitted on the
other rows of the batch. The published method learns one number for all rows.

Unbiased because the term in parentheses has mean zero for independent samples. Given the other
samples, c_i is constant, so E[h_i (b_i - p)] = Cov(b) c_i. The baseline of sample i contains the
other h_j, and each h_j has mean zero given all samples except b_j.
Reference: Titsias & Shi, "Double control variates for gradient estimation in discrete latent
variable models", AISTATS 2022.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.designs import Draw, Independent
from arms.estimators.base import Estimator, count_samples, set_design
from arms.estimators.regression import subtract_fitted_control, sum_of_others
from arms.estimators.score.leave_one_out import leave_one_out
from arms.latents import HasMean


@dataclass(frozen=True)
class DoubleCV(Estimator):
    """The double control variate estimator. It uses values and derivatives at n samples.

    The samples are independent.

    Args:
        num_samples: n, at least 2.
        coefficient: The value of alpha if the batch has only one row. With several rows, alpha is
            fitted, and is shrunk towards this value.

    >>> import torch
    >>> DoubleCV(4)(lambda b: b @ torch.tensor([1.0, -3.0]), torch.zeros(2)).grad.shape
    torch.Size([2])
    """

    num_samples: int
    coefficient: float = 1.0
    requires = (HasMean,)

    def __post_init__(self) -> None:
        set_design(self, Independent(count_samples(self, 2), differentiated=True))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        latent = draw.latent
        assert derivatives is not None
        assert isinstance(latent, HasMean)
        estimate = leave_one_out(latent, draw.points, values)
        control = linear_control(latent, draw.points, derivatives)
        return subtract_fitted_control(latent, estimate, control, self.coefficient)


def linear_control(latent: HasMean, samples: Tensor, derivatives: Tensor) -> Tensor:
    """Return the control variate of the estimator, `[*batch, *event]`.

    This is the term in parentheses of the formula in the module docstring. It has mean zero if the
    samples are independent. `derivatives` contains df/db at the samples.
    """
    of_others = sum_of_others(derivatives, 0) / (len(derivatives) - 1)
    linear = latent.sum_event(of_others * latent.score(samples))
    return leave_one_out(latent, samples, linear) - latent.covariance_matvec(derivatives.mean(0))
