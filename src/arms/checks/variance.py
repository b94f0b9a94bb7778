"""Compare estimators on a user's own objective, by repeated draws."""

from collections.abc import Iterable, Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, check_generator
from arms.checks.oracle import rarer_probs
from arms.checks.variance_table import VarianceRow, VarianceTable
from arms.checks.verdicts import score_limit
from arms.estimate import draw_points, estimate, takes
from arms.estimators import (
    DEFAULT_NUM_SAMPLES,
    ESTIMATORS,
    Estimator,
    Exact,
    Objective,
    as_estimator,
    num_samples_of,
)
from arms.estimators.labels import deduplicate_labels, label
from arms.latents import Binary, Choices, Enumerable, Latent, Logits, as_latent
from arms.latents.base import MOST_STATES
from arms.objective import Options, evaluate

Budget = dict[str, int]
"""What an estimator given by name may spend: `num_samples` or `evaluations`."""

SAME_FOR_BITS = {"arms-stratified": "arms", "disarm-stick": "disarm"}
"""Estimators that differ from others for categories only."""
ENUMERABLE = 1024
"""The joint states up to which the reference is enumerated."""
MIN_FLIPS = 100
"""Flips of a latent, and repeats, below which a bias score is far from normal."""
ATTEMPTS = 10
"""Draws on which an objective is tried first: one draw may miss the points that it refuses."""


def variance(
    objective: Objective,
    logits: Logits,
    estimators: str | Estimator | Sequence[str | Estimator] | None = None,
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    evaluations: int | None = None,
    repeats: int = 1000,
) -> VarianceTable:
    """Compare estimators on an objective at fixed logits: work, variance, bias score and time.

    Estimators may evaluate the objective more often than `num_samples` says, and differentiate it
    too; the table counts both. With `evaluations`, every estimator that is given by name gets the
    largest n whose evaluations do not exceed it, which compares them at equal work. An estimator
    object keeps its own n.

    The bias score is the largest |z| over all logits of the mean estimate, against enumeration for
    up to 1,024 states, and otherwise against other draws of leave-one-out REINFORCE. A score is
    close to normal only if what it averages happened often. Therefore bits and categories whose
    rarer outcome is drawn fewer than a hundred times are left out, and so are all of them below a
    hundred repeats. An objective that depends on a rare combination of latents can still raise the
    score of an unbiased estimator.

    Args:
        objective: As for `arms.expectation`; it may be a black box.
        logits: As for `arms.expectation`. No gradient is left in what they or the objective depend
            on.
        estimators: A name, an estimator, or several of either. By default, all names that this
            latent, this budget and this objective allow, except enumeration and estimators with
            parameters; the table says which were left out and why.
        num_samples: For every estimator given by name, 8 by default.
        generator: Source of all randomness; PyTorch's global generator by default.
        evaluations: The most evaluations of the objective per estimate, instead of `num_samples`.
        repeats: How many estimates of each. They are made in turn, so that other load on the
            machine slows all of them alike.

    Returns:
        A table to print, lowest variance first, biased estimators last.

    >>> table = variance(lambda b: b.prod(-1), torch.zeros(2), ["loorf", "arms"], 4, repeats=200)
    >>> [(row.estimator, row.evaluations) for row in table.rows]
    [('arms', 4), ('loorf', 4)]
    """
    entries = None if estimators is None else _as_entries(estimators)
    repeats = as_count(repeats, 2, "repeats")
    budget = _as_budget(num_samples, evaluations)
    latent = as_latent(logits).detach()
    check_generator(generator)
    if not latent.logits.numel():
        raise ValueError(f"logits must not be empty, got shape {list(latent.logits.shape)}")
    left_out: dict[str, str] = {}
    with torch.no_grad():
        if entries is None:
            left_out = _reasons_left_out(objective, latent, budget, generator)
            entries = [name for name in ESTIMATORS if name not in left_out]
        contenders = [_make(entry, budget) for entry in entries]
        draws = [draw_points(one, latent, generator) for one in contenders]
        for entry, draw in zip(entries, draws, strict=True):
            # Enumeration ignores num_samples.
            if isinstance(entry, str) and len(draw.points) > budget.get("evaluations", torch.inf):
                made = f"{entry} makes {len(draw.points)} evaluations"
                raise ValueError(f"{made}, more than evaluations={evaluations}: leave it out")
        samples = min(len(draw.samples) for draw in draws)
        flips = (repeats * samples * rarer_probs(latent)).clamp(max=repeats)
        scored = flips >= MIN_FLIPS
        (n,) = budget.values()
        truth, truth_error, reference = _reference(objective, latent, scored, n, repeats, generator)
        tallies = _measure(contenders, objective, latent, repeats, generator)
    labels = [entry if isinstance(entry, str) else label(entry) for entry in entries]
    floor = 1e-6 * truth.abs().max().clamp(min=1e-30)
    rows = []
    for entry, name, draw, tally in zip(
        entries, deduplicate_labels(labels), draws, tallies, strict=True
    ):
        one, spread = tally.estimator, tally.variance()
        error = (spread / repeats + truth_error).sqrt().clamp(min=floor)
        scores = ((tally.mean - truth).abs() / error)[scored]
        needs = one.design.needs
        row = VarianceRow(
            estimator=name,
            num_samples=None if needs.evaluations is None else num_samples_of(one),
            evaluations=len(draw.points),
            derivatives=needs.derivatives,
            variance=spread.mean().item(),
            bias_score=scores.max().item() if len(scores) else float("nan"),
            milliseconds=1e3 * median(tally.seconds),
            unbiased=one.unbiased,
            untrained=isinstance(entry, str) and _has_parameters(one),
            variance_error=tally.variance_error(),
        )
        rows.append(row)
    rows.sort(key=lambda row: (not row.unbiased, row.variance))
    limit = score_limit(max(1, int(scored.sum()) * len(rows)))
    return VarianceTable(tuple(rows), reference, limit, int((~scored).sum()), left_out)


