"""Figures for print, by matplotlib without its global state, at the width of a column or of a page."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from arms.bench.metrics import METRICS
from arms.bench.report.curves import Curve, Plot
from arms.bench.report.style import DASHES, MARKERS, Style, style_of
from arms.bench.runs.files import make_folder, replace_file

COLUMN_WIDTH, PAGE_WIDTH = 3.25, 6.75
"""In inches."""

MATPLOTLIB_SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "pdf.fonttype": 42,  # text, not outlines: searchable, and required by publishers
    "svg.hashsalt": "arms",  # the same figure gives the same file
}


@contextmanager
def figure_settings() -> Iterator[None]:
    """Draw and save with our sizes, whatever the user's own settings."""
    with style.context(["default", MATPLOTLIB_SETTINGS]):
        yield


def save(
    figure: Figure, folder: Path, name: str, endings: Sequence[str] = ("pdf", "svg")
) -> list[Path]:
    """Write a figure in every format, without dates, so that files change only with their contents."""
    make_folder(folder)
    paths = [folder / f"{name}.{ending}" for ending in endings]
    figure.draw_without_rendering()  # one layout for all formats
    figure.set_layout_engine("none")
    stamps: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    for path, ending in zip(paths, endings, strict=True):
        content = io.BytesIO()
        figure.savefig(content, format=ending, metadata=stamps.get(ending), dpi=200)
        replace_file(path, content.getvalue())
    return paths


def line_style(style: Style) -> dict[str, Any]:
    """Return a style as arguments of matplotlib."""
    return {"color": style.color, "linestyle": DASHES[style.dash], "marker": MARKERS[style.marker]}


def legend_below(figure: Figure, lines: Sequence[Line2D], columns: int) -> None:
    """Put one legend under all panels."""
    figure.legend(handles=list(lines), loc="outside lower center", ncols=columns, handlelength=3.2)


def training_figure(plots: Sequence[Plot]) -> Figure:
    """Draw the training curves of one comparison side by side."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.5), layout="constrained")
    for axes, plot in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
        _draw(axes, plot)
        axes.set_title(plot.metric.title)
        axes.set(xlabel="step", ylabel=plot.metric.axis_label)
    _training_legend(figure, plots)
    return figure


def budgets_figure(columns: Mapping[int, Sequence[Plot]]) -> Figure:
    """Draw comparisons that differ in n alone as the paper does: one column per budget, one row per metric."""
    drawn = {plot.metric for plots in columns.values() for plot in plots}
    metrics = [metric for metric in METRICS.values() if metric in drawn]
    figure = Figure(figsize=(PAGE_WIDTH, 0.6 + 1.5 * len(metrics)), layout="constrained")
    grid = figure.subplots(len(metrics), len(columns), squeeze=False, sharex="col")
    for column, (n, plots) in zip(grid.T, columns.items(), strict=True):
        column[0].set_title(f"n = {n}")
        column[-1].set_xlabel("step")
        for axes, metric in zip(column, metrics, strict=True):
            for plot in (plot for plot in plots if plot.metric == metric):
                _draw(axes, plot)
    for axes, metric in zip(grid[:, 0], metrics, strict=True):
        axes.set_ylabel(f"{metric.short_title}\n{metric.axis_label}")
    _training_legend(figure, [plot for plots in columns.values() for plot in plots])
    return figure


def _training_legend(figure: Figure, plots: Sequence[Plot]) -> None:
    first = {curve.label: curve for plot in plots for curve in plot.curves}
    handles = [
        Line2D([], [], label=label, **line_style(style_of(c.estimator)))
        for label, c in first.items()
    ]
    legend_below(figure, handles, min(len(handles), 6))


def _draw(axes: Axes, plot: Plot) -> None:
    for curve in plot.curves:
        _draw_curve(axes, curve, positive=plot.metric.scale == "log")
    if plot.metric.scale == "log":
        axes.set_yscale("log")
    if frame := plot.frame():
        axes.set_ylim(*frame)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_curve(axes: Axes, curve: Curve, *, positive: bool) -> None:
    line = line_style(style_of(curve.estimator))
    axes.plot(curve.steps, curve.mean, markevery=max(1, len(curve.steps) // 6), **line)
    if curve.std is not None:
        low, high = band(curve, positive=positive)
        axes.fill_between(curve.steps, low, high, color=line["color"], alpha=0.15, linewidth=0)


def band(curve: Curve, *, positive: bool) -> tuple[list[float], list[float]]:
    """Return mean - std and mean + std; on a logarithmic axis the lower edge stays above zero."""
    assert curve.std is not None
    low = [
        m - s if m > s or not positive else m / 10
        for m, s in zip(curve.mean, curve.std, strict=True)
    ]
    return low, [m + s for m, s in zip(curve.mean, curve.std, strict=True)]
