"""The public functions `expectation`, `importance_bound`, `draw` and `attach`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from arms.arguments import FLOATS, is_readable
from arms.attachment import attach_gradient, needs_gradient
from arms.designs import Draw
from arms.estimate import draw_ahead, estimate, finish
from arms.estimators import LOORF, Estimator, as_estimator
from arms.estimators.base import Objective, Values
from arms.estimators.registry import label
from arms.latents import Latent, Logits, as_latent
from arms.layers import deeper_gradient, draw_deeper, reason_not_first_layer, returns_to_go
from arms.objective import Evaluation, Options, as_values, differentiate
from arms.targets import BestOf, Target


def expectation(
    objective: Objective,
    logits: Logits,
    estimator: str | Estimator = "arms",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    target: Target | None = None,
    evaluations: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Estimate E[objective(b)] for a discrete latent b, as a tensor `[*batch]` for `.backward()`.

    The result is the mean of the objective's values. In the backward pass, the logits receive the
    estimator's gradient. All other tensors that the objective uses receive their usual gradient
    from autograd.

    Args:
        objective: Maps samples `[n, *batch, d]` to values `[n, *batch]`. It may be a black box. For
            a joint latent, it is called with one keyword argument per part.
        logits: A tensor `[*batch, d]` for independent bits b ~ Bernoulli(sigmoid(logits)); a torch
            `Bernoulli`; a `Categorical` with logits `[*batch, d, K]`, for which the objective
            receives indices `[n, *batch, d]`; a `OneHotCategorical`, for which it receives `[n,
            *batch, d, K]`; one of these in `Independent(..., 1)`; or a latent such as
            `arms.Subset(logits, k=3)`.
        estimator: The name of an estimator (see `arms.ESTIMATORS`), or an estimator.
        num_samples: The number of samples, 8 by default.
        generator: Source of all randomness; PyTorch's global generator by default.
        target: `arms.BestOf(k)` estimates the expected best of k values instead of the expectation.
            Only the estimator `loorf` supports `BestOf`.
        evaluations: The largest allowed number of evaluations of the objective. Pass this instead
            of `num_samples`.
        chunk: Evaluate this many points at a time, to save memory. The backward pass evaluates all
            points again.
        validate: Raise an error for NaN and infinity. On a GPU, this waits for the device.

    >>> import torch
    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> value = expectation(lambda b: (b - 0.4).square().sum(-1), logits, num_samples=4)
    >>> value.sum().backward()
    >>> value.shape, logits.grad.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    chosen = as_estimator(estimator, num_samples, evaluations)
    if chosen.target.subtracts_log_q:
        wanted = "arms.expectation needs an estimator of an expectation"
        got = f"{chosen}, which estimates the {chosen.target}"
        raise ValueError(f"{wanted}, got {got}: use arms.importance_bound instead")
    chosen = chosen if target is None else _with_target(chosen, target)
    return _value_with_gradient(chosen, objective, logits, generator, chunk, validate)


def importance_bound(
    log_joint: Objective,
    logits: Logits,
    estimator: str | Estimator = "disarm-ms",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    evaluations: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Estimate the importance-weighted bound on log p(x), as a tensor for `.backward()`.

    The result is `[*batch]`. The bound is E[log(1/K sum_k w_k)], where w_k = p(x, b_k) / q(b_k) are
    the weights of K independent samples b_k. The logits define q, and the library computes log q.
    In the backward pass, the logits receive the estimator's gradient. All other tensors that
    `log_joint` uses receive their usual gradient from autograd.

    Args:
        log_joint: Maps samples `[n, *batch, d]` to log p(x, b) `[n, *batch]`.
        logits: As for `expectation`.
        estimator: The name of an estimator of a bound, or an estimator. docs/bound.md helps you
            choose.
        num_samples: The number of samples n, 8 by default. K equals n for `vimco`, `flips-ms` and
            `reinforce-ms`, about n/3 for `midpoint-ms-shared`, and n/2 for all other estimators.
        generator: As for `expectation`.
        evaluations: As for `expectation`.
        chunk: As for `expectation`.
        validate: As for `expectation`.

    >>> import torch
    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> importance_bound(lambda b: b.sum(-1), logits, num_samples=10).sum().backward()
    >>> logits.grad.shape
    torch.Size([5, 3])
    """
    chosen = as_estimator(estimator, num_samples, evaluations)
    if not chosen.target.subtracts_log_q:
        wanted = "arms.importance_bound needs an estimator of a bound"
        got = f"{chosen}, which estimates the {chosen.target}"
        raise ValueError(f"{wanted}, got {got}: use arms.expectation instead")
    return _value_with_gradient(chosen, log_joint, logits, generator, chunk, validate)


