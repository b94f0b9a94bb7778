"""A Triton kernel for the likelihood of pixels, and matrix products on a GPU.

After the last matrix product of the decoder, one kernel reads the logit of every pixel once. It
writes the log-likelihood of each row, and the residual x - sigmoid(logit). The gradient is computed
from the residual. Matrix products follow `torch.set_float32_matmul_precision`. With `rough`,
gradients use bfloat16 products, and the residual is also bfloat16. `rough_product` uses bfloat16
for the gradients of other layers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_ROWS, BLOCK_PIXELS = 4, 256
ONE_ROW_PER_BLOCK_UP_TO = 8192
"""Up to this number of rows, each row has its own block of threads."""


def affine_log_prob(
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    attached: int,
    rough: bool = False,
    inward: int | None = None,
) -> Tensor:
    """Return the log-probability of the bits `x`, summed over pixels, `[n, R, B]`.

    The logits of the pixels are `h` `weight` + `bias`. The shapes are `h` `[n, R, B, inputs]`,
    `weight` `[R, inputs, pixels]`, `bias` `[R, 1, pixels]` and `x` `[R, B, pixels]`. Only the first
    `attached` samples have gradients with respect to `weight` and `bias`. The first
    max(`attached`, `inward`) samples have gradients with respect to `h`. With `rough`, gradients
    use bfloat16 products.
    """
    samples, replicas, batch, _ = h.shape
    # [R, nB, inputs] gives one matrix product per replica.
    rows = h.movedim(0, 1).flatten(1, 2).contiguous()
    needed = h.requires_grad or weight.requires_grad or bias.requires_grad
    learns = torch.is_grad_enabled() and needed
    # The kernel reads the pixels once per sample, and uint8 needs a quarter of float32's memory.
    bits = x.to(torch.uint8).expand(replicas, -1, -1)
    dtype = torch.bfloat16 if rough else torch.float32
    kept = max(attached, inward or 0) * batch if learns else 0
    value, _ = _forward(rows, weight, bias, bits, kept, attached * batch, dtype)
    of_samples: Tensor = value.unflatten(1, (samples, batch)).movedim(1, 0)
    return of_samples


@torch.library.custom_op("arms::affine_log_prob", mutates_args=())
def _forward(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    kept: int,
    learned: int,
    residual_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the log-likelihood of each row, `[R, nB]`, and residuals `[R, kept, pixels]`.

    The logits of the pixels are `rows` `weight` + `bias`. The residuals are x - sigmoid(logit) of
    the first `kept` rows. Only the first `learned` rows contribute to the gradients of `weight` and
    `bias`.
    """
    logits = torch.bmm(rows, weight)
    count, pixels = logits.shape[0] * logits.shape[1], logits.shape[2]
    value, residual = _outputs(rows, pixels, kept, residual_dtype)
    if count:
        block = BLOCK_ROWS if count > ONE_ROW_PER_BLOCK_UP_TO else 1
        with torch.cuda.device_of(logits):  # Triton launches on PyTorch's current device
            _log_prob_kernel[(triton.cdiv(count, block),)](
                logits, bias.contiguous(), x.contiguous(), value, residual,
                count, logits.shape[1], x.shape[1], pixels, kept,
                block, BLOCK_PIXELS, triton.next_power_of_2(pixels % BLOCK_PIXELS),
            )  # fmt: skip
    return value, residual


@_forward.register_fake
def _(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    kept: int,
    learned: int,
    residual_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return _outputs(rows, weight.shape[-1], kept, residual_dtype)


def _outputs(
    rows: Tensor, pixels: int, kept: int, residual_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    residual = rows.new_empty((len(rows), kept, pixels), dtype=residual_dtype)
    return rows.new_empty(rows.shape[:2]), residual


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    rows, weight, *_, learned, _ = inputs
    residual = output[1]
    ctx.save_for_backward(rows[:, : min(learned, residual.shape[1])].contiguous(), weight, residual)


def _backward(
    ctx: Any, grad: Tensor, _: Tensor
) -> tuple[Tensor | None, Tensor, Tensor, None, None, None, None]:
    rows, weight, residual = ctx.saved_tensors
    count, kept, learned, inputs = grad.shape[1], residual.shape[1], rows.shape[1], rows.shape[2]
    scale = grad[:, :learned].unsqueeze(-1)
    # An additional column of ones gives the gradient of the bias. Columns of zeros align the rows.
    filler = scale.new_zeros(()).expand(*scale.shape[:2], 7 - inputs % 8)
    augmented = torch.cat([rows * scale, scale, filler], -1).to(residual.dtype)
    both = _product(augmented.mT, residual[:, :learned])
    inward = None
    if ctx.needs_input_grad[0]:
        inward = _product(residual, weight.to(residual.dtype).mT) * grad[:, :kept].unsqueeze(-1)
        if kept < count:
            inward = torch.nn.functional.pad(inward, (0, 0, 0, count - kept))
    return inward, both[:, :inputs], both[:, inputs : inputs + 1], None, None, None, None


_forward.register_autograd(_backward, setup_context=_remember)


@torch.library.custom_op("arms::product", mutates_args=())
def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched matrix product of `a` and `b` in float32, for factors of any dtype."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return torch.bmm(a.float(), b.float())
    return torch.bmm(a, b, out_dtype=torch.float32)


@_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:2], b.shape[2]), dtype=torch.float32)


