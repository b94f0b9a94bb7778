"""The public functions: a tensor whose value is the objective's mean or a bound, and whose gradient is the estimate."""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from arms.arguments import true_or_unreadable, version_of
from arms.couplings import Coupling, as_coupling
from arms.estimators import ARMS, Draw, Estimator, Objective, as_estimator
from arms.estimators.attachment import attach_gradient, has_tangent
from arms.estimators.base import Values
from arms.estimators.pipeline import (
    Evaluation,
    Options,
    as_values,
    count_differentiated,
    draw_points,
    estimate,
    evaluate,
    gradient,
    learns,
    slopes_of,
)
from arms.latents import Latent, Logits, as_latent
from arms.targets import log_mean_exp

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
    estimator: str | Estimator = "arms-ms-d",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    chunk: int | None = None,
    validate: bool = True,
) -> Tensor:
    """Return the K-sample bound log(1/K sum_k w_k) of Burda et al., ready for `.backward()`.

    The gradient is unbiased for that of E[log(1/K sum_k w_k)] over independent samples: for the logits (the
    estimator's score part, and the direct term by autograd through log q) and for whatever `log_weight` depends on.

    Args:
        log_weight: Maps samples `[n, *batch, d]` to log w = log p(x, b) - log q(b) `[n, *batch]`, where q(b) is
            computed from the same logits, attached.
        logits: As for `expectation`.
        estimator: A name in `arms.ESTIMATORS` whose target is a bound (`arms estimators` lists them), or an object.
        num_samples: Evaluations of `log_weight`, 8 unless given. The K that goes with it is the estimator's
            `bound_samples`: n for vimco and reinforce-ms, n/2 for the others unless given.
        generator: Source of all randomness; PyTorch's global one unless given.
        chunk: Evaluate this many samples at a time and again in backward, when memory is short.
        validate: Look for NaN and infinity, which on a GPU waits for the device.

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
    estimator: str | Estimator = "arms-s",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    validate: bool = True,
) -> Draw:
    """Draw samples now and bring their objective values to `attach` later: for simulators and environments.

    The draw keeps the probabilities it was made with: a step of an optimiser in between does no harm.

    Args:
        logits: As for `expectation`.
        estimator: A name in `arms.ESTIMATORS`, or an estimator object.
        num_samples: Samples, 8 unless given.
        generator: Source of all randomness; PyTorch's global one unless given.
        validate: Look for NaN in the logits.

    Returns:
        A draw: evaluate the objective at its `points` `[m, *batch, d]`, which are its `samples` for all estimators that
        need nothing but values.

    >>> drawn = draw(torch.zeros(3), "disarm", num_samples=2)
    >>> drawn.samples.sum(0)  # at p = 1/2 the two are each other's complement
    tensor([1., 1., 1.])
    """
    latent = as_latent(logits, validate=validate)
    kept = replace(latent, logits=latent.logits.detach().clone())
    drawn = draw_points(as_estimator(estimator, num_samples), kept, generator)
    points = drawn.points
    if drawn.estimator.slopes != "none" and not points.requires_grad:
        points = points.detach().requires_grad_()  # so that `attach` can take the slopes from the values' graph
    return replace(drawn, points=points, given=latent, version=version_of(points))


def attach(draw: Draw, values: Values, slopes: Tensor | None = None, *, validate: bool = True) -> Tensor:
    """Return the value `[*batch]` of a draw, ready for `.backward()`.

    Of a multi-sample estimator's draw it is the bound, given log-weights that carry the graph of log q.

    Args:
        draw: What `arms.draw` returned.
        values: `[m, *batch]`, the objective at `draw.points`; any array.
        slopes: `[k, *batch, d]`, its derivative at the last k points the estimator asks for it at (`rebar` and `relax`:
            those after the samples; others: all). Taken from the graph of `values` unless given.
        validate: Look for NaN and infinity, which on a GPU waits for the device.

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> drawn = draw(logits, "arms-s", num_samples=4)
    >>> attach(drawn, drawn.samples.numpy().sum(-1)).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    if not isinstance(draw, Draw) or draw.given is None:
        raise ValueError(f"draw must be what arms.draw returned, got {type(draw).__name__}")
    if version_of(draw.points) != draw.version:
        raise ValueError(
            "draw.points were changed in place, and the gradient is made of them: change draw.samples, a copy"
        )
    options = Options(checks="all" if validate else "cheap")
    tensor = as_values(draw, values, draw.points, options)
    asked = draw.estimator.slopes
    if asked != "none" and slopes is None:
        slopes = slopes_of(draw, draw.points, tensor, options, learning=learns(draw.estimator))
    elif slopes is not None:
        slopes = _check_slopes(draw, slopes)
    found = Evaluation(tensor, slopes)
    grad = gradient(draw, found, options).detach() if _is_wanted(draw.given) else None
    return _attached(draw.estimator, draw.given, draw.estimator.value(draw, tensor), grad)


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
    found = estimate(estimator, objective, latent, generator, options)
    return _attached(estimator, latent, found.value, found.grad.detach() if wanted else None)


def _is_wanted(latent: Latent) -> bool:
    """Whether anybody can ask for the gradient; where nobody can, it is not made."""
    return (torch.is_grad_enabled() and latent.logits.requires_grad) or has_tangent(latent.logits)


def _attached(estimator: Estimator, latent: Latent, value: Tensor, grad: Tensor | None) -> Tensor:
    if grad is None:
        return value
    if estimator.target.direct and not (value.requires_grad or has_tangent(value)):
        raise ValueError(
            f"the log-weights of the {estimator.target} must carry the graph of log q(b), computed from the same "
            "logits: half of the gradient goes through it; got values without a graph"
        )
    return attach_gradient(value, latent, grad)