def _with_target(estimator: Estimator, target: object) -> Estimator:
    """Return an estimator of `target`: `estimator` itself if it has this target.

    If `estimator` is LOORF and `target` is a `BestOf`, return LOORF with this target. Raise in all
    other cases.
    """
    if not isinstance(target, Target):
        wanted = "arms.Expectation() or arms.BestOf(k)"
        raise ValueError(f"target must be {wanted}, got {target!r}")
    if estimator.target == target:
        return estimator
    of_best = isinstance(target, BestOf)
    if of_best and label(estimator) == "LOORF":
        return LOORF(estimator.design.num_samples, target)
    what = f"{label(estimator)} estimates the {estimator.target}, not the {target}"
    remedy = "loorf" if of_best else f"an estimator of the {target}"
    raise ValueError(f"{what}: use {remedy} instead")


def _value_with_gradient(
    estimator: Estimator,
    objective: Objective,
    logits: Logits,
    generator: Generator | None,
    chunk: int | None,
    validate: bool,
) -> Tensor:
    latent = as_latent(logits, validate=validate)
    options = Options(chunk, "all" if validate else "cheap", gradient=needs_gradient(latent))
    found = estimate(estimator, objective, latent, generator, options)
    return attach_gradient(found.value, latent, found.grad.detach())


@dataclass(frozen=True)
class Handle:
    """The points that `arms.draw` drew for one layer. Pass this object to `arms.attach`."""

    estimator: Estimator
    """The estimator of the first layer."""
    given: Latent = field(repr=False)
    """The latent that was passed to `arms.draw`, attached to its graph."""
    drawn: Draw = field(repr=False)
    """The points, and the facts that the estimator needs about them."""
    original: Tensor | None = field(default=None, repr=False)
    """A copy of the points, to detect whether the points were modified in place."""
    parent: "Handle | None" = field(default=None, repr=False)
    """The draw of the previous layer, or None for the first layer."""

    @property
    def points(self) -> Any:
        """The points at which to evaluate the objective."""
        return self.drawn.latent.to_objective(self.drawn.points)

    @property
    def samples(self) -> Any:
        """The samples, without other points, as a detached copy that a simulator may modify."""
        return self.drawn.latent.to_objective(self.drawn.samples.detach().clone())

    @property
    def logits(self) -> Tensor:
        """The detached logits that the points were drawn from."""
        return self.drawn.latent.logits


