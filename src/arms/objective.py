"""Evaluate the user's objective at the points of a draw, and check and differentiate the values."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arms import arguments
from arms.arguments import (
    FLOATS,
    LARGEST_EXACT,
    as_count,
    is_finite,
    is_readable,
    true_or_unreadable,
    version_of,
)
from arms.designs import Draw
from arms.estimators.base import Estimator, Objective, Values
from arms.latents import Latent


@dataclass(frozen=True)
class Options:
    """Options of `estimate` that do not change the estimate itself."""

    chunk: int | None = None
    """Number of points per call of the objective; None evaluates all points in one call.

    With chunks, the backward pass evaluates the objective again, to save memory.
    """
    checks: Literal["all", "cheap", "none"] = "all"
    """How to check the objective's values.

    "all" checks shapes and numbers, which waits for a GPU; "cheap" checks shapes; "none" checks
    nothing.
    """
    gradient: bool = True
    """Whether to compute the gradient. If not, only the value is computed."""
    log_weights: bool = False
    """For a bound: whether the objective returns log-weights, because it subtracts log q itself.

    It must compute log q from detached logits.
    """

    def require_finite(self, tensor: Tensor, message: str) -> None:
        if self.checks == "all" and is_readable(tensor) and not is_finite(tensor):
            raise ValueError(f"{message} (validate=False skips this check)")


DEFAULT = Options()
HASH = 3_686_842_777  # with this factor, the first four values get different powers of two


class Evaluation(NamedTuple):
    """The objective's values and derivatives at the points of a draw."""

    values: Tensor  # log-weights if the target is a bound
    derivatives: Tensor | None = None  # df/db at the last points, if the design needs derivatives
    leaf: Tensor | None = None  # the points that the derivatives refer to, detached from parameters


def evaluate(
    estimator: Estimator, objective: Objective, draw: Draw, options: Options
) -> Evaluation:
    """Evaluate the objective at all points, with derivatives if the design needs them."""
    if not estimator.design.needs.derivatives or not options.gradient:
        points = draw.points.detach() if draw.points.requires_grad else draw.points
        return Evaluation(_values(estimator, objective, draw, points, options))
    wanted = torch.is_grad_enabled()
    refuse_transforms(estimator)
    with torch.enable_grad():
        points = draw.points.detach().requires_grad_()
        values = _values(estimator, objective, draw, points, options)
    # Outside of enable_grad: whether parameters are learning depends on the caller's grad mode.
    derivatives = differentiate(estimator, points, values, options)
    return Evaluation(values if wanted else values.detach(), derivatives, points)


def refuse_transforms(estimator: Estimator) -> None:
    arguments.leave_graph("an estimator that differentiates the objective: use arms or loorf")
    if arguments.in_function_transform():
        name = type(estimator).__name__
        where = "torch.func.grad, vmap or jvp"
        what = f"{name} differentiates the objective, which is not possible inside {where}"
        raise ValueError(f"{what}: call it outside, or use arms or loorf")


def differentiate(estimator: Estimator, points: Tensor, values: Tensor, options: Options) -> Tensor:
    """Return the derivative df/db at the last k points, if the design needs k derivatives.

    The result is `[k, *batch, *event]`. It is differentiable if the design needs second derivatives
    and the estimator's parameters are learning.
    """
    needs = estimator.design.needs
    first = len(points) - needs.derivatives
    twice = needs.second_order and is_learning(estimator)
    with torch.enable_grad():
        asked = values[first:] if first else values
    try:
        ones = torch.ones_like(asked)
        found = _pull_back(asked, ones, points, twice) if values.requires_grad else None
    except RuntimeError as error:
        if "is not implemented" in str(error):  # an operation without a derivative
            _refuse_black_box(estimator, error)
        raise
    if found is None:
        _refuse_black_box(estimator)
    derivatives = found[first:] if first else found
    what = "the objective's derivative must be finite, got NaN or infinity"
    message = f"{what}: check the objective, or use arms or loorf, which need no derivatives"
    options.require_finite(derivatives, message)
    if options.checks == "all" and values.numel() > 1 and derivatives.numel():
        _check_rows_independent(asked, points, derivatives)
    return derivatives


