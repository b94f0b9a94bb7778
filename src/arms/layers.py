r"""Deeper layers: each chain has one independent sample, and the other chains are its baseline.

$$ g_i = \frac{1}{n-1} \Big(f_i - \frac1n \sum_j f_j\Big)\,\nabla \log p(b_i) $$

This is the gradient for the logits of a deeper layer in chain i of n, where b_i is the sample of
this layer and f_i is the objective of the chain. The logits depend on the chain's earlier samples.
The estimate is unbiased because, given all earlier layers of all chains, b_i is independent of f_j
for j != i. The first layer may have points that are not samples, such as midpoints. For such a
point, each deeper layer has its *mean* instead of a sample, and derivatives treat deeper layers as
constants. This is unbiased, because a control variate may be any function of the point. Proofs:
docs/layers.md.
Reference: Kool, van Hoof & Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019,
applied to chains.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.designs import Draw
from arms.estimate import gradient
from arms.estimators.base import Estimator
from arms.latents import HasMean, Latent
from arms.objective import Evaluation, Options, differentiate


def reason_not_first_layer(estimator: Estimator) -> str:
    """Return why an estimator cannot be used for several layers, or "" if it can be used."""
    reasons = {
        f"estimates the {estimator.target}": not estimator.target.is_expectation,
        "enumerates all states": estimator.design.needs.evaluations is None,
        "weights its samples": estimator.design.weighted,
        "needs values at points that are not samples": estimator.design.uses_extra_values,
        "has parameters": any(True for _ in estimator.parameters()),
        # Biased estimators use derivatives, which do not pass through the samples of deeper layers.
        "is biased (it ignores how deeper layers change)": not estimator.unbiased,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def draw_deeper(first: Draw, latent: Latent, generator: Generator | None = None) -> Tensor:
    """Draw the points `[m, *batch, *event]` of a deeper layer, whose latent is `latent`.

    `first` is the draw of the first layer. Where a point of `first` is a sample, the result is a
    sample too. Elsewhere, it is the latent's mean.
    """
    latent = latent.detach()
    points = latent.sample(1, generator)[0]
    if not first.extra:
        return points
    if not latent.has(HasMean):
        name = type(latent).__name__
        what = f"the first layer uses midpoints, so deeper layers need a mean, and {name} has none"
        raise ValueError(f"{what}: use loorf for the first layer")
    assert isinstance(latent, HasMean)
    n = len(first.points) - first.extra
    return torch.cat([points[:n], latent.mean().to(points.dtype)[n:]])


def returns_to_go(terms: Sequence[Tensor]) -> list[Tensor]:
    """Return, for each layer, the sum of this layer's term and the terms of all later layers."""
    return list(accumulate(reversed(terms)))[::-1]


def first_gradient(estimator: Estimator, draw: Draw, to_go: Tensor, options: Options) -> Tensor:
    """Return the detached gradient of the first layer, given the values `to_go` at its points.

    If the estimator needs derivatives, autograd computes them from `to_go`.
    """
    derivatives = None
    if estimator.design.needs.derivatives:
        derivatives = differentiate(estimator, draw.points, to_go, options)
    return gradient(estimator, draw, Evaluation(to_go, derivatives), options).detach()


def deeper_gradient(latent: Latent, points: Tensor, to_go: Tensor, n: int) -> Tensor:
    """Return the detached gradient of a deeper layer, `[m, *batch, *event]`.

    `to_go` are the objective's values for the m points, without the terms of earlier layers. The
    first n points are the samples of the n chains. The gradient is zero for all other points.
    """
    latent, values = latent.detach(), at_least_float32(to_go.detach())[:n]
    signal = values if n == 1 else (values - values.mean(0)) / (n - 1)
    grad = latent.score(points.detach())[:n] * latent.with_event_axes(signal)
    if len(points) > n:  # points that are not samples do not affect the value
        nothing = torch.zeros_like(grad[:1]).expand(len(points) - n, *grad.shape[1:])
        grad = torch.cat([grad, nothing])
    return grad.to(latent.logits.dtype)