def draw(
    logits: Logits,
    estimator: str | Estimator | None = None,
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    evaluations: int | None = None,
    given: Handle | None = None,
    validate: bool = True,
) -> Handle:
    """Draw samples now; later, pass the objective's values at these samples to `arms.attach`.

    This is for simulators, and for models with several layers. The draw stores its logits, so you
    may take optimizer steps before you attach the values.

    Args:
        logits: As for `expectation`. For a deeper layer, `[n, *batch, d]`, with a row for each
            sample of the previous layer.
        estimator: As for `expectation`.
        num_samples: As for `expectation`.
        generator: As for `expectation`.
        evaluations: As for `expectation`.
        given: For a deeper layer: the result of `arms.draw` for the previous layer. Compute the
            logits from `given.samples`, or from `given.points` if the estimator needs derivatives.
            All layers use the estimator and the number of samples of the first layer.
        validate: Raise an error for NaN, and let `attach` detect whether the points were modified.

    >>> first = draw(torch.zeros(3), num_samples=2)
    >>> first.samples.sum(0)  # at p = 1/2 two coupled samples are complementary
    tensor([1., 1., 1.])
    >>> draw(first.samples @ torch.ones(3, 5), given=first).samples.shape
    torch.Size([2, 5])
    """
    latent = as_latent(logits, validate=validate)
    kept = latent.with_logits(latent.logits.detach().clone())
    if given is None:
        chosen = as_estimator("arms" if estimator is None else estimator, num_samples, evaluations)
        drawn = draw_ahead(chosen, kept, generator)
    else:
        own = {"estimator": estimator, "num_samples": num_samples, "evaluations": evaluations}
        if extra := [f"{name}={value!r}" for name, value in own.items() if value is not None]:
            what = "a deeper layer uses the estimator and the number of samples of the first layer"
            raise ValueError(f"{what}: remove {', '.join(extra)}")
        first = _first_layer(given, latent)
        chosen, points = first.estimator, draw_deeper(first.drawn, latent, generator)
        drawn = Draw(kept, points, first.drawn.extra)
    compared = validate and is_readable(drawn.points)
    original = drawn.points.detach().clone() if compared else None
    return Handle(chosen, latent, drawn, original, given)


