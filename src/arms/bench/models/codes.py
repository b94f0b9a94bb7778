"""Statistics of the codes that an encoder assigns to images."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from arms.bench.models.vae import DiscreteVAE

ACTIVE_VARIANCE = 0.01
"""A latent is active if the variance of its probability over images exceeds this number."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for a `with` block, and then restore its previous mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def code_statistics(model: DiscreteVAE, x: Tensor) -> dict[str, Tensor]:
    """Return statistics of the codes of images `x` `[R, B, pixels]`.

    The result is a dictionary whose values have shape `[R]`. `active_latents` is the number of
    latents whose probability has a variance over the images above 0.01. `code_entropy` is the
    entropy of q(b|x) in nats, averaged over the images. `logit_spread` is the standard deviation of
    the logits over images and latents. If the model has several stochastic layers, the statistics
    describe the layer nearest the image.
    """
    with torch.no_grad(), evaluating(model):
        logits = model.encode(x).float()
        layer = model.layers[0]
        variance = layer.latent(logits).mean().var(1, correction=0)  # type: ignore[attr-defined]
        if variance.ndim > 2:  # use the category that varies most
            variance = variance.amax(-1)
        return {
            "active_latents": (variance > ACTIVE_VARIANCE).float().sum(-1),
            "code_entropy": layer.entropy(logits).mean(-1),
            "logit_spread": layer.centered(logits).flatten(1).std(-1, correction=0),
        }
