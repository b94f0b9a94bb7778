"""Test an estimator or a coupling: bias, shapes, reproducibility, extreme logits."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from arms.arguments import described, unknown_name
from arms.checks import bias
from arms.checks.coupling import coupling_findings
from arms.checks.oracle import exact_target_gradient, exact_value, expected_estimate
from arms.checks.verdicts import FAILURE_RATE, Finding, Findings, attempt, call, judge_scores
from arms.designs import COUPLINGS, Coupling
from arms.estimators import ALL_ESTIMATORS, Estimator, as_estimator, num_samples_of, resolve
from arms.estimators.registry import label
from arms.latents import Bits, Enumerable, Latent

Factory = Callable[[int], Estimator]

COUNTS = (1, 2, 3, 4, 8, 12)  # the default n; numbers that the estimator rejects are skipped
MOST_SAMPLES = 10**6  # the draws of a test with more samples do not fit into memory
USUAL = 8  # the most samples in tests with special problems
MOST_OUTCOMES = 2_000_000  # designs with more joint outcomes are not enumerated
EXACT_COUNT = 4  # the most samples in tests of exact expectations
EXACT_LIMIT = 1e-7  # relative to each entry of the gradient; rounding errors are far smaller


def findings(
    subject: str | Factory | Coupling | type[Coupling],
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    *,
    num_samples: Sequence[int] | None = None,
    latents: Sequence[Latent] | None = None,
    seed: int = 0,
) -> Findings:
    """Test an estimator or a coupling by enumeration and by many draws.

    **Estimators.** If the design has finitely many outcomes, the exact expectation of the estimate
    is compared with the gradient, for up to four samples and logits up to ±14. For every number of
    samples, the mean of many estimates is compared with the gradient. Further comparisons use a
    single number of samples: at large logits, in float32, and with one or two rows per call. Other
    tests cover shapes, reproducibility and extreme logits. The result lists properties that were
    not tested.

    **Couplings.** For bits, the tests cover marginals, correlation, counts, exchangeability,
    independence between latents and extreme logits. For categories, they cover marginals and the
    correction.

    Args:
        subject: The name of an estimator or a coupling, a coupling object, or a function that makes
            an estimator for a number of samples, such as its class.
        draws: The number of estimates per problem. More draws detect smaller and rarer errors.
        failure_rate: The accepted probability that a correct subject fails.
        num_samples: The numbers of samples to test, at most 12 for a coupling. The default is
            several small numbers that the subject accepts.
        latents: Latents to test an estimator on, without batch axes and with few states. The
            default is bits and categories, if the estimator accepts them.
        seed: The seed of objectives and draws.

    >>> from arms import LOORF
    >>> findings(LOORF, draws=1000).passed, findings("systematic", draws=1000).passed
    (True, True)
    """
    latents = bias.check_settings(draws, failure_rate, seed, latents)
    if not isinstance(num_samples, None | Sequence) or num_samples in ("", [], ()):
        raise ValueError(f"num_samples must be a list of one or more integers, got {num_samples!r}")
    counts = sorted({bias.as_bounded(n, 1, MOST_SAMPLES, "num_samples") for n in num_samples or ()})
    found: Any = _find(subject) if isinstance(subject, str) else subject
    if inspect.isclass(found) and issubclass(found, Coupling):
        found = call(found, "pass a coupling object instead of its class")
    if not isinstance(found, Coupling):
        return _estimator_findings(found, draws, failure_rate, counts, latents, seed)
    if latents is not None:
        what = "latents can only be given to check an estimator, and the subject is a coupling"
        raise ValueError(f"{what}: remove the latents argument")
    return coupling_findings(found, draws, failure_rate, counts, seed)


def _find(name: str) -> Factory | Coupling:
    if resolve(name)[0] in ALL_ESTIMATORS:
        return partial(as_estimator, name)
    if name not in COUPLINGS:
        known = [*ALL_ESTIMATORS, *COUPLINGS]
        raise unknown_name("estimator or coupling", name, known, or_else="your own as module:Class")
    return COUPLINGS[name]()


def _estimator_findings(
    factory: Factory,
    draws: int,
    failure_rate: float,
    counts: Sequence[int],
    latents: Sequence[Latent] | None,
    seed: int,
) -> Findings:
    accepted = _accepted(factory, counts)
    first, last = accepted[min(accepted)], max(accepted)
    usual = max((n for n in accepted if n <= USUAL), default=min(accepted))
    generator = torch.Generator().manual_seed(seed)
    found: list[Finding] = []
    for cases in bias.cases_of(accepted[last]) if latents is None else ():
        for name, test in CERTAIN.items():
            found += attempt(name.format(cases.suffix), test, factory(last), cases)
    for n, one in accepted.items():
        if first.unbiased and n <= EXACT_COUNT:
            name = f"exact expectation, n = {n}"
            found += attempt(name, _test_exactly, one, generator, latents)
    special: dict[str, list[bias.Problem]] = {}
    for problem in bias.special_problems(first, generator, latents) if first.unbiased else ():
        special.setdefault(problem.name, []).append(problem)
    rate = failure_rate / (len(accepted) + len(special))
    for number, (n, one) in enumerate(accepted.items()):
        own_seed = 1000 * seed + number
        arguments = (one, draws, rate, own_seed, latents)
        found += attempt(f"unbiased, n = {n}", bias.bias_finding, *arguments)
    for name, alike in special.items():
        # If a baseline depends on other rows, its bias is largest with few samples.
        n = min(accepted) if alike[0].separate else usual
        # Each problem needs a new estimator, because lazy parameters take the shape of the latent.
        scores = (bias.problem_scores(factory(n), one, draws, generator) for one in alike)
        found += attempt(f"{name}, n = {n}", judge_scores, scores, rate)
    subject = f"{label(first)}, num_samples {', '.join(map(str, accepted))}"
    return Findings(subject, tuple(found), _not_checked(first, latents))


def _not_checked(estimator: Estimator, latents: Sequence[Latent] | None) -> tuple[str, ...]:
    far = "finite logits beyond ±10, or beyond ±14 where outcomes are enumerated"
    far = far if latents is None else "logits other than those given"
    notes = ["other numbers of samples", far, "more than a few variables"]
    notes += ["other numbers of categories, and category indices"]
    notes += ["batches of other sizes than one, two and very many rows"]
    notes += ["half precision, except at extreme logits", "CUDA and torch.compile"]
    if not estimator.unbiased:
        notes.append("the value, and large logits, because the estimator is labeled biased")
    if any(True for _ in estimator.parameters()):
        notes.append("parameters other than the initial ones")
    return tuple(notes)


def _accepted(factory: object, counts: Sequence[int]) -> dict[int, Estimator]:
    """Return a dictionary that maps each number of samples n to the estimator `factory(n)`.

    The numbers are `counts`. If `counts` is empty, they are all numbers in `COUNTS` that the
    factory accepts.
    """
    remedy = "pass a coupling, or a function of num_samples such as an estimator's class"
    if not callable(factory) or isinstance(factory, Estimator):
        got = type(factory).__name__
        wanted = "a coupling or a function that makes estimators"
        raise ValueError(f"subject must be {wanted}, got {got}: {remedy}")
    accepted = {}
    for n in counts or COUNTS:
        try:
            made = factory(n)
        except ValueError:  # this estimator does not take so many samples
            if counts:
                raise
            continue
        except (Exception, SystemExit) as error:
            what = f"subject must return an estimator for num_samples={n}, but {factory!r}({n})"
            raise ValueError(f"{what} raised {described(error)}: {remedy}") from error
        if not isinstance(made, Estimator):
            got = type(made).__name__
            raise ValueError(f"{factory!r} must return an estimator, got {got}: {remedy}")
        accepted[num_samples_of(made)] = made
    if not accepted:
        what = (
            f"{factory!r} accepts none of the values {COUNTS} of num_samples, which are the default"
        )
        raise ValueError(f"{what}: pass num_samples= with values that it accepts")
    return accepted


def _test_exactly(
    estimator: Estimator, generator: Generator, latents: Sequence[Latent] | None
) -> tuple[bool, str] | list[Finding]:
    """Compare the expectations of the estimated gradient and value with the exact results.

    All numbers are computed by enumeration. Return an empty list if the outcomes of the design
    cannot be enumerated.
    """
    rows = [(cases, row) for cases in bias.cases_of(estimator, latents) for row in cases.exact]
    problems = [bias.make_problem("exact", cases, row, generator) for cases, row in rows]
    worst = 0.0
    for problem in problems:
        objective, latent, target = problem.objective, problem.latent, estimator.target
        assert isinstance(latent, Enumerable)
        if latent.count_states() ** estimator.design.num_samples > MOST_OUTCOMES:
            return []
        found = expected_estimate(estimator, objective, latent)
        if found is None:  # continuous noise
            return []
        value = exact_value(objective, latent, target).detach()
        truth = (exact_target_gradient(objective, latent, target), value)
        for mean, exact in zip(found, truth, strict=True):
            # The rounding error of values of order one is about 1e-15.
            error = (mean - exact).abs() / (exact.abs() + 1e-15 / EXACT_LIMIT)
            worst = max(worst, error.nan_to_num(torch.inf, torch.inf).max().item())
    figure = f"largest relative error over all outcomes is {worst:.1e}, limit {EXACT_LIMIT:.0e}"
    return (worst <= EXACT_LIMIT, figure) if problems else []


def _example(cases: bias.Cases, logits: Tensor) -> tuple[Latent, Callable[[Tensor], Tensor]]:
    """Return a latent of the kind that `cases` tests, and an objective for this latent.

    The latent consists of bits with the given logits, or of choices between two categories, whose
    logits are 0 and -|logit|.
    """
    is_bits = cases.make is Bits
    pairs = torch.stack([torch.zeros_like(logits), -logits.abs()], -1)
    weights = torch.arange(1, logits.shape[-1] + 1)

    def objective(b: Tensor) -> Tensor:
        return ((b if is_bits else b[..., 0]) * weights.to(b.dtype)).sum(-1).square()

    return cases.make(logits if is_bits else pairs), objective


def _test_shapes(estimator: Estimator, cases: bias.Cases) -> tuple[bool, str]:
    passed = True
    for batch in ((), (5,), (2, 3)):
        latent, objective = _example(cases, torch.linspace(-2, 2, 4).expand(*batch, 4))
        grad, value, values = estimator(objective, latent, torch.Generator().manual_seed(0))
        detached = not grad.requires_grad or any(True for _ in estimator.parameters())
        alike = grad.shape == latent.logits.shape and grad.dtype == latent.logits.dtype
        passed &= alike and detached and values.shape[1:] == value.shape == batch
    return passed, "grad must have the logits' shape and dtype, values [n, *batch]; 3 batch shapes"


def _test_repeatable(estimator: Estimator, cases: bias.Cases) -> tuple[bool, str]:
    latent, objective = _example(cases, torch.linspace(-2, 2, 4).expand(50, 4).contiguous())
    before, state = latent.logits.clone(), torch.get_rng_state()
    seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
    first, second = (estimator(objective, latent, seed).grad for seed in seeds)
    untouched = torch.equal(before, latent.logits) and torch.equal(state, torch.get_rng_state())
    figure = "equal generators must give equal results; logits and global RNG must not change"
    return torch.equal(first, second) and untouched, figure


def _test_extremes(dtype: torch.dtype, estimator: Estimator, cases: bias.Cases) -> tuple[bool, str]:
    far = torch.tensor([20.0, 90.0, 200.0, torch.inf])
    latent, objective = _example(cases, torch.cat([far, -far]).to(dtype).expand(100, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # half precision causes warnings, but is intended here
        grad = estimator(objective, latent, torch.Generator().manual_seed(0)).grad
    certain = grad[:, [2, 3, 6, 7]]  # |logit| >= 200: p is 0 or 1
    passed = bool(grad.isfinite().all()) and bool((certain == 0).all())
    return passed, "grad must be finite at |logit| 20, 90, 200 and inf, and zero if p is 0 or 1"


# The verdicts of these tests do not depend on chance. In a name, {} stands for the cases' suffix.
CERTAIN: dict[str, Callable[[Estimator, bias.Cases], tuple[bool, str]]] = {
    "shapes{}": _test_shapes,
    "repeatable{}": _test_repeatable,
    "extreme logits{}, float32": partial(_test_extremes, torch.float32),
    "extreme logits{}, bfloat16": partial(_test_extremes, torch.bfloat16),
}
