"""Verbs that look at estimators: check, estimators."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated

import rich
import tyro
from rich.markup import escape
from rich.table import Table

from arms import checks
from arms.arguments import as_count
from arms.checks.estimator import COUNTS
from arms.couplings import COUPLINGS, BinaryCoupling
from arms.estimators import DEFAULT_NUM_SAMPLES, ESTIMATORS, Estimator

COLOURS = {"pass": "[green]", "FAIL": "[bold red]"}
LEAST_DRAWS = 1000
"""With fewer, a mean of draws is too far from normal for its score to mean anything."""


def check(
    subject: Annotated[str, tyro.conf.Positional],
    /,
    draws: int = 100_000,
    failure_rate: float = checks.verdicts.FAILURE_RATE,
) -> None:
    """Check an estimator or a coupling: bias against enumeration, correlation, extreme logits, repeatability.

    Args:
        subject: A name (see `arms estimators`), or module:attribute of your own class, found from this folder too.
        draws: Draws per statistical test, at least 1,000; more draws see smaller errors.
        failure_rate: How often a correct subject may fail by chance.
    """
    as_count(draws, LEAST_DRAWS, "--draws")
    if not 0 < failure_rate < 1:
        raise ValueError(f"--failure-rate must lie between 0 and 1, got {failure_rate}")
    found = _find(subject)
    if isinstance(found, BinaryCoupling):
        report = checks.check_coupling(found, draws=draws, failure_rate=failure_rate)
    else:
        report = checks.check_estimator(found, draws=draws, failure_rate=failure_rate)
    table = Table("check", "verdict", "figure", title=f"{subject}: {report.subject}")
    for finding in report.findings:
        table.add_row(
            finding.name, f"{COLOURS.get(finding.verdict, '[yellow]')}{finding.verdict}", escape(finding.figure)
        )
    rich.print(table)
    if not report.passed:
        raise SystemExit(1)


def estimators() -> None:
    """List every estimator with its formula and reference."""
    table = Table("name", "gradient of the", "estimate", "smallest n", "reference")
    for name, factory in ESTIMATORS.items():
        one = factory(DEFAULT_NUM_SAMPLES)
        reference = getattr(one, "coupling", one).reference  # what tells one ARMS from another
        table.add_row(
            name, str(one.target), one.formula, f"{one.min_samples}{', even' if one.even_samples else ''}", reference
        )
    rich.print(table)


def _find(subject: str) -> BinaryCoupling | Callable[[int], Estimator]:
    if subject in ESTIMATORS:
        return ESTIMATORS[subject]
    if subject in COUPLINGS:
        return COUPLINGS[subject]()
    module, colon, attribute = subject.partition(":")
    if not colon:
        names = ", ".join([*ESTIMATORS, *COUPLINGS])
        raise ValueError(f"nothing is called {subject!r}: give one of {names}, or module:Class of your own")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(f"cannot find {subject!r}: {error}") from None
    if isinstance(found, BinaryCoupling):
        return found
    if inspect.isclass(found) and issubclass(found, BinaryCoupling):
        try:
            return found()
        except TypeError as error:
            raise ValueError(f"cannot make {subject!r}: {error}; name a coupling object instead of its class") from None
    _refuse_what_makes_no_estimator(subject, found)
    return found  # type: ignore[no-any-return]


def _refuse_what_makes_no_estimator(subject: str, found: object) -> None:
    if isinstance(found, Estimator):
        raise ValueError(f"{subject!r} is one estimator, and every budget is checked: name its class, or a function")
    wanted = "name a coupling, or a function of num_samples that makes an estimator"
    if not callable(found):
        raise ValueError(f"{subject!r} is neither a coupling nor a function, got {type(found).__name__}: {wanted}")
    for n in COUNTS:
        try:
            made = found(n)
        except ValueError:  # a budget that it does not take
            continue
        except TypeError as error:
            raise ValueError(f"{subject!r} cannot be called with num_samples alone: {error}; {wanted}") from None
        if not isinstance(made, Estimator):
            raise ValueError(f"{subject!r} must make an estimator, got {type(made).__name__}: {wanted}")