def _pull_back(
    values: Tensor, weights: Tensor, points: Tensor, twice: bool = False
) -> Tensor | None:
    """Return the derivative of the weighted sum of the values with respect to the points.

    Return None if autograd finds no path from the values to the points. If `twice` is True, the
    result is differentiable.
    """
    (found,) = torch.autograd.grad(
        values, points, weights, create_graph=twice, retain_graph=True, allow_unused=True
    )
    return found


def _check_rows_independent(values: Tensor, points: Tensor, derivatives: Tensor) -> None:
    """Raise if the value at one point depends on another point.

    The derivative at a point would then contain the derivatives of other values. To find out, each
    value is multiplied by a power of two. The derivative at a point must then be `derivatives`
    times the power of two of this point. A dependence on other points causes a different result.
    """
    first = len(points) - len(derivatives)
    excess, limit = _excess(values, points, derivatives.detach())
    independent = excess <= limit
    if true_or_unreadable(independent.all()):
        return
    # In half precision, small derivatives are rounded and large ones overflow. Such errors change
    # with the scale of the values. A dependence is the same at every scale.
    for scale in (4096.0, 1 / 64):
        scaled = _pull_back(values, torch.full_like(values, scale), points)
        assert scaled is not None
        again, limit = _excess(values, points, scaled[first:] / scale, scale)
        independent = independent | (again <= torch.maximum(limit, excess / 16))
    if not bool(independent.all()):
        raise ValueError(
            "the objective's value at one sample must not depend on other samples or on other "
            "rows of the batch, but here it does: remove operations that mix them, such as batch "
            "normalization in training mode"
        )


