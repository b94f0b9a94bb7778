"""Verbs that draw and tell: report, toy, correlations, experiments list, experiments run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import rich
import torch
import tyro
from rich.markup import escape
from rich.table import Table

from arms.bench import toy
from arms.bench.cli.console import say, tell
from arms.bench.config import Precision
from arms.bench.experiments import EXPERIMENTS, SCALES, Scale, configs
from arms.bench.sweeps.local import preview, run_experiment

Output = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
ALL = "all"


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    output: Output = Path("report.html"),
    files: bool = True,
) -> None:
    """Compare runs on one self-contained page, with the paper's numbers beside them.

    Args:
        runs: Run directories, or folders of them.
        output: The page to write.
        files: Write every table (.md, .tex, .csv) and figure (.pdf, .svg) too, into `<page>_files`.
    """
    if not runs:
        raise ValueError("name at least one run directory, or a folder of them: arms report runs")
    if not any(path.exists() for path in runs):
        raise ValueError(f"there is no {' and no '.join(map(str, runs))}: name run directories, or a folder of them")
    with _drawing():
        from arms.bench.reports import build_report, summary
        from arms.bench.reports.collect import run_directories

        if not any(True for path in runs for _ in run_directories(path)):
            raise ValueError(
                f"there is no run in {' or '.join(map(str, runs))}: train one first, or name another folder"
            )
        found = build_report(runs, output, files=files)
    for problem in found.problems:
        say(f"[yellow]{escape(problem.where)}: {escape(problem.what)}")
    say(f"{escape(summary(found))}\nreport: {escape(str(output.resolve()))}")


def toy_problem(
    num_samples: tuple[int, ...] = toy.BUDGETS, replicas: int = 1000, seed: int = 0, output: Output = Path("toy")
) -> None:
    """Measure gradient variances on the paper's toy problem, beside their closed forms, and draw its figure 2.

    Args:
        num_samples: Budgets n, a panel each.
        replicas: Monte-Carlo replicas at each of 98 probabilities, and ascents.
        seed: Seed of the generator.
        output: Folder for the figures (.svg, .pdf, .png) and the numbers (.csv).
    """
    generator = torch.Generator().manual_seed(seed)
    of_budget = {n: toy.variance_curves(n, replicas=replicas, generator=generator) for n in num_samples}
    if not of_budget:
        raise ValueError("name at least one budget: --num-samples 4 10")
    table = Table("n", "variance / loorf's", *toy.ESTIMATORS, title="toy problem, mean over p from 0.1 to 0.9")
    for n, curves in of_budget.items():
        _add_budget(table, n, curves)
    rich.print(table)
    shown = 10 if 10 in num_samples else num_samples[-1]
    paths = toy.ascents(shown, replicas=replicas, generator=generator)
    with _drawing():
        from arms.bench.reports.toy import write_toy

        _tell(write_toy([curve for curves in of_budget.values() for curve in curves], paths, output))


def correlations(num_samples: int = 5, output: Output = Path("correlations")) -> None:
    """Draw the correlation of every coupling against p, above the smallest there can be: the paper's figure 1.

    Args:
        num_samples: How many samples are coupled.
        output: Folder for the figure (.svg, .pdf, .png) and the numbers (.csv).
    """
    with _drawing():
        from arms.bench.reports.correlations import correlation_curves, write_correlations

        _tell(write_correlations(correlation_curves(num_samples), output))


def experiments_list() -> None:
    """List every figure and table of the paper, with the number of runs behind it at each scale."""
    table = Table("name", "what", *(f"runs: {scale}" if scale == SCALES[0] else scale for scale in SCALES))
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.description, *(str(len(configs(name, scale)) or "") for scale in SCALES))
    rich.print(table)


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
        results: Further folders to look for finished runs in: whatever their folders are called, those that are
            wanted are not trained again.
        precision: Of what is still to be trained; finished runs count at any.
        dry_run: Print a line per job: its done, unfinished and missing runs, and what they would take; write nothing.
        device: cpu, cuda, or auto; on a GPU, runs that differ only in estimator and data set are trained together.
        data_dir: Folder with the data sets; unless given, ARMS_DATA_DIR, the cache, or the network.
    """
    names = list(EXPERIMENTS) if name == ALL else [name]
    if dry_run:
        for line in preview(names, scale, output, results=results, precision=precision, device=device):
            tell(line)
        return
    written: list[Path] = []
    with _drawing():
        for each in names:
            written += run_experiment(
                each,
                scale,
                output,
                results=results,
                precision=precision,
                device=device,
                data_dir=data_dir,
                notify=tell,
            )
    _tell(written)


def _add_budget(table: Table, n: int, curves: Sequence[toy.ToyCurve]) -> None:
    """Two rows: measured, and in closed form where there is one."""
    loorf = next(curve for curve in curves if curve.estimator == "loorf")
    assert loorf.exact is not None
    measured = [f"{curve.measured.mean() / loorf.measured.mean():.3f}" for curve in curves]
    exact = ["" if curve.exact is None else f"{curve.exact.mean() / loorf.exact.mean():.3f}" for curve in curves]
    table.add_row(str(n), "measured", *measured)
    table.add_row("", "closed form", *exact, end_section=True)


def _tell(paths: Sequence[Path]) -> None:
    for path in paths:
        say(f"[bold]{escape(str(path))}")


@contextmanager
def _drawing() -> Iterator[None]:
    """Say what to install where a package for figures or pages is missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"figures and reports need {error.name}: pip install 'arms-grad[bench]'") from None
