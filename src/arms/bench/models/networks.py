"""The built-in networks by name: the paper's linear and nonlinear VAE."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from arms.arguments import as_count
from arms.bench.models.layers import ReplicaLinear
from arms.bench.models.seeding import seeded_generator
from arms.bench.models.vae import BinaryVAE

Network: TypeAlias = Literal["linear", "nonlinear"]
HIDDEN: dict[Network, tuple[int, ...]] = {"linear": (), "nonlinear": (200, 200)}


def build_vae(
    network: Network, latents: int, pixel_mean: Tensor, replicas: int = 1, seed: int = 0, device: str = "cpu"
) -> BinaryVAE:
    """Return the paper's linear or nonlinear VAE, freshly initialised.

    Replica r starts from weights that depend on the seed and r alone, not on how many replicas there are. The decoder's
    output bias is the logit of the pixel's training mean, clipped to [0.001, 0.999].
    """
    vae = blank_vae(network, latents, pixel_mean, replicas)
    generators = [seeded_generator(seed, "init", replica) for replica in range(replicas)]
    layers = [layer for layer in vae.modules() if isinstance(layer, ReplicaLinear)]
    for layer in layers:
        layer.initialise(generators)
    with torch.no_grad():
        layers[-1].bias.copy_(torch.logit(pixel_mean.clamp(0.001, 0.999)))
    return vae.to(device)


def blank_vae(network: Network, latents: int, pixel_mean: Tensor, replicas: int = 1) -> BinaryVAE:
    """Return the paper's linear or nonlinear VAE with zeros for weights, to be filled."""
    if network not in HIDDEN:
        raise ValueError(f"no network is called {network!r}: choose one of {', '.join(HIDDEN)}")
    as_count(replicas, 1, "replicas")
    pixels = pixel_mean.shape[-1]
    encoder = _perceptron(replicas, (pixels, *HIDDEN[network], as_count(latents, 1, "latents")))
    decoder = _perceptron(replicas, (latents, *HIDDEN[network], pixels))
    return BinaryVAE(encoder, decoder, latents, pixel_mean, replicas)


def _perceptron(replicas: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [ReplicaLinear(replicas, inputs, outputs), nn.LeakyReLU(0.3)]
    return nn.Sequential(*layers[:-1])
