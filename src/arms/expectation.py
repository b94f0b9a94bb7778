"""The public functions: a tensor whose value is the objective's mean or a bound, and whose gradient is the estimate."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NoReturn

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32, is_readable, true_or_unreadable, version_of
from arms.couplings import Coupling, as_coupling
from arms.estimators import ARMS, Draw, Estimator, Objective, as_estimator
from arms.estimators.attachment import attach_gradient, has_tangent
from arms.estimators.base import Values
from arms.estimators.chained import Chained
from arms.estimators.multi_sample import direct_term
from arms.estimators.pipeline import (
    Evaluation,
    Options,
    as_values,
    count_differentiated,
    draw_points,
    evaluate,
    gradient,
    learns,
    slopes_of,
    through_nan,
)
from arms.latents import Latent, Logits, OneHot, as_latent
from arms.targets import Target, log_mean_exp

__all__ = ["attach", "coupled_bound", "draw", "expectation", "multi_sample_bound"]


def expectation(
    objective: Objective,
    logits: Logits,
    estimator: str | Estimator = "arms-s",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return E[objective(b)] for a discrete latent b, as seen by n samples, ready for `.backward()`.

    The result is the mean of the objective's values. Its gradient is the estimator's for the logits, plus autograd's
    own for whatever the objective itself depends on.

    Args:
        objective: Maps samples `[n, *batch, d]` to values `[n, *batch]`; it may be a black box.
        logits: `[*batch, d]` for b ~ Bernoulli(sigmoid(logits)); a torch `Bernoulli`; a `Categorical` with logits
            `[*batch, d, K]`, whose indices `[n, *batch, d]` the objective gets, or a `OneHotCategorical`, with samples
            `[n, *batch, d, K]`; any of these in `Independent(..., 1)`; or a latent such as `arms.OneHot(logits)`.
        estimator: A name in `arms.ESTIMATORS`, or an estimator object.
        num_samples: Evaluations of the objective, 8 unless given.
        generator: Source of all randomness; PyTorch's global one unless given.
        chunk: Evaluate this many samples at a time and again in backward, when memory is short.
        validate: Look for NaN and infinity, which on a GPU waits for the device.

    Returns:
        `[*batch]`, differentiable once with respect to the logits.

    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> value = expectation(lambda b: (b - 0.4).square().sum(-1), logits, num_samples=4)
    >>> value.sum().backward()
    >>> value.shape, logits.grad.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    chosen = as_estimator(estimator, num_samples)
    if chosen.target.direct:
        raise ValueError(f"{chosen} estimates the gradient of the {chosen.target}: use arms.multi_sample_bound")
    return _surrogate(chosen, objective, as_latent(logits, validate=validate), generator, chunk, validate)


def multi_sample_bound(
    log_weight: Objective,
    logits: Logits,
    estimator: str | Estimator = "disarm-ms",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return the K-sample bound log(1/K sum_k w_k) of Burda et al., ready for `.backward()`.

    The gradient is unbiased for that of E[log(1/K sum_k w_k)] over independent samples: for the logits, a part of it
    by autograd through log q, and for whatever `log_weight` depends on. Which estimator: docs/bound.md.

    Args:
        log_weight: Maps samples `[n, *batch, d]` to log w = log p(x, b) - log q(b) `[n, *batch]`, where q(b) is
            computed from the very tensor of logits that is given here, not detached. Whether its gradient arrives is
            looked at, and refused where it does not.
        logits: As for `expectation`.
        estimator: A name in `arms.ESTIMATORS` whose target is a bound (`arms estimators` lists them), or an object.
        num_samples: Evaluations of `log_weight`, 8 unless given. The K that goes with it is the estimator's
            `bound_samples`: n for vimco and reinforce-ms, a third for midpoint-ms-tried, n/2 for the others unless
            given.
        generator: Source of all randomness; PyTorch's global one unless given.
        chunk: Evaluate this many samples at a time and again in backward, when memory is short.
        validate: Look for NaN and infinity, and at the gradient of log q, which on a GPU waits for the device.

    Returns:
        The bound `[*batch]`.

    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> def log_weight(b):  # log p(x, b) = b.sum(-1), say
    ...     return b.sum(-1) - torch.distributions.Bernoulli(logits=logits).log_prob(b).sum(-1)
    >>> multi_sample_bound(log_weight, logits, num_samples=10).sum().backward()
    >>> logits.grad.shape
    torch.Size([5, 3])
    """
    chosen = as_estimator(estimator, num_samples)
    if not chosen.target.direct:
        raise ValueError(f"{chosen} estimates the gradient of the {chosen.target}: use arms.expectation")
    return _surrogate(chosen, log_weight, as_latent(logits, validate=validate), generator, chunk, validate)


