"""Figures 1 and 2 of the paper: correlations of couplings, and the toy problem."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.bench.report.figures import Curve, Panel, Style, draw, style_of, write_figure
from arms.bench.report.tables import write_csv
from arms.bench.toy import Ascent, ToyCurve, exact_variance, probabilities
from arms.designs import COUPLINGS, BitCoupling

# A coupling has the style of the estimator that uses it.
ESTIMATOR_OF = {"independent": "loorf", "systematic": "arms"}
PANELS_PER_ROW = 4
SHOWN_DECADES = 4  # decades of variance; a limit is needed because `arms` reaches zero
ARCH_POINTS = 1601  # the variance of `arms` has n arches
PROBABILITY = "\u03c3(φ)"


class Correlations(NamedTuple):
    """For every coupling of bits, the correlation of two samples at several probabilities p.

    `bound` is the smallest possible correlation. All tensors are float64 `[points]`.
    """

    num_samples: int
    probs: Tensor
    of_coupling: Mapping[str, Tensor]
    bound: Tensor


def smallest_correlation(probs: Tensor, n: int) -> Tensor:
    """Return the smallest correlation that n exchangeable samples of a bit can have.

    The result `[points]` has one entry for each probability p in `probs`. Let rho be the
    correlation of any two samples. The sum of the samples is an integer with mean np. The variance
    of the sum, n p(1-p) (1 + (n-1) rho), is therefore at least {np}(1 - {np}), where {np} is the
    fractional part of np. References: Hoernig (2018), and docs/math/systematic.md.
    """
    part = (as_count(n, 2, "n") * probs).frac()
    return (part * (1 - part) / (n * probs * (1 - probs)) - 1) / (n - 1)


def correlation_curves(num_samples: int = 5, points: int = 401) -> Correlations:
    """Return the exact correlation of two samples, for every coupling of bits.

    The correlations are computed at `points` - 2 probabilities, evenly spaced between 0 and 1.
    """
    probs = torch.linspace(0, 1, as_count(points, 3, "points"), dtype=torch.float64)[1:-1]
    curves = {"independent": torch.zeros_like(probs)}
    for name, make in COUPLINGS.items():
        coupling = make()
        if name == "stratified" or not isinstance(coupling, BitCoupling):
            continue  # for bits, stratified equals systematic
        if not (coupling.even_samples and num_samples % 2):
            curves[name] = coupling.correlation(torch.logit(probs), num_samples)
    return Correlations(num_samples, probs, curves, smallest_correlation(probs, num_samples))


def write_correlations(found: Correlations, folder: Path) -> list[Path]:
    """Write a figure of the correlations and a table with its numbers.

    Return the paths of the files.
    """
    probs, wide = found.probs.tolist(), Style("#cccccc", "solid", "none")
    curves = [Curve("smallest possible", wide, probs, found.bound.tolist(), width=5)]
    for name, values in found.of_coupling.items():
        curves.append(
            Curve(name, style_of(ESTIMATOR_OF.get(name, f"arms-{name}")), probs, values.tolist())
        )
    panel = Panel(
        curves,
        f"Correlation of two samples, n = {found.num_samples} (lower is better)",
        "probability p of a one",
        "correlation",
    )
    columns = {"probability": found.probs, **found.of_coupling, "smallest_possible": found.bound}
    written = write_figure(draw([[panel]]), folder, "correlations")
    rows = torch.stack(list(columns.values()), 1).tolist()
    return [*written, write_csv(folder / "correlations.csv", [list(columns), *rows])]


def write_toy(curves: Sequence[ToyCurve], paths: Sequence[Ascent], folder: Path) -> list[Path]:
    """Write the figures of the toy problem and tables with their numbers.

    `paths` are gradient ascents, not file paths. Return the paths of the files.
    """
    budgets = sorted({curve.num_samples for curve in curves})
    panels: list[Panel | None] = [
        _variance_panel([curve for curve in curves if curve.num_samples == n]) for n in budgets
    ]
    width = min(PANELS_PER_ROW, len(panels))
    panels += [None] * (-len(panels) % width)
    grid = [panels[start : start + width] for start in range(0, len(panels), width)]
    written = write_figure(draw(grid), folder, "toy_variance")
    written += write_figure(draw([_ascent_panels(paths)]), folder, "toy_ascent")
    rows: list[Sequence[object]] = [
        ("estimator", "num_samples", "probability", "measured_variance", "exact_variance")
    ]
    for curve in curves:
        exact = [None] * len(curve.probs) if curve.exact is None else curve.exact.tolist()
        points = zip(curve.probs.tolist(), curve.measured.tolist(), exact, strict=True)
        rows += [(curve.estimator, curve.num_samples, *point) for point in points]
    written.append(write_csv(folder / "toy_variance.csv", rows))
    rows = [("estimator", "num_samples", "step", "mean_logit", "std_logit")]
    for path in paths:
        steps = enumerate(zip(path.logits.mean(1).tolist(), path.std().tolist(), strict=True))
        rows += [(path.estimator, path.num_samples, step, *values) for step, values in steps]
    return [*written, write_csv(folder / "toy_ascent.csv", rows)]


def _variance_panel(curves: Sequence[ToyCurve]) -> Panel:
    """Return the panel of gradient variances for one number of samples n.

    Dots show measured variances, and lines show exact variances. If no closed form is known for an
    estimator, its line shows measured variances.
    """
    n, drawn = curves[0].num_samples, []
    width = 1.1 if n <= 10 else 0.7  # thin lines keep the arches separate
    for curve in curves:
        name, style = curve.estimator, style_of(curve.estimator)
        probs, measured = curve.probs.tolist(), curve.measured.tolist()
        fine = probabilities(ARCH_POINTS) if name == "arms" else curve.probs
        exact = exact_variance(name, n, fine)
        x, y = (probs, measured) if exact is None else (fine.tolist(), exact.tolist())
        drawn.append(Curve(name, style, x, y, shown="line", width=width))
        drawn.append(Curve(name, style, probs[4::8], measured[4::8], shown="dots"))
    top = max(curve.measured.max().item() for curve in curves)
    ylim = (top * 10**-SHOWN_DECADES, 2 * top)
    return Panel(
        drawn, f"n = {n}", PROBABILITY, "gradient variance (log scale)", log=True, ylim=ylim
    )


def _ascent_panels(paths: Sequence[Ascent]) -> list[Panel]:
    """Return two panels about the gradient ascents in `paths`.

    The first panel shows the ascents with the most and with the least noise. The second panel shows
    the standard deviation over replicas, for all ascents.
    """
    steps, extremes, spread = list(range(len(paths[0].logits))), [], []
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    by_noise = sorted(paths, key=lambda path: path.std().sum().item())
    for path in (by_noise[-1], by_noise[0]):
        low, middle, high = torch.quantile(path.logits.sigmoid(), quantiles, dim=1).tolist()
        style = style_of(path.estimator)
        extremes.append(Curve(path.estimator, style, steps, middle, low, high))
    for path in paths:
        style = style_of(path.estimator)
        spread.append(Curve(path.estimator, style, steps, path.std().tolist()))
    title = f"Spread over replicas, n = {paths[0].num_samples} (lower is better)"
    xlim = (0, 1.03 * steps[-1])
    return [
        Panel(
            extremes, "Training: median and middle 80 % of replicas", "step", PROBABILITY, xlim=xlim
        ),
        Panel(spread, title, "step", "standard deviation of φ", xlim=xlim),
    ]
