r"""MIDPOINT for the K-sample bound: a pair of samples and its midpoint for every slot.

Given the other slots, h_{-k}(b) = log(R_k + w(b)) - w(b) / (R_k + w(b)), with R_k = sum_{l != k}
w(b_l), is a function of one sample (see `arms.estimators.bound.slots`). The midpoint estimator is
applied to the function of each slot. With s_k = b_k - b'_k,

$$ g_i = \sum_k \tfrac12 \Big[ h_{-k}(b_k) - h_{-k}(b'_k)
     - \sum_{j \ne i} C_{k,j}\, s_{k,j} \Big]\, s_{k,i},
   \qquad C_k = \omega_k^2\, \nabla \log w(m_k), \quad m_k = \frac{b_k + b'_k}{2} $$

The factor omega_k^2 is the mean of sigmoid(log w(m_k) + log w(e) - log w(m_l) - log R_k)^2 over the
pairs of the other slots, where e is b_l or b'_l. The term log w(m_k) alone would not be suitable,
because it is often many nats above log w at both samples of the pair.

With `shared` = P, the bound has K samples, and P = (n - K)/2 fresh pairs are evaluated in all
slots. This is the midpoint estimator for sum_k h_{-k}. For a single pair, omega is computed from
the samples of the bound.

Unbiased because the pair of slot k is independent of the other slots, and C_k depends on this pair
only through b_k + b'_k. The bound is computed from the first sample of each pair.
Reference: this project (docs/bound.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.designs import Draw, SharedPairs
from arms.estimators.base import Estimator, count_samples, set_design
from arms.estimators.bound.slots import diagonal_mask, others_of_each, replace_slots, slot_shares
from arms.estimators.derivative.midpoint import combine_pairs
from arms.latents import ExchangeablePairs
from arms.targets import ImportanceBound


@dataclass(frozen=True)
class MidpointOnBound(Estimator):
    """The midpoint estimator for the K-sample bound.

    It applies to many latents, if the log-weights can be differentiated.

    Args:
        num_samples: n, even: the number of samples. Each midpoint is one more evaluation.
        shared: The number of fresh pairs that are evaluated in every slot. The other n - 2 `shared`
            samples form the bound. With 0, every slot has its own pair.

    >>> MidpointOnBound(8).target, MidpointOnBound(8).design.needs.evaluations
    (ImportanceBound(samples=4), 12)
    """

    num_samples: int
    shared: int = 0

    def __post_init__(self) -> None:
        shared = as_count(self.shared, 0, "shared of MidpointOnBound")
        count = count_samples(self, 2 * shared + 1 if shared else 2, even=not shared)
        design = SharedPairs(count, shared)
        set_design(self, design, target=ImportanceBound(design.bound_samples))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        design, latent = self.design, draw.latent
        assert derivatives is not None
        assert isinstance(design, SharedPairs)
        assert isinstance(latent, ExchangeablePairs)
        pairs, first = design.midpoints, design.num_samples - 2 * design.midpoints
        points = draw.points[first:]
        step = (points[:pairs] - points[pairs : 2 * pairs]).to(values.dtype)
        top, others = others_of_each(values[: design.bound_samples])
        # These are the log-weights at the first ends, then the second ends, then the midpoints.
        paired = values[first:].unflatten(0, (3, pairs))
        drops = paired[:2] - paired[2]
        if design.pairs:  # put every pair in every slot, and sum over slots
            table = paired.unsqueeze(2) - top  # [3, pairs, K, *batch]
            ends = replace_slots(others, table[:2].flatten(0, 1), folded=True).sum(1)
            single = pairs == 1
            every = _from_others(others) if single else _in_log_weight(others, table[2], drops)
            rise = every.sum(1)
        else:  # put pair k in slot k
            ends = replace_slots(others, paired[:2] - top, folded=True).flatten(0, 1)
            every = _in_log_weight(others, paired[2].unsqueeze(1) - top, drops)
            rise = torch.where(diagonal_mask(values[:pairs]), every, 0.0).sum(1)
        control = latent.with_event_axes(rise) * derivatives
        found = combine_pairs(latent, step, ends, control)
        return found if design.pairs else pairs * found  # sum over slots, not mean


def _in_log_weight(others: Tensor, middle: Tensor, drops: Tensor) -> Tensor:
    """Return the factor omega^2 of the module docstring, `[P, K, *batch]`.

    For each of P midpoints in each of K slots, the factor is an average of dh/d(log w) near the
    midpoint. If P = 1, it is dh/d(log w) at the midpoint itself.

    `middle` `[P, K, *batch]` is log w at the midpoints, relative to the slot's largest log-weight.
    `drops` `[2, P, *batch]` is log w at the ends minus log w at the midpoints.
    """
    count = len(middle)
    if count == 1:
        return slot_shares(others, middle).square()
    levels = middle.unsqueeze(1) + drops[:, None, :, None]  # [2, P, P, K, *batch]
    rises = slot_shares(others, levels.flatten(0, 2)).square().unflatten(0, (2, count, count))
    return torch.where(diagonal_mask(middle), 0.0, rises).sum((0, 2)) / (2 * (count - 1))


def _from_others(others: Tensor) -> Tensor:
    """Return the factor omega^2 for a single shared pair, `[1, K, *batch]`.

    `_in_log_weight` computes the factor of a pair from the other pairs. With a single pair there
    are no others. This function uses the samples of the bound instead.
    """
    count = len(others)
    if count == 1:
        return torch.ones_like(others)
    # Put sample l in slot k. For k = l, the share is 0.
    rises = slot_shares(others, others.transpose(0, 1)).square()
    return rises.sum(0, keepdim=True) / (count - 1)


def shared_midpoints(num_samples: int) -> MidpointOnBound:
    """Return a `MidpointOnBound` estimator with shared pairs.

    About a third of the n >= 3 samples form the bound. The others form the shared pairs.

    >>> shared_midpoints(9).target
    ImportanceBound(samples=3)
    """
    count = as_count(num_samples, 3, "num_samples of MidpointOnBound with shared pairs")
    return MidpointOnBound(count, shared=count // 3)
