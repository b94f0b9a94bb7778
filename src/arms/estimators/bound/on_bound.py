r"""Any value-only estimator on the K-sample bound: its samples are tried in every slot.

$$ g = \hat g\Big[\sum_k h_{-k}\Big], \qquad \text{or unfolded} \qquad
   g = \hat g\Big[\sum_k f_{-k}\Big] - \sum_k \frac{w_k}{\sum_l w_l} \nabla \log q(b_k) $$

where K independent samples b_k make the bound, g-hat is an estimator for functions of one sample on
m fresh samples, f_{-k}(b) is the bound with b in slot k, and h_{-k} contains the direct term too (see
`arms.estimators.bound.slots`). Unbiased because, given the samples of the bound, g-hat is unbiased
for each slot's function, and the fresh samples are independent of them. All slots share the fresh
samples, so the sum over slots is taken first. It is a sum: the ARMS authors' released code takes a
mean, which is biased.

With ARMS inside this is multi-sample ARMS; the bound itself needs independent samples, because
coupled ones would change it.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary
Variables", ICML 2021, section 3.3 (unfolded, with the Dirichlet copula).
"""

from dataclasses import dataclass

from torch import Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs import AfterSamples, Draw
from arms.estimators.base import Estimator, set_design
from arms.estimators.bound.slots import direct_term, others_of_each, replace_slots
from arms.targets import ImportanceBound, Target


@dataclass(frozen=True)
class OnBound(Estimator):
    """A value-only estimator of the expectation, applied to the K-sample bound.

    Args:
        inner: The estimator; its m samples come on top of the K of the bound.
        bound_samples: K.
        folded: Whether the direct term is part of the function that `inner` differentiates.
            Without, it is added separately, as in the papers.

    >>> import torch
    >>> from arms import ARMS
    >>> OnBound(ARMS(5), bound_samples=5)(lambda b: b.sum(-1), torch.zeros(4, 3)).grad.shape
    torch.Size([4, 3])
    """

    inner: Estimator
    bound_samples: int
    folded: bool = True

    def __post_init__(self) -> None:
        inner = self.inner
        if (
            inner.design.needs.derivatives
            or inner.target.subtracts_log_q
            or inner.design.needs.evaluations is None
        ):
            raise ValueError(
                "only estimators of the expectation from values alone can be lifted to the bound, "
                f"got {inner}: use arms.LOORF(m) or arms.ARMS(m)"
            )
        count = as_count(self.bound_samples, 1, "bound_samples")
        object.__setattr__(self, "bound_samples", count)
        set_design(self, AfterSamples(count, inner.design))

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.inner.unbiased

    @property
    def requires(self) -> tuple[type, ...]:  # type: ignore[override]
        return self.inner.requires

    @property
    def target(self) -> Target:
        return ImportanceBound(self.bound_samples)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        values, count = at_least_float32(values), self.bound_samples
        found = self.inner.combine(draw.memory, slot_sums(values, count, self.folded))
        if self.folded:
            return found
        return found + direct_term(draw.latent, draw.points[:count], values[:count].softmax(0))


def slot_sums(values: Tensor, bound_samples: int, folded: bool) -> Tensor:
    """Return the sum over slots of their functions at every fresh sample, up to a constant."""
    top, others = others_of_each(values[:bound_samples])
    candidates = values[bound_samples:].unsqueeze(1) - top
    return replace_slots(others, candidates, folded).sum(1)


def half_and_half(num_samples: int, least: int, name: str) -> int:
    """Return half of a number of samples: as many for the bound as to try in its slots."""
    count = as_count(num_samples, least, f"num_samples of {name}")
    if count % 2:
        raise ValueError(
            f"num_samples of {name} must be even, half for the bound and half to try in its slots, "
            f"got {count}: try {count + 1}, or build OnBound(inner, bound_samples)"
        )
    return count // 2
