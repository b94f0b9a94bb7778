"""Networks whose parameters have a leading replica axis, and likelihoods of pixels.

The logits of the pixels are the largest tensor of a training step. The code therefore reads this
tensor as rarely as possible.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import pad

from arms.arguments import as_count, as_positive
from arms.bench.models.products import is_faster, multiply, multiply_matrices

HAS_TRITON = find_spec("triton") is not None
Builder: TypeAlias = Callable[[int, int, int], nn.Module]
"""A function `build(replicas, inputs, outputs)` that returns a network with zero weights."""


class ReplicaLinear(nn.Module):
    """An affine layer with separate weights for each of R replicas.

    It maps `[*lead, R, B, inputs]` to `[*lead, R, B, outputs]`.
    """

    bfloat16_backward = False
    """Whether gradients may use bfloat16 products on a GPU.

    Such gradients cannot be differentiated again.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each replica's rows by the weight of the replica, and add the bias."""
        first = x.movedim(-3, 0)  # [R, *lead, B, inputs]: one matrix product per replica
        rows = first.flatten(1, -2)
        # On a GPU, a separate addition is fused, but `baddbmm` needs one more pass over memory.
        on_gpu, bias = x.is_cuda, self.bias
        out = self._product(rows) + bias if on_gpu else multiply(rows, self.weight, bias)
        return out.reshape(first.shape[:-1] + out.shape[-1:]).movedim(0, -3)

    def _product(self, rows: Tensor) -> Tensor:
        if not (self.bfloat16_backward and HAS_TRITON):
            return torch.bmm(rows, self.weight)
        from arms.bench.models import kernels

        product: Tensor = kernels.rough_product(rows, self.weight)
        return product

    def initialize(self, generators: Sequence[Generator]) -> None:
        """Set random weights from Glorot's uniform distribution, and set the biases to zero.

        `generators` has one generator per replica.
        """
        _, inputs, outputs = self.weight.shape
        limit = math.sqrt(6 / (inputs + outputs))
        with torch.no_grad():
            for weight, generator in zip(self.weight, generators, strict=True):
                weight.copy_(limit * (2 * torch.rand(weight.shape, generator=generator) - 1))
            self.bias.zero_()


def tensor_places(module: nn.Module, kind: str) -> dict[str, Tensor]:
    """Return all parameters or all buffers of a module, including its submodules.

    `kind` is "_parameters" or "_buffers". The key of a tensor is its place in the module, such as
    "0.weight". A layer that is used twice has one place. A parameter that two layers share has two
    places.
    """
    return {
        f"{path}.{name}" if path else name: tensor
        for path, owner in module.named_modules()
        for name, tensor in getattr(owner, kind).items()
        if tensor is not None
    }


