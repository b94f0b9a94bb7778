r"""A linear control variate from the derivative at the mean, for smooth f of few latents.

$$ g - \alpha Z, \qquad Z = \hat g[c \cdot (b - p)] - \mathrm{Cov}(b)\, c, \qquad
   c = \nabla f(p) $$

Here g = g-hat[f], and g-hat is any unbiased estimator that is linear in the values, such as ARMS.
The coefficient alpha is fitted on the other rows of the batch. Without other rows it is 1/2,
because 1 increases the variance if f is far from linear.

Unbiased because c does not depend on the samples. Therefore g-hat is also unbiased for the linear
function c . b, whose expectation c . p has the gradient Cov(b) c.
Reference: MuProp (Gu et al. 2016), here with any inner estimator and a fitted coefficient.
"""

from dataclasses import dataclass

from torch import Tensor

from arms.designs import Draw, WithMean
from arms.estimators.base import Estimator, Wrapper
from arms.estimators.regression import subtract_fitted_control
from arms.latents import HasMean


@dataclass(frozen=True)
class WithTaylor(Wrapper):
    """Wrap an estimator with a linear control variate that uses the derivative at the mean.

    The derivative takes one more evaluation of the objective.

    >>> import arms, torch
    >>> WithTaylor(arms.ARMS(4))(lambda b: b.prod(-1), torch.zeros(5, 3)).grad.shape
    torch.Size([5, 3])
    """

    inner: Estimator
    """An unbiased estimator of the expectation.

    It must be linear in the values of f, and must not use derivatives."""

    def __post_init__(self) -> None:
        inner, target = self.inner, self.inner.target
        if inner.design.needs.derivatives or not (inner.unbiased and target.is_expectation):
            wanted = "an unbiased inner estimator of the expectation that uses no derivatives"
            raise ValueError(f"WithTaylor needs {wanted}, such as arms.ARMS(4), got {inner}")
        self.wrap(WithMean(inner.design), requires=(*inner.requires, HasMean))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        inner: Draw = draw.memory
        latent = inner.latent
        assert derivatives is not None
        assert isinstance(latent, HasMean)
        c = derivatives[0]
        linear = latent.sum_event(c * (inner.points - latent.mean()))
        found = self.inner.combine(inner, values[:-1])
        control = self.inner.combine(inner, linear) - latent.covariance_matvec(c)
        return subtract_fitted_control(latent, found, control, prior=0.5)