def attach(
    draw: Handle | Sequence[Handle],
    values: "Values | Sequence[Values]",
    derivatives: "Tensor | dict[str, Any] | None" = None,
    *,
    validate: bool = True,
) -> Tensor:
    """Return the estimated target `[*batch]`, given the objective's values at the drawn points.

    Call `.backward()` on the result. All logits then receive the estimated gradient.

    Args:
        draw: The result of `arms.draw`; for several layers, the list of all draws, from the first
            layer to the last.
        values: The objective's values at `draw.points`, `[m, *batch]`, in any array type. For a
            bound, these are values of log p(x, b). For several layers, pass one such tensor, or a
            list of tensors with one term per layer. The objective is then the sum of all terms, and
            term l may depend on layers 1 to l only. With a list, each layer learns only from its
            own term and the later terms, which lowers the variance.
        derivatives: The derivative df/db at the last k points, `[k, *batch, d]`, for an estimator
            that needs k derivatives. For a joint latent, pass a dictionary with one tensor per
            part. By default, autograd computes the derivatives from `values`.
        validate: As for `expectation`.

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> drawn = globals()["draw"](logits, num_samples=4)
    >>> attach(drawn, drawn.samples.numpy().sum(-1)).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    options = Options(checks="all" if validate else "cheap")
    listed = isinstance(draw, Sequence)
    handles: list[Handle] = list(draw) if listed else [draw]  # type: ignore[arg-type, list-item]
    _check_layers(handles)
    several = listed and isinstance(values, list | tuple)
    terms: list[Any] = list(values) if several else [values]  # type: ignore[arg-type]
    if several and len(terms) != len(handles):
        expected = f"one tensor, or a list of {len(handles)} terms, one for each layer"
        raise ValueError(f"values must be {expected}, got a list of {len(terms)}")
    estimator, drawn, latent = handles[0].estimator, handles[0].drawn, handles[0].given
    tensors = [as_values(estimator, drawn, one, drawn.points, options) for one in terms]
    to_go = returns_to_go(tensors) if several else tensors * len(handles)
    wanted, taken = needs_gradient(latent), None
    if derivatives is not None:
        taken = _check_derivatives(handles, derivatives, options)
    elif wanted and estimator.design.needs.derivatives:
        taken = differentiate(estimator, drawn.points, to_go[0], options)
    evaluation = Evaluation(to_go[0], taken)
    found = finish(estimator, drawn, evaluation, replace(options, gradient=wanted))
    value = attach_gradient(found.value, latent, found.grad.detach())
    for handle, signal in zip(handles[1:], to_go[1:], strict=True):
        if needs_gradient(handle.given):
            own, chains = handle.drawn, len(found.values)
            grad = deeper_gradient(own.latent, own.points, signal, chains)
            zero = torch.zeros_like(signal.detach())  # the added term only carries the gradient
            value = value + attach_gradient(zero, handle.given, grad).sum(0)
    return value


def _first_layer(parent: object, latent: Latent) -> Handle:
    """Return the handle of the first layer. Raise unless `latent` can be the layer after `parent`.

    `parent` is the handle of the previous layer.
    """
    if not isinstance(parent, Handle):
        raise ValueError(f"given must come from arms.draw, got {type(parent).__name__}")
    first = parent
    while first.parent is not None:
        first = first.parent
    if reason := reason_not_first_layer(first.estimator):
        name = type(first.estimator).__name__
        what = f"{name} {reason}, so it cannot be used for several layers"
        raise ValueError(f"{what}: use arms or loorf instead")
    points = first.drawn.points
    expected = points.shape[: points.ndim - first.drawn.latent.event_dims]
    if latent.batch_shape != expected:
        kind = "points" if first.estimator.design.needs.derivatives else "samples"
        shape = ", ".join([*map(str, expected), latent.event_axes])
        raise ValueError(
            f"logits of a deeper layer must have shape [{shape}], one row for each of the "
            f"{len(points)} {kind} of the layer before it, got {list(latent.logits.shape)}: "
            f"compute the logits from given.{kind}"
        )
    return first


def _check_layers(handles: list[Handle]) -> None:
    """Raise unless `handles` lists all layers in order, and none of their points was modified."""
    if not handles:
        raise ValueError("arms.attach needs at least one draw, got an empty list")
    for one in handles:
        if not isinstance(one, Handle):
            raise ValueError(f"draw must come from arms.draw, got {type(one).__name__}")
        if one.original is not None and not torch.equal(one.drawn.points.detach(), one.original):
            what = "draw.points was modified in place after the draw"
            raise ValueError(f"{what}: modify draw.samples instead, which is a copy")
    if handles[0].parent is not None:
        what = "the first draw in the list belongs to a deeper layer"
        remedy = "start with the first layer, as in attach([first, second], values)"
        raise ValueError(f"{what}: {remedy}")
    for number, one in enumerate(handles[1:], 2):
        earlier = [id(other) for other in handles[: number - 1]]
        problems = {
            "appears twice": id(one) in earlier,
            "was drawn without given=": one.parent is None,
            "was drawn with given= a draw that is not earlier in the list": (
                id(one.parent) not in earlier
            ),
        }
        if problem := next((problem for problem, holds in problems.items() if holds), ""):
            raise ValueError(f"draws must list all layers in order, but draw {number} {problem}")


def _check_derivatives(handles: list[Handle], derivatives: object, options: Options) -> Tensor:
    """Check the user's derivatives, and return them as a tensor.

    For a bound, the user passes derivatives of log p(x, b), and the result contains derivatives of
    the log-weights.
    """
    if len(handles) > 1:
        what = "derivatives cannot be passed for several layers"
        remedy = "remove this argument, and autograd computes the derivatives from the values"
        raise ValueError(f"{what}: {remedy}")
    estimator, drawn = handles[0].estimator, handles[0].drawn
    if not estimator.design.needs.derivatives:
        name = type(estimator).__name__
        raise ValueError(f"{name} does not use derivatives: remove the argument derivatives")
    first = len(drawn.points) - estimator.design.needs.derivatives
    expected = drawn.points[first:].shape
    if isinstance(derivatives, dict):
        derivatives = drawn.latent.join_gradient(derivatives)
    what = f"derivatives must be a floating-point tensor of shape {list(expected)}, got"
    if not isinstance(derivatives, Tensor):
        raise ValueError(f"{what} {type(derivatives).__name__}")
    if derivatives.dtype not in FLOATS or derivatives.shape != expected:
        raise ValueError(f"{what} {derivatives.dtype} of shape {list(derivatives.shape)}")
    options.require_finite(derivatives, "derivatives must be finite, got NaN or infinity")
    derivatives = derivatives.to(drawn.points.device)
    if not estimator.target.subtracts_log_q:
        return derivatives
    with torch.enable_grad():
        points = drawn.points.detach().requires_grad_()
        (of_log_q,) = torch.autograd.grad(drawn.latent.log_prob(points).sum(), points)
    return derivatives - of_log_q[first:]
