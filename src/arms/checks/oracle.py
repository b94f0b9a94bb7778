"""Exact values, gradients and variances, and random objectives for tests."""

import math
from collections import Counter
from functools import lru_cache
from itertools import combinations_with_replacement

import torch
from torch import Generator, Tensor

from arms.designs import BitCoupling, CorrelatedPair, Coupled, Independent
from arms.estimate import finish
from arms.estimators import (
    ARM,
    DisARM,
    Estimator,
    Exact,
    LeaveOneOut,
    Objective,
    Reinforce,
    TensorObjective,
)
from arms.latents import Binary, Bits, Choices, Enumerable, HasMean, Latent, Logits, as_latent
from arms.objective import Options, call_objective, evaluate
from arms.targets import Target


def exact_gradient(objective: Objective, logits: Logits) -> Tensor:
    """Compute the gradient of E[objective(b)] with respect to the logits, by enumeration.

    Args:
        objective: Maps states `[states, *batch, *event]` to values; it may be a black box.
        logits: As for `arms.expectation`, with at most 2^16 states.

    >>> exact_gradient(lambda b: b.sum(-1), torch.zeros(2))
    tensor([0.2500, 0.2500])
    """
    with torch.no_grad():
        found: Tensor = Exact()(objective, logits).grad
        return found


def exact_value(objective: TensorObjective, logits: Logits, target: Target) -> Tensor:
    """Compute the exact value of a target by enumeration, attached to the logits.

    A target is an expectation over `target.size` independent samples. All multisets of this many
    states are enumerated, so the latent must have few states.

    Args:
        objective: Maps states `[states, *event]` to values `[states]`; for a bound, to log p(x, b).
        logits: As for `arms.expectation`, without batch axes.
        target: The target.

    >>> from arms import Expectation
    >>> exact_value(lambda b: b.sum(-1), torch.zeros(2), Expectation())
    tensor(1.)
    """
    latent = as_latent(logits)
    assert isinstance(latent, Enumerable)
    states = latent.states()
    # A state that cannot happen has no influence, even if the objective is infinite there.
    states = states[latent.log_prob(states).detach() > -torch.inf]
    log_probs = latent.log_prob(states)
    orders, chosen = (one.to(states.device) for one in _multisets(len(states), target.size))
    chances = orders.to(log_probs) * log_probs[chosen].sum(0).exp()
    values = call_objective(objective, latent, states)
    if target.subtracts_log_q:
        values = values - log_probs
    return (chances * target.value(values[chosen])).sum()


@lru_cache(maxsize=8)
def _multisets(states: int, size: int) -> tuple[Tensor, Tensor]:
    """Return two tensors that describe all multisets of `size` states.

    The first is `[multisets]`: in how many orders the states of each multiset can be drawn. The
    second is `[size, multisets]`: the indices of these states.
    """
    multisets = list(combinations_with_replacement(range(states), size))
    repeated = [math.prod(map(math.factorial, Counter(one).values())) for one in multisets]
    return math.factorial(size) // torch.tensor(repeated), torch.tensor(multisets).T


def exact_target_gradient(objective: TensorObjective, latent: Latent, target: Target) -> Tensor:
    """Compute the gradient of any target with respect to logits `[*event]`, by enumeration.

    Autograd differentiates the log-probability, so the result does not depend on `latent.score`.
    """
    with torch.enable_grad():
        logits = latent.logits.detach().clone().requires_grad_()
        value = exact_value(objective, latent.with_logits(logits), target)
        (grad,) = torch.autograd.grad(value, logits)
    return grad


