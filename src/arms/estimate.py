"""Estimate a target and its gradient in three steps: draw points, evaluate them, combine.

The public functions, layers, the trainer and the checks all call `estimate` or its single steps.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32, check_generator, is_finite, is_readable, leave_graph
from arms.attachment import attach_to_parameters
from arms.designs import Draw
from arms.estimators.base import Estimate, Estimator, Objective
from arms.estimators.registry import label
from arms.latents import Latent
from arms.objective import DEFAULT, Evaluation, Options, evaluate, is_learning, refuse_transforms
from arms.random import explain_randomness, warn_if_ranks_share_noise


def estimate(
    estimator: Estimator,
    objective: Objective,
    latent: Latent,
    generator: Generator | None = None,
    options: Options = DEFAULT,
) -> Estimate:
    """Estimate the target and its gradient.

    The gradient can be differentiated with respect to the estimator's parameters, but is detached
    from all other tensors.
    """
    draw = draw_points(estimator, latent, generator)
    return finish(estimator, draw, evaluate(estimator, objective, draw, options), options)


def finish(
    estimator: Estimator, draw: Draw, found: Evaluation, options: Options = DEFAULT
) -> Estimate:
    """Return the estimate for a draw. `found` are the objective's values and derivatives."""
    of_samples = found.values[: len(found.values) - draw.extra] if draw.extra else found.values
    value = estimator.target.value(of_samples, draw.weights)
    value = propagate_nan(value, draw.latent, options)
    if not options.gradient:
        return Estimate(torch.zeros_like(draw.latent.logits), value, of_samples)
    return Estimate(gradient(estimator, draw, found, options), value, of_samples)


def draw_points(estimator: Estimator, latent: Latent, generator: Generator | None = None) -> Draw:
    """Draw the points of an estimator. Raise first if the estimator cannot draw the latent."""
    check_generator(generator)
    if generator is None:
        warn_if_ranks_share_noise(latent.logits.device)
    else:
        leave_graph("a torch.Generator: remove the generator argument, and call torch.manual_seed")
    check_fits(estimator, latent)
    try:
        with _full_precision(latent.logits.device):
            draw = estimator.design.draw(latent.detach(), generator)
    except RuntimeError as error:
        explain_randomness(error)
        raise
    _check_draw(estimator, draw)
    return draw


def draw_ahead(estimator: Estimator, latent: Latent, generator: Generator | None = None) -> Draw:
    """Draw points that the caller evaluates later.

    The points require a gradient if the estimator needs derivatives.
    """
    draw = draw_points(estimator, latent, generator)
    if not estimator.design.needs.derivatives or draw.points.requires_grad:
        return draw
    refuse_transforms(estimator)
    return replace(draw, points=draw.points.detach().requires_grad_())


def takes(estimator: Estimator, latent: Latent) -> bool:
    return estimator.design.takes(latent) and latent.has_all(estimator.requires)


def check_fits(estimator: Estimator, latent: Latent, any_latent: str | None = None) -> None:
    """Raise unless the estimator can draw the latent.

    The error message recommends `any_latent`, the name of an estimator that accepts every latent.
    """
    if not takes(estimator, latent):
        kind = type(latent).__name__
        other = any_latent or ("vimco" if estimator.target.subtracts_log_q else "loorf")
        advice = f"use an estimator that accepts any latent, such as {other}"
        for capability in (*estimator.design.requires, *estimator.requires):
            if not latent.has(capability):
                lacking = next(one for one in latent.elements() if not one.has(capability))
                part = kind if lacking is latent else f"the {type(lacking).__name__} in this {kind}"
                needed = (
                    f"{label(estimator)} needs a latent with the capability {capability.__name__}"
                )
                raise ValueError(f"{needed}, and {part} does not have it: {advice}")
        raise ValueError(f"the design {estimator.design} cannot draw {kind} latents: {advice}")
    if estimator.design.needs.derivatives and not latent.differentiable:
        raise ValueError(
            f"{label(estimator)} differentiates the objective with respect to its samples, but "
            "category indices have no derivative: pass a OneHotCategorical instead of a "
            "Categorical, or use arms or loorf"
        )


def _check_draw(estimator: Estimator, draw: Draw) -> None:
    """Raise if the points of a draw do not have the number and shape that the design promises."""
    needs, name = estimator.design.needs, type(estimator.design).__name__
    if not isinstance(draw, Draw):
        raise ValueError(f"the design {name} must return a Draw, got {type(draw).__name__}")
    got, shape = draw.points.shape, draw.latent.logits.shape
    if got[1:] != shape:
        expected = f"[m, {', '.join(map(str, shape))}]"
        raise ValueError(f"the design {name} must draw points {expected}, got {list(got)}")
    count = got[0]
    if needs.evaluations not in (None, count) or needs.derivatives > count:
        what = f"the design {name} drew {count} points, which contradicts its {needs}"
        raise ValueError(f"{what}: correct the property `needs` of the design")


NO_CHANGE = nullcontext()


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that switches autocast off, because autocast rounds matrix products."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return NO_CHANGE


def gradient(
    estimator: Estimator, draw: Draw, found: Evaluation, options: Options = DEFAULT
) -> Tensor:
    """Return the gradient estimate for a draw, in the dtype and shape of the logits.

    `found` contains the objective's values and derivatives at the points of the draw.
    The result is differentiable with respect to the estimator's parameters only.
    """
    logits, name = draw.latent.logits, type(estimator).__name__
    values, derivatives, learning = found.values, found.derivatives, is_learning(estimator)
    twice = learning and estimator.design.needs.second_order
    if not twice:
        values = values.detach()
        derivatives = None if derivatives is None else derivatives.detach()
    values = at_least_float32(values)
    derivatives = None if derivatives is None else at_least_float32(derivatives)
    with torch.set_grad_enabled(learning), _full_precision(logits.device):
        grad: object = estimator.combine(draw, values, derivatives)
        if not isinstance(grad, Tensor):
            got = type(grad).__name__
            raise ValueError(f"{name}.combine must return a tensor, got {got}")
        grad = grad.to(logits.dtype)
        if twice:
            own = [one for one in estimator.parameters() if one.requires_grad]
            grad = attach_to_parameters(grad, own, draw.points, found.leaf)
    if grad.shape != logits.shape:
        shapes = f"{list(logits.shape)}, got {list(grad.shape)}"
        raise ValueError(f"{name}.combine must return the shape of the logits, {shapes}")
    if derivatives is not None or any(True for _ in estimator.parameters()):
        message = f"the gradient estimate is NaN or infinite: check the parameters of {name}"
        options.require_finite(grad, message)
    return propagate_nan(grad, draw.latent, options)


def propagate_nan(result: Tensor, latent: Latent, options: Options) -> Tensor:
    """Return `result` with NaN in all entries whose logits define no distribution.

    `result` is a gradient or a value. Bits that are drawn with p = NaN look like ordinary bits, so
    the result must show the error. If the logits were checked before, `result` is unchanged.
    """
    if options.checks == "none" or (options.checks == "all" and is_readable(latent.logits)):
        return result
    # Reading values on a CPU is cheap, and does not wait for a device.
    logits = latent.logits
    if logits.device.type == "cpu" and is_readable(logits) and is_finite(logits):
        return result
    nan = torch.where(latent.detach().undefined(), torch.nan, 0.0).to(result.dtype)
    return result + (nan if result.shape == latent.logits.shape else latent.sum_event(nan))