def _excess(
    values: Tensor, points: Tensor, own: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return two tensors `[points, *batch]`: the derivative's error at each point, and its limit.

    Here the values are multiplied by different weights, and then differentiated. The derivative at
    each point is expected to be `own` times the weight of this point's value.
    """
    weights = _powers_of_two(values)
    weighted = _pull_back(values, scale * weights, points)
    assert weighted is not None
    weighted = weighted / scale
    first, rows = len(points) - len(own), values.ndim
    expected = own * weights.view(*weights.shape, *[1] * (own.ndim - rows))
    excess = (weighted[first:] - expected).abs().flatten(rows).amax(-1)
    # The limit is relative to the derivative of the same row. On a GPU, sums in any order leave
    # rounding errors of the largest derivative, so a small part of it is added.
    size = own.abs().flatten(rows).amax(-1) * weights
    floor = 1e-9 * size.max()
    limit = 1e-4 * size + floor
    if not first:
        return excess, limit
    # The values must not depend on the first points either, whose derivatives are not needed. Where
    # the derivative at such a point is infinite, autograd multiplies it by zero, which is NaN.
    earlier = weighted[:first].nan_to_num(nan=0.0, posinf=torch.inf, neginf=torch.inf)
    earlier = earlier.abs().flatten(rows).amax(-1)
    return torch.cat([earlier, excess]), torch.cat([floor.expand(earlier.shape), limit])


def _powers_of_two(values: Tensor) -> Tensor:
    """Return weights 1, 2, 4 and 8 in an irregular pattern, in the shape of `values`.

    Larger weights could overflow in float16.
    """
    index = torch.arange(values.numel(), device=values.device)
    # A quadratic hash: any regular pattern gives equal weights to rows at some distance.
    exponents = index.square().mul_(HASH).bitwise_right_shift_(30).bitwise_and_(3)
    return torch.exp2(exponents.to(values.dtype)).view_as(values)


def is_learning(estimator: Estimator) -> bool:
    """Return whether the estimate must be differentiable in the estimator's parameters."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in estimator.parameters())


def as_values(
    estimator: Estimator, draw: Draw, values: Values, points: Tensor, options: Options
) -> Tensor:
    """Check `values`, the objective's values at the points, and return them as a tensor.

    `values` may have any array type. For a bound, subtract log q, which gives the log-weights.
    """
    expected = points.shape[: points.ndim - draw.latent.event_dims]
    tensor = _as_tensor(values, expected)
    if draw.extra and tensor.shape == (len(points) - draw.extra, *expected[1:]):
        needed = f"{type(estimator).__name__} needs values {list(expected)} at all draw.points"
        got = f"values {list(tensor.shape)} at draw.samples only"
        raise ValueError(f"{needed}, got {got}: evaluate the objective at draw.points")
    _check_shape(tensor, expected, draw)
    tensor = _as_floats(tensor, points.dtype, options)
    message = "the objective must return finite values, got NaN or infinity: check its operations"
    options.require_finite(tensor, message)
    if tensor.device != points.device:
        tensor = tensor.to(points.device)
    if estimator.design.needs.differences and options.checks == "all":
        _warn_of_half_precision(estimator, tensor)
    if not estimator.target.subtracts_log_q or options.log_weights:
        return tensor
    return tensor - draw.latent.log_prob(points)


def _warn_of_half_precision(estimator: Estimator, values: Tensor) -> None:
    if values.dtype in (torch.float16, torch.bfloat16):
        name = type(estimator).__name__
        problem = f"{name} uses small differences between values, which {values.dtype} cannot hold"
        remedy = "sum in float32 inside the objective, as in terms.float().sum(-1)"
        warnings.warn(f"{problem}: {remedy}", stacklevel=2)


def _check_shape(values: Tensor, expected: torch.Size, draw: Draw) -> None:
    if values.shape == expected:
        return
    hint, logits = "", draw.latent.logits.shape
    # The user may have passed logits [B, K] for one choice in each of B rows.
    if draw.latent.event_dims == 2 and values.shape == (len(draw.points), *logits[:-1]):
        hint = f". If each of the {logits[-2]} rows makes one choice, pass logits.unsqueeze(-2)"
    elif values.shape == expected[1:] + expected[:1]:
        hint = ". The samples are the first axis: transpose the values"
    raise ValueError(
        f"the objective must return one value per sample, shape {list(expected)}, got "
        f"{list(values.shape) or 'a scalar'}: reduce only the latent axis{hint}"
    )


def _values(
    estimator: Estimator, objective: Objective, draw: Draw, points: Tensor, options: Options
) -> Tensor:
    """Call the objective and check its values. Raise if it modified the points in place."""
    if not callable(objective):
        raise ValueError(f"the objective must be a function, got {type(objective).__name__}")
    # The version of a tensor is cheap, but does not show changes through `.data` or NumPy.
    watched = options.checks != "none" and is_readable(points)
    copy = points.detach().clone() if watched and options.checks == "all" else None
    version = version_of(points) if watched and copy is None else None
    try:
        values = _call_in_chunks(objective, draw, points, options.chunk)
    except RuntimeError as error:
        message, differentiated = str(error), points.requires_grad
        # PyTorch refuses to change points that are differentiated, or that share memory.
        if (differentiated and "in-place" in message) or "single memory location" in message:
            _refuse_change(error)
        if differentiated and "requires grad" in message:  # raised by numpy() and similar calls
            _refuse_black_box(estimator, error)
        raise
    replaced = copy is not None and not torch.equal(points.detach(), copy)
    if replaced or (version is not None and version_of(points) != version):
        _refuse_change()
    return as_values(estimator, draw, values, points, options)


def call_objective(objective: Objective, latent: Latent, points: Tensor) -> Any:
    """Call the objective with points in the form that the objective expects."""
    received = latent.to_objective(points)
    return objective(**received) if isinstance(received, dict) else objective(received)


def _call_in_chunks(objective: Objective, draw: Draw, points: Tensor, chunk: int | None) -> Any:
    latent = draw.latent
    if chunk is None:
        return call_objective(objective, latent, points)

    def values_of(part: Tensor) -> Tensor:
        shape = part.shape[: part.ndim - latent.event_dims]
        values = _as_tensor(call_objective(objective, latent, part), shape)
        _check_shape(values, shape, draw)
        return values

    parts = points.split(as_count(chunk, 1, "chunk"))
    return torch.cat([checkpoint(values_of, part, use_reentrant=False) for part in parts])


def _refuse_change(cause: Exception | None = None) -> NoReturn:
    raise ValueError(
        "the objective modified its samples b in place, but the estimator still needs them: use "
        "operations that return a new tensor, such as 2 * b - 1, or start with b = b.clone()"
    ) from cause


def _as_tensor(values: Values, shape: torch.Size) -> Tensor:
    tensor = values if isinstance(values, Tensor) else _from_array(values, shape)
    if tensor.is_nested:
        kind = "a nested tensor: convert it with .to_padded_tensor()"
    elif tensor.layout != torch.strided:
        kind = f"a tensor of layout {tensor.layout}: call .to_dense() on it"
    elif tensor.is_quantized:
        kind = "a quantized tensor: call .dequantize() on it"
    elif tensor.is_meta:
        kind = "a tensor on the meta device, which stores no values"
    else:
        return tensor
    raise ValueError(f"the objective must return an ordinary, dense tensor, got {kind}")


def _from_array(values: Values, shape: torch.Size) -> Tensor:
    if isinstance(values, np.ma.MaskedArray):
        what = "the objective must return an ordinary array, got a masked array"
        raise ValueError(f"{what}: call .filled(0.0) on it, for example")
    try:
        if isinstance(values, list | tuple):
            stack = bool(values) and all(isinstance(one, Tensor) for one in values)
            # NumPy keeps all digits of Python floats. torch.as_tensor would round to float32.
            values = torch.stack(list(values)) if stack else np.asarray(values)
        elif isinstance(values, np.ndarray):
            values = values.copy()  # torch takes no negative strides, and warns of read-only arrays
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        remedy = ": combine them with torch.stack" if isinstance(values, list | tuple) else ""
        got = f"{type(values).__name__}{remedy}"
        wanted = f"a tensor of shape {list(shape)}"
        raise ValueError(f"the objective must return {wanted}, got {got}") from None


def _as_floats(tensor: Tensor, dtype: torch.dtype, options: Options) -> Tensor:
    """Convert values to floating-point numbers without loss.

    Integers of up to 16 bits become `dtype`, the dtype of the samples, but at least float32. Longer
    integers become float64.
    """
    if tensor.dtype in FLOATS:
        return tensor
    if tensor.is_complex() or tensor.is_floating_point():
        remedy = "return its .real part" if tensor.is_complex() else "call .float()"
        wanted = "real floating-point numbers"
        raise ValueError(f"the objective must return {wanted}, got {tensor.dtype}: {remedy}")
    if tensor.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16):
        return tensor.to(torch.promote_types(dtype, torch.float32))
    # Apple's GPUs have no float64.
    floats = tensor.float() if tensor.device.type == "mps" else tensor.double()
    if options.checks == "all" and not true_or_unreadable((floats.abs() <= LARGEST_EXACT).all()):
        what = "the objective must return integers of at most 2^53 in magnitude, got larger ones"
        raise ValueError(f"{what}: subtract a constant")
    return floats


def _refuse_black_box(estimator: Estimator, cause: Exception | None = None) -> NoReturn:
    raise ValueError(
        f"{type(estimator).__name__} needs the derivative df/db, but autograd finds no path from "
        "the objective's values to its input: write the objective with torch operations, or use "
        "arms or loorf. If you called arms.draw, compute the values from draw.points, not "
        "draw.samples"
    ) from cause
