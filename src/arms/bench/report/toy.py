"""Figures and tables of the toy problem: variance as a function of sigma(phi) (the paper's figure 2), and ascents."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from arms.bench.report.figures import PAGE_WIDTH, figure_settings, legend_below, line_style, save
from arms.bench.report.style import style_of
from arms.bench.report.table_files import write_csv
from arms.bench.toy import Ascent, ToyCurve, exact_curve

FIGURE_FORMATS = ("svg", "pdf", "png")
SHOWN_DECADES = 4
"""Range of the variance axis: some variances reach zero."""


def write_toy(curves: Sequence[ToyCurve], paths: Sequence[Ascent], folder: Path) -> list[Path]:
    """Write both figures and both tables, and return their paths."""
    with figure_settings():
        written = save(variance_figure(curves), folder, "toy_variance", FIGURE_FORMATS)
        written += save(ascent_figure(paths), folder, "toy_ascent", FIGURE_FORMATS)
    return [
        *written,
        _write_curves(curves, folder / "toy_variance.csv"),
        _write_paths(paths, folder / "toy_ascent.csv"),
    ]


def variance_figure(curves: Sequence[ToyCurve]) -> Figure:
    """Draw one panel per budget: Monte-Carlo measurements as dots, the closed form, where there is one, as a line."""
    budgets = sorted({curve.num_samples for curve in curves})
    columns = min(4, len(budgets))
    rows = -(-len(budgets) // columns)
    figure = Figure(figsize=(PAGE_WIDTH, 0.7 + 1.75 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for index, axes in enumerate(grid.flat):
        if index < len(budgets):
            _draw_variances(
                axes, [curve for curve in curves if curve.num_samples == budgets[index]]
            )
        else:
            axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel(r"$\sigma(\phi)$")
    for axes in grid[:, 0]:
        axes.set_ylabel("gradient variance")
    _legend(figure, list(dict.fromkeys(curve.estimator for curve in curves)))
    return figure


def ascent_figure(paths: Sequence[Ascent]) -> Figure:
    """Draw the ascents of the estimators with the most and the least noise, and the standard deviation of all."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    by_noise = sorted(paths, key=lambda path: path.std().sum().item())
    for path in (by_noise[-1], by_noise[0]):
        _draw_ascent(left, path)
    for path in paths:
        right.plot(path.std().tolist(), markevery=25, **line_style(style_of(path.estimator)))
    left.set(xlabel="step", ylabel=r"$\sigma(\phi)$", ylim=(0, 1))
    left.set_title("Median and middle 80 % of ascents")
    left.legend(loc="lower right")
    right.set(xlabel="step", ylabel=r"standard deviation of $\phi$", ylim=(0, None))
    right.set_title(f"Standard deviation over replicas, n = {paths[0].num_samples}")
    _legend(figure, [path.estimator for path in paths])
    return figure


def _draw_ascent(axes: Axes, path: Ascent) -> None:
    probs = torch.sigmoid(path.logits)
    low, middle, high = torch.quantile(
        probs, torch.tensor([0.1, 0.5, 0.9], dtype=probs.dtype), dim=1
    ).tolist()
    line = line_style(style_of(path.estimator))
    axes.plot(middle, markevery=25, label=path.estimator, **line)
    axes.fill_between(range(len(middle)), low, high, color=line["color"], alpha=0.25, linewidth=0)


def _draw_variances(axes: Axes, curves: Sequence[ToyCurve]) -> None:
    width = (
        1.1 if curves[0].num_samples <= 10 else 0.7
    )  # the curve of `arms` has n arches, which must not merge
    for curve in curves:
        line = line_style(style_of(curve.estimator))
        probs, drawn = _line(curve)
        axes.plot(probs, drawn, color=line["color"], linestyle=line["linestyle"], linewidth=width)
        dots = {
            "linestyle": "none",
            "marker": line["marker"],
            "color": line["color"],
            "markersize": 2.8,
        }
        axes.plot(
            curve.probs.tolist(),
            curve.measured.tolist(),
            markevery=(4, 8),
            markeredgewidth=0,
            **dots,
        )
    top = max(curve.measured.max().item() for curve in curves)
    axes.set_yscale("log")
    axes.set_ylim(top * 10**-SHOWN_DECADES, 2 * top)
    axes.set_title(f"n = {curves[0].num_samples}")
    axes.set_xticks([0.1, 0.5, 0.9])


def _line(curve: ToyCurve) -> tuple[list[float], list[float]]:
    """Return the closed form, on a grid fine enough for the arches of `arms`, or the measurements if there is none."""
    if curve.estimator == "arms":
        return exact_curve(curve.estimator, curve.num_samples, points=1601)
    return curve.probs.tolist(), (curve.measured if curve.exact is None else curve.exact).tolist()


def _legend(figure: Figure, estimators: Sequence[str]) -> None:
    handles = [Line2D([], [], label=name, **line_style(style_of(name))) for name in estimators]
    legend_below(figure, handles, len(handles))


def _write_curves(curves: Sequence[ToyCurve], path: Path) -> Path:
    rows: list[list[object]] = []
    for curve in curves:
        exact = [""] * len(curve.probs) if curve.exact is None else curve.exact.tolist()
        points = zip(curve.probs.tolist(), curve.measured.tolist(), exact, strict=True)
        rows += [[curve.estimator, curve.num_samples, *point] for point in points]
    heading = ["estimator", "num_samples", "probability", "measured_variance", "exact_variance"]
    return write_csv(path, heading, rows)


def _write_paths(paths: Sequence[Ascent], path: Path) -> Path:
    rows: list[list[object]] = []
    for ascent in paths:
        points = zip(ascent.logits.mean(1).tolist(), ascent.std().tolist(), strict=True)
        rows += [
            [ascent.estimator, ascent.num_samples, step, *point]
            for step, point in enumerate(points)
        ]
    return write_csv(path, ["estimator", "num_samples", "step", "mean_logit", "std_logit"], rows)