def _as_entries(estimators: object) -> list[str | Estimator]:
    if isinstance(estimators, str | Estimator):
        return [estimators]
    entries = list(estimators) if isinstance(estimators, Iterable) else []
    if not entries:
        wanted = "a name, an estimator or a sequence of these"
        raise ValueError(f"estimators must be {wanted}, got {estimators!r}")
    return entries


def _as_budget(num_samples: int | None, evaluations: int | None) -> Budget:
    if evaluations is None:
        size = DEFAULT_NUM_SAMPLES if num_samples is None else num_samples
        return {"num_samples": as_count(size, 1, "num_samples")}
    if num_samples is not None:
        got = f"{num_samples} and {evaluations}"
        raise ValueError(f"num_samples and evaluations exclude each other, got {got}: pass one")
    return {"evaluations": as_count(evaluations, 1, "evaluations")}


def _make(entry: str | Estimator, budget: Budget) -> Estimator:
    made = as_estimator(entry, **budget) if isinstance(entry, str) else as_estimator(entry)
    if not made.target.is_expectation:
        got = f"{label(made)}, which estimates that of the {made.target}"
        raise ValueError(f"variance compares gradients of the expectation, got {got}")
    return made


def _has_parameters(estimator: Estimator) -> bool:
    return any(True for _ in estimator.parameters())


def _reasons_left_out(
    objective: Objective, latent: Latent, budget: Budget, generator: Generator | None
) -> dict[str, str]:
    """Return which estimators are not compared by default, and why."""
    left_out = {}
    for name in ESTIMATORS:
        reason = _reason_unsuitable(name, latent) or _reason_budget(name, budget)
        if not reason:
            made = as_estimator(name, **budget)
            reason = _reason_objective_refuses(made, objective, latent, generator)
        if reason:
            left_out[name] = reason
    if len(left_out) == len(ESTIMATORS):
        raise ValueError(f"no estimator takes this latent with {budget}: allow more samples")
    return left_out


def _reason_unsuitable(name: str, latent: Latent) -> str:
    """Return why an estimator is left out for this latent, or nothing if it is not."""
    usual, kind = as_estimator(name), type(latent).__name__
    design = usual.design
    if latent.has(Binary) and name in SAME_FOR_BITS:
        return f"the same as {SAME_FOR_BITS[name]} for bits"
    if not usual.target.is_expectation:
        return "another target"
    if design.needs.evaluations is None:
        return "enumeration of all states"
    if not takes(usual, latent):
        return f"not for {kind} latents"
    if design.needs.derivatives and not latent.differentiable:
        return f"no df/db of {kind} latents"
    if design.weighted:
        assert isinstance(latent, Enumerable)
        if latent.count_states() > MOST_STATES:  # it takes long, and gains nothing
            return "too many states for n samples"
    if _has_parameters(usual):  # untrained they would mislead
        return "parameters of their own: compare trained objects"
    return ""


def _reason_budget(name: str, budget: Budget) -> str:
    """Return why an estimator does not take this budget, or nothing if it does."""
    if _takes_budget(name, budget):
        return ""
    if "evaluations" in budget:
        return f"more than {budget['evaluations']} evaluations"
    n = budget["num_samples"]
    larger = [m for m in range(n + 1, n + 9) if _takes_budget(name, {"num_samples": m})]
    if not larger:
        return f"not for n = {n}"
    only_even = n % 2 and all(m % 2 == 0 for m in larger)
    return "only for an even n" if only_even else f"only for n >= {larger[0]}"


