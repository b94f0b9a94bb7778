"""The binary variational autoencoder, every parameter with a leading replica axis; knows no estimator.

One stochastic layer of Bernoulli latents b, binary pixels x:
log w(b) = log p(x|b) + log p(b) - log q(b|x), with shapes x `[R, B, pixels]`, logits `[R, B, latents]`,
b `[n, R, B, latents]`, log-weights `[n, R, B]`. R independent replicas train for little more than the price of one.
"""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor, nn

from arms.arguments import as_count

Network: TypeAlias = Literal["linear", "nonlinear"]
HAS_TRITON = find_spec("triton") is not None
HIDDEN: dict[Network, tuple[int, ...]] = {"linear": (), "nonlinear": (200, 200)}


class ReplicaLinear(nn.Module):
    """R affine maps at once: `[*lead, R, B, inputs]` to `[*lead, R, B, outputs]`."""

    rough_gradients = False
    """Whether, on a GPU, its gradient may be made of bfloat16 products; it can then be taken only once."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each replica's rows, whatever axes stand before, with its own matrix."""
        first = x.movedim(-3, 0)
        rows = first.flatten(1, -2)
        # A GPU's product that begins with a bias costs a pass more; an addition is fused with what follows.
        if x.is_cuda:
            out = self._product()(rows, self.weight) + self.bias
        else:
            out = torch.baddbmm(self.bias, rows, self.weight)
        return out.reshape(first.shape[:-1] + out.shape[-1:]).movedim(0, -3)

    def _product(self) -> Callable[[Tensor, Tensor], Tensor]:
        if not (self.rough_gradients and HAS_TRITON):
            return torch.bmm
        from arms import kernels

        return kernels.rough_product

    def initialise(self, generators: Sequence[Generator]) -> None:
        """Draw Glorot-uniform weights, replica r from its own generator, and zero biases."""
        _, inputs, outputs = self.weight.shape
        limit = math.sqrt(6 / (inputs + outputs))
        with torch.no_grad():
            for weight, generator in zip(self.weight, generators, strict=True):
                weight.copy_(limit * (2 * torch.rand(weight.shape, generator=generator) - 1))
            self.bias.zero_()


