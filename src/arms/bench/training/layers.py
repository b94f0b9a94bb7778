"""The gradient of every layer of a hierarchical VAE: from n chains, or from samples of its own for each layer."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from arms.bench.models.hierarchical import HierarchicalVAE
from arms.estimators import Estimator, Options
from arms.estimators.chained import costs_to_go, draw_next, layer_gradient
from arms.estimators.pipeline import Evaluation, draw_ahead, draw_points, gradient
from arms.latents import Bernoulli

__all__ = ["UNCHECKED", "LayeredEstimate", "estimate_chains", "estimate_separately"]

UNCHECKED = Options(checks="none")
"""Shapes are the model's, and what is not finite shows in the parameters."""


class LayeredEstimate(NamedTuple):
    """What `Estimate` is for one layer."""

    logits: tuple[Tensor, ...]
    """Of each layer, attached to its encoder."""
    grads: tuple[Tensor, ...]
    """With respect to these, detached."""
    value: Tensor
    """`[R, B]`: the ELBO as seen by the samples, attached to the decoders and the prior."""
    values: Tensor
    """`[n, R, B]`: log-weights of the chains."""


def estimate_chains(
    model: HierarchicalVAE, estimator: Estimator, x: Tensor, generator: Generator | None
) -> LayeredEstimate:
    """Return every layer's gradient from n chains, each layer's signal being the terms from it on.

    The first layer is the estimator's; deeper ones have the other chains as baseline (`arms.draw(..., given=)` is the
    same for users). Where the estimator asks for slopes, they hold the deeper layers fixed.
    """
    logits = [model.encode(x)]
    root = draw_ahead(estimator, Bernoulli(logits[0].detach(), context=x), generator)
    draws = [root]
    for layer in range(1, len(model.deeper_encoders) + 1):
        logits.append(model.encode_layer(layer, draws[-1].points))
        draws.append(draw_next(root, Bernoulli(logits[-1]), generator))
    # The score of log q has mean zero: its logits are constants there.
    terms = model.terms(x, [one.detach() for one in logits], [draw.points for draw in draws])
    to_go = costs_to_go(terms)
    grads = [layer_gradient(draw, signal, UNCHECKED) for draw, signal in zip(draws, to_go, strict=True)]
    value, values = estimator.value(root, to_go[0]), estimator.sample_values(root, to_go[0])
    return LayeredEstimate(tuple(logits), tuple(grads), value, values)


def estimate_separately(
    model: HierarchicalVAE, estimator: Estimator, x: Tensor, generator: Generator | None
) -> LayeredEstimate:
    """Return every layer's gradient from samples of its own, drawn given one free chain and finished separately.

    The estimator has the samples of one layer; evaluations of f add up over layers. The decoders learn from those of
    the first layer. It is the scheme of Dong, Mnih & Tucker (2020), to compare with.
    """
    free: list[Tensor] = []
    logits, grads, last = [], [], len(model.deeper_encoders)
    for layer in range(last + 1):
        own = model.encode(x) if layer == 0 else model.encode_layer(layer, free[-1])
        drawn = draw_points(estimator, Bernoulli(own.detach()), generator)
        with torch.set_grad_enabled(layer == 0):
            every, bits = [own.detach()] * (layer + 1), [*(one.expand(len(drawn.points), *one.shape) for one in free)]
            bits.append(drawn.points)
            for further in range(layer + 1, last + 1):
                with torch.no_grad():
                    every.append(model.encode_layer(further, bits[-1]))
                bits.append(Bernoulli(every[-1]).sample(1, generator)[0])
            values = torch.stack(model.terms(x, every, bits, start=layer)).sum(0)
        logits.append(own)
        grads.append(gradient(drawn, Evaluation(values), UNCHECKED).detach())
        if layer < last:  # noise that nobody needs a compiler would not draw
            free.append(Bernoulli(own.detach()).sample(1, generator)[0])
        if layer == 0:
            value, first = estimator.value(drawn, values), estimator.sample_values(drawn, values)
    return LayeredEstimate(tuple(logits), tuple(grads), value, first)
