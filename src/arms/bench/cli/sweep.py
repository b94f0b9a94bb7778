"""Subcommands for many runs and for the paper: sweep, experiments, report, toy, correlations."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from arms.arguments import as_count
from arms.bench import toy as toy_problem
from arms.bench.cli import ModelName, Output
from arms.bench.config import Precision
from arms.bench.experiments import EXPERIMENTS, SCALES, Scale, configs, find_configs
from arms.bench.output import print_markup, print_paths, print_plain, print_table
from arms.bench.runs.archives import read_archive, run_sources
from arms.bench.runs.ensemble import CHECKPOINT_SECONDS
from arms.bench.sweeps import sweep as sweeps
from arms.bench.sweeps.engines import ENGINES, Here, make_engine

ALL = "all"
_ENGINE = tyro.conf.arg(metavar=f"{{{','.join(ENGINES)}}}")


@dataclass(frozen=True)
class Options:
    """Options that `arms sweep` and `arms experiments run` share."""

    # Scale of an experiment: smoke takes seconds on 8x8 digits, laptop trains 5,000 steps with one
    # n, and paper uses the paper's settings.
    scale: Scale = "smoke"
    # Further folders or archives. Finished runs in them are not trained again.
    results: tuple[Path, ...] = ()
    # Precision of the runs to train. Finished runs of any precision are not trained again.
    precision: Precision | None = None
    # Print one line per job with its done, unfinished and missing runs, and write nothing.
    dry_run: bool = False
    # Folder with data files; by default ARMS_DATA_DIR, then the download cache.
    data_dir: Path | None = None
    # Time between two checkpoints. If a run is killed, at most this time is lost.
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def of_sweep(self) -> dict[str, Any]:
        """Return all options except `scale` as keyword arguments of `arms.bench.sweep`."""
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
    """Train a list of configurations in parallel. Repeat the command to train missing runs.

    Several sweeps may share a folder. `arms report` makes a page about the runs.

    Args:
        what: A TOML file (docs/distributed.md), or a name that `arms experiments list` shows.
        common: Options for training.
        output: Folder of the runs. Finished runs in it are kept, and unfinished runs are resumed.
        engine: Where to train: "here" (in this process, one run after the other), "processes" (in
            parallel on this machine) or "ray" (on a Ray cluster; install arms-grad[ray]).
        cpus_per_job: Cores and threads of each job. The number affects the last digits of results.
        gpus_per_job: Share of a GPU of each job, at most 1; 0 trains on CPUs. The default is 1 if
            this machine has a GPU.
        address: Address of an existing Ray cluster, such as 10.0.0.1:6379. The default is
            RAY_ADDRESS. If it is not set, a cluster is started on this machine.
        model: Your own networks, as for `arms train`.
    """
    options = {"cpus_per_job": cpus_per_job, "gpus_per_job": gpus_per_job, "address": address}
    wanted, made = find_configs(what, common.scale), make_engine(engine, **options)
    try:
        sweeps.sweep(wanted, output, engine=made, model=model, **common.of_sweep())
    except sweeps.SweepError as error:
        print_plain(str(error))
        raise SystemExit(1) from None


def sweep_paper(
    output: Output = Path("paper"),
    results: Path = Path("results"),
    page: Path = Path("docs/reproduced.md"),
    minutes: float = math.inf,
    dry_run: bool = False,
    scale: Scale = "paper",
    device: str = "auto",
    precision: Precision | None = None,
    data_dir: Path | None = None,
    checkpoint_seconds: float = 300.0,
) -> None:
    """Train the missing runs of the paper's tables, and write a page that compares the numbers.

    Runs that have ended are archived. Repeat the command to resume.

    Args:
        output: Folder of the run directories. Unfinished runs in it are resumed.
        results: Folder of archives, such as that of the repository. Runs in the archives are not
            trained again, and new runs are added to the archives.
        page: The Markdown page. It is written only at the scale of the paper.
        minutes: Time limit. Training stops after a save. A run is started only if the durations of
            earlier runs show that the time suffices. 0 trains nothing, but still writes the
            archives and the page.
        dry_run: List the missing numbers, and write nothing.
        scale: Scale of the runs. Only results at the paper's scale are comparable with the paper.
        device: cpu, cuda, cuda:N, or auto. On a GPU, runs are trained together.
        precision: Precision of the runs to train; by default, medium on a GPU.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
        checkpoint_seconds: Time between two checkpoints. If a run is killed, at most this time is
            lost.
    """
    from arms.bench.sweeps import paper  # needs matplotlib, which other commands do not

    if dry_run:
        for line in paper.missing_lines(scale, output, results):
            print_plain(line)
        return
    engine = Here(device)
    options: dict[str, Any] = {
        "engine": engine,
        "minutes": minutes,
        "precision": precision or ("medium" if engine.on_gpu else None),
        "data_dir": data_dir,
        "checkpoint_seconds": checkpoint_seconds,
        "notify": print_plain,
    }
    try:
        print_paths(paper.finish_paper(scale, output, results, page, **options))
    except sweeps.SweepError as error:
        print_plain(str(error))
        raise SystemExit(1) from None


def experiments_list() -> None:
    """List all figures and tables of the paper, with their number of runs at each scale."""
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
    """Train the missing runs of a figure or table of the paper, and write a page about them.

    Args:
        name: A name that `arms experiments list` shows, or all.
        common: Options for training.
        output: Folder for the runs and the page. Experiments in the same folder share their runs.
        device: cpu, cuda, or auto. On a GPU, runs that differ only in estimator and data set are
            trained together.
    """
    names, engine = list(EXPERIMENTS) if name == ALL else [name], Here(device)
    if common.dry_run:
        for drawn in (each for each in names if not configs(each, common.scale)):
            print_plain(f"{drawn}: no training runs")
        wanted = [config for each in names for config in configs(each, common.scale)]
        sweeps.sweep(wanted, output, engine=engine, **common.of_sweep())
        return
    for each in names:
        options = common.of_sweep()
        print_paths(sweeps.run_experiment(each, common.scale, output, engine=engine, **options))


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    output: Output = Path("report.html"),
    files: bool = True,
) -> None:
    """Compare runs on a single HTML page, next to the numbers of the paper.

    Args:
        runs: Run directories, archives (`arms archive`), or folders of them.
        output: The page to write.
        files: Also write every table (.md, .tex, .csv) and figure (.pdf, .svg) to `<page>_files`.
    """
    if not runs:
        what = "arms report needs a run directory, or a folder of run directories, got none"
        raise ValueError(f"{what}: for example `arms report runs`")
    if not any(True for path in runs for _ in run_sources(path)):
        names = " or ".join(map(str, runs))
        raise ValueError(f"there is no run in {names}: train a run, or name another folder")
    from arms.bench.report import build_report, summary  # imports matplotlib, which is slow

    for path in filter(Path.is_file, runs):
        read_archive(path)  # raises if a given file is not an archive
    collection = build_report(runs, output, files=files)
    for problem in collection.problems:
        print_markup(f"[yellow]{escape(problem.where)}: {escape(problem.what)}")
    print_plain(summary(collection))
    print_plain(f"report: {output.resolve()}")


def toy(
    num_samples: tuple[int, ...] = toy_problem.BUDGETS,
    replicas: int = 1000,
    seed: int = 0,
    output: Output = Path("toy"),
) -> None:
    """Measure gradient variances on the paper's toy problem, and draw figure 2 of the paper.

    Args:
        num_samples: The numbers of samples n; the figure has one panel for each n.
        replicas: The number of estimates at each of 98 probabilities. It is also the number of
            gradient ascents.
        seed: The seed of the generator.
        output: Folder for the figures (.svg, .pdf, .png) and the numbers (.csv).
    """
    from arms.bench.report.paper_figures import write_toy

    if not num_samples:
        what = "--num-samples must list at least one number of samples, got none"
        raise ValueError(f"{what}: for example `--num-samples 4 10`")
    curves, paths = toy_problem.measure(num_samples, replicas, as_count(seed, 0, "--seed"))
    title = "toy problem, mean over p from 0.1 to 0.9"
    table = Table("n", "estimator", "variance relative to loorf", "closed form", title=title)
    loorf = {curve.num_samples: curve for curve in curves if curve.estimator == "loorf"}
    for curve in curves:
        base = loorf[curve.num_samples]
        assert base.exact is not None
        ratio = f"{curve.measured.mean() / base.measured.mean():.3f}"
        exact = "" if curve.exact is None else f"{curve.exact.mean() / base.exact.mean():.3f}"
        table.add_row(str(curve.num_samples), curve.estimator, ratio, exact)
    print_table(table)
    print_paths(write_toy(curves, paths, output))


def correlations(num_samples: int = 5, output: Output = Path("correlations")) -> None:
    """Draw the correlation of every coupling against p, as in figure 1 of the paper.

    Args:
        num_samples: The number of coupled samples.
        output: Folder for the figure (.svg, .pdf, .png) and the numbers (.csv).
    """
    from arms.bench.report.paper_figures import correlation_curves, write_correlations

    print_paths(write_correlations(correlation_curves(num_samples), output))
