"""The bias test: means of many estimates against enumeration, on objectives with no structure to be lucky with.

Each problem is a latent of a few rows and an objective. The gradient and the value are both compared. The problems
differ in what they expose: the dtype, the size of the batch, rows of very different scale, logits far from zero.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.checks.oracle import (
    exact_target_gradient,
    exact_value,
    random_table,
    smooth_objective,
    table_objective,
)
from arms.checks.verdicts import FAILURE_RATE, Finding, judge_score, skew_corrected
from arms.estimate import estimate, takes
from arms.estimators import Estimator, TensorObjective
from arms.estimators.registry import num_samples_of
from arms.latents import Bits, Enumerable, HasMean, Latent, OneHot
from arms.latents.base import MOST_STATES
from arms.objective import Options

# Both signs, near and far from one half: a wrong correlation shows at one of them.
BINARY_LOGITS = ((0.0, 0.7, -1.3), (2.0, -0.4, 1.1), (-2.2, 1.6, 0.3))
CATEGORICAL_LOGITS = (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((1.2, -0.8, 0.1), (0.0, 0.0, 0.6)))
# For more samples than those have joint states.
MANY_BITS = (0.4, -1.2, 2.1, -0.3, 0.9)
MANY_CATEGORIES = ((0.0, 0.5, -0.5), (1.0, 0.0, -1.0), (1.2, -0.8, 0.1))
MOST_ENUMERATED = 8
"""Samples up to which the small problems have enough joint states."""

FAR_BITS = ((5.0, -5.0, 0.3), (7.0, -7.0, 0.3), (10.0, -10.0, 0.3))
FAR_CATEGORIES = (((0.0, -5.0, -7.0), (0.3, 0.0, -0.5)), ((-10.0, 0.0, -10.0), (0.3, 0.0, -0.5)))
# Three bits are free. With fewer, a control variate may match an estimate almost exactly; what is
# left is then the noise of its coefficient, which the rows share, and their mean is not normal.
INFINITE_BITS = (math.inf, 0.7, -math.inf, -0.4, 1.1)
INFINITE_CATEGORIES = ((0.5, -math.inf, 0.0), (0.0, 0.6, -0.3))
# The first row's neighbors have a much smaller objective: whatever it takes from them must not be its own rounding
# error, which shows in float32 where their squares are some ten million times smaller.
UNEQUAL_BITS = ((0.3, -0.5, 1.0),) * 3
UNEQUAL_CATEGORIES = (((0.3, -0.5, 1.0), (0.0, 0.4, -0.6)),) * 3
SCALES = (6000.0, 1.0, 1.0)
SMALL_BITS = ((0.0, 0.7), (1.5, -1.0))
SMALL_CATEGORIES = (((0.0, 0.5, -0.5),), ((1.0, 0.0, -1.0),))

FEWEST_DRAWS = 2
LARGEST_SEED = 2**50
MOST_ROWS = 50_000
"""Estimates that are made in one call."""
DRAWS_PER_CALL = 50
"""A problem that needs a call for every estimate makes one for this many draws."""
FEWEST_CALLS = 1000
"""And at least this many: means of fewer are too far from normal."""
FEWEST_EVENTS = 25
"""How often the rarer outcome of a variable must be expected for its score to be near normal."""


@dataclass(frozen=True)
class Problem:
    """A latent and an objective on which an estimator is tested."""

    name: str
    """What the problem exposes."""
    latent: Latent
    """`[*event]`, or a few rows `[rows, *event]`."""
    objective: TensorObjective
    """Maps samples `[..., *event]` to values; for a bound, to log p(x, b)."""
    scale: tuple[float, ...] = ()
    """A factor of the objective for each row; 1 unless given."""
    effort: int = 1
    """How many times `draws` estimates are made."""
    separate: bool = False
    """Whether each estimate is a call by itself, instead of a row of one large batch."""
    scored_rows: int | None = None
    """How many rows, the first ones, are compared; all of them unless given."""

    def scaled_objective(self, *samples: Tensor, **named: Tensor) -> Tensor:
        """Return the objective's values for samples `[..., rows, *event]`."""
        values = self.objective(*samples, **named)
        return values * torch.tensor(self.scale, dtype=values.dtype) if self.scale else values

    def rows(self) -> list[tuple[Latent, TensorObjective]]:
        """Return the latent of each row and its objective."""
        if not self.latent.batch_shape:
            return [(self.latent, self.objective)]
        factors = self.scale or (1.0,) * len(self.latent.logits)
        latents = [self.latent.with_logits(row) for row in self.latent.logits]
        return [
            (one, _times(self.objective, factor))
            for one, factor in zip(latents, factors, strict=True)
        ]


