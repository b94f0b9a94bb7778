"""Verbs that write pages and figures: report, toy, correlations."""

from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.markup import escape
from rich.table import Table

from arms.arguments import as_count
from arms.bench import toy as toy_problem
from arms.bench.cli import Output
from arms.bench.output import print_markup, print_paths, print_plain, print_table
from arms.bench.runs.archives import read_archive, run_sources


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    output: Output = Path("report.html"),
    files: bool = True,
) -> None:
    """Compare runs on one self-contained page, with the paper's numbers beside them.

    Args:
        runs: Run directories, files of `arms archive`, or folders of them.
        output: The page to write.
        files: Write every table (.md, .tex, .csv) and figure (.pdf, .svg) too, into `<page>_files`.
    """
    if not runs:
        raise ValueError("give at least one run directory, or a folder of them: arms report runs")
    if not any(True for path in runs for _ in run_sources(path)):
        names = " or ".join(map(str, runs))
        raise ValueError(f"there is no run in {names}: train one first, or give another folder")
    from arms.bench.report import build_report, summary  # matplotlib: not every verb waits for it

    for path in filter(Path.is_file, runs):
        read_archive(path)  # a file that was named must be an archive
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
    """Measure gradient variances on the paper's toy problem, and draw its figure 2.

    Args:
        num_samples: Budgets n, one panel each.
        replicas: Monte-Carlo replicas at each of 98 probabilities, and number of ascents.
        seed: Seed of the generator.
        output: Folder for the figures (.svg, .pdf, .png) and the numbers (.csv).
    """
    from arms.bench.report.paper_figures import write_toy

    generator = torch.Generator().manual_seed(as_count(seed, 0, "--seed"))
    if not num_samples:
        raise ValueError("give at least one budget: --num-samples 4 10")
    title, curves = "toy problem, mean over p from 0.1 to 0.9", []
    table = Table("n", "estimator", "variance / loorf's", "closed form", title=title)
    for n in num_samples:
        found = toy_problem.variance_curves(n, replicas=replicas, generator=generator)
        (loorf,) = [curve for curve in found if curve.estimator == "loorf"]
        assert loorf.exact is not None
        for curve in found:
            ratio = f"{curve.measured.mean() / loorf.measured.mean():.3f}"
            exact = "" if curve.exact is None else f"{curve.exact.mean() / loorf.exact.mean():.3f}"
            table.add_row(str(n) if curve is found[0] else "", curve.estimator, ratio, exact)
        table.add_section()
        curves += found
    print_table(table)
    shown = 10 if 10 in num_samples else num_samples[-1]
    paths = toy_problem.ascents(shown, replicas=replicas, generator=generator)
    print_paths(write_toy(curves, paths, output))


def correlations(num_samples: int = 5, output: Output = Path("correlations")) -> None:
    """Draw the correlation of every coupling against p: the paper's figure 1.

    Args:
        num_samples: How many samples are coupled.
        output: Folder for the figure (.svg, .pdf, .png) and the numbers (.csv).
    """
    from arms.bench.report.paper_figures import correlation_curves, write_correlations

    print_paths(write_correlations(correlation_curves(num_samples), output))
