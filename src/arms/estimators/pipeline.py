"""The one way from an objective to a gradient: draw, evaluate (values, and slopes where asked), combine, attach.

`arms.expectation`, `arms.multi_sample_bound`, `arms.attach`, calling an estimator, the trainer and the bias check all
go through `estimate` or its parts.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from arms.arguments import (
    FLOATS,
    as_count,
    check_generator,
    in_function_transform,
    is_readable,
    true_or_unreadable,
    version_of,
)
from arms.distributed import warn_if_ranks_share_noise
from arms.estimators.attachment import attach_to_parameters
from arms.estimators.base import Draw, Estimate, Estimator, Objective, Values
from arms.latents import Latent


@dataclass(frozen=True)
class Options:
    """How `estimate` runs; nothing here changes what is estimated.

    Args:
        chunk: Evaluate this many points at a time, and again in backward; all at once if None.
        checks: `all` looks at values, which on a GPU waits for the device; `cheap` looks at shapes, and lets NaN
            through; `none` is for a caller that has made sure of everything, such as the trainer.
        gradient: Whether the estimate is wanted, or only the value.
    """

    chunk: int | None = None
    checks: Literal["all", "cheap", "none"] = "all"
    gradient: bool = True


DEFAULT = Options()


def estimate(
    estimator: Estimator,
    objective: Objective,
    latent: Latent,
    generator: Generator | None = None,
    options: Options = DEFAULT,
) -> Estimate:
    """Return an estimator's gradient, and the target's value, for one objective.

    Args:
        estimator: Which estimator.
        objective: Maps points `[m, *batch, *event]` to values `[m, *batch]`, in one call.
        latent: What is drawn.
        generator: Source of all randomness; the global one unless given.
        options: Chunks and checks.

    Returns:
        The gradient with respect to the logits (detached), the value and the samples' values (attached to whatever the
        objective depends on). Points that are not samples have no part in the latter two.
    """
    draw = draw_points(estimator, latent, generator)
    found = evaluate(objective, draw, options)
    value = through_nan(estimator.value(draw, found.values), latent, options)
    grad = gradient(draw, found, options) if options.gradient else torch.zeros_like(latent.logits)
    return Estimate(grad, value, estimator.sample_values(draw, found.values))


def draw_points(estimator: Estimator, latent: Latent, generator: Generator | None = None) -> Draw:
    """Draw an estimator's points for a latent it can take."""
    check_generator(generator)
    if generator is None:
        warn_if_ranks_share_noise(latent.logits.device)
    if not isinstance(latent, estimator.latents):
        kinds = ", ".join(kind.__name__ for kind in estimator.latents)
        raise ValueError(
            f"{type(estimator).__name__} takes {kinds} latents, got {type(latent).__name__}: "
            f"use an estimator that takes both, such as {'vimco or arms-ms-s' if estimator.target.direct else 'loorf'}"
        )
    if estimator.slopes != "none" and not latent.has_slopes:
        raise ValueError(
            f"{type(estimator).__name__} differentiates the objective with respect to its samples, and indices of "
            "categories have no derivative: give a OneHotCategorical (the objective then gets one-hot samples), or use "
            "an estimator for black boxes such as arms-s"
        )
    with _full_precision(latent.logits.device):
        draw = estimator.draw(latent.detach(), generator)
    if not isinstance(draw, Draw):
        raise ValueError(f"the draw method of {type(estimator).__name__} must return a Draw, got {type(draw).__name__}")
    if draw.points.shape[1:] != latent.logits.shape:
        raise ValueError(
            f"samples must have shape [n, {', '.join(map(str, latent.logits.shape))}], got "
            f"{list(draw.points.shape)}: look at the draw method of {estimator}"
        )
    _check_facts(draw)
    return draw


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast, which would round the matrix products of draws and estimates."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def draw_ahead(estimator: Estimator, latent: Latent, generator: Generator | None = None) -> Draw:
    """Draw points whose values come later, and from whose graph the slopes will be taken, where they are asked for."""
    draw = draw_points(estimator, latent, generator)
    if estimator.slopes == "none" or draw.points.requires_grad:
        return draw
    return replace(draw, points=draw.points.detach().requires_grad_())


def _check_facts(draw: Draw) -> None:
    """Raise if a draw is not what its estimator says of itself: tables, models and ensembles go by what it says."""
    estimator = draw.estimator
    said, found = (estimator.evaluations, estimator.derivatives), (len(draw.points), count_differentiated(draw))
    if (said[0] is not None and said != found) or (estimator.slopes in ("extra", "twice") and not draw.extra):
        raise ValueError(
            f"{type(estimator).__name__} says it makes {said[0]} evaluations and {said[1]} derivatives, and with "
            f"slopes {estimator.slopes!r} its draw asks for {found[0]} and {found[1]}: correct its "
            "properties evaluations and derivatives, or the `extra` of its Draw"
        )


