"""Call the user's objective at the points of a draw; check its values, and differentiate them."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arms import arguments
from arms.arguments import FLOATS, as_count, is_finite, is_readable, true_or_unreadable, version_of
from arms.designs import Draw
from arms.estimators.base import Estimator, Objective, Values
from arms.latents import Latent


@dataclass(frozen=True)
class Options:
    """Options of `estimate` that do not change what is estimated."""

    chunk: int | None = None
    """Evaluate this many points at a time, and again in the backward pass; None for all."""
    checks: Literal["all", "cheap", "none"] = "all"
    """"all" looks at values, which on a GPU waits for the device; "cheap" at shapes only."""
    gradient: bool = True
    """Whether the gradient is wanted, or only the value."""
    log_weights: bool = False
    """Whether, for a bound, the objective subtracts log q itself, at constant logits."""

    def require_finite(self, tensor: Tensor, message: str) -> None:
        if self.checks == "all" and is_readable(tensor) and not is_finite(tensor):
            raise ValueError(f"{message} (validate=False lets it through)")


DEFAULT = Options()
HASH = 3_686_842_777  # the first four indices differ, others match by chance only
LARGEST_EXACT = 2**53  # up to here, float64 holds every integer


class Evaluation(NamedTuple):
    """The objective at the points of a draw."""

    values: Tensor  # log-weights if the target is a bound
    derivatives: Tensor | None = None  # at the last points, if the design needs any
    leaf: Tensor | None = None  # the points of the derivatives, without a graph to parameters


def evaluate(
    estimator: Estimator, objective: Objective, draw: Draw, options: Options
) -> Evaluation:
    """Evaluate the objective at all points in one call, and differentiate it where needed."""
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
        where = "torch.func.grad, vmap and jvp"
        raise ValueError(f"{name} differentiates the objective: call it outside of {where}")


def differentiate(estimator: Estimator, points: Tensor, values: Tensor, options: Options) -> Tensor:
    """Return the derivative of the values at the last points, as many as the design needs.

    It can be differentiated again if the design needs that and parameters are learning.
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
    message = "the objective's derivative is NaN or infinite at a point: smooth it, or use arms"
    options.require_finite(derivatives, message)
    if options.checks == "all" and values.numel() > 1 and derivatives.numel():
        _check_rows_independent(asked, points, derivatives)
    return derivatives


def _pull_back(
    values: Tensor, weights: Tensor, points: Tensor, twice: bool = False
) -> Tensor | None:
    """Return the derivative of the weighted sum of values, or None if no graph leads there."""
    (found,) = torch.autograd.grad(
        values, points, weights, create_graph=twice, retain_graph=True, allow_unused=True
    )
    return found


def _check_rows_independent(values: Tensor, points: Tensor, derivatives: Tensor) -> None:
    """Raise if the value at one point depends on another point, which would mix their derivatives.

    Each value is multiplied by a power of two: a derivative that involves only the value at its own
    point is multiplied by exactly that, one that involves other values by something else.
    """
    first = len(points) - len(derivatives)
    excess, limit = _excess(values, points, derivatives.detach())
    independent = excess <= limit
    if true_or_unreadable(independent.all()):
        return
    # In half precision, small derivatives are rounded and large ones overflow. A dependence is the
    # same at every scale, and such errors are not.
    for scale in (4096.0, 1 / 64):
        scaled = _pull_back(values, torch.full_like(values, scale), points)
        assert scaled is not None
        again, limit = _excess(values, points, scaled[first:] / scale, scale)
        independent = independent | (again <= torch.maximum(limit, excess / 16))
    if not bool(independent.all()):
        raise ValueError(
            "the objective's value at one sample depends on other samples or other rows of the "
            "batch (batch normalization?): let it treat every sample alone, or use arms"
        )


