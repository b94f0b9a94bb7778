r"""FLIPS for the K-sample bound: derivatives extrapolate the log-weights.

Let x_i = log w(b_i) - log sum_{l != i} w_l and h(x) = log(1 + e^x) - e^x / (1 + e^x). The bound's
gradient is the sum over samples i of the gradient of E[h(x_i)] with the other samples fixed (see
`arms.estimators.bound.slots`). A flip changes log w by several nats, where h is far from linear.
The derivative G = d log w/db therefore extrapolates log w only, and h is evaluated exactly. For
bits, let x^1, x^0 and G^1, G^0 be the values with latent k set to 1 and 0. Then

$$ D^1 = h(x^1) - h(x^1 - G^1_k + c_k/2), \qquad D^0 = h(x^0 + G^0_k + c_k/2) - h(x^0), $$

$$ g_k = \sum_i \tfrac12 |b_{ik} - p_k|\, D_{ik}
       + \frac1m \sum_j \frac{K\, 1[K_j = k]}{q_k}\, v_k
         \Big[ h(x^1_j) - h(x^0_j) - \tfrac12 \big(D^0_j + D^1_j\big) \Big] $$

where D_ik is D^1 or D^0, depending on the drawn bit, v_k = p_k (1 - p_k), and flip j changes latent
K_j of sample j. The curvature c_k of log w in bit k is fitted on the other rows of the batch.
Categories are extrapolated separately, without c.

Unbiased because, given all bits except b_ik, the mean of |b_ik - p_k| D_ik / 2 is
v_k/2 (D^0 + D^1). The flip of b_ik leaves the other samples unchanged, and adds the difference to
v_k (h(x^1) - h(x^0)). The factor K appears because each sample is flipped with probability 1/K.
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
    """The flips estimator for the K-sample bound.

    It applies to bits and categories, if the log-weights can be differentiated.

    Args:
        num_samples: K. Each flip is one more evaluation, and all points are differentiated.
        flips: m, the number of flips; K by default. With K/2 flips, the variance at equal
            evaluations is nearly the same on most models, but large estimates are rarer and larger.

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
        # The extrapolated change of log w for every change of one latent, for every sample.
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
    """Return h(`end` - `rest`) - h(`start` - `rest`), where the module docstring defines h.

    `start` and `end` are log-weights of one sample. `rest` is the log of the sum of the weights of
    all other samples. If `rest` is -inf, the result is `end` - `start`.
    """
    some = rest != -torch.inf  # False if no other sample has weight, so the share is always 1
    base = torch.where(some, rest, 0.0)
    x, y = start - base, end - base
    rise = softplus(y) - softplus(x) - (torch.sigmoid(y) - torch.sigmoid(x))
    return torch.where(some, rise, end - start)
