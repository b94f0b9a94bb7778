r"""FLIPS: derivatives at coupled samples; flips of single latents correct the derivatives' error.

The estimator draws n samples b_i of bits, and makes m flips. Flip j changes one latent K_j of a
sample b_j. Latent k is chosen with probability q_k. With G = df/db,

$$ g_k = \frac1n \sum_i \tfrac12 |b_{ik} - p_k|\, G_k(b_i)
       + \frac1m \sum_j \frac{1[K_j = k]}{q_k}\, v_k
         \Big[ f(b_j^1) - f(b_j^0) - \tfrac12 \big(G_k(b_j^0) + G_k(b_j^1)\big) \Big], $$

where v = p (1 - p), and b^1 and b^0 are sample b_j with latent k set to 1 and to 0. One of the
two is the sample itself, the other is its flip. The first sum is `reinmax`, the trapezoid rule. Its
error for a single bit is of third order. The flips measure this error.

Unbiased because the means of the two sums add up to the gradient. First, b_ik is
independent of the other latents of sample i, so the first sum has the mean
v_k/2 (E G_k(b^1) + E G_k(b^0)) under every coupling. Second, K is independent of the samples, so
the second sum has the mean v_k E[f(b^1) - f(b^0)] minus the mean of the first sum. This holds for
any G, so wrong derivatives increase the variance, but cause no bias.

For categories, the first sum is 1/2 sum_a p_a (G_a - G_b) (e_a - e_b), where b is the category that
was drawn, and e_a is the one-hot vector of category a. A flip replaces b by category a with
probability p_a / (1 - p_b). Its weight is (1 - p_a)(1 - p_b) / (2 - p_a - p_b).

The other rows of the batch reduce the variance in three ways, without bias. First, latents whose
logits vary most over the rows are flipped most often. Second, the other rows give the curvature
h_k of each latent, which is the regression coefficient of G_k on b_k. It predicts the error of the
first sum as -1/2 (1 - p_k)(mean_i b_ik - p_k) h_k. This prediction has mean zero and is subtracted.
Third, the option `safe` subtracts two differences of mean zero, with coefficients fitted on the
other rows:

$$ g - \beta\,(g - g_{\mathrm{flips}}) - \gamma\,(g - g_{\mathrm{ARMS}}), $$

where g_flips uses the flips without derivatives, and g_ARMS is ARMS on the same samples. If the
derivatives mislead, the estimate relies on the values alone.
Reference: this project (docs/flips.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.designs import Coupling, Cyclic, Draw, WithFlips
from arms.estimators.base import Estimator, count_samples, set_design
from arms.estimators.regression import coefficients_of_controls, products_of_controls, sum_of_others
from arms.estimators.score.leave_one_out import leave_one_out
from arms.latents import Binary, Latent, Neighbors

SAFE_ROWS = 8  # from this number of rows on, fitted coefficients are accurate enough


@dataclass(frozen=True)
class Flips(Estimator):
    """The flips estimator: derivatives at n samples, corrected by flips of single latents.

    The objective must be differentiable.

    Args:
        num_samples: n. Each flip is one more evaluation, and all points are differentiated.
        flips: m, the number of flips. By default, there is one flip for every two samples.
        safe: Whether to rely less on derivatives where they mislead. The coefficients for this are
            fitted on the other rows of the batch. By default, `safe` is True if the batch has at
            least 8 rows.
        coupling: The coupling of the samples; None if they are independent.

    >>> Flips(4)(lambda b: (b.sum(-1) - 2.0) ** 2, torch.zeros(100, 5)).values.shape
    torch.Size([4, 100])
    """

    num_samples: int
    flips: int | None = None
    safe: bool | None = None
    coupling: Coupling | None = field(default_factory=Cyclic)

    def __post_init__(self) -> None:
        if self.safe not in (None, True, False):
            raise ValueError(f"safe must be True, False or None, got {self.safe!r}")
        set_flips(self, self.coupling, samples_per_flip=2)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        design, latent = self.design, draw.latent
        assert derivatives is not None
        assert isinstance(design, WithFlips)
        assert isinstance(latent, Neighbors)
        n, samples, at_samples = self.num_samples, draw.samples, derivatives[: self.num_samples]
        step = (draw.points[n:] - design.copied(samples)).to(derivatives.dtype)
        ends = latent.sum_event((design.copied(at_samples) + derivatives[n:]).mul_(step))
        weight = draw.memory / design.flips
        rule, own = _rule_and_own_bits(latent, samples, at_samples)
        # Add the trapezoid rule at the samples, subtract it at the flips, add the true differences.
        from_derivatives = add_along(latent, rule, ends.mul_(weight), step, -0.5)
        found = weight * (values[n:] - design.copied(values[:n]))
        found = add_along(latent, from_derivatives, found, step)
        safe = self.is_safe(latent)
        if rows_of(latent) == 1 or not (own or safe):
            return found
        axes = len(latent.batch_shape)
        of_rows = [one.flatten(axes) for one in own[1:]]
        if safe:
            from_values = torch.zeros_like(found)
            if n > 1:
                alone = leave_one_out(latent, samples, values[:n])
                from_values = found - design.correct(latent, alone)
            # The noise that the curvature predicts is left out, because it depends on other rows.
            of_rows.append(products_of_controls(latent, found, from_derivatives, from_values))
        # Concatenated, all sums over other rows are one matrix product. NaN in one row must not
        # spread to the others.
        sums = sum_of_others(torch.cat(of_rows, -1).nan_to_num_(0.0, 0.0, 0.0), -2)
        if own:
            width = found.shape[-1]
            covariance, square = (sums.narrow(-1, at, width) for at in (0, width))
            noise = own[0].mul_(covariance / (square + 1))
        if not safe:
            return found.sub_(noise)
        one, other = coefficients_of_controls(latent, sums[..., -6:])
        found = torch.addcmul(found, one, from_derivatives, value=-1)
        found = found.addcmul_(other, from_values, value=-1)
        return found.addcmul_(one.add(other).sub_(1), noise) if own else found

    def is_safe(self, latent: Latent) -> bool:
        return rows_of(latent) >= SAFE_ROWS if self.safe is None else self.safe


def set_flips(estimator: Any, coupling: Coupling | None, samples_per_flip: int) -> None:
    """Check `num_samples` and `flips` of an estimator, and set its design.

    If `flips` is None, there is one flip for every `samples_per_flip` samples.
    """
    n, m = count_samples(estimator, 1), estimator.flips
    what = f"flips of {type(estimator).__name__}"
    m = max(1, n // samples_per_flip) if m is None else as_count(m, 1, what)
    set_design(estimator, WithFlips(n, m, coupling), num_samples=n, flips=m)


def rows_of(latent: Latent) -> int:
    return latent.batch_shape[-1] if latent.batch_shape else 1


def add_along(
    latent: Latent, total: Tensor, weights: Tensor, step: Tensor, factor: float = 1.0
) -> Tensor:
    """Return `total` + `factor` sum_j `weights`_j `step`_j, with a sum over the m flips.

    `total` is `[*batch, *event]`. `weights` `[m, *batch]` has one number per flip and row. `step`
    `[m, *batch, *event]` is the flipped sample minus the original sample.
    """
    for weight, one in zip(latent.with_event_axes(weights), step, strict=True):
        total = torch.addcmul(total, weight, one, value=factor)  # creates no tensor for all flips
    return total


def curvature_of_other_rows(latent: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
    """Return the curvature of f in each bit, `[*batch, *event]`, estimated from the other rows.

    The curvature of a bit is the coefficient in a regression of df/db on b. First, df/db and b are
    centered within each row. Then the regression uses all other rows together, and one artificial
    observation with derivative 0. For categories, the result is 0.
    """

    def of_part(part: Latent, b: Tensor, derivative: Tensor) -> Tensor:
        if not part.has(Binary) or not part.batch_shape:  # without a batch, there are no other rows
            return torch.zeros_like(derivative[0])
        moments = _of_bits(part, b, derivative)[2:]
        # NaN in one row must not spread. Concatenated, the sums are one matrix product.
        sums = torch.cat(moments, -1).nan_to_num_(0.0, 0.0, 0.0)
        along, square = sum_of_others(sums, -2).chunk(2, -1)
        return along / (square + 1)

    return latent.map_parts(of_part, samples.to(derivatives.dtype), derivatives)


def _rule_and_own_bits(
    latent: Neighbors, samples: Tensor, derivatives: Tensor
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the trapezoid rule and a list, which contains the other results of `_of_bits`.

    The trapezoid rule is averaged over samples, `[*batch, *event]`. The list is empty if the latent
    contains no bits.
    """
    if any(one.has(Binary) for one in latent.elements()):
        rule, *own = latent.map_parts_to_many(_of_bits, samples, derivatives)
        return rule, own
    return mean_trapezoid(latent, samples, derivatives), []


