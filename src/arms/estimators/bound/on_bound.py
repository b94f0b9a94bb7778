r"""An estimator of expectations, applied to the K-sample bound. All slots share fresh samples.

$$ g = \hat g\Big[\sum_k h_{-k}\Big], \qquad \text{or unfolded} \qquad
   g = \hat g\Big[\sum_k f_{-k}\Big] - \sum_k \frac{w_k}{\sum_l w_l} \nabla \log q(b_k) $$

K independent samples b_k form the bound. The inner estimator g-hat draws m fresh samples, and
evaluates the functions of all K slots at them. `arms.estimators.bound.slots` defines f_{-k} and
h_{-k}. With ARMS as the inner estimator, this is multi-sample ARMS. The authors' released code
takes the mean over slots instead of the sum.

Unbiased because, given the K samples of the bound, g-hat is unbiased for the function of every
slot, and the fresh samples are independent of the K samples. Only the fresh samples may be coupled,
because coupling the K samples would change the expectation of the bound.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary
Variables", ICML 2021, section 3.3 (unfolded, with the Dirichlet copula).
"""

from dataclasses import dataclass

from torch import Tensor

from arms.arguments import as_count
from arms.designs import AfterSamples, Draw
from arms.estimators.base import Estimator, Wrapper
from arms.estimators.bound.slots import direct_term, others_of_each, replace_slots
from arms.targets import ImportanceBound


@dataclass(frozen=True)
class OnBound(Wrapper):
    """Apply an inner estimator to the K-sample bound. It must not use derivatives.

    Args:
        inner: The inner estimator. Its m samples are drawn in addition to the K samples of the
            bound.
        bound_samples: K.
        folded: Whether `inner` handles the direct term together with the score part. If not, the
            direct term is computed from the K samples and added, as in the paper.

    >>> import arms, torch
    >>> OnBound(arms.ARMS(5), bound_samples=5)(lambda b: b.sum(-1), torch.zeros(4, 3)).grad.shape
    torch.Size([4, 3])
    """

    inner: Estimator
    bound_samples: int
    folded: bool = True

    def __post_init__(self) -> None:
        inner, needs = self.inner, self.inner.design.needs
        enumerates = needs.evaluations is None
        if needs.derivatives or enumerates or not inner.target.is_expectation:
            wanted = "an inner estimator of the expectation that uses only values at samples"
            raise ValueError(f"OnBound needs {wanted}, such as arms.ARMS(4), got {inner}")
        count = as_count(self.bound_samples, 1, "bound_samples")
        design, target = AfterSamples(count, inner.design), ImportanceBound(count)
        self.wrap(design, target=target, bound_samples=count)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        count = self.bound_samples
        grad = self.inner.combine(draw.memory, slot_sums(values, count, self.folded))
        if self.folded:
            return grad
        return grad + direct_term(draw.latent, draw.points[:count], values[:count].softmax(0))


def slot_sums(values: Tensor, bound_samples: int, folded: bool) -> Tensor:
    """Return the sum over slots k of h_{-k} at each of m fresh samples, `[m, *batch]`.

    If `folded` is False, return the sum of f_{-k} instead. `arms.estimators.bound.slots` defines
    h_{-k} and f_{-k}. A constant per row is left out of the result. `values` `[K + m, *batch]`
    contains the log-weights of the K samples of the bound, followed by the log-weights of the m
    fresh samples. K is `bound_samples`.
    """
    top, others = others_of_each(values[:bound_samples])
    candidates = values[bound_samples:].unsqueeze(1) - top
    return replace_slots(others, candidates, folded).sum(1)