def check_settings(
    draws: object, failure_rate: object, seed: object, latents: Sequence[Latent] | None
) -> list[Latent] | None:
    """Raise unless the settings of a check make sense, and return the latents as a list."""
    as_count(draws, FEWEST_DRAWS, "draws")
    if not isinstance(failure_rate, float) or not 0 < failure_rate < 1:
        raise ValueError(f"failure_rate must be a float between 0 and 1, got {failure_rate!r}")
    if as_count(seed, 0, "seed") >= LARGEST_SEED:
        raise ValueError(f"seed must be less than 2^50, got {seed}")
    if latents is None:
        return None
    if isinstance(latents, Latent | Tensor) or not isinstance(latents, Iterable):
        raise ValueError(f"latents must be a list of latents, got {type(latents).__name__}")
    found = list(latents)
    if not found:
        raise ValueError("latents must be at least one latent, got an empty list")
    for one in found:
        if not isinstance(one, Latent):
            raise ValueError(
                f"latents must be latents such as arms.Bits(logits), got {type(one).__name__}"
            )
        if one.batch_shape or not one.logits.numel():
            raise ValueError(
                f"latents must have logits without batch axes, [{one.event_axes}] with at least "
                f"one variable, got {list(one.logits.shape)}"
            )
        if not isinstance(one, Enumerable) or one.count_states() > MOST_STATES:
            raise ValueError(
                f"latents must have at most {MOST_STATES:,} joint states that can be listed, which "
                f"this {type(one).__name__} with logits of shape {list(one.logits.shape)} does "
                "not: use fewer variables"
            )
    return found


def takes_kind(estimator: Estimator, kind: type[Latent]) -> bool:
    """Whether an estimator takes bits, or categories."""
    return takes(estimator, kind(torch.zeros(1, 2) if kind is OneHot else torch.zeros(1)))


def moderate_problems(
    estimator: Estimator, generator: Generator, latents: Sequence[Latent] | None = None
) -> Iterator[Problem]:
    """Yield the problems on which an estimator is tested at every number of samples.

    Args:
        estimator: What is tested.
        generator: Source of the objectives.
        latents: Without batch axes. Unless given, bits and categories, as the estimator takes them.
    """
    large = num_samples_of(estimator) > MOST_ENUMERATED and estimator.target.size == 1
    bits = [MANY_BITS] if large else BINARY_LOGITS
    categories = [MANY_CATEGORIES] if large else CATEGORICAL_LOGITS
    if latents is not None:
        for latent in latents:
            yield Problem("moderate logits", latent, smooth_objective(latent, generator))
        return
    for kind, rows in ((Bits, bits), (OneHot, categories)):
        for row in rows if takes_kind(estimator, kind) else ():
            yield _table_problem("moderate logits", kind, row, generator)


def special_problems(
    estimator: Estimator, generator: Generator, latents: Sequence[Latent] | None = None
) -> Iterator[Problem]:
    """Yield problems that expose one thing each, for every kind of latent that an estimator takes.

    Args:
        estimator: What is tested.
        generator: Source of the objectives.
        latents: Without batch axes. Unless given, bits and categories, as the estimator takes them.
    """
    if latents is not None:
        for latent in latents:
            objective = smooth_objective(latent, generator)
            yield Problem("single rows", latent, objective, separate=True)
            two = latent.with_logits(torch.stack([latent.logits, latent.logits / 2]))
            yield Problem("batches of two rows", two, objective, separate=True)
        return
    tables = (
        (Bits, "", FAR_BITS, INFINITE_BITS, UNEQUAL_BITS, SMALL_BITS),
        (
            OneHot,
            " of categories",
            FAR_CATEGORIES,
            INFINITE_CATEGORIES,
            UNEQUAL_CATEGORIES,
            SMALL_CATEGORIES,
        ),
    )
    # Log-weights thousands of nats apart would leave nothing of a bound to measure.
    scale = SCALES if estimator.target.size == 1 else ()
    for kind, suffix, far, infinite, unequal, small in tables:
        if not takes_kind(estimator, kind):
            continue
        yield replace(
            _table_problem(f"logits of ±5, ±7, ±10{suffix}", kind, far, generator), effort=3
        )
        yield _table_problem(f"infinite logits{suffix}", kind, infinite, generator)
        for _ in range(5):
            rows = kind(torch.tensor(unequal))
            objective = _curved_objective(rows, generator)
            yield Problem(f"float32, unequal rows{suffix}", rows, objective, scale, scored_rows=1)
        yield replace(
            _table_problem(f"single rows{suffix}", kind, small[0], generator), separate=True
        )
        yield replace(
            _table_problem(f"batches of two rows{suffix}", kind, small, generator), separate=True
        )