def coupled_bound(
    log_weight: Objective,
    logits: Logits,
    coupling: str | Coupling = "systematic",
    num_samples: int = 8,
    generator: Generator | None = None,
) -> Tensor:
    """Return log(1/n sum_i w_i) `[*batch]` over n coupled samples: a lower bound of log p(x) too, for evaluation only.

    Each sample has the law q, so the mean of the weights is unbiased for p(x) and Jensen's inequality holds as it does
    for independent ones. Antithetic samples mostly tighten the bound, but no theorem says so: there are models where
    they loosen it. The result is detached.

    Args:
        log_weight: Maps samples `[n, *batch, d]` to log-weights `[n, *batch]`; -inf is a weight of zero.
        logits: As for `expectation`.
        coupling: A name in `arms.COUPLINGS`, or a coupling.
        num_samples: Samples of the bound.
        generator: Source of all randomness; PyTorch's global one unless given.

    >>> coupled_bound(lambda b: b.sum(-1), torch.zeros(5, 3), "systematic", num_samples=4).shape
    torch.Size([5])
    """
    options = Options(checks="cheap", gradient=False)
    with torch.no_grad():
        drawn = draw_points(ARMS(num_samples, as_coupling(coupling)), as_latent(logits), generator)
        values = evaluate(log_weight, drawn, options).values
        if not true_or_unreadable((values < torch.inf).all()):  # NaN is not
            raise ValueError("the log-weights must be numbers or -inf, got NaN or infinity: look where they come from")
        return log_mean_exp(values)


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
        return _draw_deeper(latent, kept, given, estimator, num_samples, generator)
    drawn = draw_points(as_estimator("arms-s" if estimator is None else estimator, num_samples), kept, generator)
    points = drawn.points
    if drawn.estimator.slopes != "none" and not points.requires_grad:
        points = points.detach().requires_grad_()  # so that `attach` can take the slopes from the values' graph
    return replace(drawn, points=points, given=latent, version=version_of(points))


