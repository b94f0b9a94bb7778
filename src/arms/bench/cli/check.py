"""Verbs for estimators and couplings: check, estimators."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from arms import checks
from arms.arguments import as_count, described, unknown_name
from arms.bench.cli.console import print_plain, print_table
from arms.bench.cli.own import find_attribute
from arms.bench.runs.machine import is_out_of_memory
from arms.checks.estimator import COUNTS
from arms.designs import COUPLINGS, Coupling
from arms.estimators import (
    ALL_ESTIMATORS,
    BIASED_ESTIMATORS,
    DEFAULT_NUM_SAMPLES,
    ENTRIES,
    ESTIMATORS,
    Estimator,
    as_estimator,
    resolve,
)
from arms.latents import Enumerable, Latent

COLOURS = {"pass": "[green]", "FAIL": "[bold red]"}
MIN_DRAWS = 1000
"""With fewer, a mean of draws is too far from normal for its z-score to mean anything."""
MOST_DRAWS = 10**9
MOST_SAMPLES = 10**6
"""More samples than that per estimate do not fit into memory with the draws of a test."""
MOST_SEED = 10**15
"""Seeds of single tests are a thousand times as large, and must fit into 63 bits."""
MOST_STATES = 1024
"""Joint states of a latent that are enumerated."""


def check(
    subject: Annotated[str, tyro.conf.Positional],
    /,
    num_samples: tuple[int, ...] = (),
    latent: Annotated[
        str | None, tyro.conf.arg(metavar="MODULE:NAME", help_behavior_hint="(default: none)")
    ] = None,
    draws: int = 100_000,
    failure_rate: float = checks.verdicts.FAILURE_RATE,
    seed: int = 0,
) -> None:
    """Check an estimator or a coupling against enumeration: bias, value, correlation, extreme logits, repeatability.

    The output ends with what is not checked.

    Args:
        subject: A name (see `arms estimators`), or module:attribute of your own class, imported from this folder too.
        num_samples: The numbers of samples to check; several small ones unless given.
        latent: module:attribute of a latent of your own, without batch axes and with few states, to check an estimator
            on; bits and categories unless given.
        draws: Draws per statistical test, at least 1,000; more draws detect smaller errors.
        failure_rate: How often a correct subject may fail by chance.
        seed: Of the draws.
    """
    if as_count(draws, MIN_DRAWS, "--draws") > MOST_DRAWS:
        raise ValueError(f"--draws must be at most {MOST_DRAWS:,}, got {draws:.1e}")
    if as_count(seed, 0, "--seed") > MOST_SEED:
        raise ValueError(f"--seed must be an integer from 0 to {MOST_SEED:.0e}, got {seed:.1e}")
    if not 0 < failure_rate < 1:
        raise ValueError(f"--failure-rate must lie between 0 and 1, got {failure_rate}")
    counts = [as_count(n, 1, "--num-samples") for n in num_samples] or None
    if counts and max(counts) > MOST_SAMPLES:
        raise ValueError(
            f"--num-samples must be at most {MOST_SAMPLES:,}, got {max(counts):,}: check fewer samples"
        )
    checked = _find(subject, counts)
    if isinstance(checked, Coupling) and latent is not None:
        raise ValueError(
            "--latent is for estimators; a coupling is checked on bits and categories: leave it out"
        )
    latents = None if latent is None else [_find_latent(latent)]
    try:
        verdict = _verdict(checked, counts, latents, draws, failure_rate, seed)
    except SystemExit as stop:
        raise ValueError(
            f"{subject!r} must run to its end, got {described(stop)}: let it raise an error instead"
        ) from None
    _check_memory(verdict)
    table = Table("check", "verdict", "figure", title=f"{subject}: {verdict.subject}")
    for finding in verdict.findings:
        word = f"{COLOURS.get(finding.verdict, '[yellow]')}{finding.verdict}"
        table.add_row(finding.name, word, escape(finding.figure))
    print_table(table)
    if verdict.not_checked:
        print_plain(f"Not checked: {'; '.join(verdict.not_checked)}.")
    if not verdict.passed:
        raise SystemExit(1)


def _verdict(
    checked: Coupling | Callable[[int], Estimator],
    counts: Sequence[int] | None,
    latents: Sequence[Latent] | None,
    draws: int,
    failure_rate: float,
    seed: int,
) -> checks.Findings:
    if isinstance(checked, Coupling):
        chosen = {"counts": counts} if counts else {}
        return checks.coupling_findings(
            checked, draws=draws, failure_rate=failure_rate, seed=seed, **chosen
        )
    return checks.estimator_findings(
        checked, draws, failure_rate, num_samples=counts, latents=latents, seed=seed
    )


def _check_memory(verdict: checks.Findings) -> None:
    """Raise if a check has failed for want of memory, which says nothing about the subject."""
    for finding in verdict.findings:
        if finding.verdict == "FAIL" and is_out_of_memory(RuntimeError(finding.figure)):
            raise ValueError(
                f"the check {finding.name!r} does not fit into memory: check fewer samples "
                "(--num-samples), or make fewer draws (--draws)"
            )


def estimators() -> None:
    """List every estimator: evaluations and derivatives with 8 samples, and where it was published."""
    bound = [name for name, make in ESTIMATORS.items() if _is_of_bound(make)]
    expectation = [name for name in ESTIMATORS if name not in bound]
    print_table(_listing(expectation, "unbiased, gradient of the expectation"))
    print_table(_listing(bound, "unbiased, gradient of the importance-weighted bound"))
    title = "biased, for comparison; not part of any default comparison"
    print_table(_listing(BIASED_ESTIMATORS, title))


def _is_of_bound(make: Callable[[int], Estimator]) -> bool:
    return make(DEFAULT_NUM_SAMPLES).target.subtracts_log_q


def _listing(names: Iterable[str], title: str) -> Table:
    table = Table("name", "tier", "evals", "derivs", "reference", title=title)
    for name in names:
        needs = ALL_ESTIMATORS[name](DEFAULT_NUM_SAMPLES).design.needs
        entry = ENTRIES.get(name)
        evaluations = "all" if needs.evaluations is None else str(needs.evaluations)
        tier, reference = (entry.tier, entry.reference) if entry else ("", "")
        table.add_row(name, tier, evaluations, str(needs.derivatives), escape(reference))
    return table


def _find_latent(subject: str) -> Latent:
    """Return the latent that a user has named, or that the function of that name makes."""
    found = find_attribute(subject)
    if not isinstance(found, Latent) and callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{subject!r} cannot be called without arguments: {described(error)}; give a latent"
            ) from None
    if not isinstance(found, Latent):
        raise ValueError(
            f"{subject!r} must be a latent or a function that makes one, got {type(found).__name__}"
        )
    if found.batch_shape:
        raise ValueError(
            f"{subject!r} must have no batch axes, got {list(found.batch_shape)}: give a single row"
        )
    if not isinstance(found, Enumerable):
        raise ValueError(
            f"{subject!r} must list its joint states, got {type(found).__name__} without any"
        )
    if found.count_states() > MOST_STATES:
        raise ValueError(
            f"{subject!r} must have at most {MOST_STATES} joint states, got {found.count_states()}"
        )
    return found


def _find(subject: str, counts: Sequence[int] | None) -> Coupling | Callable[[int], Estimator]:
    """Return the coupling, or the function from num_samples to an estimator, that a user has named."""
    name, options = resolve(subject)
    if name in ALL_ESTIMATORS:
        return lambda n: as_estimator(name, n, **options)
    if subject in COUPLINGS:
        return COUPLINGS[subject]()
    if ":" not in subject:
        raise unknown_name(
            "estimator or coupling",
            subject,
            [*ALL_ESTIMATORS, *COUPLINGS],
            or_else="module:Class of your own",
        )
    loaded = find_attribute(subject)
    if isinstance(loaded, Coupling):
        return loaded
    if inspect.isclass(loaded) and issubclass(loaded, Coupling):
        try:
            return loaded()
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"cannot make {subject!r}: {described(error)}; give a coupling object instead of its class"
            ) from None
    _check_makes_estimators(subject, loaded, counts)
    return loaded  # type: ignore[no-any-return]


def _check_makes_estimators(subject: str, loaded: object, counts: Sequence[int] | None) -> None:
    if isinstance(loaded, Estimator):
        raise ValueError(
            f"{subject!r} is one estimator, but several budgets are checked: give its class, or a function"
        )
    remedy = "give a coupling, or a function of num_samples that returns an estimator"
    if not callable(loaded):
        raise ValueError(
            f"{subject!r} must be a coupling or a function, got {type(loaded).__name__}: {remedy}"
        )
    for n in counts or COUNTS:
        try:
            made = loaded(n)
        except ValueError:  # this estimator does not take such a budget
            continue
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{subject!r} cannot be called with num_samples alone: {described(error)}; {remedy}"
            ) from None
        if not isinstance(made, Estimator):
            raise ValueError(
                f"{subject!r} must return an estimator, got {type(made).__name__}: {remedy}"
            )
