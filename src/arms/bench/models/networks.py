"""The built-in VAEs by name: the paper's linear and nonlinear network."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from arms.arguments import as_count, unknown_name
from arms.bench.models.hierarchical import HierarchicalVAE
from arms.bench.models.layers import ReplicaLinear
from arms.bench.models.seeding import seeded_generator
from arms.bench.models.vae import DiscreteVAE

HIDDEN_WIDTHS: dict[str, tuple[int, ...]] = {"linear": (), "nonlinear": (200, 200)}
"""Hidden layers of the encoder, and of the decoder. A new perceptron is one line here."""


def build_vae(
    network: str,
    latents: int | Sequence[int],
    pixel_mean: Tensor,
    replicas: int = 1,
    seed: int = 0,
    device: str = "cpu",
    categories: int = 2,
) -> DiscreteVAE:
    """Return the paper's linear or nonlinear VAE with its initial weights.

    The weights of replica r depend on the seed and r alone, not on how many replicas there are. The output bias of the
    decoder is the logit of the pixel's training mean, clipped to [0.001, 0.999].

    Args:
        network: "linear" or "nonlinear".
        latents: How many latent variables; of several layers how many in each, the one nearest the image first.
        pixel_mean: Mean of every pixel as a probability, `[pixels]`, as from `Dataset.pixel_mean`.
        replicas: How many independent models, side by side on the leading axis of every parameter.
        seed: Seed of the weights.
        device: Where the model is put; the weights are the same everywhere.
        categories: Of each latent variable; 2 makes them bits.
    """
    vae = blank_vae(network, latents, pixel_mean, replicas, categories)
    generators = [seeded_generator(seed, "init", replica) for replica in range(replicas)]
    layers = [layer for layer in vae.modules() if isinstance(layer, ReplicaLinear)]
    for layer in layers:
        layer.initialise(generators)
    assert isinstance(vae.decoder, nn.Sequential)
    output = vae.decoder[-1]
    assert isinstance(output, ReplicaLinear)
    with torch.no_grad():
        output.bias.copy_(torch.logit(pixel_mean.clamp(0.001, 0.999)))
    return vae.to(device)


def blank_vae(
    network: str,
    latents: int | Sequence[int],
    pixel_mean: Tensor,
    replicas: int = 1,
    categories: int = 2,
) -> DiscreteVAE:
    """Return the paper's linear or nonlinear VAE with all weights zero, to be loaded from a checkpoint."""
    if network not in HIDDEN_WIDTHS:
        raise unknown_name("network", network, HIDDEN_WIDTHS)
    as_count(replicas, 1, "replicas")
    hidden = HIDDEN_WIDTHS[network]
    given = latents if isinstance(latents, Sequence) else [latents]
    if len(given) > 1 and categories > 2:
        raise ValueError(
            f"several layers are of bits, got {categories} categories: leave one of them out"
        )
    units = 1 if categories == 2 else as_count(categories, 2, "categories")
    widths = [pixel_mean.shape[-1], *(as_count(width, 1, "latents") * units for width in given)]
    encoders = [_perceptron(replicas, (below, *hidden, above)) for below, above in pairwise(widths)]
    decoders = [_perceptron(replicas, (above, *hidden, below)) for below, above in pairwise(widths)]
    if len(encoders) == 1:
        return DiscreteVAE(
            encoders[0], decoders[0], given[0], pixel_mean, replicas, categories=categories
        )
    return HierarchicalVAE(encoders, decoders, widths[1:], pixel_mean, replicas)


def _perceptron(replicas: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [ReplicaLinear(replicas, inputs, outputs), nn.LeakyReLU(0.3)]
    return nn.Sequential(*layers[:-1])
