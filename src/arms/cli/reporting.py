"""Verbs that draw and tell: report, toy."""

from pathlib import Path
from typing import Annotated

import rich
import torch
import tyro
from rich.markup import escape
from rich.table import Table

from arms import toy

Output = Annotated[Path, tyro.conf.arg(aliases=["-o"])]


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional], /, output: Output = Path("report.html"), files: bool = True
) -> None:
    """Compare finished runs on one self-contained page, with the paper's numbers beside them.

    Args:
        runs: Run directories, or folders of them.
        output: The page to write.
        files: Write every table (.md, .tex, .csv) and figure (.pdf, .svg) too, into `<page>_files`.
    """
    from arms.reports import build_report, summary

    if not runs:
        raise ValueError("name at least one run directory, or a folder of them")
    found = build_report(runs, output, files=files)
    for problem in found.problems:
        rich.print(f"[yellow]{escape(problem.where)}: {escape(problem.what)}")
    rich.print(f"{escape(summary(found))}\n[bold]{escape(str(output))}")


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
