"""What a user may rely on in an estimator, tested on a live one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.checks.bias import (
    Problem,
    bias_finding,
    check_settings,
    problem_scores,
    special_problems,
    takes_kind,
)
from arms.checks.oracle import (
    exact_target_gradient,
    exact_value,
    expected_estimate,
    random_table,
    smooth_objective,
    table_objective,
)
from arms.checks.verdicts import FAILURE_RATE, Finding, Findings, attempt, judge_score
from arms.estimators import Estimator, TensorObjective, num_samples_of
from arms.estimators.labels import label
from arms.latents import Bits, Enumerable, Latent, OneHot

COUNTS = (1, 2, 3, 4, 8, 12)
"""Numbers of samples that are tried by default, as far as the estimator accepts them."""
USUAL = 8
"""The largest number of samples at which problems other than moderate ones are tried."""
MOST_OUTCOMES = 2_000_000
"""Joint outcomes of a design that are enumerated at most."""

# At logits this far from zero no test with random draws sees anything.
EXACT_BITS = ((0.7, -1.3), (5.0, -0.4), (14.0, -14.0))
EXACT_CATEGORIES = (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((0.0, -14.0, -20.0), (0.3, 0.0, -0.5)))
EXACT_COUNT = 4
"""The largest number of samples at which expectations are enumerated."""
EXACT_LIMIT = 1e-7
"""Relative to each entry of the gradient; rounding errors are far smaller."""


def estimator_findings(
    factory: Callable[[int], Estimator],
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    *,
    num_samples: Sequence[int] | None = None,
    latents: Sequence[Latent] | None = None,
    seed: int = 0,
) -> Findings:
    """Test an estimator, given as a class or any function of num_samples.

    If its design is discrete, the exact expectation over all outcomes is compared with the
    gradient, for up to four samples and at logits up to ±14. Means over many draws are compared at
    every number of samples. At one number of samples, they are also compared at logits of ±5, ±7,
    ±10 and infinity, in float32 among rows of very different scale, and in separate calls with a
    single row and with two rows. Shapes, repeatability and extreme logits are tested too. The
    result says what is not.

    Args:
        factory: Returns the estimator for a number of samples; a class will do.
        draws: Estimates per problem. More draws detect smaller errors, and errors of rarer events.
        failure_rate: How often a correct estimator may fail by chance.
        num_samples: The numbers of samples to test; by default those of `COUNTS` that the estimator
            accepts.
        latents: Where to test, each without batch axes and with few states; by default bits and
            categories, if the estimator takes them.
        seed: Of objectives and draws.

    >>> from arms import LOORF
    >>> estimator_findings(LOORF, draws=1000).passed
    True
    """
    latents = check_settings(draws, failure_rate, seed, latents)
    accepted = _accepted(factory, num_samples)
    first = accepted[0]
    usual = [one for one in accepted if num_samples_of(one) <= USUAL][-1:] or [first]
    generator = torch.Generator().manual_seed(seed)
    findings = _look_around(factory, accepted[-1]) if latents is None else []
    for one in accepted:
        if first.unbiased and num_samples_of(one) <= EXACT_COUNT:
            name = f"exact expectation, n = {num_samples_of(one)}"
            findings += attempt(name, partial(_exact, one, generator, latents))
    problems = list(special_problems(first, generator, latents)) if first.unbiased else []
    names = list(dict.fromkeys(problem.name for problem in problems))
    rate = failure_rate / (len(accepted) + len(names))
    for number, one in enumerate(accepted):
        means = partial(bias_finding, one, draws, rate, 1000 * seed + number, latents)
        findings += attempt(f"unbiased, n = {num_samples_of(one)}", means)
    for name in names:
        alike = [problem for problem in problems if problem.name == name]
        # A baseline that depends on the batch shows most with few samples.
        n = num_samples_of(first if alike[0].separate else usual[0])
        findings += attempt(
            f"{name}, n = {n}", partial(_bias, factory, n, alike, draws, rate, generator)
        )
    counts = ", ".join(str(num_samples_of(one)) for one in accepted)
    subject = f"{label(first)}, num_samples {counts}"
    return Findings(subject, tuple(findings), _not_checked(accepted, latents))


def _exact(
    estimator: Estimator, generator: torch.Generator, latents: Sequence[Latent] | None
) -> list[Finding]:
    """Compare the exact expectation of gradient and value with enumeration of the target."""
    name, worst = f"exact expectation, n = {num_samples_of(estimator)}", 0.0
    problems = list(_exact_problems(estimator, generator, latents))
    for latent, objective in problems:
        if _count_outcomes(estimator, latent) > MOST_OUTCOMES:
            return []
        found = expected_estimate(estimator, objective, latent)
        if found is None:  # continuous noise
            return []
        truth = exact_target_gradient(objective, latent, estimator.target)
        value = exact_value(objective, latent, estimator.target).detach()
        for mean, exact in zip(found, (truth, value), strict=True):
            # Differences of values of order one are rounded at 1e-15.
            error = (mean - exact).abs() / (exact.abs() + 1e-15 / EXACT_LIMIT)
            worst = max(worst, error.max().item() if bool(error.isfinite().all()) else torch.inf)
    if not problems:
        return []
    figure = f"largest relative error over all outcomes is {worst:.1e}, limit {EXACT_LIMIT:.0e}"
    return [Finding(name, worst <= EXACT_LIMIT, figure)]


def _exact_problems(
    estimator: Estimator, generator: torch.Generator, latents: Sequence[Latent] | None
) -> list[tuple[Latent, TensorObjective]]:
    if latents is not None:
        wide = [one.with_logits(one.logits.double()) for one in latents]
        return [(one, smooth_objective(one, generator)) for one in wide]
    found: list[tuple[Latent, TensorObjective]] = []
    for kind, rows in ((Bits, EXACT_BITS), (OneHot, EXACT_CATEGORIES)):
        for row in rows if takes_kind(estimator, kind) else ():
            latent = kind(torch.tensor(row, dtype=torch.float64))
            assert isinstance(latent, Enumerable)
            table = random_table(latent.count_states(), generator)
            found.append((latent, table_objective(table, latent)))
    return found


def _count_outcomes(estimator: Estimator, latent: Latent) -> int:
    """Return a bound on the number of joint outcomes: every sample in every state."""
    assert isinstance(latent, Enumerable)
    return int(latent.count_states() ** estimator.design.num_samples)


def _accepted(
    factory: Callable[[int], Estimator], num_samples: Sequence[int] | None
) -> list[Estimator]:
    """Return the estimators of the numbers that were asked for, or of those in `COUNTS` that are accepted."""
    if not callable(factory) or isinstance(factory, Estimator):
        raise ValueError(
            "factory must be a function of num_samples that returns an estimator, got "
            f"{type(factory).__name__}"
        )
    if num_samples is not None:
        return [_made(factory, n) for n in _counts(num_samples)]
    accepted = [estimator for n in COUNTS if (estimator := _accept(factory, n)) is not None]
    if not accepted:
        raise ValueError(
            f"{factory!r} accepts no num_samples among {COUNTS}: give num_samples that it accepts"
        )
    return accepted


def _counts(num_samples: object) -> list[int]:
    """Return the numbers of samples that were asked for, in order."""
    if not isinstance(num_samples, Sequence) or not num_samples or isinstance(num_samples, str):
        raise ValueError(f"num_samples must be a list of one or more integers, got {num_samples!r}")
    return sorted({as_count(n, 1, "num_samples") for n in num_samples})


def _accept(factory: Callable[[int], Estimator], n: int) -> Estimator | None:
    try:
        made = factory(n)
    except ValueError:
        return None
    return _check_estimator(factory, made)


def _made(factory: Callable[[int], Estimator], n: int) -> Estimator:
    return _check_estimator(factory, factory(n))


def _check_estimator(factory: Callable[[int], Estimator], made: object) -> Estimator:
    if not isinstance(made, Estimator):
        raise ValueError(
            f"{factory!r} must return an estimator for a number of samples, got "
            f"{type(made).__name__}"
        )
    return made


def _bias(
    factory: Callable[[int], Estimator],
    n: int,
    problems: Sequence[Problem],
    draws: int,
    rate: float,
    generator: torch.Generator,
) -> Finding:
    # A fresh estimator every time: parameters, if it has any, may settle on a number of latents.
    scores = torch.cat(
        [problem_scores(factory(n), problem, draws, generator) for problem in problems]
    ).abs()
    return judge_score(f"{problems[0].name}, n = {n}", scores.max().item(), scores.numel(), rate)


def _not_checked(
    accepted: Sequence[Estimator], latents: Sequence[Latent] | None
) -> tuple[str, ...]:
    first = accepted[0]
    notes = [
        "other numbers of samples",
        "finite logits beyond ±10, or beyond ±14 where outcomes are enumerated",
        "more than a few variables",
        "other numbers of categories, and category indices",
        "batches other than of one, two and very many rows",
        "half precision, except at extreme logits",
        "CUDA and torch.compile",
    ]
    if latents is not None:
        notes[1] = "logits other than those given"
    if not first.unbiased:
        notes.append("the value, and any logits but moderate ones, as it is marked biased")
    if any(True for _ in first.parameters()):
        notes.append("parameters other than the initial ones")
    return tuple(notes)


def _look_around(factory: Callable[[int], Estimator], last: Estimator) -> list[Finding]:
    """Return what does not depend on chance: shapes, repeatability, logits at which nothing can happen."""
    findings = []
    for kind in (Bits, OneHot):
        if takes_kind(last, kind):
            checked = [factory(num_samples_of(last)) for _ in range(4)]
            of_kind = "" if kind is Bits else " of categories"
            looks = {
                f"shapes{of_kind}": partial(_shapes, checked[0], kind),
                f"repeatable{of_kind}": partial(_repeatable, checked[1], kind),
                f"extreme logits{of_kind}, float32": partial(
                    _extremes, checked[2], kind, torch.float32
                ),
                f"extreme logits{of_kind}, bfloat16": partial(
                    _extremes, checked[3], kind, torch.bfloat16
                ),
            }
            for name, look in looks.items():
                findings += attempt(name, partial(_named, name, look))
    return findings


def _named(name: str, look: Callable[[], Finding]) -> Finding:
    return replace(look(), name=name)


def _of_kind(kind: type[Latent], logits: Tensor) -> Latent:
    """Return bits of these logits, or choices between two categories of which the first has logit 0."""
    return kind(
        logits if kind is Bits else torch.stack([torch.zeros_like(logits), -logits.abs()], -1)
    )


def _objective(kind: type[Latent]) -> Callable[[Tensor], Tensor]:
    def of_bits(b: Tensor) -> Tensor:
        return (b * torch.arange(1, b.shape[-1] + 1, dtype=b.dtype)).sum(-1).square()

    return of_bits if kind is Bits else lambda z: of_bits(z[..., 0])


def _shapes(estimator: Estimator, kind: type[Latent]) -> Finding:
    for batch in ((), (5,), (2, 3)):
        latent = _of_kind(kind, torch.linspace(-2, 2, 4).expand(*batch, 4))
        logits = latent.logits
        grad, value, values = estimator(_objective(kind), latent, torch.Generator().manual_seed(0))
        attached = grad.requires_grad and not any(True for _ in estimator.parameters())
        if grad.shape != logits.shape or grad.dtype != logits.dtype or attached:
            figure = f"logits {list(logits.shape)} gave a gradient {list(grad.shape)}, {grad.dtype}, expected the same"
            figure += ", detached" if attached else ""
            return Finding("shapes", False, figure)
        if values.shape[1:] != batch or value.shape != batch:
            figure = f"value must have shape {list(batch)} and values [n, ...] of it, got {list(value.shape)} and "
            return Finding("shapes", False, figure + f"{list(values.shape)}")
    return Finding(
        "shapes", True, "grad as the logits, values [n, *batch], for batch (), (5,), (2, 3)"
    )


def _repeatable(estimator: Estimator, kind: type[Latent]) -> Finding:
    latent = _of_kind(kind, torch.linspace(-2, 2, 4).expand(50, 4).contiguous())
    logits = latent.logits
    before, state = logits.clone(), torch.get_rng_state()
    grads = [
        estimator(_objective(kind), latent, torch.Generator().manual_seed(7)).grad for _ in range(2)
    ]
    same = torch.equal(grads[0], grads[1])
    untouched = torch.equal(before, logits) and torch.equal(state, torch.get_rng_state())
    figure = "same generator, same bits; logits and the global generator untouched"
    return Finding(
        "repeatable", same and untouched, figure if same and untouched else f"NOT: {figure}"
    )


def _extremes(estimator: Estimator, kind: type[Latent], dtype: torch.dtype) -> Finding:
    far = torch.tensor([20.0, 90.0, 200.0, torch.inf])
    logits = torch.cat([far, -far]).to(dtype).expand(100, 8)
    grad = estimator(
        _objective(kind), _of_kind(kind, logits), torch.Generator().manual_seed(0)
    ).grad
    certain = grad[:, [2, 3, 6, 7]]  # |logit| >= 200: p is 0 or 1
    passed = bool(grad.isfinite().all()) and bool((certain == 0).all())
    figure = "finite at |logit| 20, 90, 200, inf; zero where p is 0 or 1"
    return Finding(
        f"extreme logits, {str(dtype).removeprefix('torch.')}",
        passed,
        figure if passed else f"NOT: {figure}",
    )