def _takes_budget(name: str, budget: Budget) -> bool:
    try:
        as_estimator(name, **budget)
    except ValueError:
        return False
    return True


def _reason_objective_refuses(
    estimator: Estimator, objective: Objective, latent: Latent, generator: Generator | None
) -> str:
    """Return why an estimator and this objective do not fit, by trying; nothing if they do."""
    if estimator.design.weighted and isinstance(latent, Enumerable):
        states = latent.count_states()
        if states < estimator.design.num_samples:
            return f"more samples than the {states} states"
    if not estimator.design.needs.derivatives:
        try:
            draw_points(estimator, latent, torch.Generator(latent.logits.device).manual_seed(0))
        except ValueError:
            return f"not for this {type(latent).__name__}"
        return ""
    try:
        for _ in range(ATTEMPTS):
            evaluate(estimator, objective, draw_points(estimator, latent, generator), Options())
    except ValueError:
        # A black box, an infinite derivative, or an objective that refuses points between the
        # states. One that fails at every point fails for the other estimators too, which say so.
        return "no df/db of this objective at their points"
    return ""


def _without_rare(latent: Latent, scored: Tensor) -> Latent:
    """Return the latent as if rare outcomes never happened."""

    def of_part(part: Latent, own: Tensor) -> Tensor:
        phi = part.logits
        if part.has(Binary):
            return torch.where(own, phi, torch.where(phi > 0, torch.inf, -torch.inf).to(phi))
        if part.has(Choices):
            # Some category must stay possible.
            possible = own.scatter(-1, phi.argmax(-1, keepdim=True), True)
            return phi.masked_fill(~possible, -torch.inf)
        return phi

    return latent.with_logits(latent.map_parts(of_part, scored))


def _reference(
    objective: Objective,
    latent: Latent,
    scored: Tensor,
    n: int,
    repeats: int,
    generator: Generator | None,
) -> tuple[Tensor, Tensor, str]:
    """Return what means are compared with, its variance, and its name."""
    enumerable = isinstance(latent, Enumerable) and latent.has(Enumerable)
    if enumerable and latent.count_states() <= ENUMERABLE:  # type: ignore[attr-defined]
        # Flips that the draws may never have seen change the truth of the other latents too.
        both = (latent, _without_rare(latent, scored))
        truth, certain = (estimate(Exact(), objective, one).grad.double() for one in both)
        return truth, (truth - certain).square(), "enumeration"
    (tally,) = _measure([as_estimator("loorf", max(2, n))], objective, latent, repeats, generator)
    return tally.mean, tally.variance() / repeats, "other draws of loorf"


class _Tally:
    """Mean and variance of an estimator by Welford's recurrence, which keeps only two arrays.

    What each estimate adds to the sum of squares has the variance as its expectation, so the
    spread of these terms gives the standard error of the variance.
    """

    def __init__(self, estimator: Estimator, logits: Tensor) -> None:
        self.estimator = estimator
        self.mean = torch.zeros_like(logits, dtype=torch.float64)
        self.squares = torch.zeros_like(self.mean)
        self.added: list[Tensor] = []
        self.seconds: list[float] = []

    def add(self, objective: Objective, latent: Latent, generator: Generator | None) -> None:
        start = perf_counter()
        grad: Tensor = estimate(self.estimator, objective, latent, generator, Options()).grad
        if grad.is_cuda:
            torch.cuda.synchronize(grad.device)  # a GPU works on after the call has returned
        self.seconds.append(perf_counter() - start)
        delta = grad.double() - self.mean
        self.mean += delta / len(self.seconds)
        added = delta * (grad.double() - self.mean)
        self.squares += added
        self.added.append(added.mean())

    def variance(self) -> Tensor:
        """Return the variance of one estimate of every logit's gradient."""
        return self.squares / (len(self.seconds) - 1)

    def variance_error(self) -> float:
        """Return the standard error of the mean variance; NaN if there are only two estimates."""
        added = torch.stack(self.added[1:])  # the first adds nothing
        return (added.std() / len(added) ** 0.5).item() if len(added) > 1 else float("nan")


def _measure(
    estimators: Sequence[Estimator],
    objective: Objective,
    latent: Latent,
    repeats: int,
    generator: Generator | None,
) -> list[_Tally]:
    """Make estimates in turn, after one of each that does not count, because it is slower."""
    for one in estimators:
        estimate(one, objective, latent, generator, Options())
    tallies = [_Tally(one, latent.logits) for one in estimators]
    for _ in range(repeats):
        for tally in tallies:
            tally.add(objective, latent, generator)
    return tallies
