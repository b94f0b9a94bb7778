"""Verbs for estimators and couplings: check, estimators."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated

import rich
import tyro
from rich.markup import escape
from rich.table import Table

from arms import checks
from arms.arguments import as_count, unknown_name
from arms.bench.cli.own import find_attribute
from arms.checks.estimator import COUNTS
from arms.couplings import COUPLINGS, BinaryCoupling
from arms.estimators import ALIASES, ALL_ESTIMATORS, BIASED_ESTIMATORS, DEFAULT_NUM_SAMPLES, ESTIMATORS, Estimator

__all__ = ["COLOURS", "MIN_DRAWS", "check", "estimators"]

COLOURS = {"pass": "[green]", "FAIL": "[bold red]"}
MIN_DRAWS = 1000
"""With fewer, a mean of draws is too far from normal for its z-score to mean anything."""


def check(
    subject: Annotated[str, tyro.conf.Positional],
    /,
    draws: int = 100_000,
    failure_rate: float = checks.verdicts.FAILURE_RATE,
) -> None:
    """Check an estimator or a coupling: bias against enumeration, correlation, extreme logits, repeatability.

    Args:
        subject: A name (see `arms estimators`), or module:attribute of your own class, imported from this folder too.
        draws: Draws per statistical test, at least 1,000; more draws detect smaller errors.
        failure_rate: How often a correct subject may fail by chance.
    """
    as_count(draws, MIN_DRAWS, "--draws")
    if not 0 < failure_rate < 1:
        raise ValueError(f"--failure-rate must lie between 0 and 1, got {failure_rate}")
    checked = _find(subject)
    if isinstance(checked, BinaryCoupling):
        verdict = checks.check_coupling(checked, draws=draws, failure_rate=failure_rate)
    else:
        verdict = checks.check_estimator(checked, draws=draws, failure_rate=failure_rate)
    table = Table("check", "verdict", "figure", title=f"{subject}: {verdict.subject}")
    for finding in verdict.findings:
        word = f"{COLOURS.get(finding.verdict, '[yellow]')}{finding.verdict}"
        table.add_row(finding.name, word, escape(finding.figure))
    rich.print(table)
    if not verdict.passed:
        raise SystemExit(1)


def estimators() -> None:
    """List every estimator with its formula and reference; the biased baselines in a table of their own."""
    rich.print(_listing(ESTIMATORS, "unbiased"))
    rich.print(_listing(BIASED_ESTIMATORS, "biased: baselines to compare with, in no default comparison"))


def _listing(registry: Mapping[str, Callable[[int], Estimator]], title: str) -> Table:
    table = Table("name", "gradient of the", "estimate", "smallest n", "reference", title=title)
    for name, factory in registry.items():
        one = factory(DEFAULT_NUM_SAMPLES)
        reference = getattr(one, "coupling", one).reference  # the coupling is what tells one ARMS from another
        smallest = f"{one.min_samples}{', even' if one.even_samples else ''}"
        table.add_row(name, str(one.target), escape(one.formula), smallest, reference)
    return table


def _find(subject: str) -> BinaryCoupling | Callable[[int], Estimator]:
    """Return the coupling, or the function from num_samples to an estimator, that a user has named."""
    subject = ALIASES.get(subject, subject)
    if subject in ALL_ESTIMATORS:
        return ALL_ESTIMATORS[subject]
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
    if isinstance(loaded, BinaryCoupling):
        return loaded
    if inspect.isclass(loaded) and issubclass(loaded, BinaryCoupling):
        try:
            return loaded()
        except Exception as error:
            raise ValueError(f"cannot make {subject!r}: {error}; give a coupling object instead of its class") from None
    _check_makes_estimators(subject, loaded)
    return loaded  # type: ignore[no-any-return]


def _check_makes_estimators(subject: str, loaded: object) -> None:
    if isinstance(loaded, Estimator):
        raise ValueError(
            f"{subject!r} is one estimator, but several budgets are checked: give its class, or a function"
        )
    remedy = "give a coupling, or a function of num_samples that returns an estimator"
    if not callable(loaded):
        raise ValueError(f"{subject!r} must be a coupling or a function, got {type(loaded).__name__}: {remedy}")
    for n in COUNTS:
        try:
            made = loaded(n)
        except ValueError:  # this estimator does not take such a budget
            continue
        except Exception as error:
            raise ValueError(f"{subject!r} cannot be called with num_samples alone: {error}; {remedy}") from None
        if not isinstance(made, Estimator):
            raise ValueError(f"{subject!r} must return an estimator, got {type(made).__name__}: {remedy}")
