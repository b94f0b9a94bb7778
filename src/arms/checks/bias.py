"""Test for bias: compare the means of many estimates with the exact gradient, by enumeration.

Each problem exposes a different kind of error. The problems vary the dtype, the size of the
batch, the scale of rows and the size of the logits. The objectives are random, so errors do not
cancel by symmetry.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.checks import oracle
from arms.checks.verdicts import FAILURE_RATE, Finding, judge_scores, skew_corrected
from arms.estimate import estimate, takes
from arms.estimators import Estimator, TensorObjective, num_samples_of
from arms.latents import Bits, Enumerable, Latent, OneHot
from arms.latents.base import MOST_STATES
from arms.objective import Options

MOST_ENUMERATED = 8  # with more samples, the moderate problems have too few joint states
# The objective of the first row is 6,000 times as large as that of the other rows. An estimator may
# compute a coefficient for the first row from the other rows. If it subtracts the first row from a
# sum over all rows to do so, the result contains rounding errors of the first row. These errors are
# visible in float32, and bias the gradient of the first row.
SCALES = (6000.0, 1.0, 1.0)
ONE = torch.ones(())

MOST_ROWS = 50_000  # the most estimates per call
# Problems that need one call per estimate make one call per 50 draws, and at least
# `FEWEST_CALLS`, because means over fewer calls are too far from normal.
DRAWS_PER_CALL = 50
FEWEST_CALLS = 1000
FEWEST_EVENTS = 25  # a score is nearly normal if the rarer outcome is drawn at least this often


@dataclass(frozen=True)
class Cases:
    """Logits for the tests of one kind of latent."""

    make: Callable[[Tensor], Latent]
    moderate: Sequence[Any]
    many: Sequence[Any]  # moderate logits of more variables, with more states than samples
    small: Sequence[Any] | Tensor  # two rows of few variables
    exact: Sequence[Any]  # for exact expectations; some are too large for a test by random draws
    far: Sequence[Any] = ()  # logits of ±5, ±7 and ±10
    infinite: Sequence[Any] = ()  # some logits are infinite
    unequal: Sequence[Any] = ()  # rows whose objectives have different scales
    suffix: str = ""  # appended to the names of findings


BITS = Cases(
    Bits,
    # Probabilities on both sides of one half, near and far from it, reveal a wrong correlation.
    moderate=((0.0, 0.7, -1.3), (2.0, -0.4, 1.1), (-2.2, 1.6, 0.3)),
    many=((0.4, -1.2, 2.1, -0.3, 0.9),),
    small=((0.0, 0.7), (1.5, -1.0)),
    exact=((0.7, -1.3), (5.0, -0.4), (14.0, -14.0)),
    far=((5.0, -5.0, 0.3), (7.0, -7.0, 0.3), (10.0, -10.0, 0.3)),
    # Three bits are random. With fewer, a control variate may cancel an estimate almost exactly.
    # Only the noise of the control variate's coefficient is then left. All rows share this noise,
    # so the mean is not normal.
    infinite=(math.inf, 0.7, -math.inf, -0.4, 1.1),
    unequal=((0.3, -0.5, 1.0),) * 3,
)
CATEGORIES = Cases(
    OneHot,
    moderate=(((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((1.2, -0.8, 0.1), (0.0, 0.0, 0.6))),
    many=(((0.0, 0.5, -0.5), (1.0, 0.0, -1.0), (1.2, -0.8, 0.1)),),
    small=(((0.0, 0.5, -0.5),), ((1.0, 0.0, -1.0),)),
    exact=(((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((0.0, -14.0, -20.0), (0.3, 0.0, -0.5))),
    far=(((0.0, -5.0, -7.0), (0.3, 0.0, -0.5)), ((-10.0, 0.0, -10.0), (0.3, 0.0, -0.5))),
    infinite=((0.5, -math.inf, 0.0), (0.0, 0.6, -0.3)),
    unequal=(((0.3, -0.5, 1.0), (0.0, 0.4, -0.6)),) * 3,
    suffix=" of categories",
)


@dataclass(frozen=True)
class Problem:
    """A latent and an objective on which an estimator is tested."""

    name: str
    latent: Latent  # has no batch axes, or a few rows
    objective: TensorObjective
    scale: Tensor = ONE  # a factor of the objective, or one factor for each row
    effort: int = 1  # number of estimates, as a multiple of `draws`
    separate: bool = False  # make each estimate in a separate call, not as a row of a large batch
    scored_rows: int | None = None  # how many rows, from the first, are compared; None means all


def as_bounded(value: object, least: int, most: int, name: str) -> int:
    """Return `value` as an int. Raise unless it is from `least` to `most`.

    `name` is the name of the value in error messages.
    """
    count = as_count(value, least, name)
    if count > most:
        raise ValueError(f"{name} must be at most {most:,}, got {count:.1e}")
    return count


def check_settings(
    draws: object, failure_rate: object, seed: object, latents: object
) -> list[Latent] | None:
    """Check the settings of a test. Return `latents` as a list, or None if `latents` is None."""
    as_bounded(draws, 2, 10**9, "draws")
    as_bounded(seed, 0, 2**50, "seed")
    if not isinstance(failure_rate, float) or not 0 < failure_rate < 1:
        raise ValueError(f"failure_rate must be a float between 0 and 1, got {failure_rate!r}")
    if latents is None:
        return None
    is_list = isinstance(latents, Iterable) and not isinstance(latents, Tensor)
    found: list[Any] = list(latents) if is_list else []  # type: ignore[call-overload]
    if not found or not all(isinstance(one, Latent) for one in found):
        got = found or repr(latents)
        raise ValueError(f"latents must be a list of latents, as in [arms.Bits(logits)], got {got}")
    for one in found:
        one_row = one.logits.numel() and not one.batch_shape
        if not one_row or not one.has(Enumerable) or one.count_states() > MOST_STATES:
            wanted = f"no batch axes, and from 1 to {MOST_STATES:,} joint states"
            got = f"{type(one).__name__} with logits of shape {list(one.logits.shape)}"
            raise ValueError(f"each of the latents must have {wanted}, got {got}")
    return found


def takes_kind(estimator: Estimator, kind: Callable[[Tensor], Latent]) -> bool:
    """Return whether an estimator accepts latents of the class `kind`: `Bits` or `OneHot`."""
    return takes(estimator, kind(torch.zeros(1, 2) if kind is OneHot else torch.zeros(1)))


def cases_of(estimator: Estimator, latents: Sequence[Latent] | None = None) -> list[Cases]:
    """Return test cases for `latents`.

    If `latents` is None, return the built-in cases for bits and for categories, without the kind of
    latent that the estimator does not accept.
    """
    if latents is None:
        return [cases for cases in (BITS, CATEGORIES) if takes_kind(estimator, cases.make)]
    found = []
    for one in latents:
        logits, rows = [one.logits], torch.stack([one.logits, one.logits / 2])
        found.append(Cases(one.with_logits, logits, logits, rows, [one.logits.double()]))
    return found


def special_problems(
    estimator: Estimator, generator: Generator, latents: Sequence[Latent] | None = None
) -> Iterator[Problem]:
    """Yield problems that each expose one kind of error.

    The problems use `latents`. If this is None, they use bits and categories, but only the kinds
    that the estimator accepts.
    """
    # The weights of a bound would underflow if the rows of log p(x, b) were scaled by thousands.
    scale = torch.tensor(SCALES if estimator.target.size == 1 else 1.0)
    for cases in cases_of(estimator, latents):
        if cases.far:
            yield make_problem("logits of ±5, ±7, ±10", cases, cases.far, generator, effort=3)
            yield make_problem("infinite logits", cases, cases.infinite, generator)
            rows, name = cases.make(torch.tensor(cases.unequal)), "float32, unequal rows"
            for _ in range(5):
                objective = _curved_objective(rows, generator)
                yield Problem(name + cases.suffix, rows, objective, scale, scored_rows=1)
        yield make_problem("single rows", cases, cases.small[0], generator, separate=True)
        yield make_problem("batches of two rows", cases, cases.small, generator, separate=True)


def make_problem(
    name: str, cases: Cases, logits: Any, generator: Generator, **options: Any
) -> Problem:
    """Return a problem with the latent `cases.make(logits)` and a random objective.

    All rows have the same objective. `options` are further fields of `Problem`.
    """
    given = isinstance(logits, Tensor)
    latent = cases.make(logits if given else torch.tensor(logits, dtype=torch.float64))
    one = latent.with_logits(latent.logits[0]) if latent.batch_shape else latent
    assert isinstance(one, Enumerable)
    if given:
        objective = oracle.smooth_objective(one, generator)
    else:
        objective = oracle.table_objective(oracle.random_table(one.count_states(), generator), one)
    return Problem(name + cases.suffix, latent, objective, **options)


def _curved_objective(latent: Latent, generator: Generator) -> TensorObjective:
    """Return a random, nearly quadratic objective, for which control variates work well."""
    weights = 1.5 * torch.randn(latent.event_shape, generator=generator, dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        total = latent.sum_event(b * weights.to(b.dtype))
        return torch.sin(2 * total) + total.square()

    return objective


def problem_scores(
    estimator: Estimator, problem: Problem, draws: int, generator: Generator
) -> Tensor:
    """Return a z-score for each logit, which compares the mean estimate with the exact gradient.

    If the estimator is labeled unbiased, the result also contains z-scores of the estimated values,
    one for each row. The result has one axis.
    """
    latent, total = problem.latent, problem.effort * draws
    if problem.separate:  # one call per estimate
        batches = [latent] * max(FEWEST_CALLS, draws // DRAWS_PER_CALL)
    else:
        starts = range(0, total, MOST_ROWS)
        batches = [latent.expand(min(MOST_ROWS, total - start)) for start in starts]
    grads, values = (_Tally(one, latent.logits.dtype) for one in _truth(estimator, problem))
    objective, options = _scaled(problem.objective, problem.scale), Options(checks="cheap")
    for batch in batches:
        with torch.no_grad():
            found = estimate(estimator, objective, batch, generator, options)
        grads.add(found.grad)
        values.add(found.value)
    rarer = oracle.rarer_probs(latent)
    often = (num_samples_of(estimator) * grads.count * rarer >= FEWEST_EVENTS) | (rarer == 0)
    all_often = latent.sum_event((~often).double()) == 0
    scores = [torch.where(often, grads.scores(), 0.0), torch.where(all_often, values.scores(), 0.0)]
    if latent.batch_shape:
        scores = [one[: problem.scored_rows] for one in scores]
    return torch.cat([one.flatten() for one in scores[: 2 if estimator.unbiased else 1]])


def _truth(estimator: Estimator, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the exact gradient and the exact value of every row, by enumeration in float64."""
    wide = problem.latent.with_logits(problem.latent.logits.double())
    rows = wide.logits if wide.batch_shape else wide.logits.unsqueeze(0)
    grads, values = [], []
    for logits, factor in zip(rows, problem.scale.expand(len(rows)), strict=True):
        objective, row = _scaled(problem.objective, factor), wide.with_logits(logits)
        grads.append(oracle.exact_target_gradient(objective, row, estimator.target))
        values.append(oracle.exact_value(objective, row, estimator.target).detach())
    return torch.stack(grads).view_as(wide.logits), torch.stack(values).view(wide.batch_shape)


