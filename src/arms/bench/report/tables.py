"""Comparison tables: mean and standard deviation over replicas, best marked, one K per column."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from arms.bench.metrics import TEST_BOUND_SAMPLES, surviving
from arms.bench.output import format_number, is_drawable
from arms.bench.report import paper
from arms.bench.report.groups import Group, Row, work
from arms.bench.runs.files import replace_file

MARKING_RULE = (
    "Mean ± standard deviation over replicas, in nats, higher is better. Bold: the highest mean of "
    "the column (in the overview, of the row), and every mean closer to it than the standard "
    "error of their difference, sqrt(s₁²/R₁ + s₂²/R₂). A single replica has no standard deviation, "
    "and is never marked. Nor is a biased estimator: its row has no part in the comparison."
)
LATEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "\u2212": r"$-$", "±": r"$\pm$"}
)


@dataclass(frozen=True)
class Stat:
    """A mean and its standard deviation over replicas: a cell of a table."""

    mean: float
    std: float | None  # None for a single replica
    count: int | None = None  # replicas; None for a printed number
    best: bool = False

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "not finite"
        mean = format_number(self.mean).replace("-", "\u2212")
        return mean if self.std is None else f"{mean} ± {format_number(self.std)}"


@dataclass(frozen=True)
class Table:
    """Labeled rows of numbers under column headings; `name` is that of its files."""

    title: str
    name: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Stat | None]]]
    caveats: tuple[str, ...] = ()
    heading: str = "estimator"


def comparison(group: Group, name: str) -> Table | None:
    """Return the table of one group, or None if none of its runs is finished."""
    rows = [row for row in group.rows if row.finished]
    n, columns = group.setting.num_samples, {}
    for split, counts in {"train": {1, n}, "test": {1, n, TEST_BOUND_SAMPLES}}.items():
        for count in sorted(counts):
            stats = [bound_stat(row, split, count) for row in rows]
            heading = f"{split} K={count}" + (" (=n)" if count == n > 1 else "")
            if any(stats):
                columns[heading] = mark_best(stats, [row.biased for row in rows])
    if not columns:
        return None
    return Table(group.setting.title, name, list(columns), _labeled(rows, [*columns.values()]))


def beside_paper(group: Group, name: str) -> list[Table]:
    """Return our numbers beside the printed ones, one table per default K of the released code."""
    by_count: dict[int, list[Row]] = {}
    for row in group.rows:
        if row.finished:
            count = paper.released_count(row.estimator, group.setting.num_samples)
            by_count.setdefault(count, []).append(row)
    found = sorted(by_count.items(), reverse=True)
    tables = [_beside_paper(replace(group, rows=rows), count, name) for count, rows in found]
    return [table for table in tables if table is not None]


def _beside_paper(group: Group, count: int, name: str) -> Table | None:
    headings, columns = [], []
    for split in ("train", "test"):
        printed = [paper.printed(group.setting, row.estimator, split) for row in group.rows]
        numbers = sorted({str(one.table) for one in printed if one})
        headings += [f"{split} K={count}, ours", f"{split}, paper's table {' and '.join(numbers)}"]
        columns.append([bound_stat(row, split, count) for row in group.rows])
        columns.append([Stat(one.mean, one.plus_minus) if one else None for one in printed])
    if not any(stat for column in columns[1::2] for stat in column):
        return None
    part = "n" if count == group.setting.num_samples else "n/2"
    title = f"Beside the paper's numbers, at its default K = {part} = {count}"
    rows = _labeled(group.rows, columns)
    return Table(title, f"{name}-paper-k{count}", headings, rows, paper.caveats(group))


def overview(groups: Sequence[Group], name: str) -> Table | None:
    """Return the test bound of every group (rows) and estimator (columns) of several groups."""
    biased = {row.label: row.biased for group in groups for row in group.rows if row.finished}
    places = list(zip(*(group.setting.parts for group in groups), strict=True))
    shared = [place[0] for place in places if place[0] and len({*place}) == 1]
    rows = []
    for index, group in enumerate(groups):
        own = [place[index] for place in places if place[index] and len({*place}) > 1]
        found = {row.label: bound_stat(row, "test", TEST_BOUND_SAMPLES) for row in group.rows}
        stats = [found.get(label) for label in biased]
        if any(stats):
            rows.append((", ".join(own), mark_best(stats, list(biased.values()))))
    title = ", ".join([f"test K={TEST_BOUND_SAMPLES}", *shared])
    return Table(title, name, list(biased), rows, heading="comparison") if len(rows) > 1 else None


def bound_stat(row: Row, split: str, count: int) -> Stat | None:
    """Return a bound over the row's surviving replicas, or None if a finished run lacks it."""
    lists = [(run.bounds or {}).get(split, {}).get(count) for run in row.finished]
    values = [value for one in lists for value in surviving(one or [])]
    return summarize(values) if values and None not in lists else None