def problem_scores(
    estimator: Estimator, problem: Problem, draws: int, generator: Generator
) -> Tensor:
    """Return the z-scores of the mean gradient, and of an unbiased estimator's mean value, against enumeration.

    Args:
        estimator: Any estimator, of any target.
        problem: Where to test.
        draws: How many estimates; a problem may ask for a multiple or a fraction.
        generator: Source of all randomness.
    """
    truths = [_truth(objective, latent, estimator) for latent, objective in problem.rows()]
    batched = bool(problem.latent.batch_shape)
    tallies = [
        _Tally(torch.stack(of_rows) if batched else of_rows[0], problem.latent.logits.dtype)
        for of_rows in zip(*truths, strict=True)
    ]
    for grad, value in _estimates(estimator, problem, draws, generator):
        tallies[0].add(grad)
        tallies[1].add(value)
    often = _happens_often(problem.latent, num_samples_of(estimator) * tallies[0].count)
    all_often = problem.latent.sum_event((~often).double()) == 0
    scores = [
        torch.where(often, tallies[0].scores(), 0.0),
        torch.where(all_often, tallies[1].scores(), 0.0),
    ]
    if batched:
        scores = [one[: problem.scored_rows] for one in scores]
    return torch.cat([one.flatten() for one in (scores if estimator.unbiased else scores[:1])])


def _happens_often(latent: Latent, samples: int) -> Tensor:
    """Return where both outcomes of a variable, or only one, are expected in so many samples."""
    wide = latent.with_logits(latent.logits.double())
    if not wide.has(HasMean):
        return torch.ones_like(latent.logits, dtype=torch.bool)
    assert isinstance(wide, HasMean)
    probs = wide.mean()
    rarer = torch.minimum(probs, 1 - probs)
    return (samples * rarer >= FEWEST_EVENTS) | (rarer == 0)


def bias_scores(
    estimator: Estimator,
    objective: TensorObjective,
    latent: Latent,
    draws: int,
    generator: Generator,
) -> Tensor:
    """Return the z-score of the mean of many estimates of the gradient against enumeration, for logits `[*event]`.

    The scores are corrected for the skewness of the estimates, which rare events cause.

    Args:
        estimator: Any estimator, of any target.
        objective: Defined on states, and between them for estimators that need derivatives; for a
            bound, log p(x, b).
        latent: Where to test, without batch axes.
        draws: How many estimates.
        generator: Source of all randomness.
    """
    draws = as_count(draws, FEWEST_DRAWS, "draws")
    scores = problem_scores(estimator, Problem("", latent, objective), draws, generator)
    return scores[: latent.logits.numel()].view(latent.logits.shape)


def bias_finding(
    estimator: Estimator,
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    seed: int = 0,
    latents: Sequence[Latent] | None = None,
) -> Finding:
    """Test in float64, at moderate logits, whether an estimator's label is true: unbiased, or biased.

    An unbiased estimator fails with probability `failure_rate`; the smallest bias that is surely seen shrinks as
    1/sqrt(draws). An estimator marked `unbiased = False` must be seen to be biased; its verdict is "biased".

    Args:
        estimator: What is tested.
        draws: Estimates of each problem's gradient.
        failure_rate: How often a correct one may fail by chance.
        seed: Of objectives and draws.
        latents: Where to test, each without batch axes and with few states. Unless given, bits and categories, as the
            estimator takes them.

    >>> from arms import LOORF
    >>> bias_finding(LOORF(4), draws=1000).passed
    True
    """
    latents = check_settings(draws, failure_rate, seed, latents)
    generator = torch.Generator().manual_seed(seed)
    problems = moderate_problems(estimator, generator, latents)
    every = torch.cat(
        [problem_scores(estimator, problem, draws, generator) for problem in problems]
    ).abs()
    judged = judge_score(
        f"unbiased, n = {num_samples_of(estimator)}",
        every.max().item(),
        every.numel(),
        failure_rate,
    )
    if estimator.unbiased:
        return judged
    name, figure = f"biased, n = {num_samples_of(estimator)}", judged.figure
    if judged.passed:
        return Finding(name, False, f"{figure}: marked as biased, and no bias is seen")
    return Finding(name, True, f"{figure}: as it is marked", "biased")