def count_differentiated(draw: Draw) -> int:
    """Return at how many of a draw's points, the last ones, the objective's slope is asked for."""
    estimator = draw.estimator
    # What a wrapper puts before the points of an estimator that asks for `all` is not differentiated.
    return {"none": 0, "all": estimator.derivatives}.get(estimator.slopes, draw.extra)


class Evaluation(NamedTuple):
    """What the objective says of a draw's points."""

    values: Tensor
    """`[m, *batch]`."""
    slopes: Tensor | None = None
    """`[extra or m, *batch, *event]`, where they are asked for."""
    points: Tensor | None = None
    """The leaf that slopes were taken at: a stand-in for the draw's points, so that no graph leads from the objective
    to the estimator's own parameters."""


def evaluate(objective: Objective, draw: Draw, options: Options) -> Evaluation:
    """Evaluate the objective at all points in one call, with its slopes where they are asked for."""
    wanted, learning = torch.is_grad_enabled(), learns(draw.estimator)
    if draw.estimator.slopes == "none" or not options.gradient:
        points = draw.points.detach() if draw.points.requires_grad else draw.points
        return Evaluation(_values(objective, draw, points, options))
    if in_function_transform():
        raise ValueError(
            f"{type(draw.estimator).__name__} differentiates the objective by autograd, which torch.func.grad, vmap "
            "and jvp do not allow inside: call it outside of them, or use an estimator for black boxes such as arms-s"
        )
    with torch.enable_grad():
        points = draw.points.detach().requires_grad_()
        try:
            values = _values(objective, draw, points, options)
        except RuntimeError as error:
            if "requires grad" in str(error):  # numpy() and its like
                _refuse_black_box(draw.estimator, error)
            raise
        slopes = slopes_of(draw, points, values, options, learning=learning)
    return Evaluation(values if wanted else values.detach(), slopes, points)


def slopes_of(draw: Draw, points: Tensor, values: Tensor, options: Options, *, learning: bool) -> Tensor:
    """Return the derivative of values at the points the estimator asks for, by the graph that leads there.

    It can be differentiated once more where the estimator asks for that and is `learning`.
    """
    estimator = draw.estimator
    first = len(points) - count_differentiated(draw)
    if not values.requires_grad:
        _refuse_black_box(estimator)
    twice = estimator.slopes == "twice" and learning
    asked = values[first:] if first else values
    try:
        slopes = _pull_back(asked, torch.ones_like(asked), points, twice)
    except RuntimeError as error:
        if "is not implemented" in str(error):  # an operation that nobody has differentiated
            _refuse_black_box(estimator, error)
        raise
    if slopes is None:
        _refuse_black_box(estimator)
    slopes = slopes[first:] if first else slopes
    if options.checks == "all" and not true_or_unreadable(slopes.isfinite().all()):
        raise ValueError(
            "the objective's derivative is NaN or infinite between 0 and 1 or at the samples: smooth it there, or use "
            "an estimator for black boxes such as arms-s (validate=False lets it through)"
        )
    if options.checks == "all" and values.numel() > 1 and slopes.numel():
        _check_rows_apart(asked, points, slopes)
    return slopes


def _pull_back(values: Tensor, weights: Tensor, points: Tensor, twice: bool = False) -> Tensor | None:
    """Return the derivative of the weighted sum of values; None where no graph leads from them to the points.

    By autograd.grad, never .backward(): nothing else may receive a gradient here. The graph is kept for the value's.
    """
    (found,) = torch.autograd.grad(values, points, weights, create_graph=twice, retain_graph=True, allow_unused=True)
    return found


