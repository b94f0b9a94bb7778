"""What a user may rely on in an estimator, tried on a live one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.checks.bias import Problem, check_bias, problem_scores, special_problems
from arms.checks.verdicts import FAILURE_RATE, Finding, Report, attempt, judge_score
from arms.estimators.base import Estimator
from arms.latents import Bernoulli, Latent, OneHot

__all__ = ["COUNTS", "check_estimator"]

COUNTS = (1, 2, 3, 4, 8, 12)
"""Numbers of samples that are tried unless others are given, as far as the estimator accepts them."""
USUAL = 8
"""The largest number of samples at which problems other than moderate ones are tried."""


def check_estimator(
    factory: Callable[[int], Estimator],
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    *,
    num_samples: Sequence[int] | None = None,
    latents: Sequence[Latent] | None = None,
    seed: int = 0,
) -> Report:
    """Test an estimator, given as a class or any function of num_samples.

    Its mean is compared with enumeration at every number of samples. With one number of samples, it is also compared
    at logits of ±5, ±7, ±10 and infinity, in float32 among rows of very different scale, and in separate calls with a
    single row and with two rows. Shapes, repeatability and extreme logits are tested too. The report says what is not.

    Args:
        factory: Makes the estimator of a number of samples; a class will do.
        draws: Estimates per problem. More draws detect smaller errors, and errors of rarer events.
        failure_rate: How often a correct estimator may fail by chance.
        num_samples: The numbers of samples to test; those of `COUNTS` that the estimator accepts, unless given.
        latents: Where to test, each without batch axes and with few states. Unless given, bits and categories, as the
            estimator takes them.
        seed: Of objectives and draws.

    >>> from arms import LOORF
    >>> check_estimator(LOORF, draws=1000).passed
    True
    """
    accepted = _accepted(factory, num_samples)
    first = accepted[0]
    usual = [one for one in accepted if one.num_samples <= USUAL][-1:] or [first]
    generator = torch.Generator().manual_seed(seed)
    problems = list(special_problems(first, generator, latents)) if first.unbiased else []
    findings = _look_around(factory, accepted[-1]) if latents is None else []
    names = list(dict.fromkeys(problem.name for problem in problems))
    rate = failure_rate / (len(accepted) + len(names))
    for number, one in enumerate(accepted):
        look = partial(check_bias, one, draws, rate, 1000 * seed + number, latents)
        findings += attempt(f"unbiased, n = {one.num_samples}", look)
    for name in names:
        alike = [problem for problem in problems if problem.name == name]
        # A baseline that depends on the batch shows most with few samples.
        n = (first if alike[0].separate else usual[0]).num_samples
        findings += attempt(f"{name}, n = {n}", partial(_bias, factory, n, alike, draws, rate, generator))
    counts = ", ".join(str(one.num_samples) for one in accepted)
    return Report(f"{type(first).__name__}, num_samples {counts}", tuple(findings), _not_checked(accepted, latents))


def _accepted(factory: Callable[[int], Estimator], num_samples: Sequence[int] | None) -> list[Estimator]:
    """Return the estimators of the numbers that were asked for, or of those in `COUNTS` that are accepted."""
    if num_samples is not None:
        if not num_samples:
            raise ValueError("num_samples must name at least one number of samples, got none")
        return [factory(as_count(n, 1, "num_samples")) for n in sorted(set(num_samples))]
    accepted = [estimator for n in COUNTS if (estimator := _accept(factory, n)) is not None]
    if not accepted:
        raise ValueError(f"{factory!r} accepts no num_samples among {COUNTS}: give num_samples that it accepts")
    return accepted


def _accept(factory: Callable[[int], Estimator], n: int) -> Estimator | None:
    try:
        return factory(n)
    except ValueError:
        return None


def _bias(
    factory: Callable[[int], Estimator],
    n: int,
    problems: Sequence[Problem],
    draws: int,
    rate: float,
    generator: torch.Generator,
) -> Finding:
    # A fresh estimator every time: parameters, if it has any, may settle on a number of latents.
    scores = torch.cat([problem_scores(factory(n), problem, draws, generator) for problem in problems]).abs()
    return judge_score(f"{problems[0].name}, n = {n}", scores.max().item(), scores.numel(), rate)


def _not_checked(accepted: Sequence[Estimator], latents: Sequence[Latent] | None) -> tuple[str, ...]:
    first = accepted[0]
    notes = [
        "other numbers of samples",
        "finite logits beyond ±10",
        "more latents than a few",
        "CUDA and torch.compile",
    ]
    if latents is not None:
        notes[1] = "logits other than those given"
    if not first.unbiased:
        notes.append("the value, and any logits but moderate ones, as it is marked biased")
    if first.has_parameters:
        notes.append("parameters other than the initial ones")
    return tuple(notes)


def _look_around(factory: Callable[[int], Estimator], last: Estimator) -> list[Finding]:
    """Return what does not depend on chance: shapes, repeatability, logits at which nothing can happen."""
    findings = []
    for kind in (Bernoulli, OneHot):
        if issubclass(kind, last.latents):
            checked = [factory(last.num_samples) for _ in range(4)]
            of_kind = "" if kind is Bernoulli else " of categories"
            looks = {
                f"shapes{of_kind}": partial(_shapes, checked[0], kind),
                f"repeatable{of_kind}": partial(_repeatable, checked[1], kind),
                f"extreme logits{of_kind}, float32": partial(_extremes, checked[2], kind, torch.float32),
                f"extreme logits{of_kind}, bfloat16": partial(_extremes, checked[3], kind, torch.bfloat16),
            }
            for name, look in looks.items():
                findings += attempt(name, partial(_named, name, look))
    return findings


def _named(name: str, look: Callable[[], Finding]) -> Finding:
    return replace(look(), name=name)


def _of_kind(kind: type[Latent], logits: Tensor) -> Latent:
    """Return bits of these logits, or choices between two categories of which the first has logit 0."""
    return kind(logits if kind is Bernoulli else torch.stack([torch.zeros_like(logits), -logits.abs()], -1))


def _objective(kind: type[Latent]) -> Callable[[Tensor], Tensor]:
    def of_bits(b: Tensor) -> Tensor:
        return (b * torch.arange(1, b.shape[-1] + 1, dtype=b.dtype)).sum(-1).square()

    return of_bits if kind is Bernoulli else lambda z: of_bits(z[..., 0])


def _shapes(estimator: Estimator, kind: type[Latent]) -> Finding:
    for batch in ((), (5,), (2, 3)):
        latent = _of_kind(kind, torch.linspace(-2, 2, 4).expand(*batch, 4))
        logits = latent.logits
        grad, value, values = estimator(_objective(kind), latent, torch.Generator().manual_seed(0))
        attached = grad.requires_grad and not estimator.has_parameters
        if grad.shape != logits.shape or grad.dtype != logits.dtype or attached:
            figure = f"logits {list(logits.shape)} gave a gradient {list(grad.shape)}, {grad.dtype}, expected the same"
            figure += ", detached" if attached else ""
            return Finding("shapes", False, figure)
        if values.shape[1:] != batch or value.shape != batch:
            figure = f"value must have shape {list(batch)} and values [n, ...] of it, got {list(value.shape)} and "
            return Finding("shapes", False, figure + f"{list(values.shape)}")
    return Finding("shapes", True, "grad as the logits, values [n, *batch], for batch (), (5,), (2, 3)")


def _repeatable(estimator: Estimator, kind: type[Latent]) -> Finding:
    latent = _of_kind(kind, torch.linspace(-2, 2, 4).expand(50, 4).contiguous())
    logits = latent.logits
    before, state = logits.clone(), torch.get_rng_state()
    grads = [estimator(_objective(kind), latent, torch.Generator().manual_seed(7)).grad for _ in range(2)]
    same = torch.equal(grads[0], grads[1])
    untouched = torch.equal(before, logits) and torch.equal(state, torch.get_rng_state())
    figure = "same generator, same bits; logits and the global generator untouched"
    return Finding("repeatable", same and untouched, figure if same and untouched else f"NOT: {figure}")


def _extremes(estimator: Estimator, kind: type[Latent], dtype: torch.dtype) -> Finding:
    far = torch.tensor([20.0, 90.0, 200.0, torch.inf])
    logits = torch.cat([far, -far]).to(dtype).expand(100, 8)
    grad = estimator(_objective(kind), _of_kind(kind, logits), torch.Generator().manual_seed(0)).grad
    certain = grad[:, [2, 3, 6, 7]]  # |logit| >= 200: p is 0 or 1
    passed = bool(grad.isfinite().all()) and bool((certain == 0).all())
    figure = "finite at |logit| 20, 90, 200, inf; zero where p is 0 or 1"
    return Finding(
        f"extreme logits, {str(dtype).removeprefix('torch.')}", passed, figure if passed else f"NOT: {figure}"
    )
