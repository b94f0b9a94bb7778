"""Verbs for the paper's figures and tables: experiments list, experiments run."""

from pathlib import Path
from typing import Annotated

import rich
import tyro
from rich.table import Table

from arms.bench.cli.console import explaining_missing_packages as _drawing
from arms.bench.cli.console import print_paths as _tell
from arms.bench.cli.console import print_plain as tell
from arms.bench.cli.parsing import Output
from arms.bench.experiments import EXPERIMENTS, Scale, configs, run_experiment

ALL = "all"


def experiments_list() -> None:
    """List every figure and table of the paper, with the runs behind it."""
    table = Table("name", "what", "runs: smoke", "laptop", "paper")
    for name, experiment in EXPERIMENTS.items():
        counts = [str(len(configs(name, scale)) or "") for scale in ("smoke", "laptop", "paper")]
        table.add_row(name, experiment.description, *counts)
    rich.print(table)


def experiments_run(
    name: Annotated[str, tyro.conf.Positional],
    /,
    scale: Scale = "smoke",
    output: Output = Path("experiments"),
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Run a figure or table of the paper, or go on with it, and write its report.

    Args:
        name: A name of `arms experiments list`, or all.
        scale: smoke: seconds on 8x8 digits. laptop: 5,000 steps, one budget. paper: as printed, for a GPU.
        output: Folder for runs and reports; experiments share the runs they have in common.
        device: cpu, cuda, or auto; on a GPU, runs that differ only in estimator and data set are trained together.
        data_dir: Folder with the data sets; else ARMS_DATA_DIR, the cache, or the network.
    """
    written: list[Path] = []
    with _drawing():
        for each in EXPERIMENTS if name == ALL else [name]:
            written += run_experiment(each, scale, output, device=device, data_dir=data_dir, tell=tell)
    _tell(written)