def _excess(
    values: Tensor, points: Tensor, own: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return how far derivatives differ from each point's own, and the limit `[points, *batch]`."""
    weights = _powers_of_two(values)
    weighted = _pull_back(values, scale * weights, points)
    assert weighted is not None
    weighted = weighted / scale
    first, rows = len(points) - len(own), values.ndim
    expected = own * weights.view(*weights.shape, *[1] * (own.ndim - rows))
    excess = (weighted[first:] - expected).abs().flatten(rows).amax(-1)
    # Each row is compared with its own size. Sums in any order, as on a GPU, leave rounding errors
    # of the largest.
    size = own.abs().flatten(rows).amax(-1) * weights
    floor = 1e-9 * size.max()
    limit = 1e-4 * size + floor
    if not first:
        return excess, limit
    # The values may not depend on points that are not differentiated either. Where the derivative
    # at such a point is infinite, autograd multiplies it by zero, which is NaN.
    earlier = weighted[:first].nan_to_num(nan=0.0, posinf=torch.inf, neginf=torch.inf)
    earlier = earlier.abs().flatten(rows).amax(-1)
    return torch.cat([earlier, excess]), torch.cat([floor.expand(earlier.shape), limit])


def _powers_of_two(values: Tensor) -> Tensor:
    """Return weights 1, 2, 4 and 8 in the shape of the values; larger ones overflow in float16."""
    index = torch.arange(values.numel(), device=values.device)
    # A quadratic hash: any regular pattern gives equal weights to rows at some distance.
    exponents = index.square().mul_(HASH).bitwise_right_shift_(30).bitwise_and_(3)
    return torch.exp2(exponents.to(values.dtype)).view_as(values)


def is_learning(estimator: Estimator) -> bool:
    """Return whether the estimate must be attached to parameters of the estimator."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in estimator.parameters())


def as_values(
    estimator: Estimator, draw: Draw, values: Values, points: Tensor, options: Options
) -> Tensor:
    """Return values in any array type as a checked tensor; for a bound, minus log q."""
    expected = points.shape[: points.ndim - draw.latent.event_dims]
    tensor = _as_tensor(values, expected)
    if draw.extra and tensor.shape == (len(points) - draw.extra, *expected[1:]):
        needed = f"{type(estimator).__name__} needs {list(expected)} values at draw.points"
        raise ValueError(f"{needed}, got {list(tensor.shape)} as for draw.samples")
    _check_shape(tensor, expected, draw)
    tensor = _as_floats(tensor, points.dtype, options)
    message = "the objective returned NaN or infinity, which would spoil the whole gradient"
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
        problem = f"{name} takes small differences of values, which {values.dtype} rounds away"
        remedy = "let the objective sum in float32, as in terms.float().sum(-1)"
        warnings.warn(f"{problem}: {remedy}", stacklevel=2)


def _check_shape(values: Tensor, expected: torch.Size, draw: Draw) -> None:
    if values.shape == expected:
        return
    hint, logits = "", draw.latent.logits.shape
    # [B, K] logits that were meant as one choice for each of B rows.
    if draw.latent.event_dims == 2 and values.shape == (len(draw.points), *logits[:-1]):
        hint = f"; if each of the {logits[-2]} rows makes one choice, pass logits.unsqueeze(-2)"
    raise ValueError(
        f"the objective must return one value per sample, shape {list(expected)}, got "
        f"{list(values.shape) or 'a scalar'}: reduce the latent axis and nothing else{hint}"
    )


def _values(
    estimator: Estimator, objective: Objective, draw: Draw, points: Tensor, options: Options
) -> Tensor:
    """Return the objective's values, after checking that it has not changed its points in place."""
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
    """Call the objective with points in the form in which it receives them."""
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
        "the objective modified its samples in place, but the estimator still needs them: work on "
        "b.clone(), or write 2 * b - 1 instead of b.mul_(2).sub_(1)"
    ) from cause


def _as_tensor(values: Values, shape: torch.Size) -> Tensor:
    tensor = values if isinstance(values, Tensor) else _from_array(values, shape)
    if tensor.is_nested:
        kind = "a nested tensor: pad it"
    elif tensor.layout != torch.strided:
        kind = f"a tensor of layout {tensor.layout}: call .to_dense() on it"
    elif tensor.is_quantized:
        kind = "a quantized tensor: call .dequantize() on it"
    elif tensor.is_meta:
        kind = "a tensor on the meta device, which holds no numbers"
    else:
        return tensor
    raise ValueError(f"the objective must return an ordinary, dense tensor, got {kind}")


def _from_array(values: Values, shape: torch.Size) -> Tensor:
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError("the objective returned a masked array: fill it, as with .filled(0.0)")
    try:
        if isinstance(values, list | tuple):
            stack = bool(values) and all(isinstance(one, Tensor) for one in values)
            # By way of NumPy, lists of Python floats keep all their digits.
            values = torch.stack(list(values)) if stack else np.asarray(values)
        elif isinstance(values, np.ndarray):
            values = values.copy()  # torch takes no negative strides, and warns of read-only arrays
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        remedy = ": stack tensors with torch.stack" if isinstance(values, list | tuple) else ""
        got = f"{type(values).__name__}{remedy}"
        raise ValueError(f"the objective must return a tensor {list(shape)}, got {got}") from None


def _as_floats(tensor: Tensor, dtype: torch.dtype, options: Options) -> Tensor:
    """Return values as floats that hold them; small integers take at least the samples' dtype."""
    if tensor.dtype in FLOATS:
        return tensor
    if tensor.is_complex() or tensor.is_floating_point():
        remedy = "take .real" if tensor.is_complex() else "call .float()"
        raise ValueError(f"the objective must return real floats, got {tensor.dtype}: {remedy}")
    if tensor.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16):
        return tensor.to(torch.promote_types(dtype, torch.float32))
    # Apple's GPUs have no float64.
    floats = tensor.float() if tensor.device.type == "mps" else tensor.double()
    if options.checks == "all" and not true_or_unreadable((floats.abs() <= LARGEST_EXACT).all()):
        raise ValueError("the objective returned integers beyond 2^53: subtract a constant")
    return floats


def _refuse_black_box(estimator: Estimator, cause: Exception | None = None) -> NoReturn:
    raise ValueError(
        f"{type(estimator).__name__} needs df/db, but no gradient flows from the objective's "
        "values to its input: write the objective with torch operations, or use arms. If you "
        "called arms.draw, compute the values from draw.points, not draw.samples"
    ) from cause
