"""Subcommands for estimators, couplings and data sets."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from arms import checks
from arms.arguments import as_count
from arms.bench import data
from arms.bench.output import print_plain, print_table
from arms.bench.runs.loading import find_attribute
from arms.bench.training.engine import is_out_of_memory
from arms.checks.verdicts import FAILURE_RATE, call
from arms.estimators import ALL_ESTIMATORS, DEFAULT_NUM_SAMPLES, ENTRIES

MIN_DRAWS = 1000  # with fewer draws, z-scores of means are too far from normal


def check(
    subject: Annotated[str, tyro.conf.Positional],
    /,
    num_samples: tuple[int, ...] = (),
    latent: Annotated[
        str | None, tyro.conf.arg(metavar="MODULE:NAME", help_behavior_hint="(default: none)")
    ] = None,
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    seed: int = 0,
) -> None:
    """Test an estimator or a coupling by enumeration and by many draws.

    The output ends with a list of properties that were not tested.

    Args:
        subject: A name (see `arms estimators`), or module:attribute of your own class. The current
            folder is searched for modules too.
        num_samples: The numbers of samples to test; by default several small numbers.
        latent: module:attribute of your own latent, on which the estimator is tested. It must have
            no batch axes, and few states. The default is to test on bits and on categories.
        draws: Draws per statistical test, at least 1,000; more draws detect smaller errors.
        failure_rate: Accepted probability that a correct subject fails.
        seed: The seed of the draws.
    """
    found = checks.findings(
        find_attribute(subject) if ":" in subject else subject,
        as_count(draws, MIN_DRAWS, "--draws"),
        failure_rate,
        num_samples=num_samples or None,
        latents=None if latent is None else [_find_latent(latent)],
        seed=seed,
    )
    if any(not one.passed and is_out_of_memory(RuntimeError(one.figure)) for one in found.findings):
        raise MemoryError  # a lack of memory is not an error of the subject
    for line in str(found).splitlines():
        print_plain(line)
    if not found.passed:
        raise SystemExit(1)


def _find_latent(subject: str) -> Any:
    """Return the latent named by `subject`, which has the form module:attribute.

    If the attribute is a function, call the function, and return the latent that it creates.
    """
    found = find_attribute(subject)
    return call(found, "give a latent") if callable(found) else found


def estimators() -> None:
    """List all estimators, each with its reference and with its work for 8 samples."""
    titles = {
        (True, False): "unbiased, gradient of the expectation",
        (True, True): "unbiased, gradient of the importance-weighted bound",
        (False, False): "biased, for comparison; used only if named",
    }
    made = {name: make(DEFAULT_NUM_SAMPLES) for name, make in ALL_ESTIMATORS.items()}
    for kind, title in titles.items():
        table = Table("name", "tier", "evals", "derivs", "reference", title=title)
        for name, one in made.items():
            if (one.unbiased, one.target.subtracts_log_q) == kind:
                needs, entry = one.design.needs, ENTRIES.get(name)
                evaluations = "all" if needs.evaluations is None else str(needs.evaluations)
                tier, reference = (entry.tier, entry.reference) if entry else ("", "")
                table.add_row(name, tier, evaluations, str(needs.derivatives), escape(reference))
        print_table(table)


def data_list(data_dir: Path | None = None) -> None:
    """List all data sets, and say which are available on this machine.

    Args:
        data_dir: Folder with data files; by default ARMS_DATA_DIR.
    """
    table = Table("name", "description", "available", "location")
    for one in data.status(data_dir):
        is_here = "yes" if one.available else "no"
        table.add_row(one.name, one.description, is_here, escape(one.where))
    print_table(table)


def data_get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download a data set, or verify its files if they are already present.

    Args:
        name: Name of the data set (see `arms data list`).
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
    """
    paths = data.fetch(name, data_dir)
    with_checksum = [source.file for source in getattr(data.DATASETS[name], "sources", ())]
    for path in paths:
        is_checked = path.name in with_checksum
        state = "intact" if is_checked else "readable (no checksum is known)"
        print_plain(f"{state}: {path}")
    if not paths:
        print_plain(f"{name} comes with an installed package")
