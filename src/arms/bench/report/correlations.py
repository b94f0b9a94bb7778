r"""Correlation of every coupling against p (the paper's figure 1), above the smallest possible one.

The sum of n exchangeable Bernoulli(p) is a whole number of mean np, so its variance is at least
{np}(1 - {np}), with {.} the fractional part, and Var S = n p(1-p) (1 + (n-1) rho) gives

$$ \rho \ge \frac{1}{n-1} \left( \frac{\{np\}(1-\{np\})}{n p(1-p)} - 1 \right). $$

Hoernig, "On the minimum correlation between symmetrically distributed random variables", 2018.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.bench.report.figures import Curve, Panel, draw, write_figure
from arms.bench.report.style import Style, style_of
from arms.bench.report.table_files import write_csv
from arms.designs import COUPLINGS, BitCoupling

LOOKS_LIKE = {
    "independent": "loorf",
    "dirichlet": "arms-dirichlet",
    "gaussian": "arms-gaussian",
    "systematic": "arms",
}
"""A coupling has the style of the estimator that draws from it."""


class Correlations(NamedTuple):
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


def correlation_curves(num_samples: int = 5, points: int = 401) -> Correlations:
    """Return the exact correlations of all couplings at probabilities strictly between 0 and 1."""
    probs = torch.linspace(0, 1, as_count(points, 3, "points"), dtype=torch.float64)[1:-1]
    curves = {"independent": torch.zeros_like(probs)}
    for name, make in COUPLINGS.items():
        coupling = make()
        if name == "stratified" or not isinstance(coupling, BitCoupling):
            continue  # for bits, stratified is systematic
        if not (coupling.even_samples and num_samples % 2):
            curves[name] = coupling.correlation(torch.logit(probs), num_samples)
    return Correlations(num_samples, probs, curves, smallest_correlation(probs, num_samples))


def write_correlations(found: Correlations, folder: Path) -> list[Path]:
    """Write the figure and its table, and return their paths."""
    probs = found.probs.tolist()
    wide = Style("#cccccc", "solid", "none")
    curves = [Curve("smallest possible", wide, probs, found.bound.tolist(), width=5)]
    for name, values in found.of_coupling.items():
        style = style_of(LOOKS_LIKE.get(name, name))
        curves.append(Curve(name, style, probs, values.tolist()))
    panel = Panel(curves, f"n = {found.num_samples}", "p", "correlation of two samples")
    columns = {"probability": found.probs, **found.of_coupling, "smallest_possible": found.bound}
    written = write_figure(draw([[panel]]), folder, "correlations")
    rows = torch.stack(list(columns.values()), 1).tolist()
    return [*written, write_csv(folder / "correlations.csv", list(columns), rows)]
