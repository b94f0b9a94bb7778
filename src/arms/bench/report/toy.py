"""Figures and tables of the toy problem: gradient variance (the paper's figure 2), and ascents."""

from collections.abc import Sequence
from pathlib import Path

import torch

from arms.bench.report.figures import Curve, Panel, draw, write_figure
from arms.bench.report.style import style_of
from arms.bench.report.table_files import write_csv
from arms.bench.toy import Ascent, ToyCurve, exact_curve

PANELS_PER_ROW = 4
PROBABILITY = "\u03c3(φ)"
SHOWN_DECADES = 4
"""Range of the variance axis: some variances reach zero."""
VARIANCE_COLUMNS = (
    "estimator",
    "num_samples",
    "probability",
    "measured_variance",
    "exact_variance",
)
ASCENT_COLUMNS = ("estimator", "num_samples", "step", "mean_logit", "std_logit")


def write_toy(curves: Sequence[ToyCurve], paths: Sequence[Ascent], folder: Path) -> list[Path]:
    """Write both figures and both tables, and return their paths."""
    budgets = sorted({curve.num_samples for curve in curves})
    panels: list[Panel | None] = [
        _variance_panel([curve for curve in curves if curve.num_samples == n]) for n in budgets
    ]
    width = min(PANELS_PER_ROW, len(panels))
    panels += [None] * (-len(panels) % width)
    grid = [panels[start : start + width] for start in range(0, len(panels), width)]
    return [
        *write_figure(draw(grid), folder, "toy_variance"),
        *write_figure(draw([_ascent_panels(paths)]), folder, "toy_ascent"),
        write_csv(folder / "toy_variance.csv", VARIANCE_COLUMNS, _variance_rows(curves)),
        write_csv(folder / "toy_ascent.csv", ASCENT_COLUMNS, _ascent_rows(paths)),
    ]


def _variance_panel(curves: Sequence[ToyCurve]) -> Panel:
    """Draw measurements as dots, and the closed form, where there is one, as a line."""
    n, drawn = curves[0].num_samples, []
    width = 1.1 if n <= 10 else 0.7  # the curve of `arms` has n arches, which must not merge
    for curve in curves:
        name, style = curve.estimator, style_of(curve.estimator)
        probs, measured = curve.probs.tolist(), curve.measured.tolist()
        exact = measured if curve.exact is None else curve.exact.tolist()
        x, y = exact_curve(name, n, points=1601) if name == "arms" else (probs, exact)
        drawn.append(Curve(name, style, x, y, shown="line", width=width))
        drawn.append(Curve(name, style, probs[4::8], measured[4::8], shown="dots"))
    top = max(curve.measured.max().item() for curve in curves)
    ylim = (top * 10**-SHOWN_DECADES, 2 * top)
    return Panel(drawn, f"n = {n}", PROBABILITY, "gradient variance", log=True, ylim=ylim)


def _ascent_panels(paths: Sequence[Ascent]) -> list[Panel]:
    """Draw the ascents with the most and the least noise, and the standard deviation of all."""
    steps = list(range(len(paths[0].logits)))
    xlim = (0, 1.03 * steps[-1])
    by_noise = sorted(paths, key=lambda path: path.std().sum().item())
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    extremes = []
    for path in (by_noise[-1], by_noise[0]):
        low, middle, high = torch.quantile(path.logits.sigmoid(), quantiles, dim=1).tolist()
        style = style_of(path.estimator)
        extremes.append(Curve(path.estimator, style, steps, middle, low, high))
    spread = [
        Curve(path.estimator, style_of(path.estimator), steps, path.std().tolist())
        for path in paths
    ]
    title = f"Standard deviation over replicas, n = {paths[0].num_samples}"
    return [
        Panel(extremes, "Median and middle 80 % of ascents", "step", PROBABILITY, xlim=xlim),
        Panel(spread, title, "step", "standard deviation of φ", xlim=xlim),
    ]


def _variance_rows(curves: Sequence[ToyCurve]) -> list[list[object]]:
    rows: list[list[object]] = []
    for curve in curves:
        exact = [None] * len(curve.probs) if curve.exact is None else curve.exact.tolist()
        points = zip(curve.probs.tolist(), curve.measured.tolist(), exact, strict=True)
        rows += [[curve.estimator, curve.num_samples, *point] for point in points]
    return rows


def _ascent_rows(paths: Sequence[Ascent]) -> list[list[object]]:
    rows: list[list[object]] = []
    for path in paths:
        points = zip(path.logits.mean(1).tolist(), path.std().tolist(), strict=True)
        rows += [[path.estimator, path.num_samples, step, *xy] for step, xy in enumerate(points)]
    return rows