@torch.library.custom_op("arms::rough_product", mutates_args=())
def rough_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched matrix product of `a` and `b`. Gradients use bfloat16 products."""
    return torch.bmm(a, b)


@rough_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:2], b.shape[2]))


def _remember_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _rough_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    rough, wanted = grad.to(torch.bfloat16), ctx.needs_input_grad
    a, b = (factor.to(torch.bfloat16).mT for factor in ctx.saved_tensors)
    return _product(rough, b) if wanted[0] else None, _product(a, rough) if wanted[1] else None


rough_product.register_autograd(_rough_backward, setup_context=_remember_factors)


@triton.jit  # type: ignore[untyped-decorator]
def _log_prob_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, bias_ptr, x_ptr, value_ptr, residual_ptr,
    count, rows: tl.constexpr, batch: tl.constexpr, pixels: tl.constexpr, kept: tl.constexpr,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    # The number of a row is (replica * samples + sample) * batch + image.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_in = row < count
    replica, image = row // rows, row % batch
    logits_row = (logits_ptr + row.to(tl.int64) * pixels)[:, None]
    residual_row = (residual_ptr + (replica.to(tl.int64) * kept + row % rows) * pixels)[:, None]
    x_row = (x_ptr + (replica.to(tl.int64) * batch + image) * pixels)[:, None]
    bias_row = (bias_ptr + replica.to(tl.int64) * pixels)[:, None]
    inside, keep = row_in[:, None], (row_in & (row % rows < kept))[:, None]
    missed = tl.zeros((ROWS, PIXELS), tl.float32)
    factors = tl.full((ROWS, PIXELS), 1.0, tl.float32)
    full: tl.constexpr = pixels - pixels % PIXELS
    for start in tl.static_range(0, full, PIXELS):
        pixel = start + tl.arange(0, PIXELS)[None, :]
        relu, factor = _tile(
            logits_row, bias_row, x_row, residual_row, pixel, inside, keep, kept > 0
        )
        missed += relu
        factors *= factor
        if start // PIXELS % 64 == 63:  # before the product can overflow at 2^128
            missed += tl.log(factors)
            factors = tl.full((ROWS, PIXELS), 1.0, tl.float32)
    total = tl.sum(missed + tl.log(factors), 1)
    if pixels > full:
        pixel = full + tl.arange(0, REST)[None, :]
        there = pixel < pixels
        relu, factor = _tile(
            logits_row, bias_row, x_row, residual_row, pixel, inside & there, keep & there, kept > 0
        )
        total += tl.sum(tl.where(there, relu + tl.log(factor), 0.0), 1)
    tl.store(value_ptr + row, -total, mask=row_in)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # type: ignore[no-untyped-def]
    logits_row, bias_row, x_row, residual_row, pixel, inside, keep, KEEP: tl.constexpr
):
    """Return max(u, 0) and 1 + e^-|z| for each pixel of a tile, and store the residuals.

    Here z is the pixel's logit, and u is -z if the pixel is white, and z if it is black. The
    log-likelihood follows from -log p = softplus(u) = max(u, 0) + log(1 + e^-|z|). The caller
    multiplies many of the values 1 + e^-|z|, and takes one logarithm of the product.
    """
    z = tl.load(logits_row + pixel, mask=inside, other=0.0) + tl.load(
        bias_row + pixel, mask=inside, other=0.0
    )
    bit = tl.load(x_row + pixel, mask=inside, other=0) > 0
    u = tl.where(bit, -z, z)
    small = tl.exp(-tl.abs(z))
    if KEEP:
        wrong = tl.where(u > 0, 1.0, small) / (1 + small)  # sigmoid(u)
        residual = tl.where(bit, wrong, -wrong).to(residual_row.dtype.element_ty)
        tl.store(residual_row + pixel, residual, mask=keep)
    return tl.maximum(u, 0.0), 1 + small
