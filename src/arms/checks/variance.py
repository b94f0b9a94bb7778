"""Compare the variance of estimators on a user's objective."""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from textwrap import wrap
from time import perf_counter

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, check_generator
from arms.checks.oracle import rarer_probs
from arms.checks.verdicts import score_limit
from arms.estimate import draw_points, estimate, takes
from arms.estimators import ESTIMATORS, Estimator, Exact, Objective, as_estimator, num_samples_of
from arms.estimators.registry import deduplicate_labels, label
from arms.latents import Binary, Choices, Enumerable, Latent, Logits, as_latent
from arms.latents.base import MOST_STATES
from arms.objective import Options, evaluate

Make = Callable[[str], Estimator]
Measure = Callable[[Sequence[Estimator]], "list[_Tally]"]

SAME_FOR_BITS = {"arms-stratified": "arms", "disarm-stick": "disarm"}
ENUMERABLE = 1024  # with at most as many joint states, the reference is enumerated
MIN_FLIPS = 100  # the least repeats, and draws of a rarer outcome, for a nearly normal bias score
MIN_TAIL = 100  # with fewer repeats, 1 % of the estimates is less than one estimate
ATTEMPTS = 10  # an objective may reject only some points, so it is tried on this many draws
WIDTH = 100  # columns of a terminal; tables are at most this wide
HEADINGS = (
    *("estimator", "n", "evals", "derivs", "variance", "±", "top 1%", "x lowest"),
    *("bias |z|", "ms", "var x ms", "x lowest"),
)


@dataclass(frozen=True)
class VarianceRow:
    """The result for one estimator."""

    estimator: str
    """Name of the estimator; for an estimator object, its class and settings."""
    num_samples: int | None
    """n, the number of samples, or None for enumeration, which ignores n."""
    evaluations: int
    """Evaluations of the objective for one estimate."""
    derivatives: int
    """Number of these evaluations that are differentiated with respect to the point."""
    variance: float
    """Variance of one estimate, averaged over all logits."""
    bias_score: float
    """Largest absolute z-score over all logits; it compares the mean estimate with the reference.

    The score is NaN if no logit has enough draws.
    """
    milliseconds: float
    """Median time of one estimate, including the objective."""
    unbiased: bool = True
    """Whether the estimator is labeled as unbiased."""
    untrained: bool = False
    """Whether the estimator has untrained parameters, because it was given by name."""
    variance_error: float = math.nan
    """Standard error of `variance`."""
    tail: float = math.nan
    """Share of the variance that comes from the largest 1 % of estimates, averaged over rows.

    It is 0.01 if all estimates are equally large, and 1 if only 1 % of them are not zero. It is NaN
    below 100 repeats."""

    @property
    def variance_time(self) -> float:
        """Variance times milliseconds: proportional to the variance reached in a fixed time."""
        return self.variance * self.milliseconds

    @property
    def title(self) -> str:
        """The estimator's name, with a mark if the estimator is biased or untrained."""
        return self.estimator + " (untrained)" * self.untrained + " (biased)" * (not self.unbiased)