def _check_rows_apart(values: Tensor, points: Tensor, slopes: Tensor) -> None:
    """Raise if the value at one point depends on another point: the derivative of their sum is then not its own.

    Each value is multiplied by a power of two. A derivative that involves only the value at its own point is multiplied
    by exactly that; one that involves other values is multiplied by something else.
    """
    weights = _powers_of_two(values)
    weighted = _pull_back(values, weights, points)
    assert weighted is not None
    own, first = slopes.detach(), len(points) - len(slopes)
    excess = weighted[first:] / weights.view(*weights.shape, *[1] * (own.ndim - weights.ndim)) - own
    # The values may not depend on points that are not differentiated either. Where the derivative at such a point is
    # infinite, autograd multiplies it by zero, which is NaN.
    earlier = weighted[:first].nan_to_num(nan=0.0, posinf=torch.inf, neginf=torch.inf)
    largest = torch.cat([earlier.flatten(), excess.flatten()]).abs().max()
    if not true_or_unreadable(largest <= 1e-4 * own.abs().max()):
        raise ValueError(
            "the objective's value at one sample depends on other samples or other rows of the batch (batch "
            "normalisation, a mean over the batch?), so that no derivative is its own: let it treat every sample alone "
            "(a normalisation in eval mode, say), or use an estimator that needs no derivative and lives with that"
        )


def _powers_of_two(values: Tensor) -> Tensor:
    """Return weights from 1/16 to 8 in the shape of the values, distributed among them as if at random.

    Any regular pattern would give equal weights to rows at some fixed distance. Up to eight weights are all different.
    """
    index = torch.arange(values.numel(), dtype=torch.float64, device=values.device)
    scattered = ((torch.sin(12.9898 * index) * 43758.5453) % 1 * 8).floor()
    exponents = torch.where(index < 8, index, scattered) - 4
    return (2.0**exponents).to(values.dtype).view_as(values)


def gradient(draw: Draw, found: Evaluation, options: Options = DEFAULT) -> Tensor:
    """Return the estimate of a draw in the dtype of the logits, attached to the estimator's parameters only."""
    estimator, logits = draw.estimator, draw.latent.logits
    values, slopes, learning = found.values, found.slopes, learns(estimator)
    twice = learning and estimator.slopes == "twice"
    if not twice:
        values, slopes = values.detach(), None if slopes is None else slopes.detach()
    with torch.set_grad_enabled(learning), _full_precision(logits.device):
        grad: object = estimator.combine(draw, values, slopes)
        if not isinstance(grad, Tensor):
            name = type(estimator).__name__
            raise ValueError(f"the combine method of {name} must return a tensor, got {type(grad).__name__}")
        grad = grad.to(logits.dtype)
        if twice:
            own = [parameter for parameter in estimator.parameters() if parameter.requires_grad]
            grad = attach_to_parameters(grad, own, draw.points, found.points)
    if grad.shape != logits.shape:
        raise ValueError(
            f"the estimate must have the shape of the logits, {list(logits.shape)}, got {list(grad.shape)}: "
            f"look at the combine method of {type(estimator).__name__}"
        )
    special = slopes is not None or estimator.has_parameters
    if special and options.checks == "all" and not true_or_unreadable(grad.isfinite().all()):
        raise ValueError(
            f"the estimate is NaN or infinite although the objective is not: look at the parameters of "
            f"{type(estimator).__name__} (validate=False lets it through)"
        )
    return through_nan(grad, draw.latent, options)


def learns(estimator: Estimator) -> bool:
    """Whether the estimate is to be attached to parameters of the estimator's own."""
    return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in estimator.parameters())


def through_nan(result: Tensor, latent: Latent, options: Options) -> Tensor:
    """Return a result with NaN wherever a logit behind it is NaN, where nobody could look at the logits before.

    Bits drawn with p = NaN are bits all the same, so that nothing else would tell.
    """
    seen = options.checks == "none" or (options.checks == "all" and is_readable(latent.logits))
    if seen:
        return result
    nan = torch.where(latent.detach().undefined(), torch.nan, 0.0).to(result.dtype)
    return result + (nan if result.shape == latent.logits.shape else latent.sum_event(nan))


def _one_choice_a_row(draw: Draw, values: Tensor) -> str:
    """Return what to do about `[B, K]` logits of categories that were meant as one choice for each of B rows."""
    phi = draw.latent.logits
    if draw.latent.event_dims != 2 or values.shape != (len(draw.points), *phi.shape[:-1]):
        return ""
    return f"; if each of the {phi.shape[-2]} is the one choice of its own row, give logits.unsqueeze(-2)"


def as_values(draw: Draw, values: Values, points: Tensor, options: Options) -> Tensor:
    """Return objective values, of whatever array type, as a checked tensor `[m, *batch]`."""
    expected = points.shape[: points.ndim - draw.latent.event_dims]
    tensor = _as_tensor(values, expected)
    if tensor.shape != expected:
        if tensor.shape == (len(points) - draw.extra, *expected[1:]):
            raise ValueError(
                f"{type(draw.estimator).__name__} needs values at all {len(points)} of draw.points, shape "
                f"{list(expected)}, got {list(tensor.shape)}: evaluate the objective there, not at draw.samples"
            )
        raise ValueError(
            f"the objective must return one value per sample, shape {list(expected)}, got {list(tensor.shape)}: "
            f"reduce the latent axis and nothing else{_one_choice_a_row(draw, tensor)}"
        )
    tensor = _as_floats(tensor)
    if options.checks == "all" and not true_or_unreadable(tensor.isfinite().all()):
        raise ValueError(
            "the objective returned NaN or infinity: one such sample spoils the whole gradient "
            "(validate=False lets it through)"
        )
    return tensor.to(points.device)


