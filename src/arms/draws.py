"""The two-step form, `draw` and `attach`, of one layer or of several that are drawn one given the other."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from arms.arguments import FLOATS, is_readable, true_or_unreadable
from arms.estimators import Draw, Estimator, as_estimator
from arms.estimators.attachment import attach_gradient
from arms.estimators.base import Values
from arms.estimators.chained import costs_to_go, draw_next, layer_gradient, why_no_root
from arms.estimators.pipeline import (
    Evaluation,
    Options,
    as_values,
    count_differentiated,
    draw_ahead,
    gradient,
    learns,
    slopes_of,
)
from arms.latents import Latent, Logits, as_latent
from arms.surrogate import attached, is_wanted

__all__ = ["attach", "draw"]


def draw(
    logits: Logits,
    estimator: str | Estimator | None = None,
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    given: Draw | None = None,
    validate: bool = True,
) -> Draw:
    """Draw samples now and bring their objective values to `attach` later: for simulators, and for several layers.

    The draw keeps the probabilities it was made with: a step of an optimiser in between does no harm.

    Args:
        logits: As for `expectation`. Of a deeper layer `[n, *batch, d]`: each of the n samples of the layer before is
            followed by one sample at logits of its own.
        estimator: A name in `arms.ESTIMATORS`, or an estimator object; `arms-s` unless given.
        num_samples: Samples, 8 unless given.
        generator: Source of all randomness; PyTorch's global one unless given.
        given: The draw of the layer before, of whose `samples` (`points`, if the first layer's estimator needs more
            than values) these logits were made. Estimator and number of samples are then those of the first layer.
        validate: Look for NaN in the logits.

    Returns:
        A draw: evaluate the objective at its `samples`; for estimators that differentiate it, at its `points`
        `[m, *batch, *event]`, which are the samples and what else is to be evaluated.

    >>> first = draw(torch.zeros(3), "disarm", num_samples=2)
    >>> first.samples.sum(0)  # at p = 1/2 the two are each other's complement
    tensor([1., 1., 1.])
    >>> draw(first.samples @ torch.ones(3, 5), given=first).samples.shape
    torch.Size([2, 5])
    """
    latent = as_latent(logits, validate=validate)
    kept = replace(latent, logits=latent.logits.detach().clone())
    if given is not None:
        return _draw_deeper(latent, kept, given, estimator, num_samples, generator, validate)
    drawn = draw_ahead(as_estimator("arms-s" if estimator is None else estimator, num_samples), kept, generator)
    return replace(drawn, given=latent, original=_copy_to_compare(drawn.points, validate))


def _copy_to_compare(points: Tensor, validate: bool) -> Tensor | None:
    """Return what `attach` compares the points with, to notice if they were changed; None where it cannot look."""
    return points.detach().clone() if validate and is_readable(points) else None


def _draw_deeper(
    latent: Latent,
    kept: Latent,
    parent: Draw,
    estimator: str | Estimator | None,
    num_samples: int | None,
    generator: Generator | None,
    validate: bool,
) -> Draw:
    root = _check_parent(parent)
    if estimator is not None or num_samples is not None:
        told = f"estimator={estimator!r}" if estimator is not None else f"num_samples={num_samples}"
        raise ValueError(
            f"a draw given another takes estimator and num_samples from the first layer, got {told}: leave it out. "
            "Deeper samples are independent, one for each chain: of coupled ones, the others would be no baseline"
        )
    expected = root.points.shape[: root.points.ndim - root.latent.event_dims]
    if latent.batch_shape != expected:
        kind = "samples" if root.estimator.slopes == "none" else "points"
        raise ValueError(
            f"logits of a draw given another must be [{', '.join(map(str, expected))}, {latent.event_axes}], "
            f"each of its {len(root.points)} {kind} with logits of its own, got {list(latent.logits.shape)}: make "
            f"them of given.{kind}"
        )
    drawn = draw_next(root, latent, generator)
    original = _copy_to_compare(drawn.points, validate)
    return replace(drawn, latent=kept, given=latent, original=original, parent=parent)


def _check_parent(parent: Draw) -> Draw:
    """Return the first layer's draw of a chain that another layer can be added to."""
    if not isinstance(parent, Draw) or parent.given is None:
        raise ValueError(f"given must be what arms.draw returned, got {type(parent).__name__}")
    root = parent
    while root.parent is not None:
        root = root.parent
    if why := why_no_root(root.estimator):
        raise ValueError(
            f"{type(root.estimator).__name__} {why} and cannot be the first of several layers: use arms-s or loorf, or "
            "midpoint where the objective can be differentiated"
        )
    return root


