"""Audits of functions written elsewhere: is the gradient right, and how noisy is it?

A function is called many times on small problems whose exact gradient is known by enumeration. The
unit of the statistics is the call. Rows of one call may therefore share noise or statistics of the
batch, as long as calls are independent of each other.
"""

import math
import random
from collections.abc import Callable, Iterator
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

CALLS = 500  # independent calls per problem; means of fewer are too far from normal
FEW_CALLS = 5  # a mean whose variance comes from fewer calls cannot be told from a rare event
REFERENCE_DRAWS = 20_000  # of LOORF, for its variance
SIGNATURES = {
    "sample": "function(logits) -> differentiable samples like the logits",
    "gradient": "function(objective, logits) -> a gradient like the logits",
    "weights": "function(rewards) -> weights like the rewards",
}
NO_GRADIENT = (
    "no gradient flows from the sample back to the logits: build the sample from the logits with "
    "differentiable torch operations"
)


@dataclass(frozen=True)
class AuditRow:
    """The result on one problem."""

    problem: str
    """The latent, and the objective's number."""
    bias: float
    """Length of the mean estimate minus the gradient, relative to the gradient's length."""
    bias_error: float
    """Standard error of the bias: an unbiased function shows a bias of about this size."""
    along: float
    """The part of the mean estimate along the gradient, as a multiple of the gradient."""
    across: float
    """Length of the part at right angles to the gradient, relative to the gradient's."""
    variance: float
    """Variance of one estimate, summed over all logits, relative to LOORF."""
    largest_score: float
    """The largest |z| of the mean estimate over all logits."""
    varied_score: float
    """The same over the logits whose estimates varied in enough calls for a verdict."""