@dataclass(frozen=True)
class VarianceTable:
    """A comparison of estimators on one objective; `print` it for a table.

    Unbiased estimators come first, then biased ones. Both groups are sorted by variance. Ratios are
    relative to the lowest variance of an unbiased estimator.
    """

    rows: tuple[VarianceRow, ...]
    """One row per estimator."""
    reference: str
    """How the reference was computed, the gradient to which the mean estimates are compared."""
    score_limit: float
    """The limit of bias scores. By chance, it is exceeded in one of a million tables.

    The docstring of `arms.variance` describes exceptions.
    """
    unscored: int = 0
    """Number of logits without a bias score, because they have too few draws."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Names of estimators that were not compared by default, each with the reason."""

    def __str__(self) -> str:
        rows = [HEADINGS, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
        widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - len(gap) * (len(widths) - 1))
        lines = []
        for name, *figures in rows:
            fits = len(name) <= widths[0]
            lines += [] if fits else wrap(name, WIDTH)  # a long name gets separate lines
            cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
            lines.append(gap.join([f"{name if fits else '':<{widths[0]}}", *cells]).rstrip())
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        head, *body = (
            "".join(f"<{tag}>{html.escape(cell.strip())}</{tag}>" for cell in row)
            for tag, row in [("th", HEADINGS), *(("td", row) for row in self._cells())]
        )
        lines = "".join(f"<tr>{line}</tr>" for line in body)
        notes = "<br>".join(map(html.escape, self._notes()))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table><p>{notes}</p>"

    def _cells(self) -> list[tuple[str, ...]]:
        unbiased = [row for row in self.rows if row.unbiased]
        lowest = min((row.variance for row in unbiased), default=math.nan)
        quickest = min((row.variance_time for row in unbiased), default=math.nan)
        return [
            (
                row.title,
                "-" if row.num_samples is None else str(row.num_samples),
                str(row.evaluations),
                str(row.derivatives),
                f"{row.variance:.4g}",
                _percent(row.variance_error, row.variance),
                "-" if math.isnan(row.tail) else f"{100 * row.tail:.0f}%",
                _ratio(row.variance, lowest, row.unbiased),
                _number(row.bias_score, 2),
                _number(row.milliseconds, 3),
                f"{row.variance_time:.4g}",
                _ratio(row.variance_time, quickest, row.unbiased),
            )
            for row in self.rows
        ]

    def _notes(self) -> list[str]:
        against = f"bias |z|: the largest over all logits, against {self.reference}"
        notes = [
            "variance: of one estimate, mean over all logits, in squared units of the objective",
            "±: standard error in % of the variance; both too small if rare estimates are missing",
            "top 1%: share of the largest 1% of estimates in the variance of a row, mean over rows",
            "*: lowest value of an unbiased estimator",
            f"{against}; suspicious above {self.score_limit:.2f}",
        ]
        if self.unscored:
            few = "they have too few draws"
            notes.append(f"logits that were not tested for bias: {self.unscored} ({few})")
        names_of: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            names_of.setdefault(reason, []).append(name)
        for reason, names in names_of.items():
            text = f"left out: {', '.join(names)} ({reason})"
            notes += wrap(text, WIDTH, subsequent_indent=" " * 10)
        return notes


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
    """Compare the work, variance, bias and time of estimators; `print` the result for a table.

    The bias score is the largest absolute z-score of the mean estimate over all logits. The
    reference is enumeration for up to 1,024 states, and otherwise a mean over further draws of
    leave-one-out REINFORCE. Logits get no score if their rarer outcome is drawn fewer than 100
    times, or if there are fewer than 100 repeats, because the score would then be far from normal.
    If an objective depends on a rare combination of latents, an unbiased estimator can still have a
    high score.

    Args:
        objective: As for `arms.expectation`; it may be a black box.
        logits: As for `arms.expectation`. No gradient is left in them or in the objective.
        estimators: A name, an estimator, or a sequence of names and estimators. By default, all
            names that this latent, this budget and this objective allow, except enumeration and
            estimators with parameters. The table lists the names that were left out, and why.
        num_samples: The number of samples for every estimator given by name, 8 by default. An
            estimator object keeps its own number.
        generator: As for `arms.expectation`.
        evaluations: The largest allowed number of evaluations of the objective per estimate. Pass
            this instead of `num_samples`, to compare estimators at equal work.
        repeats: The number of estimates of each estimator. The estimators take turns, so that
            other processes on the machine slow all of them equally.

    >>> table = variance(lambda b: b.prod(-1), torch.zeros(2), ["loorf", "arms"], 4, repeats=200)
    >>> [(row.estimator, row.evaluations) for row in table.rows]
    [('arms', 4), ('loorf', 4)]
    """
    entries = None if estimators is None else _as_entries(estimators)
    repeats = as_count(repeats, 2, "repeats")
    if num_samples is not None:
        as_count(num_samples, 1, "num_samples")
    make = partial(as_estimator, num_samples=num_samples, evaluations=evaluations)
    n = num_samples_of(make("reinforce"))  # also raises if the budget is invalid
    latent = as_latent(logits).detach()
    check_generator(generator)
    if not latent.logits.numel():
        shape = list(latent.logits.shape)
        raise ValueError(f"logits must not be empty, got shape {shape}")
    left_out: dict[str, str] = {}
    measure = partial(_measure, objective, latent, repeats, generator)
    with torch.no_grad():
        if entries is None:
            left_out = _find_left_out(make, n, objective, latent, generator)
            entries = [name for name in ESTIMATORS if name not in left_out]
        contenders = [make(one) if isinstance(one, str) else as_estimator(one) for one in entries]
        for one in contenders:
            if not one.target.is_expectation:
                raise ValueError(
                    "arms.variance compares estimators of the gradient of an expectation, but "
                    f"{label(one)} estimates the gradient of the {one.target}"
                )
        draws = [draw_points(one, latent, generator) for one in contenders]
        for entry, draw in zip(entries, draws, strict=True):
            # Enumeration ignores num_samples.
            if evaluations and isinstance(entry, str) and len(draw.points) > evaluations:
                got = f"{entry} makes {len(draw.points)} evaluations"
                remedy = f"remove {entry} from the comparison, or allow more"
                raise ValueError(f"{got}, more than evaluations={evaluations}: {remedy}")
        flips = repeats * min(len(draw.samples) for draw in draws) * rarer_probs(latent)
        scored = flips.clamp(max=repeats) >= MIN_FLIPS
        truth, truth_error, reference = _reference(objective, latent, scored, n, measure)
        tallies = measure(contenders)
    labels = [entry if isinstance(entry, str) else label(entry) for entry in entries]
    floor = 1e-6 * truth.abs().max().clamp(min=1e-30)
    rows = []
    compared = zip(deduplicate_labels(labels), entries, contenders, draws, tallies, strict=True)
    for name, entry, one, draw, tally in compared:
        spread, needs = tally.variance(), one.design.needs
        error = (spread / repeats + truth_error).sqrt().clamp(min=floor)
        scores = ((tally.mean - truth).abs() / error)[scored]
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
            tail=tally.tail(),
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
        remedy = "for example ['arms', 'loorf']"
        raise ValueError(f"estimators must be {wanted}, got {estimators!r}: pass {remedy}")
    return entries


