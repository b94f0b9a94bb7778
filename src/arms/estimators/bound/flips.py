r"""FLIPS for the K-sample bound: derivatives extrapolate only the log-weights.

Let x_i = log w(b_i) - log sum_{l != i} w_l and h(x) = log(1 + e^x) - e^x / (1 + e^x). The gradient
of the bound is E[sum_i h(x_i) grad log q(b_i)] (see `arms.estimators.bound.slots`). A flip changes
log w by several nats, but h is curved within one nat. So the derivative G = d log w/db extrapolates
only log w, and h is evaluated exactly. For bits, with x^1 and G^1 for latent k at 1, and x^0 and
G^0 for latent k at 0,

$$ D^1 = h(x^1) - h(x^1 - G^1_k + c_k/2), \qquad D^0 = h(x^0 + G^0_k + c_k/2) - h(x^0), $$

$$ g_k = \sum_i \tfrac12 |b_{ik} - p_k|\, D_{ik}
       + \frac1m \sum_j \frac{K\, 1[K_j = k]}{q_k}\, v_k
         \Big[ h(x^1_j) - h(x^0_j) - \tfrac12 \big(D^0_j + D^1_j\big) \Big] $$

where D_ik is D^1 if b_ik = 1 and D^0 otherwise, and flip j changes latent K_j of sample j. The
curvature c_k of log w in bit k is fitted on the other rows of the batch. For categories, each other
category is extrapolated separately, without c.

Unbiased because, given everything but b_ik, the mean of |b_ik - p_k| D_ik / 2 is
v_k/2 (D^0 + D^1), and the flip of that bit adds the difference to v_k (h(x^1) - h(x^0)). The other
samples have the same weights before and after the flip. The factor K is needed because one flip
changes only one of the K samples. If q is the posterior, log w is constant, and every estimate is
zero. The samples are independent, because a coupling would change the bound itself.
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
