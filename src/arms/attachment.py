"""Attach a gradient estimate to the logits, or to the parameters of an estimator."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import Function

from arms.arguments import has_tangent, in_function_transform
from arms.latents import Latent

SATURATED_LOGIT = 1e4  # p is 0 or 1 in every floating-point format


def needs_gradient(latent: Latent) -> bool:
    logits = latent.logits
    return (torch.is_grad_enabled() and logits.requires_grad) or has_tangent(logits)


def attach_gradient(value: Tensor, latent: Latent, grad: Tensor) -> Tensor:
    """Return a copy of `value` whose derivative with respect to the logits is `grad`."""
    logits = latent.logits
    if not needs_gradient(latent):
        return value
    if torch.compiler.is_compiling():
        # The added term is zero, and its derivative is the estimate. The clamp avoids inf - inf,
        # and only affects saturated logits, whose gradient is zero. The logits are subtracted
        # before the product and the sum, which could otherwise overflow in half precision.
        still = logits.clamp(-SATURATED_LOGIT, SATURATED_LOGIT)
        return value + latent.sum_event((still - still.detach()) * grad)
    # `Function.apply` first removes wrappers of function transforms. Outside of transforms, the
    # `apply` of its base class is faster (tried on PyTorch 2.13).
    of = _Attach.apply if in_function_transform() else super(Function, _AttachPlainly).apply
    found: Tensor = of(value, logits, grad, latent.event_dims)  # type: ignore[no-untyped-call]
    return found


def attach_to_parameters(
    grad: Tensor, parameters: Sequence[nn.Parameter], points: Tensor, leaf: Tensor | None
) -> Tensor:
    """Return `grad`, so that autograd can differentiate it in the estimator's parameters only.

    `grad` is a gradient estimate. The points may depend on the parameters. `leaf` is the copy of
    the points at which the objective was evaluated. Gradients that arrive at `leaf` continue
    through `points` to the parameters.
    """
    # The tuple hides these tensors from autograd. Otherwise, autograd would continue from these
    # tensors into the objective's graph, and free buffers that are still needed.
    inputs = (grad.detach(), (grad, points, leaf), *parameters)
    attached: Tensor = _AttachOnly.apply(*inputs)  # type: ignore[no-untyped-call]
    return attached


class _Attach(Function):
    """An autograd function that returns `value`. Its backward pass sends `grad` to the logits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, logits: Tensor, grad: Tensor, event_dims: int) -> Tensor:
        return value.clone()  # not a view, because its tangent would then have to be a view too

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        _, logits, grad, ctx.event_dims = inputs
        ctx.save_for_backward(logits, grad)
        ctx.save_for_forward(logits, grad)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        logits, grad = ctx.saved_tensors
        if torch.is_grad_enabled():  # the caller asked for a graph of this derivative
            grad = _OnlyOnce.apply(grad, logits)  # type: ignore[no-untyped-call]
        scale = upstream[0]
        for _ in range(ctx.event_dims):
            scale = scale.unsqueeze(-1)
        return upstream[0], scale * grad, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        logits, grad = ctx.saved_tensors
        grad = _OnlyOnce.apply(grad, logits)  # type: ignore[no-untyped-call]
        of_value, of_logits = tangents[:2]
        moved: Tensor = (of_logits * grad).sum(tuple(range(-ctx.event_dims, 0)))
        return moved if of_value is None else of_value + moved


class _AttachPlainly(_Attach):
    """A version of `_Attach` that takes half the time, but does not support torch.func."""

    generate_vmap_rule = False
    setup_context = Function.setup_context

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        value, logits, grad, ctx.event_dims = inputs
        ctx.save_for_backward(logits, grad)
        ctx.save_for_forward(logits, grad)
        result: Tensor = value.clone()
        return result


class _OnlyOnce(Function):
    """An autograd function that returns `grad`, and raises an error in its backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, logits: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:
        _refuse_second_derivatives()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        _refuse_second_derivatives()


def _refuse_second_derivatives() -> NoReturn:
    what = "a gradient estimate has no second derivatives"
    raise ValueError(f"{what}: for few latents, differentiate arms.checks.exact_value instead")


class _AttachOnly(Function):
    """An autograd function that returns `grad`.

    Its backward pass computes gradients of the estimator's parameters only.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, source: Any, *parameters: Tensor) -> Tensor:
        ctx.source, ctx.parameters = source, parameters
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (grad, points, leaf), parameters = ctx.source, ctx.parameters
        inputs = parameters if leaf is None else (*parameters, leaf)
        pull_back = partial(torch.autograd.grad, retain_graph=True, allow_unused=True)
        grads: tuple[Tensor | None, ...] = pull_back(grad, inputs, upstream[0])
        own, at_points = grads[: len(parameters)], grads[len(parameters) :]
        if at_points and at_points[0] is not None and points.requires_grad:
            # The points also depend on the parameters.
            moved = pull_back(points, parameters, at_points[0])
            own = tuple(
                a if b is None else b if a is None else a + b
                for a, b in zip(own, moved, strict=True)
            )
        return None, None, *own