def _scaled(objective: TensorObjective, factors: Tensor) -> TensorObjective:
    def scaled(*samples: Tensor, **named: Tensor) -> Tensor:
        values = objective(*samples, **named)
        return values * factors.to(values.dtype)

    return scaled


class _Tally:
    """Sums of the first three powers of the estimation errors."""

    def __init__(self, truth: Tensor, dtype: torch.dtype) -> None:
        self.truth, self.count = truth, 0
        self.sums = [torch.zeros_like(truth) for _ in range(3)]
        # An estimate that never varies may differ from the truth only by rounding.
        self.rounding = 1e-12 if dtype == torch.float64 else 1e-6 * truth.abs().amax().item()

    def add(self, estimates: Tensor) -> None:
        error = (estimates.double() - self.truth).view(-1, *self.truth.shape)
        self.count += len(error)
        self.sums = [total + error.pow(power).sum(0) for power, total in enumerate(self.sums, 1)]

    def scores(self) -> Tensor:
        """Return the z-score of the mean error for each entry. NaN is replaced by infinity."""
        mean, square, cube = (total / self.count for total in self.sums)
        variance = (square - mean.square()).clamp(min=0) * self.count / max(1, self.count - 1)
        third = cube - 3 * mean * square + 2 * mean**3
        scores = skew_corrected(mean, variance, third, self.count, self.rounding)
        return scores.nan_to_num(nan=torch.inf)