def summarize(values: Sequence[float]) -> Stat:
    """Return mean and sample standard deviation, or NaN and None if a value is not finite."""
    if not all(is_drawable(value) for value in values):
        return Stat(math.nan, None, len(values))
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mark_best(stats: Sequence[Stat | None], biased: Sequence[bool]) -> list[Stat | None]:
    """Mark the best numbers of a column by MARKING_RULE, unless there is only one to rank."""
    ranked = [
        stat if stat and stat.std is not None and not is_biased else None
        for stat, is_biased in zip(stats, biased, strict=True)
    ]
    numbers = [stat for stat in ranked if stat]
    if len(numbers) < 2:
        return list(stats)
    top = max(numbers, key=lambda stat: stat.mean)
    return [
        replace(one, best=True) if one and _as_good(one, top) else stat
        for stat, one in zip(stats, ranked, strict=True)
    ]


def _as_good(stat: Stat, top: Stat) -> bool:
    errors = [(one.std or 0.0) / math.sqrt(one.count or 1) for one in (stat, top)]
    return stat.mean == top.mean or top.mean - stat.mean < math.hypot(*errors)


def _labeled(
    rows: Sequence[Row], columns: Sequence[Sequence[Stat | None]]
) -> list[tuple[str, list[Stat | None]]]:
    """Return the numbers by row. A label says how many replicas there are, and what they cost."""
    labeled = []
    for index, row in enumerate(rows):
        config = row.runs[0].config
        started = sum(run.config.replicas for run in row.finished)
        left = sum(run.surviving for run in row.finished)
        counted = f"{row.label}, R={left}" + (f" of {started}" if left < started else "")
        label = ", ".join([counted, *work(config.estimator, config.num_samples)])
        labeled.append((label, [column[index] for column in columns]))
    return labeled


# ---- files


def markdown(table: Table) -> str:
    """Return the table in Markdown, the best numbers in bold."""
    heading, *rows = [f"| {' | '.join(row)} |" for row in _texts(table, _plain, "**{}**")]
    rule = "|" + "---|" + "---:|" * len(table.columns)
    caveats = [f"{_plain(caveat)}\n" for caveat in table.caveats]
    return "\n".join([f"**{_plain(table.title)}**", "", heading, rule, *rows, "", *caveats])


def latex(table: Table) -> str:
    """Return the table as a LaTeX `tabular` (booktabs), the best numbers in bold."""
    heading, *rows = [rf"{' & '.join(row)} \\" for row in _texts(table, _tex, r"\textbf{{{}}}")]
    comments = [f"% {_one_line(text)}" for text in (table.title, *table.caveats)]
    begin = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    end = [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*comments, *begin, heading, r"\midrule", *rows, *end])


def _texts(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the heading and the rows, escaped, with the best numbers in bold."""
    rows = [[escape(text) for text in (table.heading, *table.columns)]]
    for label, stats in table.rows:
        texts = [(escape(str(stat or "")), stat and stat.best) for stat in stats]
        rows.append([escape(label), *(bold.format(text) if best else text for text, best in texts)])
    return rows


def _plain(text: str) -> str:
    """Escape what would end the cell, or become HTML where Markdown is rendered."""
    return _one_line(text).replace("|", r"\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    return _one_line(text).translate(LATEX_ESCAPES)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write a table as Markdown to read, LaTeX to print, and CSV to compute with."""
    paths = [folder / f"{table.name}.{ending}" for ending in ("md", "tex", "csv")]
    replace_file(paths[0], markdown(table))
    replace_file(paths[1], latex(table))
    parts = ("mean", "std", "replicas", "best")
    headings = [f"{column} {part}" for column in table.columns for part in parts]
    rows: list[list[object]] = [[table.heading, *headings]]
    for label, stats in table.rows:
        fields = [(s.mean, s.std, s.count, int(s.best)) if s else (None,) * 4 for s in stats]
        rows.append([label, *(field for of_stat in fields for field in of_stat)])
    write_csv(paths[2], rows)
    return paths


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    """Write a heading and rows as CSV in full precision, and return the path."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    replace_file(path, out.getvalue())
    return path
