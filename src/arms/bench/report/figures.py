"""Figures for files and for the page of a report, drawn with matplotlib.

Every estimator has the same color, dash and marker in all figures. Two estimators of the same
target never share a color. The colors come from the palettes of Okabe and Ito and of Tol, which
suit color-blind readers. Dashes and markers distinguish curves in black and white.
"""

import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from matplotlib import style as matplotlib_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogFormatter, MaxNLocator

from arms.bench.runs.files import make_folder, replace_file

COLUMN_WIDTH, PAGE_WIDTH = 3.25, 6.75  # inches: for one panel, for several
# Files contain no dates, so that they change only with the figure.
STAMPS: Mapping[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
SETTINGS: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "legend.frameon": False,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.major.size": 0,  # the grid replaces ticks
    "ytick.major.size": 0,
    "text.parse_math": False,  # names of runs may contain dollar signs
    "pdf.fonttype": 42,  # text instead of outlines is searchable, and publishers require it
    "svg.fonttype": "none",  # text instead of outlines
    "svg.hashsalt": "arms",  # makes files reproducible
}

VERMILION, BLUE, SKY, GREEN = "#D55E00", "#0072B2", "#56B4E9", "#009E73"
PINK, ORANGE, GRAY, BLACK = "#CC79A7", "#E69F00", "#808080", "#000000"
INDIGO, WINE, OLIVE, FOREST = "#6A5ACD", "#A3285E", "#999933", "#117733"
TEAL, SAND, BROWN, MAGENTA = "#44AA99", "#C4A85A", "#8C510A", "#AA4499"
ROSE, SLATE = "#CC6677", "#48627A"

