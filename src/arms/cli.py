"""The `arms` command: one verb, one function, no logic of its own."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated

import torch

from arms import checks, toy
from arms.couplings import COUPLINGS, Coupling
from arms.estimators import DEFAULT_NUM_SAMPLES, ESTIMATORS, Estimator

try:
    import rich
    import tyro
    from rich.markup import escape
    from rich.table import Table
except ImportError:
    sys.stderr.write("arms: the command line needs more packages: pip install 'arms-grad[cli]'\n")
    raise SystemExit(2) from None


def main() -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"check": check, "estimators": estimators, "toy": toy_problem}, prog="arms", description=__doc__
        )
    except ValueError as error:
        sys.stderr.write(f"arms: {error}\n")
        raise SystemExit(2) from None


def check(
    subject: Annotated[str, tyro.conf.Positional],
    /,
    draws: int = 100_000,
    failure_rate: float = checks.report.FAILURE_RATE,
) -> None:
    """Check an estimator or a coupling: bias against enumeration, correlation, extreme logits, repeatability.

    Args:
        subject: A name (see `arms estimators`), or module:attribute of your own class, found from this folder too.
        draws: Draws per statistical test; more draws see smaller errors.
        failure_rate: How often a correct subject may fail by chance.
    """
    found = _find(subject)
    if isinstance(found, Coupling):
        report = checks.check_coupling(found, draws=draws, failure_rate=failure_rate)
    else:
        report = checks.check_estimator(found, draws=draws, failure_rate=failure_rate)
    table = Table("check", "verdict", "figure", title=f"{subject}: {report.subject}")
    for finding in report.findings:
        table.add_row(finding.name, "[green]pass" if finding.passed else "[bold red]FAIL", escape(finding.figure))
    rich.print(table)
    if not report.passed:
        raise SystemExit(1)


def estimators() -> None:
    """List every estimator with its formula and reference."""
    table = Table("name", "gradient of the", "estimate", "smallest n", "reference")
    for name, factory in ESTIMATORS.items():
        one = factory(DEFAULT_NUM_SAMPLES)
        table.add_row(name, one.objective, one.formula, f"{one.least}{', even' if one.pairs else ''}", one.reference)
    rich.print(table)


def toy_problem(num_samples: tuple[int, ...] = (2, 4, 10), replicas: int = 1000, seed: int = 0) -> None:
    """Measure gradient variances on the paper's toy problem, beside their closed forms.

    Args:
        num_samples: Budgets n, a block of columns each.
        replicas: Monte-Carlo replicas at each of 81 probabilities.
        seed: Seed of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    for n in num_samples:
        table = Table("estimator", "variance", "closed form", "x loorf", title=f"toy problem, n = {n}, mean over p")
        curves = toy.variance_curves(n, replicas=replicas, generator=generator)
        reference = next(curve for curve in curves if curve.estimator == "loorf").measured.mean()
        for curve in curves:
            exact = "" if curve.exact is None else f"{curve.exact.mean():.4e}"
            mean = curve.measured.mean()
            table.add_row(curve.estimator, f"{mean:.4e}", exact, f"{mean / reference:.3f}")
        rich.print(table)


def _find(subject: str) -> Coupling | Callable[[int], Estimator]:
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
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot find {subject!r}: {error}") from None
    if isinstance(found, Coupling):
        return found
    if inspect.isclass(found) and issubclass(found, Coupling):
        return found()
    if not callable(found):
        raise ValueError(f"{subject!r} is neither a coupling nor a function of num_samples that makes an estimator")
    return found  # type: ignore[no-any-return]