def expected_estimate(
    estimator: Estimator, objective: TensorObjective, latent: Latent
) -> tuple[Tensor, Tensor] | None:
    """Compute the exact expectations of an estimator's gradient `[*event]` and of its value.

    The design lists all outcomes, and `combine` is called once for all of them. The result is None
    if the outcomes cannot be listed, for example because the design has continuous noise.

    Args:
        estimator: Any estimator.
        objective: Maps points `[..., *event]` to values; for a bound, to log p(x, b).
        latent: A latent without batch axes and with few states.

    >>> from arms import ARMS
    >>> logits = torch.tensor([0.3, -1.0], dtype=torch.float64)
    >>> grad, value = expected_estimate(ARMS(3), lambda b: b.prod(-1), Bits(logits))
    >>> bool((grad - exact_gradient(lambda b: b.prod(-1), logits)).abs().max() < 1e-15)
    True
    """
    found = estimator.design.outcomes(latent)
    if found is None:
        return None
    draw, probabilities = found
    options = Options(checks="cheap")
    estimate = finish(estimator, draw, evaluate(estimator, objective, draw, options), options)
    # An outcome that cannot happen has no influence, even if the weights are infinite there.
    possible = probabilities > 0
    weights = probabilities[possible].unsqueeze(1)
    grad, value = estimate.grad.detach()[possible], estimate.value.detach()[possible]
    return (latent.with_event_axes(weights) * grad).sum((0, 1)), (weights * value).sum()


def rarer_probs(latent: Latent) -> Tensor:
    """Return min(p, 1-p) in float64, where p is the latent's mean.

    If the latent has no mean, return infinity.
    """
    wide = latent.with_logits(latent.logits.double())
    if not wide.has(HasMean):
        return torch.full_like(wide.logits, torch.inf)
    assert isinstance(wide, HasMean)
    probs = wide.mean()
    return torch.minimum(probs, 1 - probs)


def random_table(states: int, generator: Generator | None = None) -> Tensor:
    """Return random objective values, one for each of `states` states, in float64.

    Args:
        states: The number of states.
        generator: Source of the values; the global generator by default.
    """
    return torch.randn(states, generator=generator, dtype=torch.float64) + 1


def table_objective(table: Tensor, latent: Latent | None = None) -> TensorObjective:
    """Return a smooth objective with the value table[b] at state b.

    The objective is a multilinear interpolation plus a cubic term. Without the cubic term,
    straight-through estimators would look unbiased. The term is zero at every state, but its
    derivatives there are not zero. The mean of its derivatives at both ends of an edge is not zero
    either, so that a test also detects the bias of the trapezoid rule (`reinmax`).

    Args:
        table: One value per joint state, in the order of `latent.states()`.
        latent: The latent; bits by default.

    >>> table_objective(torch.tensor([1.0, 2.0, 3.0, 4.0]))(torch.tensor([1.0, 0.0]))
    tensor(3.)
    """
    kind = Bits(torch.zeros(table.numel().bit_length() - 1)) if latent is None else latent
    is_binary, event = kind.has(Binary), kind.event_shape
    if not is_binary and not kind.has(Choices):
        got = type(kind).__name__
        remedy = "use smooth_objective for other latents"
        raise ValueError(f"latent must be bits or categories, got {got}: {remedy}")
    categories = 2 if is_binary else event[-1]

    def objective(b: Tensor) -> Tensor:
        bits = b.to(table.dtype)
        chosen = torch.stack([1 - bits, bits], -1) if is_binary else bits  # [..., d, K]
        rest = table
        for one in chosen.unbind(-2):  # the first variable changes slowest in the table
            rest = (one.unsqueeze(-1) * rest.unflatten(-1, (categories, -1))).sum(-2)
        # These cubics are zero at 0 and 1, and their derivatives at 0 and 1 do not cancel.
        weights = torch.linspace(1.0, 2.0, event.numel(), dtype=bits.dtype, device=bits.device)
        bend = weights.view(event) * bits * (1 - bits) * (1 + bits + bits.roll(1, -1))
        return rest.squeeze(-1) + kind.sum_event(bend)

    return objective


def smooth_objective(latent: Latent, generator: Generator | None = None) -> TensorObjective:
    """Return a random smooth objective for samples of any latent. It is a sum of sine waves.

    Args:
        latent: The latent whose samples the objective takes. For a joint latent, the objective
            takes one keyword argument per part.
        generator: Source of the waves; the global generator by default.

    >>> smooth_objective(Bits(torch.zeros(3)))(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5])
    """
    assert isinstance(latent, Enumerable)
    waves, entries = min(16, latent.count_states()), latent.event_shape.numel()
    frequencies = torch.randn(entries, waves, generator=generator, dtype=torch.float64)
    phases, heights = torch.randn(2, waves, generator=generator, dtype=torch.float64)
    example = _named(latent.to_objective(latent.sample(1)))
    dims = {name: one.ndim - 1 - len(latent.batch_shape) for name, one in example.items()}

    def objective(*unnamed: Tensor, **named: Tensor) -> Tensor:
        parts = named or _named(unnamed[0])
        flat = [one.double().flatten(one.ndim - dims[name]) for name, one in parts.items()]
        joined = torch.cat(flat, -1)
        values: Tensor = torch.sin(joined @ frequencies[: joined.shape[-1]] + phases) @ heights + 1
        return values

    return objective