def _table_problem(
    name: str,
    kind: type[Latent],
    logits: object,
    generator: Generator,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """Return a problem with a random value for every state of one row."""
    latent = kind(torch.tensor(logits, dtype=dtype))
    one = latent.with_logits(latent.logits[0]) if latent.batch_shape else latent
    assert isinstance(one, Enumerable)
    table = random_table(one.count_states(), generator).to(dtype)
    return Problem(name, latent, table_objective(table, one))


def _curved_objective(latent: Latent, generator: Generator) -> TensorObjective:
    """Return a random objective close to a quadratic one, on which derivatives make good control variates."""
    event = latent.event_shape
    weights = 1.5 * torch.randn(event, generator=generator, dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        total = latent.sum_event(b * weights.to(b.dtype))
        return torch.sin(2 * total) + total.square()

    return objective


def _times(objective: TensorObjective, factor: float) -> TensorObjective:
    return lambda *samples, **named: factor * objective(*samples, **named)


def _truth(
    objective: TensorObjective, latent: Latent, estimator: Estimator
) -> tuple[Tensor, Tensor]:
    """Return the gradient and the value of an estimator's target by enumeration, in float64."""
    wide = latent.with_logits(latent.logits.double())
    grad = exact_target_gradient(objective, wide, estimator.target)
    value = exact_value(objective, wide, estimator.target)
    return grad.double(), value.detach().double()


def _estimates(
    estimator: Estimator, problem: Problem, draws: int, generator: Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield gradients `[estimates, *rows, *event]` and values `[estimates, *rows]`."""
    latent = problem.latent
    if problem.separate:
        for _ in range(max(FEWEST_CALLS, draws // DRAWS_PER_CALL)):
            grad, value = one_estimate(estimator, problem.scaled_objective, latent, generator)
            yield grad.unsqueeze(0), value.unsqueeze(0)
        return
    left = problem.effort * draws
    while left > 0:
        count = min(left, MOST_ROWS)
        many = latent.expand(count)
        yield one_estimate(estimator, problem.scaled_objective, many, generator)
        left -= count


def one_estimate(
    estimator: Estimator, objective: TensorObjective, latent: Latent, generator: Generator | None
) -> tuple[Tensor, Tensor]:
    """Return the gradient and the value for every row."""
    with torch.no_grad():
        found = estimate(estimator, objective, latent, generator, Options(checks="cheap"))
    return found.grad, found.value


class _Tally:
    """Sums of the first three powers of what separates estimates from the truth."""

    def __init__(self, truth: Tensor, dtype: torch.dtype) -> None:
        self.truth, self.count = truth, 0
        self.sums = [torch.zeros_like(truth) for _ in range(3)]
        # Where an estimate never varies, only rounding may separate it from the truth.
        self.rounding = 1e-12 if dtype == torch.float64 else 1e-6 * truth.abs().amax().item()

    def add(self, estimates: Tensor) -> None:
        error = estimates.double() - self.truth
        self.count += len(error)
        self.sums = [total + error.pow(power).sum(0) for power, total in enumerate(self.sums, 1)]

    def scores(self) -> Tensor:
        """Return the z-score of the mean error; infinite where an estimate is not finite."""
        mean, square, cube = (total / self.count for total in self.sums)
        variance = (square - mean.square()).clamp(min=0) * self.count / max(1, self.count - 1)
        third = cube - 3 * mean * square + 2 * mean**3
        scores = skew_corrected(mean, variance, third, self.count, self.rounding)
        return scores.nan_to_num(nan=torch.inf)