DASHES: Mapping[str, tuple[float, tuple[float, ...]]] = {
    "solid": (0, ()),
    "dash": (0, (5, 2)),
    "dot": (0, (1.2, 1.5)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
    "longdash": (0, (9, 2.5)),
}
MARKERS = "osD^vPX*p"  # markers and dashes in matplotlib's notation


@dataclass(frozen=True)
class Style:
    """Color, dash (a key of DASHES) and marker of one curve."""

    color: str
    dash: str
    marker: str


STYLES: dict[str, Style] = {
    "arms": Style(VERMILION, "solid", "o"),
    "arms-dirichlet": Style(BLUE, "solid", "s"),
    "arms-gaussian": Style(SKY, "solid", "D"),
    "loorf": Style(GREEN, "dash", "^"),
    "disarm": Style(PINK, "dash", "v"),
    "relax": Style(ORANGE, "dash", "P"),
    "rebar": Style(SAND, "dot", "X"),
    "double-cv": Style(OLIVE, "dot", "s"),
    "rodeo": Style(FOREST, "solid", "p"),
    "arm": Style(BROWN, "dash", "X"),
    "reinforce": Style(ROSE, "dot", "P"),
    "exact": Style(SLATE, "solid", "*"),
    "flips": Style(WINE, "solid", "*"),
    "midpoint": Style(INDIGO, "dash", "*"),
    "midpoint-single": Style(MAGENTA, "dot", "D"),
    "cross-paired": Style(TEAL, "dash", "p"),
    "arms-taylor": Style("#E377C2", "dashdot", "X"),
    "reinmax": Style(GRAY, "longdash", "o"),
    # An estimator of the bound has the color of the corresponding estimator of the expectation.
    "arms-ms": Style(VERMILION, "longdash", "o"),
    "arms-ms-dirichlet": Style(BLUE, "longdash", "s"),
    "arms-ms-gaussian": Style(SKY, "longdash", "D"),
    "loorf-ms": Style(GREEN, "dashdot", "^"),
    "disarm-ms": Style(PINK, "dashdot", "v"),
    "flips-ms": Style(WINE, "longdash", "*"),
    "midpoint-ms": Style(INDIGO, "dashdot", "*"),
    "midpoint-ms-shared": Style(MAGENTA, "dashdot", "D"),
    "vimco": Style(ORANGE, "dashdot", "p"),
    "reinforce-ms": Style(ROSE, "dashdot", "P"),
}
UNFOLDED = ("arms-ms", "arms-ms-dirichlet", "arms-ms-gaussian", "loorf-ms", "disarm-ms")
STYLES |= {f"{name} (unfolded)": replace(STYLES[name], marker="X") for name in UNFOLDED}


def style_of(estimator: str) -> Style:
    """Return the style of an estimator.

    If STYLES does not contain the estimator, the style is black, and its dash and marker are
    derived from the estimator's name.
    """
    if estimator in STYLES:
        return STYLES[estimator]
    # Derived styles are black. No entry of STYLES is black.
    index = zlib.crc32(estimator.encode())
    marker = MARKERS[index // len(DASHES) % len(MARKERS)]
    return Style(BLACK, list(DASHES)[index % len(DASHES)], marker)


@dataclass(frozen=True)
class Curve:
    """A curve in a panel. If `low` and `high` are given, the area between them is a band.

    Curves with the same name share a legend entry.
    """

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    shown: Literal["all", "line", "dots"] = "all"
    width: float = 1.3

    def look(self) -> dict[str, Any]:
        """Return the curve's color, marker and line style as keyword arguments for matplotlib."""
        line = {"linestyle": DASHES[self.style.dash], "linewidth": self.width}
        return {"color": self.style.color, "marker": self.style.marker, **line}


@dataclass(frozen=True)
class Panel:
    """One diagram with several curves. Without `ylim`, the vertical axis shows all data."""

    curves: Sequence[Curve]
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    log: bool = False
    xlim: tuple[float, float] = (0, 1)
    ylim: tuple[float, float] | None = None


def draw(
    grid: Sequence[Sequence[Panel | None]], formats: Sequence[str] = ("svg", "pdf", "png")
) -> dict[str, bytes]:
    """Draw a grid of panels with one common legend. Return {format: content of the file}.

    In an SVG file, all parts of curve number i have the id `curve-<i>`, and its entry in the legend
    has the id `key-<i>`.
    """
    panels = [panel for row in grid for panel in row]
    legend = {curve.name: curve for panel in panels if panel for curve in panel.curves}
    size = (COLUMN_WIDTH, 2.7) if len(panels) == 1 else (PAGE_WIDTH, 0.7 + 1.8 * len(grid))
    files = {ending: io.BytesIO() for ending in formats}
    with matplotlib_style.context(["default", SETTINGS]):
        figure = Figure(figsize=size, layout="constrained")
        places = figure.subplots(len(grid), len(grid[0]), squeeze=False).flat
        for axes, panel in zip(places, panels, strict=True):
            if panel:
                _draw_panel(axes, panel, list(legend))
            else:
                axes.set_axis_off()
        _add_legend(figure, list(legend.values()))
        figure.draw_without_rendering()  # one layout for all formats
        figure.set_layout_engine("none")
        for ending, file in files.items():
            figure.savefig(file, format=ending, metadata=STAMPS.get(ending), dpi=200)
    return {ending: file.getvalue() for ending, file in files.items()}


def write_figure(files: Mapping[str, bytes], folder: Path, name: str) -> list[Path]:
    """Write one file for each format of a figure. Return the paths of the files.

    `files` is {format: content of the file}, as returned by `draw`.
    """
    make_folder(folder)
    paths = [folder / f"{name}.{ending}" for ending in files]
    for path, content in zip(paths, files.values(), strict=True):
        replace_file(path, content)
    return paths


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    axes.patch.set_gid("area")
    hidden = {"all": {}, "line": {"marker": "none"}, "dots": {"linestyle": "none"}}
    for curve in panel.curves:
        gid, look = f"curve-{names.index(curve.name)}", curve.look() | hidden[curve.shown]
        every = 1 if curve.shown == "dots" else max(1, len(curve.x) // 3)
        axes.plot(curve.x, curve.y, markevery=(every // 2, every), gid=gid, **look)
        if curve.low and curve.high:
            band: dict[str, Any] = {"color": curve.style.color, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(curve.x, curve.low, curve.high, gid=gid, **band)
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title, xlim=panel.xlim)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_ylim(panel.ylim)
    counts_steps = panel.xlim[1] > 1
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=counts_steps))
    if counts_steps:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _add_legend(figure: Figure, curves: Sequence[Curve]) -> None:
    handles = [Line2D([], [], label=curve.name, **curve.look()) for curve in curves]
    # A letter is about 4 points wide, and the line of a legend entry 40 points.
    columns = int(72 * figure.get_figwidth() / (40 + 4 * max(len(curve.name) for curve in curves)))
    rows = math.ceil(len(curves) / max(1, columns))
    layout: dict[str, Any] = {"ncols": math.ceil(len(curves) / rows), "columnspacing": 1.2}
    legend = figure.legend(handles=handles, loc="outside lower center", handlelength=3.2, **layout)
    for index, parts in enumerate(zip(legend.get_lines(), legend.get_texts(), strict=True)):
        for part in parts:
            part.set_gid(f"key-{index}")
