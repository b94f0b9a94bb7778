"""Figures: one description, drawn once by matplotlib, for files and for the page alike."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib import style as matplotlib_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogFormatter, MaxNLocator

from arms.bench.report.style import DASHES, Style
from arms.bench.runs.files import make_folder, replace_file

COLUMN_WIDTH, PAGE_WIDTH = 3.25, 6.75
"""In inches: of a single panel, and of several."""
FORMATS = ("svg", "pdf", "png")
SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.size": 0,  # there are lines of the grid
    "ytick.major.size": 0,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "text.parse_math": False,  # a name from a run directory may contain dollar signs
    "pdf.fonttype": 42,  # text, not outlines: searchable, and required by publishers
    "svg.fonttype": "none",  # text here too
    "svg.hashsalt": "arms",  # the same figure gives the same file
}


@dataclass(frozen=True)
class Curve:
    """A curve, with a band around it if it has edges."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    shown: Literal["all", "line", "dots"] = "all"
    """Curves of one name share an entry of the legend, which shows line and dots."""
    width: float = 1.3


@dataclass(frozen=True)
class Panel:
    """Curves on common axes."""

    curves: Sequence[Curve]
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    log: bool = False
    xlim: tuple[float, float] = (0, 1)
    ylim: tuple[float, float] | None = None
    """None shows everything."""


Grid = Sequence[Sequence[Panel | None]]
"""The panels of a figure by row, None for an empty place."""


def draw(grid: Grid, formats: Sequence[str] = FORMATS) -> dict[str, bytes]:
    """Draw a figure with one legend below all panels, and return it in each format.

    Elements of the curves and of the legend get the ids `curve-<i>` and `key-<i>`.
    """
    single = len(grid) == len(grid[0]) == 1
    width, height = (COLUMN_WIDTH, 2.7) if single else (PAGE_WIDTH, 0.7 + 1.8 * len(grid))
    curves = [curve for row in grid for panel in row if panel for curve in panel.curves]
    legend = {curve.name: curve for curve in curves}
    with matplotlib_style.context(["default", SETTINGS]):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(len(grid), len(grid[0]), squeeze=False)
        for place, panel in zip(axes.flat, (panel for row in grid for panel in row), strict=True):
            if panel:
                _draw_panel(place, panel, list(legend))
            else:
                place.set_axis_off()
        _add_legend(figure, list(legend.values()))
        return _saved(figure, formats)


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    axes.patch.set_gid("area")
    for curve in panel.curves:
        style, gid = _line_style(curve), f"curve-{names.index(curve.name)}"
        if curve.shown == "dots":
            style["linestyle"] = "none"
        elif curve.shown == "line":
            style["marker"] = "none"
        every = 1 if curve.shown == "dots" else max(1, len(curve.x) // 4)
        axes.plot(curve.x, curve.y, markevery=(every // 2, every), gid=gid, **style)
        if curve.low and curve.high:
            band = {"color": style["color"], "alpha": 0.15, "linewidth": 0, "gid": gid}
            axes.fill_between(curve.x, curve.low, curve.high, **band)
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title, xlim=panel.xlim)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_ylim(panel.ylim)
    whole = panel.xlim[1] > 1
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=whole))
    if whole:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _add_legend(figure: Figure, curves: Sequence[Curve]) -> None:
    handles = [Line2D([], [], label=curve.name, **_line_style(curve)) for curve in curves]
    # A letter is about 4 points wide, and the line before it 40.
    columns = int(72 * figure.get_figwidth() / (40 + 4 * max(len(curve.name) for curve in curves)))
    rows = math.ceil(len(curves) / max(1, columns))
    layout: dict[str, Any] = {"ncols": math.ceil(len(curves) / rows), "columnspacing": 1.2}
    legend = figure.legend(handles=handles, loc="outside lower center", handlelength=3.2, **layout)
    for index, parts in enumerate(zip(legend.get_lines(), legend.get_texts(), strict=True)):
        for part in parts:
            part.set_gid(f"key-{index}")


def _line_style(curve: Curve) -> dict[str, Any]:
    style = curve.style
    look = {"color": style.color, "linestyle": DASHES[style.dash], "marker": style.marker}
    return look | {"linewidth": curve.width}


def _saved(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """Return the files, without dates, so that they change only with their contents."""
    figure.draw_without_rendering()  # one layout for all formats
    figure.set_layout_engine("none")
    stamps: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    files = {ending: io.BytesIO() for ending in formats}
    for ending, file in files.items():
        figure.savefig(file, format=ending, metadata=stamps.get(ending), dpi=200)
    return {ending: file.getvalue() for ending, file in files.items()}


def write_figure(files: dict[str, bytes], folder: Path, name: str) -> list[Path]:
    """Write a figure that was drawn, one file per format, and return the paths."""
    make_folder(folder)
    paths = [folder / f"{name}.{ending}" for ending in files]
    for path, content in zip(paths, files.values(), strict=True):
        replace_file(path, content)
    return paths
