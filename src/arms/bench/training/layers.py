"""The gradient of every layer of a hierarchical VAE: from n chains, or from separate samples for each layer."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from arms.bench.models.hierarchical import HierarchicalVAE
from arms.estimate import draw_ahead, draw_points, gradient
from arms.estimators import Estimator, ExtraSample
from arms.latents import Bits
from arms.layers import deeper_gradient, draw_deeper, first_gradient, returns_to_go
from arms.objective import Evaluation, Options

UNCHECKED = Options(checks="none", log_weights=True)
"""Shapes are the model's, numbers that are not finite show in the parameters, and models compute log-weights."""


class LayeredEstimate(NamedTuple):
    """What `Estimate` is for one layer."""

    logits: tuple[Tensor, ...]
    """Of each layer, attached to its encoder."""
    grads: tuple[Tensor, ...]
    """With respect to these, detached."""
    value: Tensor
    """`[R, B]`: the ELBO as estimated from the samples, attached to the decoders and the prior."""
    values: Tensor
    """`[n, R, B]`: log-weights of the chains."""


def estimate_chains(
    model: HierarchicalVAE, estimator: Estimator, x: Tensor, generator: Generator | None
) -> LayeredEstimate:
    """Return every layer's gradient from n chains; each layer learns from the terms from it on.

    The estimator serves the first layer. Deeper layers have the other chains as their baseline; for users,
    `arms.draw(..., given=)` does the same. Derivatives hold the deeper layers fixed.
    """
    logits = [model.encode(x)]
    first = draw_ahead(estimator, Bits(logits[0].detach(), context=x), generator)
    points = [first.points]
    for layer in range(1, len(model.deeper_encoders) + 1):
        logits.append(model.encode_layer(layer, points[-1]))
        points.append(draw_deeper(first, Bits(logits[-1]), generator))
    # The score of log q has mean zero: its logits are constants there.
    terms = model.terms(x, [one.detach() for one in logits], points)
    to_go = returns_to_go(terms)
    n = len(first.points) - first.extra
    grads = [first_gradient(estimator, first, to_go[0], UNCHECKED)]
    for own, drawn, signal in zip(logits[1:], points[1:], to_go[1:], strict=True):
        grads.append(deeper_gradient(Bits(own), drawn, signal, n))
    values = to_go[0][:n]
    return LayeredEstimate(
        tuple(logits), tuple(grads), _value(estimator, values), _own(estimator, values)
    )


def estimate_separately(
    model: HierarchicalVAE, estimator: Estimator, x: Tensor, generator: Generator | None
) -> LayeredEstimate:
    """Return every layer's gradient from separate samples, drawn given one free chain and finished separately.

    The estimator has the samples of one layer; evaluations of f add up over layers. The decoders learn from those of
    the first layer. This is the scheme of Dong, Mnih & Tucker (2020), for comparison.
    """
    free: list[Tensor] = []
    logits, grads, last = [], [], len(model.deeper_encoders)
    for layer in range(last + 1):
        own = model.encode(x) if layer == 0 else model.encode_layer(layer, free[-1])
        drawn = draw_points(estimator, Bits(own.detach()), generator)
        with torch.set_grad_enabled(layer == 0):
            every, bits = (
                [own.detach()] * (layer + 1),
                [*(one.expand(len(drawn.points), *one.shape) for one in free)],
            )
            bits.append(drawn.points)
            for further in range(layer + 1, last + 1):
                with torch.no_grad():
                    every.append(model.encode_layer(further, bits[-1]))
                bits.append(Bits(every[-1]).sample(1, generator)[0])
            values = torch.stack(model.terms(x, every, bits, start=layer)).sum(0)
        logits.append(own)
        grads.append(gradient(estimator, drawn, Evaluation(values), UNCHECKED).detach())
        if layer < last:  # a compiler drops unused noise; eager execution must too, to stay equal
            free.append(Bits(own.detach()).sample(1, generator)[0])
        if layer == 0:
            value, first = _value(estimator, values), _own(estimator, values)
    return LayeredEstimate(tuple(logits), tuple(grads), value, first)


def _value(estimator: Estimator, values: Tensor) -> Tensor:
    return estimator.target.value(values)


def _own(estimator: Estimator, values: Tensor) -> Tensor:
    """Return the values at the estimator's own samples, without an extra one for the decoder."""
    return values[1:] if isinstance(estimator, ExtraSample) else values
