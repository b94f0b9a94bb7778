"""Compare estimators on a user's own objective, by repeated draws."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, check_generator
from arms.checks.tally import measure
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
from arms.latents import Binary, Choices, Enumerable, HasMean, Latent, Logits, as_latent
from arms.latents.base import MOST_STATES
from arms.objective import Options, evaluate

SAME_FOR_BITS = {"arms-stratified": "arms", "disarm-stick": "disarm"}
"""Estimators that differ from others for categories only."""
ENUMERABLE = 1024
"""The joint states up to which the reference is enumerated."""
MIN_FLIPS = 100
"""Flips of a latent, and repeats, below which a bias score is far from normal."""
ATTEMPTS = 10
"""Draws on which the objective is tried first: one draw of few latents may miss the points that
it refuses."""


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
    entries = None if estimators is None else _entries(estimators)
    repeats = as_count(repeats, 2, "repeats")
    budget = _Budget.of(num_samples, evaluations)
    latent = as_latent(logits).detach()
    check_generator(generator)
    if not latent.logits.numel():
        raise ValueError(
            f"there must be logits to compare at, got shape {list(latent.logits.shape)}"
        )
    left_out: dict[str, str] = {}
    with torch.no_grad():
        if entries is None:
            contenders, left_out = _defaults(objective, latent, budget, generator)
        else:
            contenders = [_contender(entry, budget) for entry in entries]
        draws = [draw_points(one.estimator, latent, generator) for one in contenders]
        counts = [len(draw.points) for draw in draws]
        budget.check(contenders, counts)
        scored = _flips_often(latent, repeats, min(len(draw.samples) for draw in draws))
        truth, truth_error, reference = _reference(
            objective, latent, scored, budget.size, repeats, generator
        )
        tallies = measure(
            [one.estimator for one in contenders], objective, latent, repeats, generator
        )
    rows = []
    names = deduplicate_labels([one.name for one in contenders])
    for name, contender, count, tally in zip(names, contenders, counts, tallies, strict=True):
        one, spread = contender.estimator, tally.variance()
        floor = 1e-6 * truth.abs().max().clamp(min=1e-30)
        error = (spread / repeats + truth_error).sqrt().clamp(min=floor)
        scores = ((tally.mean - truth).abs() / error)[scored]
        needs = one.design.needs
        rows.append(
            VarianceRow(
                estimator=name,
                num_samples=None if needs.evaluations is None else num_samples_of(one),
                evaluations=count,
                derivatives=needs.derivatives,
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


@dataclass(frozen=True)
class _Contender:
    name: str
    estimator: Estimator
    untrained: bool = False
    by_name: bool = True


@dataclass(frozen=True)
class _Budget:
    """What an estimator given by name may spend: that many samples, or evaluations."""

    size: int
    of_evaluations: bool

    @classmethod
    def of(cls, num_samples: int | None, evaluations: int | None) -> "_Budget":
        if evaluations is None:
            size = DEFAULT_NUM_SAMPLES if num_samples is None else num_samples
            return cls(as_count(size, 1, "num_samples"), False)
        if num_samples is not None:
            raise ValueError(
                "num_samples and evaluations exclude each other, got "
                f"{num_samples} and {evaluations}: pass num_samples for the same n, or evaluations "
                "for the same work"
            )
        return cls(as_count(evaluations, 1, "evaluations"), True)

    def give(self, name: str) -> Estimator:
        """Return the estimator of a name with as many samples as it may have."""
        if self.of_evaluations:
            return as_estimator(name, evaluations=self.size)
        return as_estimator(name, self.size)

    def reason_not(self, name: str) -> str:
        """Return in a few words why this is no budget for an estimator, or nothing if it is."""
        if _is_made(lambda: self.give(name)):
            return ""
        if self.of_evaluations:
            return f"more than {self.size} evaluations"
        larger = [
            n
            for n in range(self.size + 1, self.size + 9)
            if _is_made(lambda n=n: as_estimator(name, n))  # type: ignore[misc]
        ]
        if not larger:
            return f"not for n = {self.size}"
        only_even = self.size % 2 and all(n % 2 == 0 for n in larger)
        return "only for an even n" if only_even else f"only for n >= {larger[0]}"

    def check(self, contenders: Sequence[_Contender], counts: Sequence[int]) -> None:
        """Raise if one by name makes more evaluations: enumeration ignores num_samples."""
        for one, count in zip(contenders, counts, strict=True):
            if self.of_evaluations and one.by_name and count > self.size:
                raise ValueError(
                    f"{one.name} makes {count} evaluations, more than evaluations={self.size}: "
                    "leave it out"
                )


def _is_made(make: Callable[[], Estimator]) -> bool:
    try:
        make()
    except ValueError:
        return False
    return True


def _entries(estimators: object) -> list[str | Estimator]:
    """Return what a user passed for the estimators as a list."""
    if isinstance(estimators, str | Estimator):
        return [estimators]
    if not isinstance(estimators, Iterable):
        raise ValueError(
            f"estimators must be a name, an estimator or a sequence of these, got {estimators!r}"
        )
    entries = list(estimators)
    if not entries:
        raise ValueError("estimators must name at least one estimator, got none")
    return entries


def _contender(entry: str | Estimator, budget: _Budget) -> _Contender:
    if isinstance(entry, str):
        one = budget.give(entry)
        found = _Contender(entry, one, untrained=_has_parameters(one))
    else:
        one = as_estimator(entry)
        found = _Contender(label(one), one, by_name=False)
    if not one.target.is_expectation:
        raise ValueError(
            f"variance compares gradients of the expectation; {found.name} estimates that of the "
            f"{one.target}"
        )
    return found


def _has_parameters(estimator: Estimator) -> bool:
    return any(True for _ in estimator.parameters())


def _defaults(
    objective: Objective, latent: Latent, budget: _Budget, generator: Generator | None
) -> tuple[list[_Contender], dict[str, str]]:
    """Return which estimators are compared by default, and why the others are not."""
    chosen, left_out = [], {}
    for name in ESTIMATORS:
        reason = _reason_unsuitable(name, latent) or budget.reason_not(name)
        if not reason:
            contender = _contender(name, budget)
            reason = _reason_objective_refuses(contender.estimator, objective, latent, generator)
        if reason:
            left_out[name] = reason
        else:
            chosen.append(contender)
    if not chosen:
        raise ValueError(
            f"no estimator takes this latent with a budget of {budget.size}: allow more samples"
        )
    return chosen, left_out


def _reason_unsuitable(name: str, latent: Latent) -> str:
    """Return why an estimator is left out of a default comparison, or nothing if it is not."""
    usual = as_estimator(name)
    design = usual.design
    if latent.has(Binary) and name in SAME_FOR_BITS:
        return f"the same as {SAME_FOR_BITS[name]} for bits"
    if not usual.target.is_expectation:
        return "another target"
    if design.needs.evaluations is None:
        return "enumeration of all states"
    if not takes(usual, latent):
        return f"not for {type(latent).__name__} latents"
    if design.needs.derivatives and not latent.differentiable:
        return f"no df/db of {type(latent).__name__} latents"
    if design.weighted:
        assert isinstance(latent, Enumerable)
        if latent.count_states() > MOST_STATES:  # it takes long, and gains nothing
            return "too many states for n samples"
    if _has_parameters(usual):  # untrained they would mislead
        return "parameters of their own: compare trained objects"
    return ""


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
            draw = draw_points(estimator, latent, generator)
            evaluate(estimator, objective, draw, Options())
    except ValueError:
        # A black box, an infinite derivative, or an objective that refuses points between the
        # states. One that fails at every point fails for the other estimators too, which say so.
        return "no df/db of this objective at their points"
    return ""


def _flips_often(latent: Latent, repeats: int, samples: int) -> Tensor:
    """Return for which logits both outcomes, this bit or category and not this one, are frequent."""
    if not latent.has(HasMean):
        return torch.ones_like(latent.logits, dtype=torch.bool)
    wide = latent.with_logits(latent.logits.double())
    assert isinstance(wide, HasMean)
    probs = wide.mean()
    rarer = torch.minimum(probs, 1 - probs)
    return (repeats * samples * rarer).clamp(max=repeats) >= MIN_FLIPS


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
        truth = _exact(objective, latent)
        # Flips that the draws may never have seen change the truth of the other latents too.
        certain = _exact(objective, _without_rare(latent, scored))
        return truth, (truth - certain).square(), "enumeration"
    (tally,) = measure([as_estimator("loorf", max(2, n))], objective, latent, repeats, generator)
    return tally.mean, tally.variance() / repeats, "other draws of loorf"


def _exact(objective: Objective, latent: Latent) -> Tensor:
    grad: Tensor = estimate(Exact(), objective, latent).grad
    return grad.double()
