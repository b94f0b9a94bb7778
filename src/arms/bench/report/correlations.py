r"""Correlation of every coupling as a function of p (the paper's figure 1), above the smallest possible one.

The sum of n exchangeable Bernoulli(p) is a whole number of mean np, so its variance is at least {np}(1 - {np}), with
{.} the fractional part, and Var S = n p(1-p) (1 + (n-1) rho) gives

$$ \rho \ge \frac{1}{n-1} \left( \frac{\{np\}(1-\{np\})}{n p(1-p)} - 1 \right). $$

Hoernig, "On the minimum correlation between symmetrically distributed random variables", 2018.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from arms.arguments import as_count
from arms.bench.report.figures import COLUMN_WIDTH, figure_settings, line_style, save
from arms.bench.report.style import COUPLING_STYLES, style_of
from arms.bench.report.table_files import write_csv
from arms.designs import COUPLINGS, BitCoupling

GRID_POINTS = 401


@dataclass(frozen=True)
class Correlations:
    """Correlation of two samples of every coupling as a function of p, float64 `[points]` each."""

    num_samples: int
    probs: Tensor
    of_coupling: Mapping[str, Tensor]
    bound: Tensor


def smallest_correlation(probs: Tensor, n: int) -> Tensor:
    """Return the smallest common correlation that n exchangeable Bernoulli(p) can have.

    >>> smallest_correlation(torch.tensor([0.5, 0.1]), n=4)
    tensor([-0.3333, -0.1111])
    """
    part = (as_count(n, 2, "n") * probs).frac()
    return (part * (1 - part) / (n * probs * (1 - probs)) - 1) / (n - 1)


def correlation_curves(num_samples: int = 5, points: int = GRID_POINTS) -> Correlations:
    """Return the exact correlations of all couplings at probabilities strictly between 0 and 1."""
    probs = torch.linspace(0, 1, as_count(points, 3, "points"), dtype=torch.float64)[1:-1]
    logits = torch.logit(probs)
    curves = {"independent": torch.zeros_like(probs)}
    for name, make in COUPLINGS.items():
        coupling = make()
        same = name == "stratified"  # the systematic one, for bits
        takes = isinstance(coupling, BitCoupling) and not (
            coupling.even_samples and num_samples % 2
        )
        if takes and not same:
            assert isinstance(coupling, BitCoupling)
            curves[name] = coupling.correlation(logits, num_samples)
    return Correlations(num_samples, probs, curves, smallest_correlation(probs, num_samples))


def write_correlations(curves: Correlations, folder: Path) -> list[Path]:
    """Write the figure and its table, and return their paths."""
    with figure_settings():
        written = save(_figure(curves), folder, "correlations", ("svg", "pdf", "png"))
    return [*written, _write(curves, folder / "correlations.csv")]


def _figure(curves: Correlations) -> Figure:
    figure = Figure(figsize=(COLUMN_WIDTH, 2.7), layout="constrained")
    axes = figure.subplots()
    probs = curves.probs.tolist()
    axes.plot(probs, curves.bound.tolist(), color="0.8", linewidth=5, label="smallest possible")
    for name, values in curves.of_coupling.items():
        line = line_style(COUPLING_STYLES.get(name) or style_of(name))
        axes.plot(
            probs,
            values.tolist(),
            markevery=(len(probs) // 12, len(probs) // 6),
            label=name,
            **line,
        )
    axes.set(xlabel="p", ylabel=r"correlation $\rho$ of two samples", xlim=(0, 1))
    axes.set_title(f"n = {curves.num_samples}")
    figure.legend(loc="outside lower center", ncols=3, handlelength=2.6, columnspacing=1.2)
    return figure


def _write(curves: Correlations, path: Path) -> Path:
    columns = [curves.probs, *curves.of_coupling.values(), curves.bound]
    heading = ["probability", *curves.of_coupling, "smallest_possible"]
    return write_csv(path, heading, torch.stack(columns, 1).tolist())
