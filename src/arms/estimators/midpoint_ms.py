r"""MIDPOINT for the multi-sample bound: a pair and its midpoint for every slot, the whole gradient at once.

Given the other slots, h_{-k}(b) = log(R_k + w(b)) - w(b) / (R_k + w(b)), R_k = sum_{l != k} w(b_l), is a function of
one sample (see `multi_sample`), and the midpoint estimator applies slot by slot. With s_k = b_k - b'_k,

$$ g_i = \sum_k \tfrac12 \Big[ h_{-k}(b_k) - h_{-k}(b'_k) - \sum_{j \ne i} C_{k,j}\, s_{k,j} \Big]\, s_{k,i}, \qquad
   C_k = \omega_k^2\, \nabla \log w(m_k), \quad m_k = \frac{b_k + b'_k}{2} $$

Omega, the share of a sample in the bound, squared is the slope of h_{-k} in log w. At the midpoint itself it would be
that of a sample which is far too good: log w(m) of a trained model is many nats above both ends. How far, the other
slots' pairs know, so that omega_k^2 is the mean over them of sigmoid(log w(m_k) + log w(e) - log w(m_l) - log R_k)^2,
e being b_l or b'_l, l != k. Unbiased because the pair of slot k is independent of the other slots, and C_k depends on
it through b_k + b'_k alone: the argument of the midpoint estimator. The first of each pair makes the bound, K = n/2;
3n/2 evaluations, of which the n/2 at midpoints are differentiated.
With `tried` pairs, K samples make the bound, and P = (n - K)/2 fresh pairs with midpoints are tried in every slot:
the midpoint estimator of the function sum_k h_{-k}. A single pair there takes omega from the bound's own samples.
Reference: this project (docs/bound.md).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.estimators.base import Draw, Slopes
from arms.estimators.midpoint import combine_pairs
from arms.estimators.multi_sample import SlotEstimator, diagonal_mask, others_of_each, replace_slots, slot_shares
from arms.latents import Bernoulli, Latent, OneHot


@dataclass(frozen=True)
class MultiSampleMidpoint(SlotEstimator):
    """Midpoint of the K-sample bound: for log-weights that can be differentiated, many latents.

    Args:
        num_samples: n, even. Evaluations at samples; those at midpoints come on top.
        tried: How many fresh pairs are tried in every slot, the other n - 2 `tried` samples making the bound; with 0, a
            pair for every slot.
        folded: True: there is no other form.

    >>> MultiSampleMidpoint(8).bound_samples, MultiSampleMidpoint(8).evaluations, MultiSampleMidpoint(8).derivatives
    (4, 12, 4)
    >>> MultiSampleMidpoint(8, tried=3).bound_samples, MultiSampleMidpoint(8, tried=3).evaluations
    (2, 11)
    """

    tried: int = 0

    min_samples: ClassVar[int] = 2
    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)
    formula: ClassVar[str] = "as midpoint, sum over slots of h = log mean w - share, C = share^2 d log w((b + b')/2)"
    reference: ClassVar[str] = "this project"

    def __post_init__(self) -> None:
        tried = as_count(self.tried, 0, f"tried of {type(self).__name__}")
        what = f"num_samples of {type(self).__name__}"
        count = as_count(self.num_samples, 2 * tried + 1 if tried else 2, what, even=not tried)
        object.__setattr__(self, "num_samples", count)
        object.__setattr__(self, "tried", tried)
        if not self.folded:
            raise ValueError(f"{type(self).__name__} has no form with the direct term apart, got folded=False")

    @property
    def bound_samples(self) -> int:
        return self.num_samples - 2 * self.tried if self.tried else self.num_samples // 2

    @property
    def slopes(self) -> Slopes:
        return "extra"

    @property
    def evaluations(self) -> int:
        return self.num_samples + self.derivatives

    @property
    def derivatives(self) -> int:
        return self.tried or self.num_samples // 2

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        samples = latent.sample(self.num_samples, generator)
        first, second = samples[self.num_samples - 2 * self.derivatives :].chunk(2)
        return Draw(self, latent, torch.cat([samples, (first + second) / 2]), extra=self.derivatives)

    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        assert slopes is not None
        pairs, points = self.derivatives, draw.points[self.num_samples - 2 * self.derivatives :]
        step = (points[:pairs] - points[pairs : 2 * pairs]).to(values.dtype)
        top, others = others_of_each(values[: self.bound_samples])
        paired = values[self.num_samples - 2 * pairs :].unflatten(0, (3, pairs))  # first ends, second ends, midpoints
        drops = paired[:2] - paired[2]  # of the ends below their midpoint
        if self.tried:  # every pair in every slot, then the sum over slots
            table = paired.unsqueeze(2) - top  # [3, pairs, K, *batch]
            ends = replace_slots(others, table[:2].flatten(0, 1), folded=True).sum(1)
            rise = (_rise(others, table[2], drops) if pairs > 1 else _rise_of_others(others)).sum(1)
        else:  # pair k in slot k
            ends = replace_slots(others, paired[:2] - top, folded=True).flatten(0, 1)
            own = diagonal_mask(values[:pairs])
            rise = torch.where(own, _rise(others, paired[2].unsqueeze(1) - top, drops), 0.0).sum(1)
        control = draw.latent.with_event_axes(rise) * at_least_float32(slopes)
        found = combine_pairs(draw.latent, step, ends, control)
        return found if self.tried else pairs * found  # a sum over slots, where pairs have a mean


def _rise(others: Tensor, middle: Tensor, drops: Tensor) -> Tensor:
    """Return the slope of h in log w around each midpoint in each slot, `[P, K, *batch]`.

    Args:
        others: As for `replace_slots`.
        middle: `[P, K, *batch]`, log w at the midpoints, relative to the slot's top.
        drops: `[2, P, *batch]`, how far the ends of each pair are above (below, mostly) their midpoint.
    """
    count = len(middle)
    if count == 1:
        return slot_shares(others, middle).square()
    levels = middle.unsqueeze(1) + drops[:, None, :, None]  # [2, P, P, K, *batch]: as the others' ends
    rises = slot_shares(others, levels.flatten(0, 2)).square().unflatten(0, (2, count, count))
    apart = ~diagonal_mask(middle)
    return torch.where(apart, rises, 0.0).sum((0, 2)) / (2 * (count - 1))


def _rise_of_others(others: Tensor) -> Tensor:
    """Return the same for any sample in each slot `[1, K, *batch]`, as the bound's other samples know it."""
    count = len(others)
    if count == 1:
        return torch.ones_like(others)
    rises = slot_shares(others, others.transpose(0, 1)).square()  # sample l in slot k; itself has no share
    return rises.sum(0, keepdim=True) / (count - 1)


def tried_in_every_slot(num_samples: int) -> MultiSampleMidpoint:
    """Return the form with fresh pairs, a third of the samples or a few more making the bound.

    >>> tried_in_every_slot(9).bound_samples
    3
    """
    count = as_count(num_samples, 3, "num_samples of MultiSampleMidpoint with tried pairs")
    return MultiSampleMidpoint(count, tried=count // 3)