class BinaryVAE(nn.Module):
    """A discrete VAE of any encoder and decoder: modules, or functions, that map the last axis.

    >>> vae = BinaryVAE(nn.Linear(64, 20), nn.Linear(20, 64), latents=20, pixel_mean=torch.full((64,), 0.3))
    >>> vae.encode(torch.ones(1, 5, 64)).shape
    torch.Size([1, 5, 20])
    """

    pixel_mean: Tensor

    def __init__(
        self,
        encoder: Callable[[Tensor], Tensor],
        decoder: Callable[[Tensor], Tensor],
        latents: int,
        pixel_mean: Tensor,
        replicas: int = 1,
    ) -> None:
        """`pixel_mean`, taken off the encoder's input, is `[pixels]`, or `[R, 1, pixels]` where replicas see others."""
        super().__init__()
        if pixel_mean.ndim != 1 and pixel_mean.shape[:-1] != (replicas, 1):
            raise ValueError(f"pixel_mean must be [pixels] or [{replicas}, 1, pixels], got {list(pixel_mean.shape)}")
        self.encoder, self.decoder = encoder, decoder
        self.replicas, self.latents = replicas, latents
        self.prior = nn.Parameter(torch.zeros(replicas, 1, latents))
        self.register_buffer("pixel_mean", pixel_mean.detach().expand(replicas, 1, -1).clone())

    def encode(self, x: Tensor) -> Tensor:
        """Return the logits of q(b|x) `[R, B, latents]`."""
        return _of_width(self.encoder(x - self.pixel_mean), self.latents, "encoder")

    def decode(self, b: Tensor) -> Tensor:
        """Return the logits of p(x|b) `[*lead, R, B, pixels]`."""
        return _of_width(self.decoder(signs(b)), self.pixel_mean.shape[-1], "decoder")

    def log_weights(self, b: Tensor, x: Tensor, logits: Tensor, attached: int | None = None) -> Tensor:
        """Return log p(x|b) + log p(b) - log q(b|x) `[n, R, B]`.

        Only the first `attached` samples, by default all, are part of autograd's graph: one pass evaluates samples to
        learn from and samples that are only looked at.
        """
        # log p(b) - log q(b) in one pass over the samples: b (prior - logits) - softplus(prior) + softplus(logits)
        softplus = nn.functional.softplus
        # With a zero more the sum is a kernel of its own; compiled, all else of the latents' shape would wait for it.
        constant = nn.functional.pad(softplus(logits) - softplus(self.prior), (0, 1)).sum(-1)
        slope = self.prior - logits
        if attached is None or attached == len(b):
            return self.log_likelihood(b, x) + ((b * slope).sum(-1) + constant)
        first, rest = b[:attached], b[attached:]
        ratio = torch.cat([(first * slope).sum(-1) + constant, (rest * slope.detach()).sum(-1) + constant.detach()])
        return self.log_likelihood(b, x, attached) + ratio

    def log_likelihood(self, b: Tensor, x: Tensor, attached: int | None = None) -> Tensor:
        """Return log p(x|b) `[n, R, B]`, with a graph for the first `attached` samples only, by default for all."""
        decoder = self.decoder
        if b.requires_grad:  # relaxed bits will be differentiated twice
            a = self.decode(b)
            return (x * a - nn.functional.softplus(a)).sum(-1)
        if isinstance(decoder, nn.Sequential) and isinstance(decoder[-1], ReplicaLinear):
            h = _attach_first(decoder[:-1], signs(b), attached) if len(decoder) > 1 else signs(b)
            return affine_log_prob(h, decoder[-1], x, attached)
        return _attach_first(lambda b: bernoulli_log_prob(self.decode(b), x), b, attached)


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


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return a generator for one use of a run's seed; different uses never share numbers.

    >>> torch.rand(1, generator=seeded_generator(0, "init")) == torch.rand(1, generator=seeded_generator(0, "train"))
    tensor([False])
    """
    words = np.random.SeedSequence([as_count(seed, 0, "seed"), index, *stream.encode()]).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))


def signs(b: Tensor) -> Tensor:
    """Return 2b - 1."""
    return (2 * b).sub_(1)


def bernoulli_log_prob(logits: Tensor, x: Tensor) -> Tensor:
    """Return sum over the last axis of log Bernoulli(x; sigmoid(logits)), for x of 0 and 1 that broadcasts.

    >>> bernoulli_log_prob(torch.zeros(2), torch.tensor([0.0, 1.0]))  # 2 log 1/2
    tensor(-1.3863)
    """
    value: Tensor = _LogProb.apply(logits, x)  # type: ignore[no-untyped-call]
    return value


def affine_log_prob(h: Tensor, layer: ReplicaLinear, x: Tensor, attached: int | None = None) -> Tensor:
    """Return `bernoulli_log_prob(layer(h), x)` for h `[n, R, B, inputs]` and x `[R, B, pixels]`, in half the passes.

    The pixels' logits are the widest thing in a step: here they are made, used and overwritten in one place. Gradients
    flow through the first `attached` samples only, by default through all.
    """
    attached = len(h) if attached is None else attached
    if h.is_cuda and h.dtype == torch.float32 and HAS_TRITON:
        from arms import kernels

        return kernels.affine_log_prob(h, layer.weight, layer.bias, x, attached, layer.rough_gradients)
    value: Tensor = _AffineLogProb.apply(h, layer.weight, layer.bias, x, attached)  # type: ignore[no-untyped-call]
    return value


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        logits, x = inputs
        sign = 1 - 2 * x
        value, residual = _log_prob_and_residual(logits * sign, sign)
        ctx.save_for_backward(residual)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        _refuse_second_derivatives()
        (residual,) = ctx.saved_tensors
        return residual * grads[0].unsqueeze(-1), None


class _AffineLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        h, weight, bias, x, attached = inputs
        rows = h.movedim(0, 1).flatten(1, 2)  # [R, nB, inputs]: one matrix product a replica
        sign = (1 - 2 * x).unsqueeze(1)
        z = torch.bmm(rows, weight).unflatten(1, h.shape[::2])  # [R, n, B, pixels]
        torch.addcmul(bias.unsqueeze(1) * sign, z, sign, out=z)
        value, residual = _log_prob_and_residual(z, sign)
        kept = attached * h.shape[2]
        ctx.save_for_backward(rows[:, :kept], weight, residual.flatten(1, 2)[:, :kept])
        return value.movedim(1, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        _refuse_second_derivatives()
        rows, weight, residual = ctx.saved_tensors
        samples, _, batch = grads[0].shape
        kept = rows.shape[1] // batch
        scale = grads[0][:kept].movedim(0, 1).flatten(1, 2).unsqueeze(-1)  # [R, rows, 1]: cheaper than on pixels
        inward = None
        if ctx.needs_input_grad[0]:
            inward = (torch.bmm(residual, weight.mT) * scale).unflatten(1, (kept, batch)).movedim(1, 0)
            if kept < samples:
                inward = torch.cat([inward, inward.new_zeros(samples - kept, *inward.shape[1:])])
        return inward, torch.bmm((rows * scale).mT, residual), torch.bmm(scale.mT, residual), None, None


def _of_width(logits: Tensor, width: int, what: str) -> Tensor:
    if logits.shape[-1] != width:
        raise ValueError(f"the {what} must return logits [..., {width}], got {list(logits.shape)}")
    return logits


def _attach_first(function: Callable[[Tensor], Tensor], b: Tensor, attached: int | None) -> Tensor:
    """Apply a function to all samples, with a graph for the first `attached` only."""
    if attached is None or attached == len(b):
        return function(b)
    with torch.no_grad():
        rest = function(b[attached:])
    return torch.cat([function(b[:attached]), rest])


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():  # backward with create_graph=True, where the saved residual would count as a constant
        raise RuntimeError("this log-probability is differentiable once; mark its samples as requiring a gradient")


def _log_prob_and_residual(z: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """From z = logits (1 - 2x), overwritten, return sum log p(x) = -softplus(z) over pixels, and x - sigmoid(logits).

    softplus(z) = relu(z) - log sigmoid(|z|), and sigmoid(|z|) lies in [1/2, 1]: dozens can be multiplied before one
    logarithm is taken. One sigmoid a pixel serves both results, in two buffers.
    """
    scratch = z.clamp(min=0)
    missed = scratch.sum(-1)
    wrong = z.sigmoid_()
    likely = torch.sub(wrong, 0.5, out=scratch).abs_().add_(0.5)
    return _sum_log(likely) - missed, wrong.mul_(-sign)


def _sum_log(y: Tensor) -> Tensor:
    """Sum over the last axis of log y, for y in [1/2, 1]: up to 64 factors a logarithm, far from underflow."""
    for _ in range(6):
        if y.shape[-1] % 2:
            break
        first, second = y.chunk(2, -1)
        y = first * second
    return y.log().sum(-1)


def _perceptron(replicas: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [ReplicaLinear(replicas, inputs, outputs), nn.LeakyReLU(0.3)]
    return nn.Sequential(*layers[:-1])
