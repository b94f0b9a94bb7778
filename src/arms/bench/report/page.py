"""The HTML page of a report. It is a single file, and escapes all text from run directories."""

import base64
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, fromstring, tostring

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from arms import __version__
from arms.bench.output import shorten
from arms.bench.report.collect import Collection, RunData
from arms.bench.report.figures import Panel
from arms.bench.report.groups import Group
from arms.bench.report.tables import MARKING_RULE, Table, headline

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
ID = re.compile(r"\b[mp][0-9a-f]{10}\b")  # ids of markers and clip paths


class Section(NamedTuple):
    """One comparison of runs on the page: a group, with its table and its figures."""

    group: Group
    tables: Sequence[Table]
    panels: Mapping[str, Panel]
    drawings: Sequence[bytes]  # the panels as SVG files
    files: Sequence[Path]

    @property
    def first_panel(self) -> str:
        """The key of the metric that is shown first: the test bound, if it was recorded."""
        bounds = [key for key in self.panels if key.startswith("test_bound")]
        return [*bounds, *self.panels][0]


def render(
    collection: Collection,
    sections: Sequence[Section],
    overview: Table | None,
    files: Sequence[Path],
) -> str:
    """Return the page as HTML.

    `files` has the paths of files that do not belong to one section. The page lists them.
    """
    loader = PackageLoader("arms.bench.report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    names: defaultdict[str, str] = defaultdict(lambda: f"s{len(names)}")
    return environment.get_template("page.html.j2").render(
        summary=summary(collection),
        sections=sections,
        figures=[[_inline(svg, names) for svg in section.drawings] for section in sections],
        names=names,
        numbers=_numbers,
        overview=overview,
        overview_files=files,
        collection=collection,
        rule=MARKING_RULE,
        version=__version__,
        base64=lambda data: base64.b64encode(data).decode(),
        headline=headline,
        strip=strip,
    )


def strip(run: RunData) -> str:
    """Return the CSS aspect ratio of the top of a run's picture, down to the first replica."""
    assert run.picture
    width, height = (int.from_bytes(run.picture[at : at + 4]) for at in (16, 20))  # PNG header
    return f"{width} / {max(1, height * 3 // (1 + 2 * run.config.replicas))}"


def summary(collection: Collection) -> str:
    """Return one line: the numbers of runs and replicas, the data sets, and incomplete runs."""
    runs = collection.runs
    replicas = sum(run.config.replicas for run in runs)
    datasets = ", ".join(sorted({shorten(run.config.dataset) for run in runs})) or "no data"
    counts = {
        "stopped": replicas - sum(run.surviving for run in runs),
        "diverged": sum(run.surviving == 0 for run in runs),
        "unfinished": sum(run.bounds is None and run.surviving > 0 for run in runs),
    }
    totals = {"run": len(runs), "replica": replicas}
    parts = [f"{count} {what}" + ("s" if count != 1 else "") for what, count in totals.items()]
    parts.append(f"data: {datasets}")
    return " · ".join([*parts, *(f"{count} {what}" for what, count in counts.items() if count)])


def _numbers(panel: Panel) -> Markup:
    """Return the points of a panel's curves, rounded, as JSON for the page's script."""
    form = ".2e" if panel.log else ".2f"
    curves: list[dict[str, object]] = []
    for curve in panel.curves:
        content: dict[str, object] = {"name": curve.name, "color": curve.style.color}
        if not curves or curve.x != panel.curves[0].x:
            content["x"] = curve.x
        content["y"] = [float(format(y, form)) for y in curve.y]
        if curve.high:
            pairs = zip(curve.high, curve.y, strict=True)
            content["std"] = [float(format(high - y, form)) for high, y in pairs]
        curves.append(content)
    content = {"label": panel.xlabel, "xlim": panel.xlim, "log": panel.log, "curves": curves}
    numbers = str(escape(json.dumps(content, allow_nan=False, separators=(",", ":"))))
    return Markup(numbers.replace("&#34;", '"'))  # noqa: S704 (the attribute is in single quotes)


def _inline(svg: bytes, names: Mapping[str, str]) -> Markup:
    """Return the content of an SVG file as an HTML element for the page.

    `names` is {style or id in the file: short name}.
    """
    whole = fromstring(svg)  # noqa: S314 (matplotlib wrote it)
    for grid in (one for one in whole.iter() if "tick_" in one.get("id", "")):
        for line in grid.iter():
            line.attrib.pop("clip-path", None)  # the line is inside the axes without clipping
    (root,) = _slim(whole, names)
    return Markup(tostring(root, encoding="unicode").replace(" />", "/>"))  # noqa: S704 (escaped)


def _slim(element: Element, names: Mapping[str, str]) -> list[Element]:
    """Return a list with one SVG element, a shortened copy of `element`.

    If `element` has no effect of its own, return its shortened children instead.
    """
    slim = Element(element.tag.rpartition("}")[2])
    slim.text = (element.text or "").strip() or None
    slim.extend([child for part in element for child in _slim(part, names)])
    for qualified, value in element.items():
        name = qualified.rpartition("}")[2]
        if name == "style":
            style = re.sub("font-family:[^;]*;?", "", value).replace("#000000", "currentColor")
            slim.set("class", names[style.replace("fill: #ffffff", "fill: none")])
        elif name == "id" and slim.tag == "g":
            if value.startswith(("curve-", "key-", "area")):  # ids must be unique on the page
                slim.set("class", value)
        elif name == "d":
            slim.set(name, _short_path(value))
        elif found := ID.search(value):
            slim.set(name, value.replace(found[0], names[found[0]]))
        elif not value.startswith("rotate(-0 "):
            slim.set(name, NUMBER.sub(lambda found: f"{round(float(found[0]), 1):g}", value))
    if slim.tag in ("metadata", "style") or (slim.tag == "defs" and not len(slim)):
        return []
    return [slim] if slim.attrib or slim.tag != "g" else list(slim)


def _short_path(path: str) -> str:
    """Return the data of an SVG path, rewritten in relative coordinates rounded to 0.1 pt."""
    numbers = np.array(NUMBER.findall(path), float)
    if "C" in path or path.count("M") > 1 or np.abs(numbers).max() < 5:  # a marker, or a tick
        return NUMBER.sub(lambda found: f"{float(found[0]):.3g}", " ".join(path.split()))
    moves = np.diff(numbers.reshape(-1, 2).round(1), axis=0, prepend=0).round(1)
    start, *others = [f"{x:g} {y:g}" for x, y in moves]
    short = f"M{start}l{' '.join(others)}{'z' * path.count('z')}"
    return re.sub(r"\b0\.", ".", short).replace(" -", "-")
