"""Matrix products in float32 on a CPU. They use oneDNN if PyTorch includes it.

`torch.mm` calls MKL, which is slow on many processors: on an AMD EPYC with AVX-512, oneDNN is 2.3
times as fast. PyTorch calls oneDNN through a private operator (tried on 2.13, expected from 2.8
on). Without this operator, on other devices and in other dtypes, `torch.bmm` is used. The choice
depends only on the machine, so that runs are reproducible.
"""

from typing import Any

import torch
from torch import Tensor

from arms.arguments import in_function_transform

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `a @ b + bias` for R replicas, where `a` is `[R, m, k]` and `b` is `[R, k, n]`.

    `bias` is `[R, 1, n]`. The result, `[R, m, n]`, can be differentiated any number of times. Each
    replica has a separate product, so that the result of a replica does not depend on the number of
    replicas.
    """
    if not is_faster(a, b):
        return torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)
    if torch.is_grad_enabled() and any(
        one is not None and one.requires_grad for one in (a, b, bias)
    ):
        product: Tensor = _Product.apply(a, b, bias)  # type: ignore[no-untyped-call]
        return product
    return _multiply_all(a, b, bias)


def _multiply_all(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    if len(a) == 1:
        own = None if bias is None else bias[0, 0]
        return multiply_matrices(a[0], b[0], own).unsqueeze(0)
    biases = [None] * len(a) if bias is None else bias.squeeze(1)
    return torch.stack([multiply_matrices(*one) for one in zip(a, b, biases, strict=True)])


def multiply_matrices(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `a @ b + bias`, `[m, n]`, without support for autograd.

    The shapes are `a` `[m, k]`, `b` `[k, n]` and `bias` `[n]`.
    """
    if not is_faster(a, b):
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        a.contiguous(), b.t(), bias, "none", [], ""
    )
    return product


def is_faster(a: Tensor, b: Tensor) -> bool:
    """Return whether the product `a @ b` should use oneDNN.

    This is the case if oneDNN supports the two tensors, and is faster than `torch.bmm`.
    """
    fits = a.dtype == b.dtype == torch.float32 and a.device.type == "cpu"
    fits = fits and HAS_ONEDNN and a.numel() > 0 and b.numel() > 0
    return fits and not (torch.compiler.is_compiling() or in_function_transform())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        a, b, bias = inputs
        ctx.save_for_backward(a, b)
        return _multiply_all(a, b, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        (grad,), (for_a, for_b, for_bias) = grads, ctx.needs_input_grad
        return (
            multiply(grad, b.mT) if for_a else None,
            multiply(a.mT, grad) if for_b else None,
            grad.sum(1, keepdim=True) if for_bias else None,
        )