def _of_bits(part: Latent, samples: Tensor, derivatives: Tensor) -> tuple[Tensor, ...]:
    """Return four tensors `[*batch, *event]` for one part of the latent.

    The first tensor is the trapezoid rule, averaged over samples. The other three tensors serve to
    predict the noise of the rule. They are zero for categories. For bits, with m the mean of b over
    the samples, they are: (1 - p) (m - p) / 2, which the caller multiplies by the curvature; the
    sum over samples of (df/db) (b - m); and the sum over samples of (b - m)^2.
    """
    if not isinstance(part, Binary):
        rule = mean_trapezoid(part, samples, derivatives)
        return rule, *[torch.zeros_like(rule)] * 3
    n, p, rest = len(samples), part.mean(), part.rest()
    b = samples.to(derivatives.dtype)
    at_one, total, ones = (b * derivatives).sum(0), derivatives.sum(0), b.sum(0)
    covariance = torch.addcmul(at_one, ones, total, value=-1 / n)
    square = torch.addcmul(ones, ones, ones, value=-1 / n)
    factor = ones.mul_(1 / n).sub_(p).mul_(rest).mul_(0.5)
    rule = total.sub_(at_one).mul_(p).addcmul_(rest, at_one).mul_(0.5 / n)
    return rule, factor, covariance, square


def mean_trapezoid(latent: Latent, samples: Tensor, derivatives: Tensor) -> Tensor:
    assert isinstance(latent, Neighbors)
    return latent.trapezoid(samples, latent.rises(samples, derivatives)).mean(0)
