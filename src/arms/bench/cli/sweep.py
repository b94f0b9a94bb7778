"""Verbs for many runs: sweep, experiments list, experiments run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from arms.bench.cli import ModelName, Output
from arms.bench.config import Precision
from arms.bench.experiments import EXPERIMENTS, SCALES, Scale, configs, find_configs
from arms.bench.output import print_paths, print_plain, print_table
from arms.bench.runs.ensemble import CHECKPOINT_SECONDS
from arms.bench.sweeps import sweep as sweeps
from arms.bench.sweeps.engines import ENGINES, Here, make_engine

ALL = "all"
_ENGINE = tyro.conf.arg(metavar=f"{{{','.join(ENGINES)}}}")


@dataclass(frozen=True)
class Options:
    """Options that `arms sweep` and `arms experiments run` share."""

    # Of an experiment: seconds on 8x8 digits, 5,000 steps of one budget, or as printed.
    scale: Scale = "smoke"
    # Further folders, or files of `arms archive`, in which finished runs count.
    results: tuple[Path, ...] = ()
    # Precision of the runs to train; finished runs count at any precision.
    precision: Precision | None = None
    # Print a line per job with its done, unfinished and missing runs; write nothing.
    dry_run: bool = False
    # Folder with the data sets; unless given, ARMS_DATA_DIR, the cache, or the network.
    data_dir: Path | None = None
    # Time between two checkpoints: about as much as a killed run has to repeat.
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def of_sweep(self) -> dict[str, Any]:
        """Return them as arguments of `arms.bench.sweep`."""
        options = {name: value for name, value in vars(self).items() if name != "scale"}
        return options | {"notify": print_plain}


Common = tyro.conf.OmitArgPrefixes[Options]


def sweep(
    what: Annotated[str, tyro.conf.Positional],
    common: Common,
    output: Output = Path("sweep"),
    engine: Annotated[str, _ENGINE] = "processes",
    cpus_per_job: int | None = None,
    gpus_per_job: float | None = None,
    address: str | None = None,
    model: ModelName = None,
) -> None:
    """Train a list of configurations in parallel; the same command again trains what is missing.

    Several sweeps may share a folder. `arms report` makes a page of what there is.

    Args:
        what: A TOML file (docs/distributed.md), or a name of `arms experiments list`.
        common: How to train.
        output: Folder of the runs; finished ones in it count, unfinished ones are resumed.
        engine: One after the other in this process, in parallel processes on this machine, or on a
            Ray cluster, for which install arms-grad[ray].
        cpus_per_job: Cores and threads of each job. It decides the last digits.
        gpus_per_job: Share of a GPU of each job, at most 1; 0 trains on CPUs. Unless given, 1 where
            this machine has a GPU.
        address: Of an existing Ray cluster, such as 10.0.0.1:6379; unless given, RAY_ADDRESS, and
            without that one is started on this machine.
        model: Your own networks, as for `arms train`.
    """
    options = {"cpus_per_job": cpus_per_job, "gpus_per_job": gpus_per_job, "address": address}
    wanted, made = find_configs(what, common.scale), make_engine(engine, **options)
    try:
        sweeps.sweep(wanted, output, engine=made, model=model, **common.of_sweep())
    except sweeps.SweepError as error:
        print_plain(str(error))
        raise SystemExit(1) from None


def experiments_list() -> None:
    """List every figure and table of the paper, with the number of its runs at each scale."""
    table = Table("name", "what", *(f"runs: {scale}" for scale in SCALES))
    for name, experiment in EXPERIMENTS.items():
        counts = [str(len(configs(name, scale)) or "") for scale in SCALES]
        table.add_row(name, experiment.description, *counts)
    print_table(table)


def experiments_run(
    name: Annotated[str, tyro.conf.Positional],
    common: Common,
    output: Output = Path("experiments"),
    device: str = "auto",
) -> None:
    """Train what is missing of a figure or table of the paper, and write its page.

    Args:
        name: A name of `arms experiments list`, or all.
        common: How to train.
        output: Folder of the runs and the page; experiments in one folder share their runs.
        device: cpu, cuda, or auto. On a GPU, runs that differ only in estimator and data set are
            trained together.
    """
    names, engine = list(EXPERIMENTS) if name == ALL else [name], Here(device)
    if common.dry_run:
        for drawn in (each for each in names if not configs(each, common.scale)):
            print_plain(f"{drawn}: is drawn without training")
        wanted = [config for each in names for config in configs(each, common.scale)]
        sweeps.sweep(wanted, output, engine=engine, **common.of_sweep())
        return
    for each in names:
        options = common.of_sweep()
        print_paths(sweeps.run_experiment(each, common.scale, output, engine=engine, **options))
