r"""FLIPS for the K-sample bound: log-weights are extrapolated, and what is known is not.

With x_i = log w(b_i) - log sum_{l != i} w_l, the bound's gradient is that of E[sum_i h(x_i)], one
sample after the other, h(x) = log(1 + e^x) - e^x / (1 + e^x) (see `arms.estimators.bound.slots`).
A flip moves log w by nats, and h bends within one. So the derivative G = d log w/db extrapolates
log w alone, and h is taken as it is. For bits, with x^1, x^0 and G^1, G^0 at latent k's ends,

$$ D^1 = h(x^1) - h(x^1 - G^1_k + c_k/2), \qquad D^0 = h(x^0 + G^0_k + c_k/2) - h(x^0), $$

$$ g_k = \sum_i \tfrac12 |b_{ik} - p_k|\, D_{ik}
       + \frac1m \sum_j \frac{K\, 1[K_j = k]}{q_k}\, v_k
         \Big[ h(x^1_j) - h(x^0_j) - \tfrac12 \big(D^0_j + D^1_j\big) \Big] $$

where D_ik is that of the end that was drawn, and flip j changes latent K_j of sample j. The
curvature c_k of log w in its own bit is fitted on the other rows of the batch. Categories are
extrapolated one by one, without c.

Unbiased because, given everything but b_ik, the mean of |b_ik - p_k| D_ik / 2 is
v_k/2 (D^0 + D^1), and the flip of that bit, which has the same x_l for all other samples, adds what
is missing to v_k (h(x^1) - h(x^0)). Each sample is flipped with probability 1/K, hence the factor.
If q is the posterior, log w is constant, and the estimate is zero in every draw. The samples are
independent, because a coupling would change the bound itself.
Reference: this project (docs/flips.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from arms.designs import Draw, WithFlips
from arms.estimators.base import Estimator, set_design
from arms.estimators.bound.slots import others_of_each
from arms.estimators.derivative.flips import add_along, curvature_of_other_rows, set_flips
from arms.latents import Neighbors
from arms.targets import ImportanceBound


@dataclass(frozen=True)
class FlipsOnBound(Estimator):
    """Flips for the K-sample bound: for differentiable log-weights of bits and categories.

    Args:
        num_samples: K. Each flip is one more evaluation, and all points are differentiated.
        flips: m; as many as samples by default. Half as many have nearly the same variance at equal
            evaluations on most models, with rarer and larger estimates.

    >>> FlipsOnBound(4).target, FlipsOnBound(4).design.needs.evaluations
    (ImportanceBound(samples=4), 8)
    """

    num_samples: int
    flips: int | None = None

    def __post_init__(self) -> None:
        set_flips(self, None, samples_per_flip=1)
        set_design(self, self.design, target=ImportanceBound(self.num_samples))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        design, latent, n = self.design, draw.latent, self.num_samples
        assert derivatives is not None
        assert isinstance(design, WithFlips)
        assert isinstance(latent, Neighbors)
        samples, at_samples, of_flips = draw.samples, derivatives[:n], derivatives[n:]
        top, others = others_of_each(values[:n])
        rest = top + others.exp().sum(1).log()  # log of the sum of the others' weights
        curve = curvature_of_other_rows(latent, samples, at_samples) / 2
        # What every change of a single variable of every sample would do.
        there = latent.rises(samples, at_samples) + curve
        here = latent.with_event_axes(values[:n])
        rises = rise_in_slot(here, here + there, latent.with_event_axes(rest))
        found = latent.trapezoid(samples, rises).sum(0)
        step = (draw.points[n:] - design.copied(samples)).to(at_samples.dtype)
        near, far, rest = design.copied(values[:n]), values[n:], design.copied(rest)
        bend = latent.sum_event(curve * step.abs())
        onwards = latent.sum_event(design.copied(at_samples) * step) + bend
        back = bend - latent.sum_event(of_flips * step)
        by_rule = rise_in_slot(near, near + onwards, rest) - rise_in_slot(far, far + back, rest)
        missing = rise_in_slot(near, far, rest) - by_rule / 2
        return add_along(latent, found, n / design.flips * draw.memory * missing, step)


def rise_in_slot(start: Tensor, end: Tensor, rest: Tensor) -> Tensor:
    """Return h at one log-weight minus h at another.

    `rest` is the log of the sum of the other weights.
    """
    some = rest != -torch.inf  # otherwise the sample has the share 1 whatever it is
    base = torch.where(some, rest, 0.0)
    x, y = start - base, end - base
    rise = softplus(y) - softplus(x) - (torch.sigmoid(y) - torch.sigmoid(x))
    return torch.where(some, rise, end - start)