def call_with(module: nn.Module, tensors: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Call a module with other parameters or buffers, and return the module's result.

    The keys of `tensors` are places in the module, as in the result of `tensor_places`. During the
    call, the tensors at these places are replaced. If two layers share a weight, `tensors` must
    contain both places. PyTorch's own support for shared weights is not used, because it would
    leave the given tensors in a layer that is used twice.
    """
    return torch.func.functional_call(module, tensors, args, kwargs, tie_weights=False)


def perceptron(*hidden: int, slope: float = 0.3) -> Builder:
    """Return a builder of perceptrons, where `hidden` are the widths of the hidden layers.

    The hidden units are LeakyReLU with the given slope, or ReLU if `slope` is 0.
    """

    def build(replicas: int, inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden, outputs)):
            unit = nn.LeakyReLU(slope) if slope else nn.ReLU()
            layers += [ReplicaLinear(replicas, before, after), unit]
        return nn.Sequential(*layers[:-1])

    return build


def apply_network(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `network(x)`.

    On a CPU, a perceptron becomes a single node of autograd's graph, to save time.
    """
    layers = list(network) if type(network) is nn.Sequential else []
    fits = len(layers) > 1 and is_faster(x, x) and all(map(_is_plain, layers))
    affine, units = layers[::2], layers[1::2]
    if not (
        fits
        and all(type(one) is ReplicaLinear and one.weight.dtype == x.dtype for one in affine)
        and all(type(one) is nn.LeakyReLU and one.negative_slope > 0 for one in units)
    ):
        return network(x)
    slopes = [one.negative_slope for one in units]
    tensors = [tensor for one in affine for tensor in (one.weight, one.bias)]
    first = x.movedim(-3, 0)
    rows = first.flatten(1, -2)
    inputs = network, slopes, rows, *tensors
    out: Tensor = _Perceptron.apply(*inputs)  # type: ignore[no-untyped-call]
    return out.view(first.shape[:-1] + out.shape[-1:]).movedim(0, -3)


def _is_plain(layer: nn.Module) -> bool:
    """Return whether calling a layer calls its `forward` and nothing else."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks
    return not (any(hooks) or layer._backward_pre_hooks)


class _Perceptron(torch.autograd.Function):
    """A perceptron for R replicas, as a single node of autograd's graph.

    It applies affine maps to rows `[R, rows, inputs]`, with LeakyReLU units between the maps. There
    may be one more LeakyReLU after the last map.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        network, slopes, rows, *weights = inputs
        ctx.network, ctx.slopes, ctx.tensors = network, slopes, len(weights)
        outputs = [rows]  # the rows, then the output of each LeakyReLU, or of the last map
        for index in range(0, len(weights), 2):
            out = multiply(outputs[-1], weights[index], weights[index + 1])
            if index // 2 < len(slopes):
                torch.nn.functional.leaky_relu_(out, slopes[index // 2])
            outputs.append(out)
        # Users may change the output in place, so it is saved only if a unit follows the last map.
        ctx.save_for_backward(*weights, *outputs[: len(slopes) + 1])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, outputs = ctx.saved_tensors[: ctx.tensors], ctx.saved_tensors[ctx.tensors :]
        (grad,) = grads
        if torch.is_grad_enabled():  # only if the gradient will be differentiated again
            return _plain_backward(ctx.network, outputs[0], weights, grad, ctx.needs_input_grad)
        of_weights: list[Tensor | None] = []
        for index in reversed(range(ctx.tensors // 2)):
            if index < len(ctx.slopes):  # the output has the same sign as the input
                out, slope = outputs[index + 1], ctx.slopes[index]
                grad = torch.ops.aten.leaky_relu_backward(grad, out, slope, True)
            of_weight, of_bias = ctx.needs_input_grad[3 + 2 * index : 5 + 2 * index]
            of_weights.append(grad.sum(1, keepdim=True) if of_bias else None)
            of_weights.append(multiply(outputs[index].mT, grad) if of_weight else None)
            if index or ctx.needs_input_grad[2]:
                grad = multiply(grad, weights[2 * index].mT)
        return None, None, grad if ctx.needs_input_grad[2] else None, *reversed(of_weights)


def _plain_backward(
    network: nn.Module, x: Tensor, weights: Sequence[Tensor], grad: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return the results of `_Perceptron.backward` in a form that can be differentiated again."""
    inputs = [one for one, is_wanted in zip((x, *weights), wanted[2:], strict=True) if is_wanted]
    affine = [name for name, layer in network.named_children() if isinstance(layer, ReplicaLinear)]
    names = [f"{name}.{kind}" for name in affine for kind in ("weight", "bias")]
    out = call_with(network, dict(zip(names, weights, strict=True)), x)
    found = iter(torch.autograd.grad(out, inputs, grad, create_graph=True))
    return None, None, *(next(found) if is_wanted else None for is_wanted in wanted[2:])


NETWORKS: dict[str, Builder] = {
    "linear": perceptron(),
    "nonlinear": perceptron(200, 200),
    "pyramid": perceptron(512, 256, slope=0),
}
"""Built-in networks by name, for encoders. They also serve as decoders, unless in `DECODERS`."""
DECODERS: dict[str, Builder] = {"pyramid": perceptron(256, 512, slope=0)}
"""Built-in decoders by name, for the names in `NETWORKS` whose decoder is a different network."""


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return a generator of random numbers for one purpose, such as the initial weights.

    The numbers depend on `seed`, on `stream`, which names the purpose, and on `index`. Different
    purposes therefore get different random numbers from the same seed.

    >>> one, other = seeded_generator(0, "init"), seeded_generator(0, "train")
    >>> torch.rand(1, generator=one) == torch.rand(1, generator=other)
    tensor([False])
    """
    entropy = [as_count(seed, 0, "seed"), index, *stream.encode()]
    words = np.random.SeedSequence(entropy).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))


class PixelLikelihood(ABC):
    """The likelihood p(x|b) of a `DiscreteVAE`, where x contains gray values from 0 to 1."""

    binarizes_input: ClassVar[bool] = False
    """Whether x contains random bits instead of gray values. A bit's mean is the gray value."""

    @abstractmethod
    def outputs(self, pixels: int) -> int:
        """Return the number of decoder outputs for an image with `pixels` pixels."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """Return log p(x|b), summed over pixels, `[*lead, R, B]`.

        The decoder's outputs have shape `[*lead, R, B, outputs]`, and x has shape `[R, B, pixels]`.
        """

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Return the mean of x under p(x|b), `[*lead, R, B, pixels]`, to show it as a picture."""

    def log_prob_table(self, outputs: Tensor, x: Tensor) -> Tensor:
        """Return a table of log p(x|b) for every state b and every image x, `[S, R, B]`.

        `outputs` `[S, R, 1, outputs]` contains the decoder's outputs for S states. `x`
        `[R, B, pixels]` contains the images.
        """
        return self.log_prob(outputs.expand(-1, -1, x.shape[-2], -1), x)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        """Return initial biases for the last layer of a built-in decoder, `[outputs]`.

        `pixel_mean` `[pixels]` contains the mean of every pixel, from 0 to 1.
        """
        return pixel_mean.new_zeros(self.outputs(len(pixel_mean)))

    def scaled(self, x: Tensor) -> Tensor:
        """Convert gray values from 0 to 1 to the scale that encoders expect."""
        return x

    def head(self, replicas: int, pixels: int) -> nn.Module | None:
        """Return a module to append to a built-in decoder, or None if none is needed.

        The module computes the outputs from one number per pixel.
        """
        return None

    def check_levels(self, levels: int) -> None:  # noqa: B027 (most take any)
        """Raise if this likelihood does not support images with this number of levels."""


@dataclass(frozen=True)
class BernoulliPixels(PixelLikelihood):
    """Pixels are bits, drawn again from the gray values in every batch.

    The decoder returns the logits of these bits.
    """

    binarizes_input = True

    def outputs(self, pixels: int) -> int:
        return pixels

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        return bernoulli_log_prob(outputs, x)

    def log_prob_table(self, outputs: Tensor, x: Tensor) -> Tensor:
        return bernoulli_table(outputs, x)

    def mean(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        return torch.logit(pixel_mean.clamp(0.001, 0.999))


@dataclass(frozen=True)
class GaussianPixels(PixelLikelihood):
    """Pixels are gray values with normal noise.

    The likelihood is a density, so bounds may be positive.

    Args:
        std: Standard deviation of the noise, where black is 0 and white is 1. By default, the
            decoder returns two numbers per pixel: all means, then all log-variances.

    >>> GaussianPixels(std=0.1).outputs(64), GaussianPixels().outputs(64)
    (64, 128)
    """

    std: float | None = None

    def __post_init__(self) -> None:
        if self.std is not None:
            object.__setattr__(self, "std", as_positive(self.std, "std"))

    def outputs(self, pixels: int) -> int:
        return pixels if self.std is not None else 2 * pixels

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        mean, log_variance = self._split(outputs)
        squares = (x - mean).square() * torch.exp(-log_variance)
        return -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        return self._split(outputs)[0].clamp(0, 1)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        pixels = len(pixel_mean)
        return pad(pixel_mean, (0, self.outputs(pixels) - pixels))  # log-variances are zero

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split the decoder's outputs into means and log-variances."""
        if self.std is None:
            mean, log_variance = outputs.chunk(2, -1)
            return mean, log_variance
        return outputs, torch.full_like(outputs[..., :1], 2 * math.log(self.std))


@dataclass(frozen=True)
class CategoricalPixels(PixelLikelihood):
    """Each pixel has one of `levels` + 1 gray values, and each value has its own probability.

    The decoder returns `levels` + 1 logits per pixel. The logits of one pixel are adjacent.

    Args:
        levels: The largest pixel value of the data set.

    >>> CategoricalPixels(levels=3).outputs(64)
    256
    """

    levels: int = 255

    def __post_init__(self) -> None:
        as_count(self.levels, 1, "levels")

    def outputs(self, pixels: int) -> int:
        return pixels * (self.levels + 1)

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        log_probs = torch.log_softmax(outputs.unflatten(-1, (-1, self.levels + 1)), -1)
        values = (x * self.levels).round().long().expand(log_probs.shape[:-1])
        return log_probs.gather(-1, values.unsqueeze(-1)).squeeze(-1).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        probs = torch.softmax(outputs.unflatten(-1, (-1, self.levels + 1)), -1)
        return probs @ self._gray_values(outputs)

    def initial_outputs(self, pixel_mean: Tensor) -> Tensor:
        # Dark pixels prefer dark values. With one level these are the logits of bits.
        logits = torch.logit(pixel_mean.clamp(0.001, 0.999))
        return torch.outer(logits, self._gray_values(logits)).flatten()

    def check_levels(self, levels: int) -> None:
        if levels != self.levels:
            wanted = f"the model needs pixels from 0 to {self.levels}"
            got = f"a data set with pixels from 0 to {levels}"
            raise ValueError(f"{wanted}, got {got}: use CategoricalPixels({levels})")

    def _gray_values(self, like: Tensor) -> Tensor:
        return torch.linspace(0, 1, self.levels + 1, dtype=like.dtype, device=like.device)


def bernoulli_log_prob(logits: Tensor, x: Tensor) -> Tensor:
    """Return the log-probability of bits `x` given their logits, summed over the last axis."""
    value: Tensor = _LogProb.apply(logits, x)  # type: ignore[no-untyped-call]
    return value


def smooth_log_prob(logits: Tensor, x: Tensor) -> Tensor:
    """Return `bernoulli_log_prob(logits, x)`, extended linearly to `x` between 0 and 1.

    The result can be differentiated several times, with respect to `x` and `logits`.
    """
    return (x * logits - torch.nn.functional.softplus(logits)).sum(-1)


def bernoulli_table(logits: Tensor, x: Tensor) -> Tensor:
    """Return a table of `smooth_log_prob` for every state and every image, `[S, R, B]`.

    `logits` `[S, R, 1, pixels]` contains the logits of the pixels for S states. `x`
    `[R, B, pixels]` contains the images.
    """
    rows = logits.squeeze(-2).movedim(0, 1)
    table = torch.bmm(rows, x.mT) - torch.nn.functional.softplus(rows).sum(-1, keepdim=True)
    return table.movedim(0, 1)


def affine_log_prob(
    h: Tensor,
    layer: ReplicaLinear,
    x: Tensor,
    attached: int | None = None,
    all_inward: bool = False,
) -> Tensor:
    """Return `bernoulli_log_prob(layer(h), x)`, `[n, R, B]`, in half the time.

    `h` is `[n, R, B, inputs]`. Only the results of the first `attached` samples can be
    differentiated; by default, all can. With `all_inward`, all results can be differentiated with
    respect to `h`. The logits are overwritten in memory, to save time.
    """
    attached = len(h) if attached is None else attached
    inward = len(h) if all_inward else attached
    weight, bias, roughly = layer.weight, layer.bias, layer.bfloat16_backward
    if h.is_cuda and h.dtype == torch.float32 and HAS_TRITON:
        from arms.bench.models import kernels

        return kernels.affine_log_prob(h, weight, bias, x, attached, roughly, inward)
    # Two nodes, one for the gradient of h and one for the weights, so that each can be skipped.
    inputs = h, weight.detach(), bias.detach(), x, inward
    value: Tensor
    value, rows, residual = _AffineLogProb.apply(*inputs)  # type: ignore[no-untyped-call]
    if not (torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad)):
        return value
    kept = attached * h.shape[2]
    learned = rows[:, :kept], residual[:, :kept], value.shape
    zero: Tensor = _OfWeights.apply(weight, bias, *learned)  # type: ignore[no-untyped-call]
    return value + zero


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        logits, x = inputs
        value, residual = _log_prob_and_residual(logits.clone(), x)
        ctx.save_for_backward(residual)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        _check_first_derivative()
        (residual,) = ctx.saved_tensors
        return residual * grads[0].unsqueeze(-1), None


class _AffineLogProb(torch.autograd.Function):
    """Computes the result of `affine_log_prob`, with a gradient for `h` only.

    It also returns the rows of `h` and the residuals x - sigmoid(logits) of the attached samples.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        h, weight, bias, x, attached = inputs
        n, replicas, batch, _ = h.shape
        rows = h.movedim(0, 1).flatten(1, 2)  # [R, nB, inputs], by sample, then by image
        kept = attached * batch  # the attached samples are the first rows
        value = rows.new_empty(replicas, n, batch)
        residual = rows.new_empty(replicas, n, batch, weight.shape[-1])
        # Compute one replica at a time, so that its logits stay in the processor's cache.
        for r, images in enumerate(x.expand(replicas, -1, -1)):
            logits = multiply_matrices(rows[r], weight[r], bias[r, 0]).unflatten(0, (n, batch))
            value[r], _ = _log_prob_and_residual(logits, images, residual[r])
        residual, rows = residual.flatten(1, 2)[:, :kept], rows[:, :kept]
        ctx.mark_non_differentiable(rows, residual)
        ctx.set_materialize_grads(False)  # no zeros for rows and residual
        ctx.save_for_backward(weight, residual)
        return value.movedim(1, 0), rows, residual

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        weight, residual = ctx.saved_tensors
        samples, _, batch = grads[0].shape
        kept = residual.shape[1] // batch
        inward = multiply(residual, weight.mT).mul_(_per_row(grads[0], kept))
        inward = inward.unflatten(1, (kept, batch)).movedim(1, 0)
        if kept < samples:  # autograd wants a gradient of the shape of h
            inward = torch.cat([inward, inward.new_zeros(samples - kept, *inward.shape[1:])])
        return inward, None, None, None, None


class _OfWeights(torch.autograd.Function):
    """Returns zero, but has the gradients of `affine_log_prob` for the layer's weight and bias.

    `affine_log_prob` adds this zero to its result.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        weight, _, rows, residual, shape = inputs
        ctx.save_for_backward(rows, residual)
        zero: Tensor = weight.new_zeros(())
        return zero.expand(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        rows, residual = ctx.saved_tensors
        scale = _per_row(grads[0], rows.shape[1] // grads[0].shape[2])
        of_weight = multiply((rows * scale).mT, residual)
        return of_weight, torch.bmm(scale.mT, residual), None, None, None


def _per_row(grad: Tensor, kept: int) -> Tensor:
    """Reshape the first `kept` samples of `grad`, `[n, R, B]`, to rows `[R, kept B, 1]`."""
    return grad[:kept].movedim(0, 1).flatten(1, 2).unsqueeze(-1)


def _check_first_derivative() -> None:
    if torch.is_grad_enabled():  # create_graph=True, but the residual is a constant
        remedy = "pass twice=True for second derivatives"
        raise RuntimeError(f"this log-probability can be differentiated only once: {remedy}")


LEAST_PRODUCT = 1e-30
"""Smaller products of probabilities may have lost digits, because of denormal numbers."""


def _log_prob_and_residual(
    logits: Tensor, x: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return log p(x), `[..., B]`, and the residual x - sigmoid(logits), `[..., B, pixels]`.

    log p(x) is summed over pixels. If `out` is given, the residual is written to `out`. The tensor
    `logits` is overwritten.
    """
    sign = 2 * x - 1
    z = logits.mul_(sign)
    right = torch.sigmoid(z)  # the probability of each observed bit
    likely, missed = _products(right), None
    if not _is_readable(z) or likely.amin() < LEAST_PRODUCT:
        # log sigmoid(z) = min(z, 0) + log sigmoid(|z|), and the last sigmoid is at least 1/2.
        likely, missed = _products(torch.maximum(right, 1 - right)), z.clamp_(max=0).sum(-1)
    value = likely.log().sum(-1)
    residual = torch.addcmul(sign, sign, right, value=-1, out=right if out is None else out)
    return value if missed is None else value + missed, residual


def _is_readable(tensor: Tensor) -> bool:
    """Return whether Python code may read the values of a tensor.

    The tensor must be on a CPU and not empty, and no compiler may be tracing the code.
    """
    traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    return tensor.device.type == "cpu" and tensor.numel() > 0 and not traced


def _products(y: Tensor) -> Tensor:
    """Return products of groups of up to 16 entries along the last axis.

    The caller then needs only one logarithm per group.
    """
    for _ in range(4):
        if y.shape[-1] % 2:
            break
        first, second = y.chunk(2, -1)
        y = first * second
    return y