def bias_finding(
    estimator: Estimator,
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    seed: int = 0,
    latents: Sequence[Latent] | None = None,
) -> Finding:
    """Test in float64, at moderate logits, whether the label `unbiased` of an estimator is right.

    The smallest bias that is reliably detected is proportional to 1/sqrt(draws). An estimator with
    `unbiased = False` passes if the test detects a bias, and its verdict is then "biased".

    Args:
        estimator: The estimator to test.
        draws: The number of estimates per problem.
        failure_rate: The accepted probability that a correct estimator fails.
        seed: The seed of objectives and draws.
        latents: Latents to test, without batch axes and with few states. The default is bits and
            categories, if the estimator accepts them.

    >>> from arms import LOORF
    >>> bias_finding(LOORF(4), draws=1000).passed
    True
    """
    latents = check_settings(draws, failure_rate, seed, latents)
    generator = torch.Generator().manual_seed(seed)
    n = num_samples_of(estimator)
    large = n > MOST_ENUMERATED and estimator.target.size == 1
    scores = []
    for cases in cases_of(estimator, latents):
        for row in cases.many if large else cases.moderate:
            problem = make_problem("moderate logits", cases, row, generator)
            scores.append(problem_scores(estimator, problem, draws, generator))
    agrees, figure = judge_scores(scores, failure_rate)
    if estimator.unbiased:
        return Finding(f"unbiased, n = {n}", agrees, figure)
    if agrees:
        return Finding(f"biased, n = {n}", False, f"{figure}: labeled biased, but no bias found")
    return Finding(f"biased, n = {n}", True, f"{figure}: as labeled", "biased")