def _values(objective: Objective, draw: Draw, points: Tensor, options: Options) -> Tensor:
    if not callable(objective):
        raise ValueError(f"the objective must be a function of the samples, got {type(objective).__name__}")
    watch = _Unchanged(points, options)
    try:
        if options.chunk is None:
            values = objective(draw.latent.shown(points))
        else:
            parts = [_one_chunk(objective, part, draw) for part in points.split(as_count(options.chunk, 1, "chunk"))]
            values = torch.cat(parts)
    except RuntimeError as error:
        # Points that are differentiated, or share one memory over the batch, cannot be changed: PyTorch says so.
        if ("in-place" in str(error) and points.requires_grad) or "single memory location" in str(error):
            _refuse_change(error)
        raise
    watch.check()
    return as_values(draw, values, points, options)


def _one_chunk(objective: Objective, part: Tensor, draw: Draw) -> Tensor:
    shape = part.shape[: part.ndim - draw.latent.event_dims]
    values: Tensor = checkpoint(
        lambda part: _as_tensor(objective(draw.latent.shown(part)), shape), part, use_reentrant=False
    )
    if values.ndim == 0:
        raise ValueError(f"the objective must return one value per sample, shape {list(shape)}, got a scalar")
    return values


class _Unchanged:
    """Notices an objective that changes its points in place: the estimate would be made of the changed ones.

    PyTorch's own changes show in a tensor's version. Changes through `.data` or NumPy do not: the points are compared
    with a copy, unless nothing is to be looked at.
    """

    def __init__(self, points: Tensor, options: Options) -> None:
        self.points = points
        self.watched = options.checks != "none" and is_readable(points)
        self.version = version_of(points) if self.watched else 0
        self.copy = points.detach().clone() if self.watched and options.checks == "all" else None

    def check(self) -> None:
        if not self.watched:
            return
        changed = version_of(self.points) != self.version
        if changed or (self.copy is not None and not torch.equal(self.points.detach(), self.copy)):
            _refuse_change()


def _refuse_change(cause: Exception | None = None) -> NoReturn:
    raise ValueError(
        "the objective changed its samples in place, and the gradient is made of them: let it work on a copy, "
        "such as b = b.clone(), or 2 * b - 1 instead of b.mul_(2).sub_(1)"
    ) from cause


def _as_tensor(values: Values, shape: torch.Size) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            "the objective must return a value for every sample, got a masked array: fill it, as with .filled(0.0)"
        )
    try:
        if isinstance(values, list | tuple) and values and all(isinstance(one, Tensor) for one in values):
            return torch.stack(list(values))
        # By way of NumPy, lists of Python floats keep all their digits.
        return torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"the objective must return a tensor or an array of shape {list(shape)}, got {type(values).__name__}"
        ) from None


def _as_floats(tensor: Tensor) -> Tensor:
    """Return values as floating-point numbers that hold them: those of wide integers need float64."""
    if tensor.is_complex():
        raise ValueError("the objective must return real values, got complex ones: take .real or .abs() yourself")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}: call .to_dense() on it"
        raise ValueError(f"the objective must return an ordinary, dense tensor, got {kind}")
    if tensor.is_meta:
        raise ValueError("the objective must return numbers, got a tensor on the meta device, which holds none")
    if tensor.is_floating_point():
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"the objective must return float16, bfloat16, float32 or float64, got {tensor.dtype}: call .float()"
            )
        return tensor
    exact_in_float32 = tensor.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16)
    # Apple's GPUs have no float64.
    return tensor.float() if exact_in_float32 or tensor.device.type == "mps" else tensor.double()


def _refuse_black_box(estimator: Estimator, cause: Exception | None = None) -> NoReturn:
    raise ValueError(
        f"{type(estimator).__name__} differentiates the objective with respect to its points, and this one passes no "
        "gradient to them: write it in differentiable torch operations (for arms.attach, of draw.points: draw.samples "
        "are a copy without a graph), or use an estimator for black boxes such as arms-s"
    ) from cause