def _draw_deeper(
    latent: Latent,
    kept: Latent,
    parent: Draw,
    estimator: str | Estimator | None,
    num_samples: int | None,
    generator: Generator | None,
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
        kind = "points" if root.extra else "samples"
        raise ValueError(
            f"logits of a draw given another must be [{', '.join(map(str, expected))}, {latent.event_axes}], "
            f"each of its {len(root.points)} {kind} with logits of its own, got {list(latent.logits.shape)}: make "
            f"them of given.{kind}"
        )
    # The mean behind a point that is no sample is to be differentiated with respect to that point.
    drawn = Chained(len(root.points) - root.extra, root.extra).draw(latent if root.extra else kept, generator)
    return replace(drawn, latent=kept, given=latent, version=version_of(drawn.points), parent=parent)


def _check_parent(parent: Draw) -> Draw:
    """Return the first layer's draw of a chain that another layer can be added to."""
    if not isinstance(parent, Draw) or parent.given is None:
        raise ValueError(f"given must be what arms.draw returned, got {type(parent).__name__}")
    root = parent
    while root.parent is not None:
        root = root.parent
    one = root.estimator
    why = (
        f"estimates the {one.target}"
        if one.target.direct
        else "enumerates all states"
        if one.evaluations is None
        else "draws without replacement"
        if not one.equal_weights
        else "has parameters of its own"
        if one.has_parameters
        else ""
    )
    if why:
        raise ValueError(
            f"{type(one).__name__} {why} and cannot be the first of several layers: use arms-s or loorf, or midpoint "
            "where the objective can be differentiated"
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
        slopes = _check_slopes(draw, slopes)
    found = Evaluation(tensor, slopes)
    value = draw.estimator.value(draw, tensor)
    if not _is_wanted(latent):
        return value
    return _attached(draw, latent, value, tensor, gradient(draw, found, options).detach(), options)


def _attach_layers(draws: list[Draw], values: Values, options: Options) -> Tensor:
    """Return the mean over chains of the sum of all terms, every layer's gradient attached to its logits."""
    latents = _check_layers(draws)
    terms = list(values) if isinstance(values, list | tuple) else [values]
    if len(terms) not in (1, len(draws)) or (isinstance(values, list | tuple) and len(terms) != len(draws)):
        raise ValueError(
            f"values of {len(draws)} layers must be one tensor, or a list with a term for each, got {len(terms)} terms"
        )
    tensors = [as_values(draws[0], term, draws[0].points, options) for term in terms]
    to_go = list(accumulate(reversed(tensors)))[::-1] if len(terms) > 1 else tensors * len(draws)
    root, total = draws[0], to_go[0]
    value = root.estimator.value(root, total)
    for layer, latent, signal in zip(draws, latents, to_go, strict=True):
        if not _is_wanted(latent):
            continue
        slopes = None
        if layer is root and root.estimator.slopes != "none":
            slopes = slopes_of(root, root.points, total, options, learning=False)
        grad = gradient(layer, Evaluation(signal, slopes), options).detach()
        if layer is root:
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
    if version_of(draw.points) != draw.version:
        raise ValueError(
            "draw.points were changed in place, and the gradient is made of them: change draw.samples, a copy"
        )
    return draw.given


def _check_slopes(draw: Draw, slopes: Tensor) -> Tensor:
    if draw.estimator.slopes == "none":
        raise ValueError(f"{type(draw.estimator).__name__} needs no slopes, got some: leave them out")
    expected = draw.points[len(draw.points) - count_differentiated(draw) :].shape
    if slopes.shape != expected:
        raise ValueError(f"slopes must have shape {list(expected)}, got {list(slopes.shape)}")
    return slopes


def _surrogate(
    estimator: Estimator,
    objective: Objective,
    latent: Latent,
    generator: Generator | None,
    chunk: int | None,
    validate: bool,
) -> Tensor:
    wanted = _is_wanted(latent)
    options = Options(chunk, "all" if validate else "cheap", gradient=wanted)
    drawn = draw_points(estimator, latent, generator)
    found = evaluate(objective, drawn, options)
    value = through_nan(estimator.value(drawn, found.values), latent, options)
    if not wanted:
        return value
    return _attached(drawn, latent, value, found.values, gradient(drawn, found, options).detach(), options)


def _is_wanted(latent: Latent) -> bool:
    """Whether anybody can ask for the gradient; where nobody can, it is not made."""
    return (torch.is_grad_enabled() and latent.logits.requires_grad) or has_tangent(latent.logits)


def _attached(draw: Draw, latent: Latent, value: Tensor, values: Tensor, grad: Tensor, options: Options) -> Tensor:
    if draw.estimator.target.direct:
        _check_direct_term(draw, latent, value, values, options)
    return attach_gradient(value, latent, grad)


def _check_direct_term(draw: Draw, latent: Latent, value: Tensor, values: Tensor, options: Options) -> None:
    """Raise if log-weights do not pass to the logits what log q(b) does: every bound's estimate counts on it."""
    target = draw.estimator.target
    if not (value.requires_grad or has_tangent(value)):
        _refuse_log_q(target, "values without a graph")
    readable = options.checks == "all" and is_readable(latent.logits) and is_readable(value)
    if not readable or not (latent.logits.requires_grad and value.requires_grad):
        return  # inside of a transform or a compiler nobody can look
    (found,) = torch.autograd.grad(value.sum(), latent.logits, retain_graph=True, allow_unused=True)
    if found is None:
        _refuse_log_q(target, "log-weights in whose graph these logits have no part")
    weights = values.detach().requires_grad_()
    (shares,) = torch.autograd.grad(draw.estimator.value(draw, weights).sum(), weights)
    expected = direct_term(draw.latent, draw.points.detach(), shares)
    coarsest = max(torch.finfo(one.dtype).eps for one in (values, latent.logits))
    if isinstance(latent, OneHot):
        found = _felt(latent, found)
    if ((found - expected).abs() > 10 * math.sqrt(coarsest) * expected.abs().clamp(min=1)).any():
        _refuse_log_q(target, "log-weights that depend on these logits otherwise")


def _felt(latent: OneHot, grad: Tensor) -> Tensor:
    """Return a gradient for logits that torch has normalised as what was normalised feels of it.

    Its distributions take log q from the normalised logits, whose gradient lacks the part - p; behind the normalisation
    it is there. Logits of other makes, which do not add up to one, must have it themselves.
    """
    logits = at_least_float32(latent.logits.detach())
    if not (logits.logsumexp(-1).abs() < 1e-4).all():
        return grad
    return grad - (logits.softmax(-1) * grad.sum(-1, keepdim=True)).to(grad.dtype)


def _refuse_log_q(target: Target, found: str) -> NoReturn:
    raise ValueError(
        f"the log-weights of the {target} must carry the graph of log q(b), computed from the very tensor of logits "
        f"that was given and not detached: a part of the gradient goes through it; got {found}"
    )
