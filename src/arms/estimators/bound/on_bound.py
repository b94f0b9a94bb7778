r"""Applies an estimator from values to the K-sample bound: its samples are tried in every slot.

$$ g = \hat g\Big[\sum_k h_{-k}\Big], \qquad
   h_{-k}(b) = f_{-k}(b) - \frac{w(b)}{\sum_{l \ne k} w_l + w(b)}, \qquad
   w(b) = \frac{p(x, b)}{q(b)} $$

K independent samples b_k make the bound. The estimator g-hat of the gradient of an expectation has
m fresh samples of its own. f_{-k}(b) is the bound with b in slot k. h_{-k} also includes the direct
term, which arises because log w contains log q. Without folding, the direct term is separate:

$$ g = \hat g\Big[\sum_k f_{-k}\Big] - \sum_k \frac{w_k}{\sum_l w_l} \nabla \log q(b_k) $$

Unbiased because, given the samples of the bound, g-hat is unbiased for the function of each slot,
and its fresh samples are independent of the samples of the bound. All slots share the fresh
samples, so the functions of all slots are summed, and g-hat is applied once. The ARMS authors'
released code takes the mean over slots instead of the sum, which scales this part by 1/K.

With ARMS inside this is multi-sample ARMS. Only the fresh samples may be coupled: coupling the K
samples would change the expectation of the bound.
Reference: Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary
Variables", ICML 2021, section 3.3 (unfolded, with the Dirichlet copula).
"""

from dataclasses import dataclass

from torch import Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs import AfterSamples, Draw
from arms.estimators.base import Estimator, Wrapper, set_design
from arms.estimators.bound.slots import direct_term, others_of_each, replace_slots
from arms.targets import ImportanceBound, Target


@dataclass(frozen=True)
class OnBound(Wrapper):
    """A value-only estimator of the expectation, applied to the K-sample bound.

    Args:
        inner: The estimator; its m samples come on top of the K of the bound.
        bound_samples: K.
        folded: Whether the direct term is part of the function that `inner` differentiates. If
            not, it is computed from the K samples and added, as in the paper.

    >>> import torch
    >>> from arms import ARMS
    >>> log_joint = lambda b: b.sum(-1)
    >>> OnBound(ARMS(5), bound_samples=5)(log_joint, torch.zeros(4, 3)).grad.shape
    torch.Size([4, 3])
    """

    inner: Estimator
    bound_samples: int
    folded: bool = True

    def __post_init__(self) -> None:
        inner = self.inner
        if (
            inner.design.needs.derivatives
            or not inner.target.is_expectation
            or inner.design.needs.evaluations is None  # all states are enumerated
        ):
            raise ValueError(
                "only estimators of the expectation from values alone can be applied to the bound, "
                f"got {inner}: use arms.LOORF(m) or arms.ARMS(m)"
            )
        count = as_count(self.bound_samples, 1, "bound_samples")
        object.__setattr__(self, "bound_samples", count)
        set_design(self, AfterSamples(count, inner.design))

    @property
    def target(self) -> Target:
        return ImportanceBound(self.bound_samples)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        values, count = at_least_float32(values), self.bound_samples
        inner_draw = draw.memory
        grad = self.inner.combine(inner_draw, slot_sums(values, count, self.folded))
        if self.folded:
            return grad
        shares = values[:count].softmax(0)
        return grad + direct_term(draw.latent, draw.points[:count], shares)


def slot_sums(values: Tensor, bound_samples: int, folded: bool) -> Tensor:
    """Return the sum over slots of h_{-k}, or f_{-k} if not folded, at each fresh sample.

    The result `[m, *batch]` lacks a constant that does not depend on the fresh sample.
    """
    top, others = others_of_each(values[:bound_samples])
    candidates = values[bound_samples:].unsqueeze(1) - top
    return replace_slots(others, candidates, folded).sum(1)


def half_and_half(num_samples: int, least: int, name: str) -> int:
    """Return half of a number of samples: one half makes the bound, one is tried in its slots."""
    count = as_count(num_samples, least, f"num_samples of {name}")
    if count % 2:
        raise ValueError(
            f"num_samples of {name} must be even, half for the bound and half to try in its slots, "
            f"got {count}: try {count + 1}, or build OnBound(inner, bound_samples)"
        )
    return count // 2