def _has_parameters(estimator: Estimator) -> bool:
    return any(True for _ in estimator.parameters())


def _find_left_out(
    make: Make, n: int, objective: Objective, latent: Latent, generator: Generator | None
) -> dict[str, str]:
    """Return the names of the estimators that are not compared by default, each with the reason."""
    left_out = {}
    for name in ESTIMATORS:
        reason = _reason_unsuitable(name, latent)
        if not reason:
            try:
                reason = _reason_refused(make(name), objective, latent, generator)
            except ValueError:
                reason = f"cannot draw {n} samples of this latent"
        if reason:
            left_out[name] = reason
    if len(left_out) == len(ESTIMATORS):
        what = f"no estimator can draw {n} samples of this latent"
        raise ValueError(f"{what}: increase num_samples or evaluations")
    return left_out


def _reason_unsuitable(name: str, latent: Latent) -> str:
    """Return why an estimator is not compared on this kind of latent, or "" if it is compared."""
    usual, kind = as_estimator(name), type(latent).__name__
    needs = usual.design.needs
    if latent.has(Binary) and name in SAME_FOR_BITS:
        return f"the same as {SAME_FOR_BITS[name]} for bits"
    if not usual.target.is_expectation:
        return "another target"
    if needs.evaluations is None:
        return "enumeration of all states"
    if not takes(usual, latent):
        return f"not for {kind} latents"
    if needs.derivatives and not latent.differentiable:
        return f"{kind} latents have no df/db"
    # Designs with weights list all states, which is too slow for this many states.
    if usual.design.weighted and latent.count_states() > MOST_STATES:  # type: ignore[attr-defined]
        return "too many states for n samples"
    if _has_parameters(usual):  # the variance with untrained parameters would mislead
        return "they have parameters: train estimator objects and pass these"
    return ""


def _reason_refused(
    estimator: Estimator, objective: Objective, latent: Latent, generator: Generator | None
) -> str:
    """Return why an estimator does not accept this objective, or "" if there is no reason."""
    if not estimator.design.needs.derivatives:
        draw_points(estimator, latent, torch.Generator(latent.logits.device).manual_seed(0))
        return ""
    try:
        for _ in range(ATTEMPTS):
            evaluate(estimator, objective, draw_points(estimator, latent, generator), Options())
    except ValueError:
        # The objective is a black box, has an infinite derivative, or rejects points between the
        # states. If it fails at every point, the estimators without derivatives report its error.
        return "the objective has no df/db at their points"
    return ""


def _without_rare(latent: Latent, scored: Tensor) -> Latent:
    """Return a copy of `latent` in which all rare outcomes are impossible.

    `scored` is a mask in the shape of the logits. It is False where the rarer outcome is too rare
    for a score.
    """

    def of_part(part: Latent, own: Tensor) -> Tensor:
        phi = part.logits
        if part.has(Binary):
            return torch.where(own, phi, torch.where(phi > 0, torch.inf, -torch.inf).to(phi))
        if part.has(Choices):
            # At least one category must remain possible.
            possible = own.scatter(-1, phi.argmax(-1, keepdim=True), True)
            return phi.masked_fill(~possible, -torch.inf)
        return phi

    return latent.with_logits(latent.map_parts(of_part, scored))


