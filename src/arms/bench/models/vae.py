"""The discrete variational autoencoder, with a leading replica axis in every parameter.

The model has L stochastic layers b1, ..., bL of bits or categories. The encoder q(b1|x) q(b2|b1)...
starts at the image x, and the decoder p(bL) p(b(L-1)|bL) ... p(x|b1) starts at the deepest layer.
The log-weight is log w = log p - log q. Shapes are x `[R, B, pixels]`, logits `[R, B, *event]`,
b `[n, R, B, *event]` and log w `[n, R, B]`, where the event is `[latents]` or `[latents, K]`.
R replicas cost little more than one.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import pad, softplus

from arms.arguments import as_count, in_function_transform, unknown_name
from arms.bench.models.networks import (
    DECODERS,
    NETWORKS,
    BernoulliPixels,
    PixelLikelihood,
    ReplicaLinear,
    affine_log_prob,
    apply_network,
    call_with,
    seeded_generator,
    smooth_log_prob,
    tensor_places,
)
from arms.latents import Bits, Latent, OneHot

Network: TypeAlias = Callable[[Tensor], Tensor]
BERNOULLI = BernoulliPixels()


class BitLayer:
    """A stochastic layer of bits.

    Only this class and `CategoryLayer` depend on whether latents are bits or categories.
    """

    def __init__(self, latents: int, raw: bool = False) -> None:
        self.event_shape, self.raw = torch.Size([latents]), raw

    def latent(self, logits: Tensor, context: Tensor | None = None) -> Latent:
        """Return the latent with these logits. Estimators such as RELAX use the context."""
        return Bits(logits, context)

    def inputs(self, b: Tensor) -> Tensor:
        """Convert samples of this layer to inputs of a network, `[..., inputs]`.

        Bits become -1 and 1, unless `self.raw` is True. In `CategoryLayer`, the one-hot vectors are
        concatenated.
        """
        return b if self.raw else (2 * b).sub_(1)

    def log_prob(self, logits: Tensor, b: Tensor) -> Tensor:
        """Return log p(b), summed over latents, where `logits` are the logits of p.

        `b` contains samples, or points between samples.
        """
        return smooth_log_prob(logits, b)

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the entropy of the layer in nats, summed over latents, given its logits."""
        probs = torch.stack((torch.sigmoid(logits), torch.sigmoid(-logits)))
        terms: Tensor = torch.special.entr(probs)
        return terms.sum((0, -1))

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean of the latent's distribution, in the shape of `logits`."""
        return torch.sigmoid(logits)

    def centered(self, logits: Tensor) -> Tensor:
        """Return the logits without the component that does not affect the probabilities.

        Bits have no such component. For categories, it is the mean of a latent's logits.
        """
        return logits

    def log_ratio(self, prior: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return w and c such that log p(b) - log q(b) = sum(b w) + c, with a sum over latents.

        `prior` contains the logits of p, and `logits` contains the logits of q. w has the shape of
        `logits`, and c is `[R, B]`.
        """
        # The padding keeps torch.compile from fusing this sum with other operations, because the
        # fused kernel is slower.
        constant = pad(softplus(logits) - softplus(prior), (0, 1)).sum(-1)
        return prior - logits, constant


class CategoryLayer:
    """A stochastic layer of one-hot choices among K categories. See `BitLayer` for its methods."""

    def __init__(self, latents: int, categories: int) -> None:
        self.event_shape = torch.Size([latents, categories])

    def latent(self, logits: Tensor, context: Tensor | None = None) -> Latent:
        return OneHot(logits)

    def inputs(self, b: Tensor) -> Tensor:
        return b.flatten(-2)

    def log_prob(self, logits: Tensor, b: Tensor) -> Tensor:
        return (b * logits.log_softmax(-1)).sum((-1, -2))

    def entropy(self, logits: Tensor) -> Tensor:
        terms: Tensor = torch.special.entr(logits.softmax(-1))
        return terms.sum((-1, -2))

    def mean(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def centered(self, logits: Tensor) -> Tensor:
        return logits - logits.mean(-1, keepdim=True)

    def log_ratio(self, prior: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        weight = prior.log_softmax(-1) - logits.log_softmax(-1)
        return weight, torch.zeros_like(weight[..., 0, 0])


Layer: TypeAlias = BitLayer | CategoryLayer


def layer_of(latents: int, categories: int, raw: bool = False) -> Layer:
    """Return a `BitLayer` if there are two categories, and otherwise a `CategoryLayer`."""
    width = as_count(latents, 1, "latents")
    bits = as_count(categories, 2, "categories") == 2
    return BitLayer(width, raw) if bits else CategoryLayer(width, categories)


class DiscreteVAE(nn.Module):
    """A discrete VAE with any encoder and decoder.

    With several stochastic layers, `encoder`, `decoder` and `latents` are lists that start at the
    layer nearest the image. A deeper encoder maps the latents of a layer to logits of the next
    layer. A deeper decoder maps the latents of a layer to logits of the previous layer. Deeper
    encoders get latents in the same form as decoders.

    Args:
        encoder: A module or function that maps centered pixels `[R, B, pixels]` to logits
            `[R, B, latents]`. For categories, it maps them to `[R, B, latents K]`.
        decoder: A module or function that maps bits as -1 and 1, `[n, R, B, latents]`, to inputs of
            the likelihood. For categories, it maps one-hot vectors, `[n, R, B, latents K]`. By
            default, the inputs of the likelihood are logits of the pixels, `[n, R, B, pixels]`.
        latents: The number of latent variables.
        pixel_mean: The mean to subtract from the encoder's input: `[pixels]`, or `[R, 1, pixels]`
            if replicas have different data sets.
        replicas: The number of independent models. If it is larger than one, every parameter must
            have a leading axis of this length, as in `ReplicaLinear`.
        name: Name of the model in runs and reports.
        likelihood: The distribution of pixels given the decoder's outputs; by default, the outputs
            are logits of bits.
        categories: K, the number of categories of each latent variable; 2 makes them bits.
        raw: Whether the encoder gets pixels without centering, and decoders get bits as 0 and 1.

    >>> mean = torch.full((64,), 0.3)
    >>> vae = DiscreteVAE(nn.Linear(64, 20), nn.Linear(20, 64), latents=20, pixel_mean=mean)
    >>> vae.encode(torch.ones(1, 5, 64)).shape
    torch.Size([1, 5, 20])
    """

    pixel_mean: Tensor

    def __init__(
        self,
        encoder: Network | Sequence[Network],
        decoder: Network | Sequence[Network],
        latents: int | Sequence[int],
        pixel_mean: Tensor,
        replicas: int = 1,
        *,
        name: str = "",
        likelihood: PixelLikelihood = BERNOULLI,
        categories: int = 2,
        raw: bool = False,
    ) -> None:
        super().__init__()
        if pixel_mean.ndim != 1 and pixel_mean.shape[:-1] != (replicas, 1):
            shapes = f"[pixels] or [{replicas}, 1, pixels], got {list(pixel_mean.shape)}"
            raise ValueError(f"pixel_mean must have shape {shapes}: pass dataset.pixel_mean()")
        encoders = encoder if isinstance(encoder, Sequence) else [encoder]
        decoders = decoder if isinstance(decoder, Sequence) else [decoder]
        widths = latents if isinstance(latents, Sequence) else [latents]
        if not len(encoders) == len(decoders) == len(widths) > 0:
            expected = "encoder, decoder and latents must have the same number of layers"
            got = f"{len(encoders)}, {len(decoders)} and {len(widths)}"
            raise ValueError(f"{expected}, at least one, got {got}")
        self.layers = tuple(layer_of(width, categories, raw) for width in widths)
        self.encoder, self.decoder = encoders[0], decoders[0]
        if len(widths) > 1:  # an empty list would change the fingerprint of the model
            self.deeper_encoders = nn.ModuleList(encoders[1:])  # type: ignore[arg-type]
            self.deeper_decoders = nn.ModuleList(decoders[1:])  # type: ignore[arg-type]
        self.replicas, self.latents, self.categories = replicas, widths[0], categories
        self.name, self.likelihood, self.raw = name, likelihood, raw
        self.prior = nn.Parameter(torch.zeros(replicas, 1, *self.layers[-1].event_shape))
        self.register_buffer("pixel_mean", pixel_mean.detach().expand(replicas, 1, -1).clone())

    def extra_repr(self) -> str:
        """Return a text with the settings that are not submodules.

        This text is part of the model's fingerprint.
        """
        latents = f"latents={'x'.join(map(str, self.event_shape))}"
        bits = isinstance(self.likelihood, BernoulliPixels)
        found = latents if bits else f"{latents}, likelihood={self.likelihood}"
        return f"{found}, raw=True" if self.raw else found

    @property
    def event_shape(self) -> torch.Size:
        """The shape of the first layer's logits for one image: `[latents]` or `[latents, K]`."""
        return self.layers[0].event_shape

    def latent(self, logits: Tensor, context: Tensor | None = None) -> Latent:
        """Return the first layer's latent with these logits. Only RELAX uses the context."""
        return self.layers[0].latent(logits, context)

    def encode(self, x: Tensor) -> Tensor:
        """Return the first layer's logits of q, `[R, B, *event]`, given images `x`."""
        pixels, scaled = self.likelihood.scaled(x), self.likelihood.scaled
        inputs = pixels if self.raw else pixels - scaled(self.pixel_mean)
        return _unflatten(apply_network(self.encoder, inputs), self.event_shape, "encoder")

    def encode_layer(self, layer: int, below: Tensor) -> Tensor:
        """Return the logits of q for the layer with number `layer`, counted from 0.

        `below` contains samples of layer `layer - 1`.
        """
        outputs = self.deeper_encoders[layer - 1](self.layers[layer - 1].inputs(below))
        return _unflatten(outputs.contiguous(), self.layers[layer].event_shape, "encoder")

    def decode_layer(self, layer: int, b: Tensor) -> Tensor:
        """Return the logits of p for layer `layer - 1`, counted from 0.

        `b` contains samples of layer `layer`.
        """
        outputs = self.deeper_decoders[layer - 1](self.layers[layer].inputs(b))
        # A compiled backward pass requires the memory layout of the samples.
        return _unflatten(outputs.contiguous(), self.layers[layer - 1].event_shape, "decoder")

    def decode(self, b: Tensor) -> Tensor:
        """Return the decoder's outputs, such as pixel logits `[*lead, R, B, pixels]`.

        `b` contains samples of the first layer.
        """
        return self._checked(self.decoder(self.layers[0].inputs(b)))

    def mean_image(self, b: Tensor) -> Tensor:
        """Return the mean image `[*lead, R, B, pixels]` for each sample `b` of the first layer."""
        return self.likelihood.mean(self.decode(b))

    def log_weights(
        self,
        b: Tensor,
        x: Tensor,
        logits: Tensor,
        attached: int | None = None,
        differentiated: int = 0,
        twice: bool = False,
        analytic_kl: bool = False,
    ) -> Tensor:
        """Return log p(x|b) + log p(b) - log q(b|x), `[n, R, B]`, of a model with one layer.

        Args:
            b: Samples, or points between samples.
            x: The images.
            logits: The logits of q(b|x).
            attached: The number of points, counted from the first, whose log-weights can be
                differentiated with respect to parameters and logits. By default, this is the number
                of all points.
            differentiated: The number of points, counted from the last, whose log-weights can be
                differentiated with respect to the points. If none of these points is attached,
                parameters and logits are constants for them.
            twice: Whether the gradient with respect to the points will be differentiated again,
                which needs a slower likelihood.
            analytic_kl: Whether to return log p(x|b) - KL(q(b|x) | p(b)) instead. The divergence is
                treated as a constant here. The method `kl` provides its gradient.
        """
        if len(self.layers) > 1:
            what = "log_weights is for models of one layer"
            raise ValueError(f"{what}: call chain_log_weights for several layers")
        attached = len(b) if attached is None else attached
        split = len(b) - differentiated
        if differentiated and attached <= split:
            last = _with_constants(self)(
                b[split:], x, logits.detach(), twice=twice, analytic_kl=analytic_kl
            )
            first = self.log_weights(
                b[:split].detach(), x, logits, attached, analytic_kl=analytic_kl
            )
            return torch.cat([first, last])
        if analytic_kl:
            likelihood = self.log_likelihood(b, x, attached, differentiated > 0, twice)
            return likelihood - self.kl(logits).detach()
        weight, constant = self.layers[0].log_ratio(self.prior, logits)
        ratio = _log_ratios(b, weight, constant, attached)
        return self.log_likelihood(b, x, attached, differentiated > 0, twice) + ratio

    forward = log_weights

    def kl(self, logits: Tensor) -> Tensor:
        """Return the divergence KL(q(b|x) | p(b)) in nats, `[R, B]`, of a model with one layer."""
        weight, constant = self.layers[0].log_ratio(self.prior, logits)
        mean = self.layers[0].mean(logits)
        return -_log_ratio(mean, weight, constant)

    def terms(self, x: Tensor, logits: Sequence[Tensor], samples: Sequence[Tensor]) -> list[Tensor]:
        """Return the terms of the log-weight, one tensor `[n, R, B]` per layer.

        The sum of all terms is log w. The first term is log p(x|b1) - log q(b1|x). Term l is
        log p(b(l-1)|bl) - log q(bl|b(l-1)), so it depends on layers 1 to l only. The last term also
        contains log p(bL). For each layer, `logits` contains the logits of q, and `samples`
        contains samples, or points between samples.
        """
        found = [self.log_likelihood(samples[0], x)]
        for index in range(1, len(samples)):
            below = self.decode_layer(index, samples[index])
            found.append(self.layers[index - 1].log_prob(below, samples[index - 1]))
        for index, layer in enumerate(self.layers):
            found[index] = found[index] - layer.log_prob(logits[index], samples[index])
        found[-1] = found[-1] + self.layers[-1].log_prob(self.prior, samples[-1])
        return found

    def chain_log_weights(
        self, b: Tensor, x: Tensor, logits: Tensor, generator: Generator | None = None
    ) -> Tensor:
        """Return log-weights `[n, R, B]` for evaluation.

        `b` contains samples of the first layer, and `logits` contains its logits of q, given the
        images `x`. This method draws the samples of deeper layers.
        """
        if len(self.layers) == 1:
            return self.log_weights(b, x, logits)
        every_logits, samples = [logits], [b]
        for index, layer in enumerate(self.layers[1:], start=1):
            every_logits.append(self.encode_layer(index, samples[-1]))
            samples.append(layer.latent(every_logits[-1]).sample(1, generator)[0])
        return torch.stack(self.terms(x, every_logits, samples)).sum(0)

    def sample_prior(self, count: int, generator: Generator | None = None) -> Tensor:
        """Return samples of the first layer, drawn from the generative model p.

        The result has shape `[R, count, *event]`.
        """
        logits = self.prior.expand(-1, count, *self.prior.shape[2:])
        b = self.layers[-1].latent(logits).sample(1, generator)[0]
        for index in reversed(range(1, len(self.layers))):
            logits = self.decode_layer(index, b)
            b = self.layers[index - 1].latent(logits).sample(1, generator)[0]
        return b

    def encoder_modules(self) -> list[nn.Module]:
        """Return the modules whose parameters determine the logits of q."""
        first = [self.encoder] if isinstance(self.encoder, nn.Module) else []
        return first if len(self.layers) == 1 else [*first, *self.deeper_encoders]

    def log_likelihood(
        self,
        b: Tensor,
        x: Tensor,
        attached: int | None = None,
        differentiated: bool = False,
        twice: bool = False,
    ) -> Tensor:
        """Return the log-likelihood log p(x|b), `[n, R, B]`.

        `b` contains samples of the first layer, or points between samples. The results at the first
        `attached` points can be differentiated with respect to parameters; by default, all results
        can. If `differentiated` is True, all results can be differentiated with respect to `b`. If
        `twice` is True, second derivatives are possible.
        """
        bits = isinstance(self.likelihood, BernoulliPixels)
        if bits and twice:  # the faster functions below can be differentiated only once
            return smooth_log_prob(self.decode(b), x)
        decoder, h = self.decoder, self.layers[0].inputs(b)
        if bits and isinstance(decoder, nn.Sequential) and isinstance(decoder[-1], ReplicaLinear):
            if len(decoder) > 1:
                h = _attach_first(decoder[:-1], h, attached, differentiated)
            return affine_log_prob(h, decoder[-1], x, attached, differentiated)
        outputs = _attach_first(decoder, h, attached, differentiated)
        return self.likelihood.log_prob(self._checked(outputs), x)

    def _checked(self, outputs: Tensor) -> Tensor:
        return _unflatten(outputs, [self.likelihood.outputs(self.pixel_mean.shape[-1])], "decoder")


def _unflatten(outputs: Tensor, event: Sequence[int], part: str) -> Tensor:
    """Split the last axis of an encoder's or decoder's outputs into the axes `event`.

    Raise if the last axis has the wrong length. `part` is "encoder" or "decoder".
    """
    if outputs.shape[-1] != (width := math.prod(event)):
        expected = f"the {part} must return logits [..., {width}], got {list(outputs.shape)}"
        raise ValueError(f"{expected}: change its last layer or the latents argument")
    found: Tensor = outputs.unflatten(-1, event) if len(event) > 1 else outputs
    return found


def _attach_first(
    network: Network, b: Tensor, attached: int | None, differentiated: bool
) -> Tensor:
    """Apply a network to all samples `b`, and return the outputs.

    Only the first `attached` outputs can be differentiated with respect to parameters. With None,
    all can. If `differentiated` is True, all outputs can be differentiated with respect to `b`.
    """
    if attached is None or attached == len(b):
        return apply_network(network, b)
    first = apply_network(network, b[:attached])
    if differentiated:
        return torch.cat([first, _with_constants(network)(b[attached:])])
    with torch.no_grad():
        rest = apply_network(network, b[attached:])
    return torch.cat([first, rest])


def _log_ratio(b: Tensor, weight: Tensor, constant: Tensor) -> Tensor:
    """Return the sum of `b * weight` over the event axes, plus `constant`.

    `weight` and `constant` are the two results of `BitLayer.log_ratio`.
    """
    return (b * weight).flatten(constant.ndim - weight.ndim).sum(-1) + constant


def _log_ratios(b: Tensor, weight: Tensor, constant: Tensor, attached: int) -> Tensor:
    """Return `_log_ratio` of all points, `[n, R, B]`.

    Only the results for the first `attached` points can be differentiated with respect to `weight`
    and `constant`.
    """
    if attached == len(b):
        return _log_ratio(b, weight, constant)
    if b.device.type == "cpu" and not (torch.compiler.is_compiling() or in_function_transform()):
        inputs = b, weight, constant, attached
        found: Tensor = _FirstAttached.apply(*inputs)  # type: ignore[no-untyped-call]
        return found
    first = _log_ratio(b[:attached], weight, constant)
    return torch.cat([first, _log_ratio(b[attached:], weight.detach(), constant.detach())])


class _FirstAttached(torch.autograd.Function):
    """Computes `_log_ratios` as a single node of autograd's graph, to save time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        b, weight, constant, ctx.attached = inputs
        ctx.save_for_backward(b, weight)
        return _log_ratio(b, weight, constant)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (b, weight), attached = grads, ctx.saved_tensors, ctx.attached
        for_b, for_weight, for_constant, _ = ctx.needs_input_grad
        of_row = grad.view(*grad.shape, *[1] * (b.ndim - grad.ndim))
        return (
            of_row * weight if for_b else None,
            (of_row[:attached] * b[:attached]).sum(0) if for_weight else None,
            grad[:attached].sum(0) if for_constant else None,
            None,
        )


def _with_constants(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that calls a module and treats the module's parameters as constants.

    If `function` is not a module, it is returned unchanged.
    """
    if not isinstance(function, nn.Module):
        return function
    places = tensor_places(function, "_parameters")
    return partial(call_with, function, {place: one.detach() for place, one in places.items()})


def _last_affine(network: Network) -> ReplicaLinear:
    last = network[-1] if isinstance(network, nn.Sequential) else network
    if not isinstance(last, ReplicaLinear):
        raise ValueError(f"a built-in network must end in a ReplicaLinear, got {last}")
    return last


def build_vae(
    network: str,
    latents: int | Sequence[int],
    pixel_mean: Tensor,
    replicas: int = 1,
    seed: int | None = 0,
    device: str = "cpu",
    categories: int = 2,
    likelihood: PixelLikelihood = BERNOULLI,
    encoder_scale: float = 1.0,
    raw: bool = False,
) -> DiscreteVAE:
    """Build a VAE with built-in networks and initial weights.

    The initial weights of replica r depend only on the seed and r, not on the number of replicas.
    The last bias of the decoder is computed from the mean of each pixel.

    Args:
        network: "linear", "nonlinear" or "pyramid".
        latents: The number of latent variables. For several layers, a list that starts at the layer
            nearest the image.
        pixel_mean: The mean of every pixel, from 0 to 1, `[pixels]`: pass `dataset.pixel_mean()`.
        replicas: The number of independent models, which is the leading axis of every parameter.
        seed: Seed of the initial weights. With None, all weights are zero, to be loaded later.
        device: The device of the model. The weights do not depend on the device.
        categories: The number of categories of each latent variable; 2 makes them bits.
        likelihood: The distribution of pixels given the decoder's outputs; by default, the outputs
            are logits of bits.
        encoder_scale: A factor for the last affine layer of every encoder. The initial weights of
            this layer are multiplied by the factor.
        raw: Whether encoders get pixels without centering, and networks get bits as 0 and 1. All
            biases are then initially zero, and the mean of each pixel is not used.
    """
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    as_count(replicas, 1, "replicas")
    encoder, pixels = NETWORKS[network], pixel_mean.shape[-1]
    decoder = DECODERS.get(network, encoder)
    widths = latents if isinstance(latents, Sequence) else [latents]
    sizes = [layer_of(width, categories).event_shape.numel() for width in widths]
    encoders = [encoder(replicas, below, above) for below, above in pairwise([pixels, *sizes])]
    head = likelihood.head(replicas, pixels)
    outputs = [likelihood.outputs(pixels) if head is None else pixels, *sizes]
    decoders = [decoder(replicas, above, below) for below, above in pairwise(outputs)]
    last = _last_affine(decoders[0])
    if head is not None:
        decoders[0] = nn.Sequential(decoders[0], head)
    parts = (encoders, decoders, widths, pixel_mean, replicas)
    vae = DiscreteVAE(*parts, likelihood=likelihood, categories=categories, raw=raw)
    if seed is None:
        return vae.to(device)
    generators = [seeded_generator(seed, "init", replica) for replica in range(replicas)]
    for layer in vae.modules():
        if isinstance(layer, ReplicaLinear):
            layer.initialize(generators)
    with torch.no_grad():
        if not raw:
            last.bias.copy_(likelihood.initial_outputs(pixel_mean))
        for encoder in encoders if encoder_scale != 1 else ():
            _last_affine(encoder).weight.mul_(encoder_scale)
    return vae.to(device)
