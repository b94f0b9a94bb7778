"""Variance of estimators by repeated draws, on the user's own objective: which estimator should I use?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import SupportsIndex

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, check_generator
from arms.checks.labels import label, told_apart
from arms.checks.oracle import exact_gradient
from arms.checks.variance_table import VarianceRow, VarianceTable
from arms.checks.verdicts import score_limit
from arms.estimators import DEFAULT_NUM_SAMPLES, ESTIMATORS, Estimator, Objective, Options, as_estimator
from arms.estimators.exact import MOST_LATENTS
from arms.estimators.pipeline import draw_points, evaluate
from arms.latents import Bernoulli, Latent, Logits, as_latent

__all__ = ["ENOUGH", "ENUMERABLE", "SAME_OF_BITS", "largest_within", "variance"]

SAME_OF_BITS = {"arms-strat": "arms-s", "disarm-tree": "disarm", "disarm-sb": "disarm"}
"""Estimators that differ of categories only."""
ENUMERABLE = 1024
"""The joint states up to which the reference is enumerated."""
ENOUGH = 100
"""The flips of a latent, and the repeats, below which a bias score is far from normal: 30 gave |z| of 8."""

ATTEMPTS = 10
"""Draws on which the objective is tried first: a single one of few latents may miss the points that it refuses."""


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
    """Compare estimators on an objective at fixed logits: work, variance of one estimate, bias score, time.

    Estimators may evaluate the objective more often than `num_samples` says, and differentiate it too: the table counts
    both. With `evaluations` every estimator that is given by name gets the largest n whose evaluations are no more than
    that, which compares them at equal work; an estimator object keeps its own n.

    The bias score is the largest |z| over all logits of the mean estimate, against enumeration up to 1024 states, and
    beyond that against other draws of leave-one-out REINFORCE. A score is close to normal only if what it averages
    happened often, so bits and categories whose rarer outcome is drawn less than a hundred times in all, and all of
    them below a hundred repeats, are left out. An objective that hangs on a rare combination of latents can still raise
    the score of an unbiased estimator.

    Args:
        objective: As for `arms.expectation`; it may be a black box.
        logits: As for `arms.expectation`. No gradient is left in whatever they or the objective depend on.
        estimators: A name in `arms.ESTIMATORS`, an estimator, or several of either. Unless given, all names that this
            latent, this budget and, if they need slopes, this objective allow, but for enumeration and for those with
            parameters of their own: the table says who was left out and why.
        num_samples: What every estimator given by name gets, 8 unless given.
        generator: Source of all randomness; PyTorch's global one unless given.
        evaluations: The most evaluations of the objective for one estimate, instead of `num_samples`.
        repeats: How many estimates of each, after one that is not counted; in turn, so that what else the machine does
            slows all of them alike.

    Returns:
        A table to print, lowest variance first, biased estimators last.

    >>> table = variance(lambda b: b.prod(-1), torch.zeros(2), ["loorf", "arms-s"], 4, repeats=200)
    >>> [(row.estimator, row.evaluations) for row in table.rows]
    [('arms-s', 4), ('loorf', 4)]
    """
    entries = None if estimators is None else _entries(estimators)
    repeats = as_count(repeats, 2, "repeats")
    budget = _Budget.of(num_samples, evaluations)
    latent = as_latent(logits).detach()
    check_generator(generator)
    if not latent.logits.numel():
        raise ValueError(f"there must be logits to compare at, got shape {list(latent.logits.shape)}")
    left_out: dict[str, str] = {}
    with torch.no_grad():
        if entries is None:
            contenders, left_out = _defaults(objective, latent, budget, generator)
        else:
            contenders = [_contender(entry, budget) for entry in entries]
        draws = [draw_points(one.estimator, latent, generator) for one in contenders]
        counts = [len(draw.points) for draw in draws]
        budget.check(contenders, counts)
        fewest = min(len(draw.points) - draw.extra for draw in draws)
        scored = _often(latent, repeats, fewest)
        truth, truth_error, reference = _reference(objective, latent, scored, budget.size, repeats, generator)
        tallies = _measure([one.estimator for one in contenders], objective, latent, repeats, generator)
    rows = []
    names = told_apart([one.name for one in contenders])
    for name, contender, count, tally in zip(names, contenders, counts, tallies, strict=True):
        one, spread = contender.estimator, tally.variance()
        error = (spread / repeats + truth_error).sqrt().clamp(min=1e-6 * truth.abs().max().clamp(min=1e-30))
        scores = ((tally.mean - truth).abs() / error)[scored]
        rows.append(
            VarianceRow(
                estimator=name,
                num_samples=None if one.evaluations is None else one.num_samples,
                evaluations=count,
                derivatives=one.derivatives,
                variance=spread.mean().item(),
                bias_score=scores.max().item() if len(scores) else float("nan"),
                milliseconds=1e3 * median(tally.seconds),
                unbiased=one.unbiased,
                untrained=contender.untrained,
                variance_error=tally.variance_error(),
            )
        )
    rows.sort(key=lambda row: (not row.unbiased, row.variance))
    limit = score_limit(max(1, int(scored.sum()) * len(rows)))
    return VarianceTable(tuple(rows), reference, limit, int((~scored).sum()), left_out)


def largest_within(name: str, evaluations: int) -> Estimator:
    """Return the estimator of that name with the most samples whose evaluations are no more than that.

    >>> largest_within("disarm", 7).num_samples
    6
    """
    as_estimator(name)  # so that a name which does not exist is not taken for one that needs more
    for n in range(evaluations, 0, -1):
        try:
            one = as_estimator(name, n)
        except ValueError:
            continue
        if one.evaluations is None or one.evaluations <= evaluations:
            return one
    raise ValueError(
        f"no num_samples of {name} takes at most evaluations={evaluations} of the objective: give more, or leave "
        f"{name} out"
    )


@dataclass(frozen=True)
class _Contender:
    name: str
    estimator: Estimator
    untrained: bool = False
    by_name: bool = True


@dataclass(frozen=True)
class _Budget:
    """What an estimator given by name may spend: that many samples, or at most that many evaluations."""

    size: int
    of_evaluations: bool

    @classmethod
    def of(cls, num_samples: int | None, evaluations: int | None) -> "_Budget":
        if evaluations is None:
            size = DEFAULT_NUM_SAMPLES if num_samples is None else num_samples
            return cls(as_count(size, 1, "num_samples"), False)
        if num_samples is not None:
            raise ValueError(
                f"num_samples and evaluations exclude each other, got {num_samples} and {evaluations}: give "
                "num_samples for the same n, or evaluations for the same work"
            )
        return cls(as_count(evaluations, 1, "evaluations"), True)

    def give(self, name: str) -> Estimator:
        """Return the estimator of that name with as many samples as it may have."""
        if not self.of_evaluations:
            return as_estimator(name, self.size)
        return largest_within(name, self.size)

    def why_not(self, name: str) -> str:
        """Return in a few words why this is no budget for an estimator, nothing if it is one."""
        try:
            self.give(name)
        except ValueError:
            usual = as_estimator(name)
            if self.of_evaluations:
                return f"more than {self.size} evaluations"
            if usual.even_samples and self.size % 2:
                return "only for an even n"
            return f"only for n >= {usual.min_samples}" if self.size < usual.min_samples else f"not for n = {self.size}"
        return ""

    def check(self, contenders: Sequence[_Contender], counts: Sequence[int]) -> None:
        """Raise if one by name makes more evaluations after all: enumeration does not go by num_samples."""
        for one, count in zip(contenders, counts, strict=True):
            if self.of_evaluations and one.by_name and count > self.size:
                raise ValueError(
                    f"{one.name} makes {count} evaluations, more than evaluations={self.size}: leave it out"
                )


def _entries(estimators: object) -> list[str | Estimator]:
    """Return what a user gave for the estimators as a list, which need not hold what it should."""
    if isinstance(estimators, str | Estimator):
        return [estimators]
    if isinstance(estimators, SupportsIndex):
        raise ValueError(
            f"estimators must be a name, an estimator or a sequence of these, got {estimators!r}: the order of "
            "arguments is now that of arms.expectation, variance(objective, logits, estimators, num_samples, generator)"
        )
    if not isinstance(estimators, Iterable):
        raise ValueError(f"estimators must be a name, an estimator or a sequence of these, got {estimators!r}")
    entries = list(estimators)
    if not entries:
        raise ValueError("estimators must name at least one estimator, got none")
    return entries


def _contender(entry: str | Estimator, budget: _Budget) -> _Contender:
    if isinstance(entry, str):
        one = budget.give(entry)
        found = _Contender(entry, one, untrained=one.has_parameters)
    else:
        one = as_estimator(entry)
        found = _Contender(label(one), one, by_name=False)
    if one.target.direct:
        raise ValueError(f"variance compares gradients of the expectation; {found.name} estimates the {one.target}'s")
    return found


def _defaults(
    objective: Objective, latent: Latent, budget: _Budget, generator: Generator | None
) -> tuple[list[_Contender], dict[str, str]]:
    """Return who is compared where nobody is named, and why the others are not."""
    chosen, left_out = [], {}
    for name in ESTIMATORS:
        why = _unfit(name, latent) or budget.why_not(name)
        if not why:
            contender = _contender(name, budget)
            why = _unanswered(contender.estimator, objective, latent, generator)
        if why:
            left_out[name] = why
        else:
            chosen.append(contender)
    if not chosen:
        raise ValueError(f"no estimator takes this latent with a budget of {budget.size}: give more samples")
    return chosen, left_out


def _unfit(name: str, latent: Latent) -> str:
    """Return why an estimator has no place in a comparison that nobody asked it into, nothing if it has one."""
    usual = as_estimator(name)
    if isinstance(latent, Bernoulli) and name in SAME_OF_BITS:
        return f"of bits the same as {SAME_OF_BITS[name]}"
    if usual.target.direct:
        return "another target"
    if usual.evaluations is None:
        return "enumeration of all states"
    if not isinstance(latent, usual.latents):
        return f"not for {type(latent).__name__} latents"
    if usual.slopes != "none" and not latent.has_slopes:
        return "no df/db of categories' indices"
    if not usual.equal_weights and latent.count_states() > 2**MOST_LATENTS:  # it takes long, and gains nothing
        return "n samples are no share of so many states"
    if usual.has_parameters:  # untrained they would mislead
        return "parameters of their own: compare trained objects"
    return ""


def _unanswered(estimator: Estimator, objective: Objective, latent: Latent, generator: Generator | None) -> str:
    """Return why the objective does not answer what an estimator asks, by asking it; nothing if it does."""
    if estimator.slopes == "none":
        try:
            draw_points(estimator, latent, torch.Generator(latent.logits.device).manual_seed(0))
        except ValueError:
            return f"not for {latent.count_states()} states"
        return ""
    try:
        for _ in range(ATTEMPTS):
            evaluate(objective, draw_points(estimator, latent, generator), Options())
    except ValueError:
        # A black box, a derivative that is not finite, or an objective that refuses points between the states. One that
        # fails at every point fails for the other estimators too, which say so.
        return "no df/db of this objective at their points"
    return ""


def _often(latent: Latent, repeats: int, samples: int) -> Tensor:
    """Return for which logits both outcomes, this bit or category and not this one, are drawn often enough."""
    probs = replace(latent, logits=latent.logits.double()).mean()
    rarer = torch.minimum(probs, 1 - probs)
    return (repeats * samples * rarer).clamp(max=repeats) >= ENOUGH


def _without_rare(latent: Latent, scored: Tensor) -> Latent:
    """Return the latent if what is drawn too rarely never happened."""
    phi = latent.logits
    if latent.event_dims == 1:
        certain = torch.where(phi > 0, torch.inf, -torch.inf).to(phi)
        return replace(latent, logits=torch.where(scored, phi, certain))
    possible = scored.scatter(-1, phi.argmax(-1, keepdim=True), True)  # of no category at all there is no law
    return replace(latent, logits=phi.masked_fill(~possible, -torch.inf))


def _reference(
    objective: Objective, latent: Latent, scored: Tensor, n: int, repeats: int, generator: Generator | None
) -> tuple[Tensor, Tensor, str]:
    """Return what the means are held against, how uncertain it is (as a variance), and its name."""
    if latent.count_states() <= ENUMERABLE:
        truth = exact_gradient(objective, latent).double()
        # Flips that the draws may never have seen move the truth of the other latents too: it is that uncertain.
        certain = exact_gradient(objective, _without_rare(latent, scored)).double()
        return truth, (truth - certain).square(), "enumeration"
    (tally,) = _measure([as_estimator("loorf", max(2, n))], objective, latent, repeats, generator)
    return tally.mean, tally.variance() / repeats, "other draws of loorf"


class _Tally:
    """Mean and variance of an estimator by Welford's recurrence, which keeps nothing but two arrays, and its times.

    What each estimate adds to the sum of squares has the variance as its expectation: so the spread of these says how
    sure the variance is.
    """

    def __init__(self, estimator: Estimator, logits: Tensor) -> None:
        self.estimator = estimator
        self.mean = torch.zeros_like(logits, dtype=torch.float64)
        self.squares = torch.zeros_like(self.mean)
        self.added: list[Tensor] = []
        self.seconds: list[float] = []

    def add(self, objective: Objective, latent: Latent, generator: Generator | None) -> None:
        start = perf_counter()
        grad = self.estimator(objective, latent, generator).grad
        if grad.is_cuda:
            torch.cuda.synchronize(grad.device)  # a GPU works on after the call has returned
        self.seconds.append(perf_counter() - start)
        delta = grad.double() - self.mean
        self.mean += delta / len(self.seconds)
        added = delta * (grad.double() - self.mean)
        self.squares += added
        self.added.append(added.mean())

    def variance(self) -> Tensor:
        return self.squares / (len(self.seconds) - 1)

    def variance_error(self) -> float:
        """Return the standard error of the variance's mean over all logits, NaN where two estimates are all."""
        added = torch.stack(self.added[1:])  # the first adds nothing
        return (added.std() / len(added) ** 0.5).item() if len(added) > 1 else float("nan")


def _measure(
    estimators: Sequence[Estimator], objective: Objective, latent: Latent, repeats: int, generator: Generator | None
) -> list[_Tally]:
    """Draw estimates in turn, after one of each that is not counted: a first call is slower than the others."""
    for one in estimators:
        one(objective, latent, generator)
    tallies = [_Tally(one, latent.logits) for one in estimators]
    for _ in range(repeats):
        for tally in tallies:
            tally.add(objective, latent, generator)
    return tallies
