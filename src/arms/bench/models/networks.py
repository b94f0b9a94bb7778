"""The built-in VAEs by name, and the generators that their weights are drawn from."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_count, unknown_name
from arms.bench.models.layers import ReplicaLinear
from arms.bench.models.pixels import PixelLikelihood
from arms.bench.models.vae import BERNOULLI, DiscreteVAE, layer_of

Builder: TypeAlias = Callable[[int, int, int], nn.Module]
"""Makes a network with all weights zero, given the numbers of replicas, inputs and outputs."""


def perceptron(*hidden: int) -> Builder:
    """Return a builder of perceptrons with hidden layers of these widths."""

    def build(replicas: int, inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden, outputs)):
            layers += [ReplicaLinear(replicas, before, after), nn.LeakyReLU(0.3)]
        return nn.Sequential(*layers[:-1])

    return build


NETWORKS: dict[str, Builder] = {"linear": perceptron(), "nonlinear": perceptron(200, 200)}
"""Networks by name. Each serves as the encoder and the decoder of every layer."""


def build_vae(
    network: str,
    latents: int | Sequence[int],
    pixel_mean: Tensor,
    replicas: int = 1,
    seed: int | None = 0,
    device: str = "cpu",
    categories: int = 2,
    likelihood: PixelLikelihood = BERNOULLI,
) -> DiscreteVAE:
    """Return a built-in VAE with its initial weights.

    The weights of replica r depend on the seed and r alone, not on the number of replicas. The
    decoder starts at the mean of each pixel.

    Args:
        network: "linear" or "nonlinear".
        latents: How many latent variables; a list for several layers, nearest the image first.
        pixel_mean: Mean of every pixel as a probability, `[pixels]`, as from `Dataset.pixel_mean`.
        replicas: How many independent models, side by side on the leading axis of every parameter.
        seed: Seed of the weights; None leaves them zero, to be loaded from a checkpoint.
        device: Where the model is put; the weights are the same everywhere.
        categories: How many each latent variable chooses among; 2 makes them bits.
        likelihood: What the decoder's outputs mean; the logits of bits by default.
    """
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    as_count(replicas, 1, "replicas")
    build, pixels = NETWORKS[network], pixel_mean.shape[-1]
    widths = latents if isinstance(latents, Sequence) else [latents]
    sizes = [layer_of(width, categories).event_shape.numel() for width in widths]
    encoders = [build(replicas, below, above) for below, above in pairwise([pixels, *sizes])]
    outputs = [likelihood.outputs(pixels), *sizes]
    decoders = [build(replicas, above, below) for below, above in pairwise(outputs)]
    make = partial(DiscreteVAE, likelihood=likelihood, categories=categories)
    vae = make(encoders, decoders, widths, pixel_mean, replicas)
    if seed is not None:
        _initialise(vae, [seeded_generator(seed, "init", replica) for replica in range(replicas)])
    return vae.to(device)


def _initialise(vae: DiscreteVAE, generators: Sequence[Generator]) -> None:
    """Draw the weights, and let the decoder start at the training mean of each pixel."""
    for layer in vae.modules():
        if isinstance(layer, ReplicaLinear):
            layer.initialise(generators)
    last = vae.decoder[-1] if isinstance(vae.decoder, nn.Sequential) else vae.decoder
    if not isinstance(last, ReplicaLinear):
        raise ValueError(f"a built-in decoder must end in a ReplicaLinear, got {last}")
    with torch.no_grad():
        last.bias.copy_(vae.likelihood.initial_outputs(vae.pixel_mean[0, 0]))


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return the generator for one use of a run's seed; no two uses share numbers.

    >>> one, other = seeded_generator(0, "init"), seeded_generator(0, "train")
    >>> torch.rand(1, generator=one) == torch.rand(1, generator=other)
    tensor([False])
    """
    entropy = [as_count(seed, 0, "seed"), index, *stream.encode()]
    words = np.random.SeedSequence(entropy).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))