def attach(
    draw: Draw | Sequence[Draw],
    values: Values,
    slopes: Tensor | None = None,
    *,
    validate: bool = True,
) -> Tensor:
    """Return the value `[*batch]` of a draw, or of several layers' draws, ready for `.backward()`.

    Of a multi-sample estimator's draw it is the bound, given log-weights that carry the graph of log q.

    Args:
        draw: What `arms.draw` returned; of several layers a list, each after the one that it was made given.
        values: `[m, *batch]`, the objective at `draw.points`; any array. Of several layers either one such tensor, or a
            list with a term for each layer, their sum being the objective. Term l may depend on layers 1 to l and on no
            deeper one: a layer then learns from its own term and those after it, which is less noisy.
        slopes: `[k, *batch, d]`, its derivative at the last k points the estimator asks for it at (`rebar` and `relax`:
            those after the samples; others: all). Taken from the graph of `values` unless given.
        validate: Look for NaN and infinity, which on a GPU waits for the device.

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> drawn = draw(logits, "arms-s", num_samples=4)
    >>> attach(drawn, drawn.samples.numpy().sum(-1)).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    options = Options(checks="all" if validate else "cheap")
    if not isinstance(draw, Draw) and isinstance(draw, Sequence):
        if slopes is not None:
            raise ValueError("slopes of several layers are taken from the graph of their values: leave slopes out")
        return _attach_layers(list(draw), values, options)
    latent = _check_draw(draw)
    if draw.parent is not None:
        raise ValueError(
            "this draw was made given another, and is one layer of several: attach all of them, as in "
            "arms.attach([first, second], values)"
        )
    tensor = as_values(draw, values, draw.points, options)
    asked = draw.estimator.slopes
    if asked != "none" and slopes is None:
        slopes = slopes_of(draw, draw.points, tensor, options, learning=learns(draw.estimator))
    elif slopes is not None:
        slopes = _check_slopes(draw, slopes, options)
    found = Evaluation(tensor, slopes)
    value = draw.estimator.value(draw, tensor)
    if not is_wanted(latent):
        return value
    return attached(draw, latent, value, tensor, gradient(draw, found, options).detach(), options)


def _attach_layers(draws: list[Draw], values: Values, options: Options) -> Tensor:
    """Return the mean over chains of the sum of all terms, every layer's gradient attached to its logits."""
    latents = _check_layers(draws)
    terms = list(values) if isinstance(values, list | tuple) else [values]
    if len(terms) not in (1, len(draws)) or (isinstance(values, list | tuple) and len(terms) != len(draws)):
        raise ValueError(
            f"values of {len(draws)} layers must be one tensor, or a list with a term for each, got {len(terms)} terms"
        )
    tensors = [as_values(draws[0], term, draws[0].points, options) for term in terms]
    to_go = costs_to_go(tensors) if len(terms) > 1 else tensors * len(draws)
    value = draws[0].estimator.value(draws[0], to_go[0])
    for layer, latent, signal in zip(draws, latents, to_go, strict=True):
        if not is_wanted(latent):
            continue
        grad = layer_gradient(layer, signal, options)
        if layer.parent is None:
            value = attach_gradient(value, latent, grad)
        else:  # zero in value, chain by chain
            value = value + attach_gradient(torch.zeros_like(signal.detach()), latent, grad).sum(0)
    return value


def _check_layers(draws: list[Draw]) -> list[Latent]:
    """Return the latents of a chain's layers, each draw looked at: one first layer, every other after its parent."""
    if not draws:
        raise ValueError("attach needs at least one draw, got an empty list")
    latents = [_check_draw(one) for one in draws]
    for position, one in enumerate(draws):
        if any(one is earlier for earlier in draws[:position]):
            raise ValueError(
                f"each draw must be in the list once, got number {position + 1} twice: its layer would count twice"
            )
        if position == 0 and one.parent is not None:
            raise ValueError("the first draw in the list must be the first layer, made without given")
        if position and one.parent is None:
            raise ValueError(
                f"draws in a list must be layers of the same chains, but number {position + 1} was made without given: "
                "draw it given the layer before, or attach it separately"
            )
        if position and not any(one.parent is earlier for earlier in draws[:position]):
            raise ValueError(
                f"draws in a list must be layers of the same chains, but number {position + 1} was made given a draw "
                "that is not before it in the list: list all layers, from the first on"
            )
    return latents


def _check_draw(draw: Draw) -> Latent:
    """Return the latent behind a draw as the user gave it, if it is still the draw that was handed out."""
    if not isinstance(draw, Draw) or draw.given is None:
        raise ValueError(f"draw must be what arms.draw returned, got {type(draw).__name__}")
    if draw.original is not None and not torch.equal(draw.points.detach(), draw.original):
        raise ValueError(
            "draw.points were changed in place, and the gradient is made of them: change draw.samples, a copy"
        )
    return draw.given


def _check_slopes(draw: Draw, slopes: object, options: Options) -> Tensor:
    if draw.estimator.slopes == "none":
        raise ValueError(f"{type(draw.estimator).__name__} needs no slopes, got some: leave them out")
    expected = draw.points[len(draw.points) - count_differentiated(draw) :].shape
    if not isinstance(slopes, Tensor) or slopes.dtype not in FLOATS:
        got = slopes.dtype if isinstance(slopes, Tensor) else type(slopes).__name__
        raise ValueError(f"slopes must be a floating-point tensor of shape {list(expected)}, got {got}")
    if slopes.shape != expected:
        raise ValueError(f"slopes must have shape {list(expected)}, got {list(slopes.shape)}")
    if options.checks == "all" and not true_or_unreadable(slopes.isfinite().all()):
        raise ValueError("slopes must be finite, got NaN or infinity (validate=False lets it through)")
    return slopes.to(draw.points.device)