def _reference(
    objective: Objective, latent: Latent, scored: Tensor, n: int, measure: Measure
) -> tuple[Tensor, Tensor, str]:
    """Return the gradient that bias scores compare with, its variance, and how it was computed.

    The gradient and the variance have the shape of the logits.
    """
    enumerable = isinstance(latent, Enumerable) and latent.has(Enumerable)
    if enumerable and latent.count_states() <= ENUMERABLE:  # type: ignore[attr-defined]
        # An outcome too rare to be drawn also affects the gradient of other variables. The
        # difference between the gradients with and without rare outcomes counts as an error of the
        # reference.
        both = (latent, _without_rare(latent, scored))
        truth, certain = (estimate(Exact(), objective, one).grad.double() for one in both)
        return truth, (truth - certain).square(), "enumeration"
    (tally,) = measure([as_estimator("loorf", max(2, n))])
    return tally.mean, tally.variance() / len(tally.seconds), "other draws of loorf"


class _Tally:
    """Running mean and variance of an estimator's estimates, by Welford's algorithm.

    Each estimate adds a term to the sum of squared deviations. The expectation of each term is the
    variance, so the spread of the terms gives the standard error of the variance.
    """

    def __init__(self, latent: Latent) -> None:
        self.mean = torch.zeros_like(latent.logits, dtype=torch.float64)
        self.sum_event = latent.sum_event
        self.squares = torch.zeros_like(self.mean)
        self.added: list[Tensor] = []
        self.seconds: list[float] = []

    def add(self, grad: Tensor, seconds: float) -> None:
        self.seconds.append(seconds)
        delta = grad.double() - self.mean
        self.mean += delta / len(self.seconds)
        added = delta * (grad.double() - self.mean)
        self.squares += added
        self.added.append(self.sum_event(added))

    def variance(self) -> Tensor:
        """Return the variance of one estimate for every logit."""
        return self.squares / (len(self.seconds) - 1)

    def variance_error(self) -> float:
        """Return the standard error of the mean of `variance()` over all logits.

        The result is NaN if there are only two estimates.
        """
        added = torch.stack(self.added[1:])  # the first term is always zero
        added = added.reshape(len(added), -1).sum(1) / self.mean.numel()
        return (added.std() / len(added) ** 0.5).item() if len(added) > 1 else float("nan")

    def tail(self) -> float:
        """Return the share of the variance that comes from the largest 1 % of the estimates.

        The share is averaged over rows. The result is NaN for fewer than 100 estimates.
        """
        count = len(self.added)
        if count < MIN_TAIL:
            return math.nan
        added = torch.stack(self.added).reshape(count, -1)
        total = added.sum(0)
        largest = added.topk(round(count / 100), 0).values.sum(0)
        return (largest / total)[total > 0].mean().item()  # NaN if no row has any variance


def _measure(
    objective: Objective,
    latent: Latent,
    repeats: int,
    generator: Generator | None,
    estimators: Sequence[Estimator],
) -> list[_Tally]:
    """Call every estimator `repeats` times. Return a tally of estimates and times for each.

    The estimators take turns. Before that, each is called once without being counted.
    """
    tallies = [_Tally(latent) for _ in estimators]
    for number in range(repeats + 1):
        for one, tally in zip(estimators, tallies, strict=True):
            start = perf_counter()
            grad: Tensor = estimate(one, objective, latent, generator, Options()).grad
            if grad.is_cuda:
                torch.cuda.synchronize(grad.device)  # the call returns before the GPU is done
            if number:
                tally.add(grad, perf_counter() - start)
    return tallies


def _ratio(value: float, lowest: float, unbiased: bool) -> str:
    """Return `value / lowest` as text.

    `lowest` is the lowest value of an unbiased estimator. If `value` belongs to an unbiased
    estimator and equals `lowest`, a star is added.
    """
    ratio = value / lowest if lowest else math.inf if value else 1.0
    return _number(ratio, 3) + ("*" if unbiased and value == lowest else " ")


def _percent(error: float, value: float) -> str:
    share = 100 * error / value if value else math.nan
    return "-" if math.isnan(share) else f"{share:.1f}%" if share < 1000 else ">999%"


def _number(value: float, digits: int) -> str:
    text = "-" if math.isnan(value) else f"{value:.{digits}f}"
    return text if len(text) <= 8 else f"{value:.2e}"
