"""The HTML page: one self-contained file, in which all text from run directories is escaped."""

import base64
import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from arms.bench.formatting import shorten
from arms.bench.report.collect import Collection, RunData
from arms.bench.report.curves import Curve, Plot
from arms.bench.report.figures import band
from arms.bench.report.groups import Group, marked
from arms.bench.report.style import style_of
from arms.bench.report.tables import MARKING_RULE, Table

Json: TypeAlias = dict[str, object]


@dataclass(frozen=True)
class Section:
    """One comparison on the page."""

    group: Group
    tables: Sequence[Table]
    plots: Sequence[Plot]
    downloads: Sequence[str] = ()
    """Paths of files beside the page, relative to it."""

    @property
    def caveats(self) -> list[str]:
        """The caveats of the tables, each once."""
        return list(dict.fromkeys(caveat for table in self.tables for caveat in table.caveats))


@dataclass(frozen=True)
class Overview:
    """What spans all comparisons; empty if there is only one."""

    table: Table | None
    downloads: Sequence[str]


def render(
    collection: Collection, sections: Sequence[Section], overview: Overview, version: str
) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("arms.bench.report"), autoescape=True, trim_blocks=True
    )
    figures = [figure_data(plot) for section in sections for plot in section.plots]
    return environment.get_template("page.html.j2").render(
        summary=summary(collection),
        sections=sections,
        overview=overview,
        problems=collection.problems,
        runs=collection.runs,
        rule=MARKING_RULE,
        version=version,
        picture=_data_uri,
        marked=marked,
        figures=Markup(script_json(figures)),  # noqa: S704 (script_json escapes)
        plotly=Markup(get_plotlyjs()),  # noqa: S704 (a library, not data)
    )


def summary(collection: Collection) -> str:
    """Return one line: how many runs and replicas, which data, and how many of them are incomplete."""
    runs = collection.runs
    replicas = sum(run.config.replicas for run in runs)
    stopped = replicas - sum(run.surviving for run in runs)
    datasets = ", ".join(sorted({shorten(run.config.dataset) for run in runs})) or "no data"
    diverged = sum(run.surviving == 0 for run in runs)
    unfinished = sum(run.bounds is None and run.surviving > 0 for run in runs)
    parts = [_plural(len(runs), "run"), _plural(replicas, "replica"), f"data: {datasets}"]
    counts = ((stopped, "stopped"), (diverged, "diverged"), (unfinished, "unfinished"))
    parts += [f"{count} {what}" for count, what in counts if count]
    return " · ".join(parts)


def script_json(content: object) -> str:
    """Return JSON that cannot close the script element that contains it."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _data_uri(run: RunData) -> str:
    assert run.picture is not None
    return "data:image/png;base64," + base64.b64encode(run.picture).decode()


def figure_data(plot: Plot) -> Json:
    """Return a plot as data for the script of the page: its traces, and its part of the layout."""
    logarithmic = plot.metric.scale == "log"
    traces = [trace for curve in plot.curves for trace in _traces(curve, positive=logarithmic)]
    return {
        "traces": traces,
        "axis": plot.metric.axis_label,
        "log": logarithmic,
        "dtick": _decade_ticks(plot) if logarithmic else None,
        "range": plot.frame(),
    }


def _decade_ticks(plot: Plot) -> int | str | None:
    """Return Plotly's name for ticks at 1, at 1-2-5, or (None) of its own choice, so that labels never overlap."""
    positive = [value for curve in plot.curves for value in curve.mean if value > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    return 1 if decades > 2.5 else "D2" if decades > 0.5 else None


def _traces(curve: Curve, *, positive: bool) -> list[Json]:
    # Plotly interprets HTML in names, so a label is escaped here although it is written as JSON.
    name = html.escape(curve.label)
    line = _line_trace(curve, name, "e" if positive else "f")
    return [line] if curve.std is None else [_band_trace(curve, name, positive=positive), line]


def _line_trace(curve: Curve, name: str, number: str) -> Json:
    style = style_of(curve.estimator)
    deviation = f" ± %{{customdata:.3{number}}}" if curve.std else ""
    return {
        "x": curve.steps,
        "y": _short(curve.mean),
        "customdata": _short(curve.std or []),
        "name": name,
        "legendgroup": name,
        "mode": "lines+markers",
        "marker": {"symbol": style.marker, "color": style.color, "size": 7, "maxdisplayed": 7},
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "hovertemplate": f"%{{y:.3{number}}}{deviation}",
    }


def _band_trace(curve: Curve, name: str, *, positive: bool) -> Json:
    low, high = band(curve, positive=positive)
    return {
        "x": curve.steps + curve.steps[::-1],
        "y": _short(high + low[::-1]),
        "legendgroup": name,
        "showlegend": False,
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": _translucent(style_of(curve.estimator).color),
        "hoverinfo": "skip",
    }


def _short(values: Sequence[float]) -> list[float]:
    """Round to seven digits, more than a screen can show, in half the bytes."""
    return [float(f"{value:.7g}") for value in values]


def _translucent(color: str) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
