"""The HTML page: one self-contained file, in which all text from run directories is escaped."""

import base64
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, fromstring, tostring

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from arms import __version__
from arms.bench.formatting import shorten
from arms.bench.report.collect import Collection, RunData
from arms.bench.report.figures import Panel
from arms.bench.report.groups import Group, marked
from arms.bench.report.tables import MARKING_RULE, Table

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Section:
    """One comparison on the page."""

    group: Group
    tables: Sequence[Table]
    panels: Mapping[str, Panel]
    """The training curves by metric."""
    drawings: Sequence[bytes]
    """The panels as SVG files."""
    files: Sequence[str]
    """Links to files beside the page."""

    @property
    def caveats(self) -> list[str]:
        """The caveats of the tables, each once."""
        return list(dict.fromkeys(caveat for table in self.tables for caveat in table.caveats))


def render(
    collection: Collection,
    sections: Sequence[Section],
    overview: Table | None,
    files: Sequence[str],
) -> str:
    """Return the page; `files` are links to those that span several comparisons."""
    loader = PackageLoader("arms.bench.report")
    inliner = _Inliner()
    figures = [[inliner.inline(drawing) for drawing in section.drawings] for section in sections]
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.j2").render(
        summary=summary(collection),
        sections=sections,
        figures=figures,
        style_sheet=inliner.style_sheet(),
        numbers=_numbers,
        overview=overview,
        overview_files=files,
        problems=collection.problems,
        runs=collection.runs,
        rule=MARKING_RULE,
        version=__version__,
        picture=_data_uri,
        marked=marked,
    )


def summary(collection: Collection) -> str:
    """Return one line: how many runs and replicas, which data, and how many are incomplete."""
    runs = collection.runs
    replicas = sum(run.config.replicas for run in runs)
    datasets = ", ".join(sorted({shorten(run.config.dataset) for run in runs})) or "no data"
    counts = {
        "stopped": replicas - sum(run.surviving for run in runs),
        "diverged": sum(run.surviving == 0 for run in runs),
        "unfinished": sum(run.bounds is None and run.surviving > 0 for run in runs),
    }
    parts = [_plural(len(runs), "run"), _plural(replicas, "replica"), f"data: {datasets}"]
    return " · ".join([*parts, *(f"{count} {what}" for what, count in counts.items() if count)])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _data_uri(run: RunData) -> str:
    assert run.picture is not None
    return "data:image/png;base64," + base64.b64encode(run.picture).decode()


def _numbers(panel: Panel) -> str:
    """Return the numbers of a panel, rounded as they are shown, as JSON for the script."""
    form = "{:.2e}" if panel.log else "{:.2f}"
    curves: list[dict[str, object]] = []
    for curve in panel.curves:
        std = [high - y for high, y in zip(curve.high or [], curve.y, strict=False)]
        rounded = {"y": curve.y, "std": std}
        numbers = {key: [float(form.format(v)) for v in values] for key, values in rounded.items()}
        steps = {"x": curve.x} if not curves or curve.x != panel.curves[0].x else {}
        curves.append({"name": curve.name, "color": curve.style.color, **steps, **numbers})
    content = {"label": panel.xlabel, "xlim": panel.xlim, "log": panel.log, "curves": curves}
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


class _Inliner:
    """Makes SVG files short elements of one page, which share a style sheet and colours."""

    def __init__(self) -> None:
        self.names: defaultdict[str, str] = defaultdict(lambda: f"s{len(self.names)}")
        """Short names of styles and of ids. matplotlib makes ids from contents: no two collide."""

    def inline(self, svg: bytes) -> Markup:
        (root,) = self._slim(fromstring(svg))  # noqa: S314 (matplotlib wrote it)
        return Markup(tostring(root, encoding="unicode"))  # noqa: S704 (tostring escapes)

    def style_sheet(self) -> list[str]:
        return [f".{name} {{{style}}}" for style, name in self.names.items() if ":" in style]

    def _slim(self, element: Element) -> list[Element]:
        tag = element.tag.rpartition("}")[2]
        if tag in ("metadata", "style"):
            return []
        slim = Element(tag)
        slim.text = (element.text or "").strip() or None
        slim.extend([child for part in element for child in self._slim(part)])
        for name, value in element.items():
            self._set(slim, name.rpartition("}")[2], value)
        return [slim] if slim.attrib or tag != "g" else list(slim)

    def _set(self, element: Element, name: str, value: str) -> None:
        if name == "id" and element.tag == "g":
            if value.startswith(("curve-", "key-", "area")):  # other figures have them too
                element.set("class", value)
        elif name == "id":
            element.set("id", self.names[value])
        elif name == "href":
            element.set("href", f"#{self.names[value[1:]]}")
        elif name == "clip-path":
            element.set(name, f"url(#{self.names[value[5:-1]]})")
        elif name == "style":
            style = re.sub(r"font-family:[^;]*;?", "", value).replace("#000000", "currentColor")
            element.set("class", self.names[style.replace("fill: #ffffff", "fill: none")])
        elif name == "d":
            element.set("d", _short_path(value))
        elif not value.startswith("rotate(-0 "):
            element.set(name, NUMBER.sub(lambda number: f"{float(number[0]):.4g}", value))


def _short_path(path: str) -> str:
    """Return a path in tenths of a point, which no eye can see, relative to the point before."""
    numbers = np.array(NUMBER.findall(path), float)
    if "C" in path or path.count("M") > 1 or np.abs(numbers).max() < 5:  # a marker, or a tick
        return NUMBER.sub(lambda number: f"{float(number[0]):.3g}", " ".join(path.split()))
    moves = np.diff(numbers.reshape(-1, 2).round(1), axis=0, prepend=0).round(1)
    start, *others = [f"{x:g} {y:g}".replace(" -", "-") for x, y in moves]
    return f"M{start}l{' '.join(others)}{'z' * path.count('z')}".replace(" -", "-")
