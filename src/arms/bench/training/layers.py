"""Estimates the gradients of a VAE with several stochastic layers, using n chains."""

from typing import NamedTuple

from torch import Generator, Tensor

from arms.bench.models import DiscreteVAE
from arms.estimate import draw_ahead
from arms.estimators import Estimator, ExtraSample
from arms.layers import deeper_gradient, draw_deeper, first_gradient, returns_to_go
from arms.objective import Options

UNCHECKED = Options(checks="none", log_weights=True)
"""Options without checks of the objective's values.

The model guarantees their shapes. Values that are not finite become visible in the parameters."""


class LayeredEstimate(NamedTuple):
    """The estimate for a model with several layers. For one layer, `Estimate` is used."""

    logits: tuple[Tensor, ...]
    """The logits of each layer. Autograd can differentiate them with respect to the encoders."""
    grads: tuple[Tensor, ...]
    """The gradients with respect to the logits of each layer, detached."""
    value: Tensor
    """An estimate of the ELBO from the samples, `[R, B]`.

    Autograd can differentiate it with respect to the decoders and the prior."""
    values: Tensor
    """The log-weights of the chains, `[n, R, B]`."""


def estimate_chains(
    model: DiscreteVAE, estimator: Estimator, x: Tensor, generator: Generator | None
) -> LayeredEstimate:
    """Estimate the gradient of every layer from n chains.

    The gradient of a layer uses the layer's own term of the log-weight, and the terms of later
    layers. `estimator` is used for the first layer. In deeper layers, the baseline of a chain is
    computed from the other chains, as in `arms.draw(..., given=)`. Derivatives with respect to the
    first layer treat deeper layers as constants.
    """
    logits = [model.encode(x)]
    first = draw_ahead(estimator, model.latent(logits[0].detach(), x), generator)
    points = [first.points]
    deeper = []
    for index, layer in enumerate(model.layers[1:], start=1):
        logits.append(model.encode_layer(index, points[-1]))
        deeper.append(layer.latent(logits[-1]))
        points.append(draw_deeper(first, deeper[-1], generator))
    # The gradient of log q has mean zero, so the logits in log q can be constants.
    terms = model.terms(x, [one.detach() for one in logits], points)
    to_go = returns_to_go(terms)
    n = len(first.points) - first.extra
    grads = [first_gradient(estimator, first, to_go[0], UNCHECKED)]
    for latent, drawn, signal in zip(deeper, points[1:], to_go[1:], strict=True):
        grads.append(deeper_gradient(latent, drawn, signal, n))
    values = to_go[0][:n]
    # The extra sample trains the decoder. The ELBO is averaged over the estimator's own samples.
    own = values[1:] if isinstance(estimator, ExtraSample) else values
    return LayeredEstimate(tuple(logits), tuple(grads), estimator.target.value(values), own)