@dataclass(frozen=True)
class Audit:
    """The findings of an audit; `print` it."""

    subject: str
    """What was audited."""
    kind: Kind
    """What the function returns."""
    rows: tuple[AuditRow, ...]
    """The findings, problem by problem."""
    limit: float
    """The |z| beyond which the function is called biased."""
    failure_rate: float
    """How often an audit of a correct function ends in "biased", if its estimates vary enough."""
    evaluations: float
    """Evaluations of the objective for one estimate."""
    reference: str
    """The estimator that the variance is relative to."""

    @property
    def biased(self) -> bool:
        """Whether any mean is farther from the gradient than its variation explains."""
        return max(row.largest_score for row in self.rows) > self.limit

    @property
    def varied(self) -> bool:
        """Whether the verdict does not hinge on estimates that hardly ever varied."""
        return not self.biased or max(row.varied_score for row in self.rows) > self.limit

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.biased:
            return "biased" if self.varied else "wrong mean, but it hardly varied"
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
            "bias: of the mean estimate, in per cent of the exact gradient's length; ±: its error",
            "along, across: its parts along the gradient (1 is right) and at right angles to it (0)",
            f"variance: relative to {self.reference}; evaluations of f: {self.evaluations:g}",
            f"biased: |z| exceeds {self.limit:.2f}, by chance in one of {chance:,.0f} audits",
            "not audited: other logits, objectives and sizes; half precision; other devices",
        ]
        if not self.varied:
            question = "does it seed itself, or is it almost always zero?"
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
    """Audit a function from anywhere: its bias against enumeration, and its variance.

    The kinds and their signatures, where a row is an independent problem:

    - `"sample"`: `function(logits)` returns samples of the shape of the logits, `[rows, d, K]` for
      categories (one-hot, or relaxed) and `[rows, d]` for bits. Autograd must lead from the samples
      to the logits. What is audited is the gradient of an objective of the samples.
    - `"gradient"`: `function(objective, logits)` returns an estimate of the gradient, of the shape
      of the logits, in the direction of ascent. The objective maps points `[..., rows, d]` to
      values `[..., rows]`, and autograd can differentiate it. The logits require a gradient.
    - `"weights"`: `function(rewards)` turns rewards `[n, rows]` of n independent samples into
      weights of this shape, factor 1/n included. What is audited is the sum of weights times
      gradients of log-probabilities. One of the problems has rewards of 0 and 1.

    The function's randomness must come from the global generators of PyTorch, NumPy or Python,
    which are seeded for the audit and restored afterwards.

    Args:
        function: What is audited.
        kind: What it returns.
        draws: Estimates per problem. More draws detect smaller errors.
        failure_rate: How often a correct function may be called biased by chance. The mean over all
            calls must be nearly normal: not made up of a few rare estimates.
        latent: "bits", "categories", or a latent without batch axes and with few states; by default
            bits for a gradient and categories otherwise.
        num_samples: n, for weights.
        target: What the gradient or the weights are for: `arms.Expectation()`, the default, or
            `arms.BestOf(k)`.
        batched: Whether the function takes a batch of rows. If not, it is called for one estimate
            at a time, with logits `[d]` or rewards `[n]`.
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
        raise ValueError(f"function must be callable, as {SIGNATURES[kind]}, got {got}")
    bias.check_settings(draws, failure_rate, seed, None)
    n, target = as_count(num_samples, 2, "num_samples"), Expectation() if target is None else target
    if target != Expectation() and (kind == "sample" or not isinstance(target, BestOf)):
        wanted = "arms.Expectation()" + ("" if kind == "sample" else " or arms.BestOf(k)")
        raise ValueError(f"the target of {kind} must be {wanted}, got {target!r}")
    if kind == "weights" and isinstance(target, BestOf) and target.k > n:
        raise ValueError(f"the {target} needs num_samples of at least {target.k}, got {n}")
    generator = torch.Generator().manual_seed(seed)
    with _seeded(seed):  # objectives are tried on a sample
        problems = _problems(kind, latent, generator)
    limit = score_limit(sum(one.latent.logits.numel() for one in problems), failure_rate)
    subject = f"{getattr(function, '__module__', '?')}:{getattr(function, '__name__', '?')}"
    caller = _Caller(function, kind, n, batched, generator)
    rows = []
    with _seeded(seed), _one_thread():
        for problem in problems:
            found = caller.estimates(problem, draws)
            evaluations = caller.evaluations
            reference = max(2, math.ceil(evaluations), target.size)
            spread = _reference_variance(problem, reference, target, generator)
            rows.append(_row(problem, target, found, spread))
    name = f"{label(LOORF(reference, target))} with {reference} samples"
    return Audit(subject, kind, tuple(rows), limit, failure_rate, evaluations, name)


def _problems(kind: Kind, latent: object, generator: Generator) -> list[bias.Problem]:
    """Return the problems, in float32 as most functions are used."""
    chosen = latent if latent is not None else "bits" if kind == "gradient" else "categories"
    if isinstance(chosen, Latent):
        bias.check_settings(2, 0.5, 0, [chosen])
        latents = [chosen.detach()] * 2
    elif chosen in ("bits", "categories"):
        cases = bias.BITS if chosen == "bits" else bias.CATEGORIES
        latents = [cases.make(torch.tensor(row)) for row in cases.moderate]
    else:
        raise ValueError(f'latent must be "bits", "categories" or a latent, got {latent!r}')
    found = []
    for number, one in enumerate(latents, 1):
        name = f"{type(one).__name__} {number}"
        narrow = one.with_logits(one.logits.float())
        problem = bias.Problem(name, narrow, oracle.smooth_objective(narrow, generator))
        found.append(problem)
    if kind == "weights":
        found.append(bias.Problem(f"{name}, 0 or 1", narrow, _zero_or_one(problem)))
    return found


def _zero_or_one(problem: bias.Problem) -> TensorObjective:
    """Return 1 where the objective is above its median over all states, and 0 elsewhere."""
    assert isinstance(problem.latent, Enumerable)
    middle = problem.objective(problem.latent.states()).median()
    return lambda b: (problem.objective(b) > middle).double()


@dataclass
class _Found:
    """Sums over the estimates of a problem."""

    means: list[Tensor]  # of each call
    squares: Tensor  # the sum of squares of all estimates
    count: int = 0


class _Caller:
    """Calls the audited function, and says in a sentence what is wrong with its answer."""

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

    def estimates(self, problem: bias.Problem, draws: int) -> _Found:
        one = {"sample": self._of_sample, "gradient": self._of_gradient}.get(
            self.kind, self._of_weights
        )
        rows = max(1, draws // CALLS) if self.batched else 1
        found = _Found([], torch.zeros(()))
        for _ in range(max(CALLS, math.ceil(draws / rows))):
            latent = problem.latent.expand(rows) if self.batched else problem.latent
            grads = one(latent, problem.objective).detach().double()
            grads = grads.reshape(rows, *problem.latent.logits.shape)
            if not grads.isfinite().all():
                raise ValueError(f"the {self.kind} must be finite, got NaN or infinity")
            found.means.append(grads.mean(0))
            found.squares = found.squares + grads.square().sum(0)
            found.count += rows
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
                raise ValueError(f"the objective takes points {wanted}, got {list(given.shape)}")
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
            raise ValueError(f"calling {wanted} raised {described(error)}") from error
        try:
            found = torch.as_tensor(returned)
        except (TypeError, ValueError, RuntimeError):
            got = type(returned).__name__
            raise ValueError(f"must be {wanted}, but it returned {got}") from None
        if found.shape != shape:
            got = f"shape {list(found.shape)} instead of {list(shape)}"
            raise ValueError(f"must be {wanted}, but it returned {got}")
        return found


def _reference_variance(
    problem: bias.Problem, num_samples: int, target: Target, generator: Generator
) -> Tensor:
    """Return the variance of leave-one-out REINFORCE, summed over all logits."""
    latent = problem.latent.expand(max(100, min(REFERENCE_DRAWS, 2_000_000 // num_samples)))
    with torch.no_grad():
        found = estimate(LOORF(num_samples, target), problem.objective, latent, generator)
    spread: Tensor = found.grad.double().var(0).sum()
    return spread


def _row(problem: bias.Problem, target: Target, found: _Found, reference: Tensor) -> AuditRow:
    wide = problem.latent.with_logits(problem.latent.logits.double())
    exact = oracle.exact_target_gradient(problem.objective, wide, target)
    means = torch.stack(found.means)
    calls, mean = len(means), means.mean(0)
    moved = means - means[0]  # exactly 0 where no call differs
    moved = moved - moved.mean(0)
    spread = moved.square().sum(0) / (calls - 1)
    third = moved.pow(3).mean(0)
    # How many calls make up the variance: about a third of all for normal means, and m if all but m
    # returned the same. NaN if all did.
    varied = moved.square().sum(0).square() / moved.pow(4).sum(0)
    # Where an estimate never varies, only rounding may separate it from the truth.
    rounding = 1e-6 * exact.abs().amax().item()
    scores = skew_corrected(mean - exact, spread, third, calls, rounding)
    sizes = scores.abs()
    variance = (found.squares / found.count - mean.square()).clamp(min=0).sum()
    length = exact.norm()
    along = (mean * exact).sum() / length.square()
    return AuditRow(
        problem.name,
        bias=((mean - exact).norm() / length).item(),
        bias_error=((spread / calls).sum().sqrt() / length).item(),
        along=along.item(),
        across=((mean - along * exact).norm() / length).item(),
        variance=(variance / reference).item(),
        largest_score=sizes.amax().item(),
        varied_score=torch.where(varied >= FEW_CALLS, sizes, 0.0).amax().item(),
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed every global generator that a function may use, and restore them afterwards."""
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
    """Use one thread of PyTorch: several are slower on small problems, above all under load."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%" if share < 0.1 else f"{100 * share:.1f}%"