def _named(received: object) -> dict[str, Tensor]:
    return received if isinstance(received, dict) else {"": received}  # type: ignore[dict-item]


def univariate_variance(
    estimator: Estimator, logits: Tensor, f0: float, f1: float
) -> Tensor | None:
    """Return the exact variance of the gradient estimate for a single bit, at every logit.

    Return None if no closed form is known.

    Args:
        estimator: An estimator.
        logits: Any shape; each entry is a problem with a single bit.
        f0: The objective at 0.
        f1: The objective at 1.

    >>> from arms import LOORF
    >>> univariate_variance(LOORF(2), torch.zeros(1), f0=0.0, f1=1.0)
    tensor([0.0625], dtype=torch.float64)
    """
    logits, design = logits.double(), estimator.design
    one, zero = torch.sigmoid(logits), torch.sigmoid(-logits)
    if not estimator.target.is_expectation:
        return None
    if isinstance(estimator, Exact):
        return torch.zeros_like(logits)
    if isinstance(estimator, Reinforce):
        moment = one * zero * (f1**2 * zero + f0**2 * one)
        return (moment - ((f1 - f0) * one * zero) ** 2) / estimator.num_samples
    if isinstance(estimator, ARM):
        q = torch.sigmoid(-logits.abs())
        moment = (1 - (1 - 2 * q) ** 3) / 12  # 2 int_0^q (u - 1/2)^2 du
        return (f1 - f0) ** 2 * (moment - (q * (1 - q)) ** 2) / (estimator.num_samples // 2)
    if isinstance(estimator, DisARM):
        one_pair = _coupled(CorrelatedPair(estimator.correlation), 2, logits, f1 - f0)
        return None if one_pair is None else one_pair / (estimator.num_samples // 2)
    if isinstance(estimator, LeaveOneOut) and isinstance(design, Independent):
        counts = _binomial(one, zero, design.num_samples)
        return _leave_one_out(counts, torch.ones_like(logits), f1 - f0)
    if isinstance(estimator, LeaveOneOut) and isinstance(design, Coupled):
        return _coupled(design.coupling, design.num_samples, logits, f1 - f0)
    return None


def _coupled(coupling: object, n: int, logits: Tensor, difference: float) -> Tensor | None:
    if not isinstance(coupling, BitCoupling):
        return None
    counts = coupling.count_distribution(logits, n)
    if counts is None:
        return None
    return _leave_one_out(counts, coupling.debias(logits, n), difference)


def _binomial(one: Tensor, zero: Tensor, n: int) -> Tensor:
    """Return the distribution of the number of ones among n independent bits, `[n + 1, *shape]`.

    A bit is 1 with the probability `one` and 0 with the probability `zero`.
    """
    counts = torch.ones_like(one).unsqueeze(0)
    edge = torch.zeros_like(counts)
    for _ in range(n):
        counts = torch.cat([counts, edge]) * zero + torch.cat([edge, counts]) * one
    return counts


def _leave_one_out(counts: Tensor, debias: Tensor, difference: float) -> Tensor:
    """Return the variance of the leave-one-out estimate for a single bit, from n samples.

    The estimate is `difference * debias * S(n-S) / (n(n-1))`, where S is the number of ones.
    `counts` is the distribution of S, `[n + 1, ...]`. `difference` is f(1) - f(0), and `debias` is
    the correction 1/(1-rho).
    """
    n = len(counts) - 1
    s = torch.arange(n + 1, dtype=torch.float64, device=counts.device)
    s = s.view(-1, *[1] * (counts.ndim - 1))
    estimate = difference * s * (n - s) / (n * (n - 1)) * debias
    mean = (counts * estimate).sum(0)
    return (counts * (estimate - mean) ** 2).sum(0)
