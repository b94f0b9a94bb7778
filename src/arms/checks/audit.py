"""Audits of gradient estimators that were written elsewhere: their bias and their variance.

An audit calls a function many times on small problems whose exact gradient is known by
enumeration. The statistics treat each call as one observation. Rows of one call may therefore
share noise, or statistics of the batch, as long as different calls are independent.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from arms.arguments import as_count, described, unknown_name
from arms.checks import bias, oracle
from arms.checks.verdicts import FAILURE_RATE, score_limit, skew_corrected
from arms.estimate import estimate
from arms.estimators import LOORF, TensorObjective
from arms.estimators.registry import label
from arms.latents import Enumerable, Latent
from arms.targets import BestOf, Expectation, Target

Kind: TypeAlias = Literal["sample", "gradient", "weights"]

CALLS = 500  # independent calls per problem; means over fewer calls are too far from normal
FEW_CALLS = 5  # if fewer calls cause the variance, a wrong mean could also come from rare events
REFERENCE_DRAWS = 20_000  # draws of LOORF, which give its variance
SIGNATURES = {
    "sample": "function(logits) -> differentiable samples of the logits' shape",
    "gradient": "function(objective, logits) -> a gradient of the logits' shape",
    "weights": "function(rewards) -> weights of the rewards' shape",
}
NO_GRADIENT = (
    "the returned samples must depend on the logits through autograd, but no gradient flows back: "
    "compute the samples from the logits with differentiable torch operations"
)


@dataclass(frozen=True)
class AuditRow:
    """The result of an audit on one problem."""

    problem: str
    """The name of the problem: its latent, and the number of its objective."""
    bias: float
    """Distance between the mean estimate and the gradient, relative to the gradient's length."""
    bias_error: float
    """Standard error of the bias; an unbiased function shows a bias of about this size."""
    along: float
    """Component of the mean estimate along the gradient, as a multiple of the gradient."""
    across: float
    """Length of the orthogonal component, relative to the length of the gradient."""
    variance: float
    """Variance of one estimate, summed over all logits, relative to LOORF's variance."""
    largest_score: float
    """The largest absolute z-score of the mean estimate over all logits."""
    varied_score: float
    """Like `largest_score`, but only over logits whose estimates vary enough for a verdict."""
    mixed: bool = False
    """Whether some rows of each call have the objective f, and the other rows have -f."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit on all problems; `print` it for a table."""

    subject: str
    """The function that was audited."""
    kind: Kind
    """The kind of result that the function returns."""
    rows: tuple[AuditRow, ...]
    """The result on each problem."""
    limit: float
    """The absolute z-score above which the function is called biased."""
    failure_rate: float
    """The probability that an audit calls a correct function biased.

    It is larger if the function's estimates hardly vary.
    """
    evaluations: float
    """Evaluations of the objective for one estimate."""
    reference: str
    """The estimator whose variance is the unit of all variances."""

    @property
    def biased(self) -> bool:
        """Whether a problem's mean estimate is farther from the gradient than chance explains."""
        return max(row.largest_score for row in self.rows) > self.limit

    @property
    def varied(self) -> bool:
        """Whether the estimates varied enough for the verdict "biased"."""
        biased = [row for row in self.rows if row.largest_score > self.limit]
        # If rows have different objectives, the estimates of every function vary.
        decisive = [row for row in biased if not row.mixed] or biased
        return not decisive or max(row.varied_score for row in decisive) > self.limit

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.biased:
            return "biased" if self.varied else "wrong mean, but the estimates hardly varied"
        return "no bias seen"

    def __str__(self) -> str:
        head = ("problem", "bias", "±", "along", "across", "variance", "largest |z|")
        cells = [
            (
                row.problem,
                _percent(row.bias),
                _percent(row.bias_error),
                f"{row.along:.3f}",
                f"{row.across:.3f}",
                f"{row.variance:.3g}",
                f"{row.largest_score:.2f}",
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        lines = [
            "  ".join([f"{first:<{widths[0]}}", *map(str.rjust, rest, widths[1:])])
            for first, *rest in (head, *cells)
        ]
        chance = 1 / self.failure_rate
        notes = [
            "bias: error of the mean estimate, in % of the gradient's length; ±: standard error",
            "along, across: components of the mean estimate along the gradient (unbiased: 1)",
            "  and orthogonal to it (unbiased: 0), relative to the gradient's length",
            f"variance: relative to {self.reference}; evaluations of f: {self.evaluations:g}",
            f"biased: |z| exceeds {self.limit:.2f}, by chance in one of {chance:,.0f} audits",
            "not audited: other logits, objectives and sizes; half precision; other devices",
        ]
        if not self.varied:
            question = "does the function set a seed, or is its result almost always zero?"
            notes.insert(0, f"nearly all calls returned the same mean: {question}")
        return "\n".join([f"{self.subject} ({self.kind}): {self.verdict}", *lines, *notes])


def audit(
    function: object,
    kind: Kind,
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    *,
    latent: Literal["bits", "categories"] | Latent | None = None,
    num_samples: int = 8,
    target: Expectation | BestOf | None = None,
    batched: bool = True,
    seed: int = 0,
) -> Audit:
    """Test any gradient estimator for bias by enumeration, and measure its variance.

    Each call of the function gets a batch, and each row of the batch gives one estimate. In the
    last test, some rows have the objective f and others have -f, chosen at random in each call, to
    detect functions that mix rows. The kinds of functions are:

    - `"sample"`: `function(logits)` returns differentiable samples in the shape of the logits,
      `[rows, d, K]` for categories (one-hot or relaxed) and `[rows, d]` for bits. Autograd must
      lead from the samples to the logits. The audit tests the gradient of an objective of the
      samples.
    - `"gradient"`: `function(objective, logits)` returns a gradient estimate in the shape of the
      logits, in the direction of ascent. The objective maps points `[..., rows, d]` to values
      `[..., rows]`, and autograd can differentiate it. The logits require a gradient.
    - `"weights"`: `function(rewards)` maps rewards `[n, rows]` of n independent samples to weights
      of the same shape, which include the factor 1/n. The audit tests the sum of the weights times
      the gradients of the log-probabilities. One of the problems has rewards of 0 and 1.

    All randomness of the function must come from the global generators of PyTorch, NumPy or Python.
    The audit seeds them, and restores them afterwards.

    Args:
        function: The function to audit.
        kind: The kind of result that the function returns.
        draws: The number of estimates per problem. More draws detect smaller errors.
        failure_rate: The accepted probability of calling a correct function biased. The mean over
            all calls must be nearly normal. A few rare, large estimates must not dominate it.
        latent: "bits", "categories", or a latent without batch axes and with few states. The
            default is bits for gradients, and categories for samples and weights.
        num_samples: For weights, the number of samples n.
        target: The target of the gradient or the weights: `arms.Expectation()`, the default, or
            `arms.BestOf(k)`.
        batched: Whether the function accepts a batch of rows. If not, each call gets a single row:
            logits `[d]` or rewards `[n]`.
        seed: The seed of problems and draws.

    >>> def reinforce(objective, logits):
    ...     b = torch.bernoulli(torch.sigmoid(logits.detach()))
    ...     return objective(b).unsqueeze(-1) * (b - torch.sigmoid(logits))
    >>> audit(reinforce, "gradient", draws=2000).verdict
    'no bias seen'
    """
    if kind not in get_args(Kind):
        raise unknown_name("kind", kind, get_args(Kind))
    if not callable(function):
        got = type(function).__name__
        raise ValueError(f"function must be callable as {SIGNATURES[kind]}, got {got}")
    bias.check_settings(draws, failure_rate, seed, None)
    n, target = as_count(num_samples, 2, "num_samples"), Expectation() if target is None else target
    if target != Expectation() and (kind == "sample" or not isinstance(target, BestOf)):
        wanted = "arms.Expectation()" + ("" if kind == "sample" else " or arms.BestOf(k)")
        raise ValueError(f"the target for kind={kind!r} must be {wanted}, got {target!r}")
    if kind == "weights" and isinstance(target, BestOf) and target.k > n:
        raise ValueError(f"{target!r} needs num_samples of at least {target.k}, got {n}")
    generator = torch.Generator().manual_seed(seed)
    with _seeded(seed):  # objectives are called once on a sample
        problems = _problems(kind, latent, generator)
    tests = [[one] for one in problems]
    if batched and draws >= 2 * CALLS:
        tests.append([problems[0], _negated(problems[0])])  # for functions that mix rows
    numbers = [one.latent.logits.numel() for parts in tests for one in parts]
    limit = score_limit(sum(numbers), failure_rate)
    subject = f"{getattr(function, '__module__', '?')}:{getattr(function, '__name__', '?')}"
    caller = _Caller(function, kind, n, batched, generator)
    rows = []
    with _seeded(seed), _one_thread():
        for parts in tests:
            found = caller.estimates(parts, draws)
            evaluations = caller.evaluations
            reference = max(2, math.ceil(evaluations), target.size)
            spread = sum(_reference_variance(one, reference, target, generator) for one in parts)
            rows.append(_row(parts, target, found, spread))
    name = f"{label(LOORF(reference, target))} with {reference} samples"
    return Audit(subject, kind, tuple(rows), limit, failure_rate, evaluations, name)


def _problems(kind: Kind, latent: object, generator: Generator) -> list[bias.Problem]:
    """Return the problems of an audit, with logits in float32, like those of most users."""
    chosen = latent if latent is not None else "bits" if kind == "gradient" else "categories"
    if isinstance(chosen, Latent):
        bias.check_settings(2, 0.5, 0, [chosen])
        latents = [chosen.detach()] * 2
    elif chosen in ("bits", "categories"):
        cases = bias.BITS if chosen == "bits" else bias.CATEGORIES
        latents = [cases.make(torch.tensor(row)) for row in cases.moderate]
    else:
        wanted = '"bits", "categories" or a latent such as arms.Bits(logits)'
        raise ValueError(f"latent must be {wanted}, got {latent!r}")
    found = []
    for number, one in enumerate(latents, 1):
        name = f"{type(one).__name__} {number}"
        narrow = one.with_logits(one.logits.float())
        problem = bias.Problem(name, narrow, oracle.smooth_objective(narrow, generator))
        found.append(problem)
    if kind == "weights":
        found.append(bias.Problem(f"{name}, 0 or 1", narrow, _zero_or_one(problem)))
    return found


def _negated(problem: bias.Problem) -> bias.Problem:
    name = f"{problem.name}, rows of f and -f"
    return bias.Problem(name, problem.latent, lambda b: -problem.objective(b))


def _negated_where(objective: TensorObjective, negated: Tensor) -> TensorObjective:
    """Return an objective that has the opposite sign in the rows where `negated` is True."""
    return lambda b: torch.where(negated, -(values := objective(b)), values)


def _zero_or_one(problem: bias.Problem) -> TensorObjective:
    """Return an objective that is 1 or 0.

    It is 1 where the problem's objective exceeds its own median over all states.
    """
    assert isinstance(problem.latent, Enumerable)
    middle = problem.objective(problem.latent.states()).median()
    return lambda b: (problem.objective(b) > middle).double()


@dataclass
class _Found:
    """The estimates of one test; the first axis of all tensors contains the test's problems."""

    means: list[Tensor]  # the mean estimate of each call
    squares: Tensor  # the sum of the squares of all estimates
    count: int = 0  # the number of estimates per problem


class _Caller:
    """Calls the audited function and checks its results. Error messages show what is expected."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Kind,
        num_samples: int,
        batched: bool,
        generator: Generator,
    ) -> None:
        self.function, self.kind, self.num_samples = function, kind, num_samples
        self.batched, self.generator = batched, generator
        self.evaluations = 1.0

    def estimates(self, problems: Sequence[bias.Problem], draws: int) -> _Found:
        """Call the function many times on a problem, or on a problem and its negation.

        With two problems, each call divides the rows between them at random.
        """
        measure = {"sample": self._of_sample, "gradient": self._of_gradient}.get(
            self.kind, self._of_weights
        )
        count, (latent, f) = len(problems), (problems[0].latent, problems[0].objective)
        each = max(1, draws // CALLS // count) if self.batched else 1
        rows, shape = each * count, latent.logits.shape
        latent = latent.expand(rows) if self.batched else latent
        found = _Found([], torch.zeros(()))
        for _ in range(max(CALLS, math.ceil(draws / rows))):
            if count == 1:
                parts = [measure(latent, f)]
            else:
                negated = torch.randperm(rows, generator=self.generator) % 2 == 1
                every = measure(latent, _negated_where(f, negated))
                parts = [every[~negated], every[negated]]
            grads = torch.stack([one.detach().double().reshape(each, *shape) for one in parts], 1)
            if not grads.isfinite().all():
                what = f"the {self.kind} that the audited function returns"
                raise ValueError(f"{what} must be finite, got NaN or infinity")
            found.means.append(grads.mean(0))
            found.squares = found.squares + grads.square().sum(0)
            found.count += each
        return found

    def _of_sample(self, latent: Latent, objective: TensorObjective) -> Tensor:
        logits = latent.logits.clone().requires_grad_()
        sample = self._call(logits.shape, logits)
        values = objective(sample)
        if not values.requires_grad:
            raise ValueError(NO_GRADIENT)
        found = torch.autograd.grad(values.sum(), logits, allow_unused=True)
        grad: Tensor | None = found[0]
        if grad is None:
            raise ValueError(NO_GRADIENT)
        return grad

    def _of_gradient(self, latent: Latent, objective: TensorObjective) -> Tensor:
        logits = latent.logits.clone().requires_grad_()
        points = 0

        def counted(b: Any) -> Tensor:
            nonlocal points
            given = torch.as_tensor(b)
            floats = given if given.dtype.is_floating_point else given.to(logits.dtype)
            shape = latent.logits.shape
            if given.shape[given.ndim - len(shape) :] != shape:
                wanted = f"[..., {', '.join(map(str, shape))}]"
                got = f"shape {list(given.shape)}"
                raise ValueError(f"the objective must be called with points {wanted}, got {got}")
            values = objective(floats).to(floats.dtype)
            points += values.numel()
            return values

        found = self._call(logits.shape, counted, logits)
        self.evaluations = points / max(1, latent.batch_shape.numel())
        return found

    def _of_weights(self, latent: Latent, objective: TensorObjective) -> Tensor:
        samples = latent.sample(self.num_samples, self.generator)
        rewards = objective(samples).to(latent.logits.dtype)
        weights = self._call(rewards.shape, rewards.clone()).to(latent.logits.dtype)
        self.evaluations = self.num_samples
        return (latent.with_event_axes(weights) * latent.score(samples)).sum(0)

    def _call(self, shape: torch.Size, *arguments: Any) -> Tensor:
        wanted = SIGNATURES[self.kind]
        try:
            with torch.enable_grad():
                returned = self.function(*arguments)
        except (Exception, SystemExit) as error:
            raise ValueError(f"the function ({wanted}) raised {described(error)}") from error
        try:
            found = torch.as_tensor(returned)
        except (TypeError, ValueError, RuntimeError):
            got = type(returned).__name__
            raise ValueError(f"the function must be {wanted}, but it returned {got}") from None
        if found.shape != shape:
            got = f"shape {list(found.shape)} instead of {list(shape)}"
            raise ValueError(f"the function must be {wanted}, but it returned {got}")
        return found


def _reference_variance(
    problem: bias.Problem, num_samples: int, target: Target, generator: Generator
) -> Tensor:
    """Return the variance of leave-one-out REINFORCE on this problem, summed over all logits."""
    latent = problem.latent.expand(max(100, min(REFERENCE_DRAWS, 2_000_000 // num_samples)))
    with torch.no_grad():
        found = estimate(LOORF(num_samples, target), problem.objective, latent, generator)
    spread: Tensor = found.grad.double().var(0).sum()
    return spread


def _row(
    problems: Sequence[bias.Problem], target: Target, found: _Found, reference: Tensor | int
) -> AuditRow:
    wide = problems[0].latent.with_logits(problems[0].latent.logits.double())
    exact = torch.stack(
        [oracle.exact_target_gradient(one.objective, wide, target) for one in problems]
    )
    means = torch.stack(found.means)
    calls, mean = len(means), means.mean(0)
    moved = means - means[0]  # exactly 0 for entries that are the same in all calls
    moved = moved - moved.mean(0)
    spread = moved.square().sum(0) / (calls - 1)
    third = moved.pow(3).mean(0)
    # The effective number of calls that cause the variance. It is about a third of all calls if
    # their means are normal, about m if all calls except m returned the same mean, and NaN if all
    # means are equal.
    varied = moved.square().sum(0).square() / moved.pow(4).sum(0)
    # An estimate that never varies may differ from the exact gradient only by rounding.
    rounding = 1e-6 * exact.abs().amax().item()
    scores = skew_corrected(mean - exact, spread, third, calls, rounding)
    sizes = scores.abs()
    variance = (found.squares / found.count - mean.square()).clamp(min=0).sum()
    length = exact.norm()
    along = (mean * exact).sum() / length.square()
    return AuditRow(
        problems[-1].name,
        bias=((mean - exact).norm() / length).item(),
        bias_error=((spread / calls).sum().sqrt() / length).item(),
        along=along.item(),
        across=((mean - along * exact).norm() / length).item(),
        variance=(variance / reference).item(),
        largest_score=sizes.amax().item(),
        varied_score=torch.where(varied >= FEW_CALLS, sizes, 0.0).amax().item(),
        mixed=len(problems) > 1,
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """In this context, all global generators are seeded. Afterwards, their states are restored."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _one_thread() -> Iterator[None]:
    """In this context, PyTorch uses a single thread. Several are slower on small problems."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%" if share < 0.1 else f"{100 * share:.1f}%"
