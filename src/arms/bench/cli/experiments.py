"""Verbs for the paper's figures and tables: experiments list, experiments run."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from arms.bench.cli.console import (
    explaining_missing_packages,
    print_paths,
    print_plain,
    print_table,
)
from arms.bench.cli.parsing import Output
from arms.bench.config import Precision
from arms.bench.experiments import EXPERIMENTS, SCALES, Scale, configs
from arms.bench.sweeps.local import preview, run_experiment

ALL = "all"


def experiments_list() -> None:
    """List every figure and table of the paper, with the number of runs behind it at each scale."""
    table = Table(
        "name", "what", *(f"runs: {scale}" if scale == SCALES[0] else scale for scale in SCALES)
    )
    for name, experiment in EXPERIMENTS.items():
        table.add_row(
            name,
            experiment.description,
            *(str(len(configs(name, scale)) or "") for scale in SCALES),
        )
    print_table(table)


def experiments_run(
    name: Annotated[str, tyro.conf.Positional],
    /,
    scale: Scale = "smoke",
    output: Output = Path("experiments"),
    results: tuple[Path, ...] = (),
    precision: Precision = "highest",
    dry_run: bool = False,
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Train what is missing of a figure or table of the paper, resuming what is unfinished, and write its page.

    Args:
        name: A name of `arms experiments list`, or all.
        scale: smoke: seconds on 8x8 digits. laptop: 5,000 steps, one budget. paper: as printed, for a GPU.
        output: Folder of the runs and the page; experiments in one folder share the runs they have in common.
        results: Further folders, or files of `arms archive`, to look for finished runs in. A run that is
            found is not trained again, whatever its folder is called.
        precision: Of what is still to be trained; finished runs count at any.
        dry_run: Print a line per job with its done, unfinished and missing runs; write nothing.
        device: cpu, cuda, or auto; on a GPU, runs that differ only in estimator and data set are trained together.
        data_dir: Folder with the data sets; unless given, ARMS_DATA_DIR, the cache, or the network.
    """
    names = list(EXPERIMENTS) if name == ALL else [name]
    if dry_run:
        for line in preview(
            names, scale, output, results=results, precision=precision, device=device
        ):
            print_plain(line)
        return
    written: list[Path] = []
    with explaining_missing_packages():
        for each in names:
            written += run_experiment(
                each,
                scale,
                output,
                results=results,
                precision=precision,
                device=device,
                data_dir=data_dir,
                notify=print_plain,
            )
    print_paths(written)
