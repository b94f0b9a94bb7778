r"""MIDPOINT: pairs of samples, with a control variate from the derivative at their midpoint.

For a pair (b, b') with s = b - b', and any vector C that depends on b + b' only,

$$ g = \tfrac12 \Big[ \big(f(b) - f(b') - C \cdot s\big)\, s + E[s s' \mid b + b']\, C \Big],
   \qquad C = \nabla f\big((b + b')/2\big) $$

If f is quadratic, f(b) - f(b') = C . s exactly. The gradient of a latent then contains no noise
from other latents.

Several pairs can share a midpoint. Further pairs are made by randomly exchanging latents between b
and b'.
Then C is the mean of two vectors: grad f at the midpoint, and the average of grad f over the
samples of the other pairs. With `at_midpoints=False`, C is the second vector alone. If there are
several independent midpoints, let C~ be the mean of C over the other midpoints. The estimate
is then g minus a multiple of

$$ Z = \mathrm{mean}\,\big[\tfrac12 E[s s' \mid b + b']\,\tilde C
     - \mathrm{Cov}(b)\,\tilde C\big], $$

where the mean is over midpoints. The factor of Z is fitted on the other rows of the batch. It is
1/2 if there are no other rows.

Unbiased because the expectation of (C . s) s given b + b' is E[s s' | b + b'] C, which is added
back. Without C, the estimate is leave-one-out REINFORCE on two samples. Derivatives at b and b'
themselves would make it biased, because they depend on the sign of s.
Reference: this project (docs/midpoint.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.designs import Coupling, Draw, Midpoints
from arms.designs.midpoints import mean_of_siblings, mean_per_midpoint, repeat_per_pair
from arms.estimators.base import Estimator, set_design
from arms.estimators.regression import subtract_fitted_control, sum_of_others
from arms.latents import ExchangeablePairs, HasMean


@dataclass(frozen=True)
class Midpoint(Estimator):
    """The midpoint estimator. It uses pairs of samples, and df/db at the midpoints of the pairs.

    The objective must be differentiable, and must also be defined between 0 and 1. The estimator is
    best for many latents.

    Args:
        num_samples: n, even: the number of samples. Each midpoint is one more evaluation.
        coupling: The coupling of the samples from which the midpoints are computed. With None,
            these samples are independent.
        pairs: The least number of pairs that share a midpoint, at most n/2. With 1, only the
            midpoints are differentiated. With 2 or more, all points are.
        own_bits: Whether to subtract a second control variate, which reduces the noise from a
            latent's own bit. This is only possible with several independent midpoints.
        at_midpoints: Whether to evaluate the objective at midpoints. If not, it is evaluated at
            samples only, n must be at least 4, and each pair's control variate is computed from
            derivatives at the samples of the other pairs.

    >>> Midpoint(8)(lambda b: (b.sum(-1) - 2.0) ** 2, torch.zeros(100, 5)).values.shape
    torch.Size([8, 100])
    """

    num_samples: int
    coupling: Coupling | None = None
    pairs: int = 2
    own_bits: bool = True
    at_midpoints: bool = True

    def __post_init__(self) -> None:
        count, pairs = self.num_samples, self.pairs
        if not self.at_midpoints:
            count = as_count(count, 4, "num_samples without midpoints", even=True)
            pairs = as_count(pairs, 2, "pairs without midpoints")
        set_design(self, Midpoints(count, pairs, self.coupling, self.at_midpoints))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        design, latent = self.design, draw.latent
        assert derivatives is not None
        assert isinstance(design, Midpoints)
        assert isinstance(latent, ExchangeablePairs)
        count, midpoints = design.num_samples // 2, design.midpoints
        control = derivatives
        if design.shares:
            ends = derivatives[:count] + derivatives[count : 2 * count]
            control = mean_of_siblings(ends, midpoints) / 2
            if self.at_midpoints:
                middle = repeat_per_pair(derivatives[2 * count :], count)
                control = torch.lerp(middle, control, 0.5)
        step = (draw.points[:count] - draw.points[count : 2 * count]).to(control.dtype)
        found = combine_pairs(latent, step, values, control)
        if self.own_bits and self.at_midpoints and midpoints > 1 and self.coupling is None:
            assert isinstance(latent, HasMean)
            elsewhere = sum_of_others(mean_per_midpoint(control, midpoints), 0) / (midpoints - 1)
            own = latent.pair_covariance_matvec(step[:midpoints], elsewhere) / 2
            noise = (own - latent.covariance_matvec(elsewhere)).mean(0)
            found = subtract_fitted_control(latent, found, noise, prior=0.5)
        return design.correct(latent, found)


def cross_paired(num_samples: int, coupling: Coupling | None = None) -> Midpoint:
    """Return a `Midpoint` estimator that evaluates the objective at samples only.

    At least three pairs of samples share each midpoint, but f is not evaluated at the midpoint.
    """
    return Midpoint(num_samples, coupling, pairs=3, own_bits=False, at_midpoints=False)


def combine_pairs(
    latent: ExchangeablePairs, step: Tensor, values: Tensor, control: Tensor
) -> Tensor:
    """Return the mean over pairs of 1/2 [(f(b) - f(b') - C . s) s + E[s s' | b + b'] C].

    The result has shape `[*batch, *event]`. A pair consists of two samples b and b'. `step` is
    s = b - b', and `control` is C. `values` contains f(b) for all pairs, then f(b') for all pairs.
    """
    fall = values[: len(step)] - values[len(step) : 2 * len(step)]
    rest = latent.with_event_axes(fall - latent.step_product(step, control)) * step
    return (rest + latent.pair_covariance_matvec(step, control)).sum(0) / (2 * len(step))
