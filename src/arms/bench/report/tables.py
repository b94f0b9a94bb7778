"""Comparison tables: mean and standard deviation over replicas, with the best numbers in bold.

All bounds in one column have the same number of samples K.
"""

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
from arms.bench.report.groups import Group, Row, cost_in_words, needs_of
from arms.bench.runs.files import replace_file

MARKING_RULE = (
    "Mean ± standard deviation s over R replicas, in nats, higher is better. Bold: the highest "
    "mean of the column (in the overview, of the row), and every mean that differs from the "
    "highest by less than the standard error of the difference, sqrt(s₁²/R₁ + s₂²/R₂). A single "
    "replica has no standard deviation, and is never bold. Biased estimators are never bold. "
    "Tables with numbers of the paper have no bold."
)
UNEQUAL_RULE = "In this table, a run with more than n evaluations is never bold."
CSV_PARTS = ("mean", "std", "replicas", "best")
"""The attributes of a cell; each has its own column in the CSV file."""
LATEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "\u2212": r"$-$", "±": r"$\pm$"}
)


@dataclass(frozen=True)
class Cell:
    """A number of a table: our mean and standard deviation, or the paper's number and its ±."""

    mean: float
    std: float | None  # None for a single replica
    replicas: int | None = None  # None for a number from the paper
    best: bool = False

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "not finite or too large"
        mean = format_number(self.mean).replace("-", "\u2212")
        return mean if self.std is None else f"{mean} ± {format_number(self.std)}"


@dataclass(frozen=True)
class Table:
    """A table of numbers with row labels and column headings.

    `name` is the name of the table's files, without the suffix.
    """

    title: str
    name: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell | None]]]
    caveats: tuple[str, ...] = ()
    label_heading: str = "estimator"


def comparison_table(group: Group, name: str) -> Table | None:
    """Return a table of a group's bounds, or None if no run in the group has bounds."""
    rows = [row for row in group.rows if row.evaluated_runs]
    n, columns = group.setting.num_samples, {}
    for split, ks in {"train": {1, n}, "test": {1, n, TEST_BOUND_SAMPLES}}.items():
        for k in sorted(ks):
            cells = [bound_cell(row, split, k) for row in rows]
            heading = f"{split} K={k}" + (" (=n)" if k == n > 1 else "")
            if any(cells):
                columns[heading] = mark_best(cells, [row.biased for row in rows])
    if not columns:
        return None
    return Table(group.setting.title, name, list(columns), _labeled(rows, [*columns.values()]))


def headline(group: Group) -> str | None:
    """Return text that names the unbiased estimator with the highest test bound in a group.

    Return None if fewer than two unbiased estimators have a test bound.
    """
    found = [(row, bound_cell(row, "test", TEST_BOUND_SAMPLES)) for row in group.rows]
    bounds = [(row, cell) for row, cell in found if cell and math.isfinite(cell.mean)]
    bounds.sort(key=lambda bound: -bound[1].mean)
    unbiased = [bound for bound in bounds if not bound[0].biased]
    if len(unbiased) < 2:
        return None
    (first, best), (second, next_best) = unbiased[:2]
    steps = f"after {group.setting.steps:,} steps"
    highest = f"{first.label} has the highest test bound {steps}, {best} nats"
    if mark_best([best, next_best], [False] * 2)[1] == replace(next_best, best=True):
        said = f"{highest}. {second.label} is within the standard error, with {next_best}."
    else:
        said = f"{highest}. {second.label} is next, with {next_best}."
    above = [f"{row.label} {cell}" for row, cell in bounds[: bounds.index(unbiased[0])]]
    return (
        said
        if not above
        else f"Of the unbiased estimators, {said} Biased estimators above: {', '.join(above)}."
    )


def beside_paper(group: Group, name: str) -> list[Table]:
    """Return tables that show a group's numbers next to the paper's numbers.

    The authors' code reports a bound, and its default K depends on the estimator. Estimators with
    the same default K share a table.
    """
    by_k: dict[int, list[Row]] = {}
    for row in group.rows:
        if row.evaluated_runs:
            k = paper.released_default_k(row.estimator, group.setting.num_samples)
            by_k.setdefault(k, []).append(row)
    found = sorted(by_k.items(), reverse=True)
    tables = [_beside_paper(replace(group, rows=rows), k, name) for k, rows in found]
    return [table for table in tables if table is not None]


def _beside_paper(group: Group, k: int, name: str) -> Table | None:
    headings, columns = [], []
    for split in ("train", "test"):
        printed = [paper.printed(group.setting, row.estimator, split) for row in group.rows]
        numbers = sorted({str(one.table) for one in printed if one})
        headings += [f"{split} K={k}, ours", f"{split}, paper's table {' and '.join(numbers)}"]
        columns.append([bound_cell(row, split, k) for row in group.rows])
        columns.append([Cell(one.mean, one.plus_minus) if one else None for one in printed])
    if not any(cell for column in columns[1::2] for cell in column):
        return None
    part = "n" if k == group.setting.num_samples else "n/2"
    default = f"the released code's default K = {part} = {k}"
    title = f"Beside the paper's numbers: our bounds at {default}"
    rows = _labeled(group.rows, columns)
    return Table(title, f"{name}-paper-k{k}", headings, rows, paper.caveats(group))


def overview_table(groups: Sequence[Group], name: str) -> Table | None:
    """Return a table of test bounds, with a row for each group and a column for each row label.

    Return None if fewer than two groups have test bounds.
    """
    labels = [row.label for group in groups for row in group.rows if row.evaluated_runs]
    columns = list(dict.fromkeys(labels))
    places = list(zip(*(group.setting.parts for group in groups), strict=True))
    shared = [place[0] for place in places if place[0] and len({*place}) == 1]
    rows, costs = [], []
    for index, group in enumerate(groups):
        own = [place[index] for place in places if place[index] and len({*place}) > 1]
        found = {row.label: row for row in group.rows if row.evaluated_runs}
        n, unequal = group.setting.num_samples, []
        cells: list[Cell | None] = []
        for label in columns:
            row = found.get(label)
            cells.append(bound_cell(row, "test", TEST_BOUND_SAMPLES) if row else None)
            cost = cost_in_words(row.runs[0].config.estimator, n) if row else []
            needs = needs_of(row.runs[0].config.estimator, n) if row else None
            more = needs is not None and (needs.evaluations is None or needs.evaluations > n)
            unequal.append(row is None or row.biased or more)
            if cost:
                costs.append(f"{label}, n = {n}: {', '.join(cost)}")
        if any(cells):
            rows.append((", ".join(own), mark_best(cells, unequal)))
    title = ", ".join([f"test K={TEST_BOUND_SAMPLES}", *shared])
    if len(rows) < 2:
        return None
    listed = "; ".join(dict.fromkeys(costs))
    caveat = f"Costs per image and step other than n evaluations: {listed}. {UNEQUAL_RULE}"
    caveats = (caveat,) if costs else ()
    return Table(title, name, columns, rows, caveats, label_heading="comparison")


def bound_cell(row: Row, split: str, k: int) -> Cell | None:
    """Return a cell with a row's `k`-sample bound: mean and std over the surviving replicas.

    Return None if a run of the row does not have this bound, or if no replica survives.
    """
    lists = [(run.bounds or {}).get(split, {}).get(k) for run in row.evaluated_runs]
    values = [value for one in lists for value in surviving(one or [])]
    return summarize(values) if values and None not in lists else None


def summarize(values: Sequence[float]) -> Cell:
    """Return a cell with the mean and standard deviation of these values.

    If a value is not finite or is too large, the cell has the mean NaN and no standard deviation.
    """
    if not all(is_drawable(value) for value in values):
        return Cell(math.nan, None, len(values))
    return Cell(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mark_best(cells: Sequence[Cell | None], biased: Sequence[bool]) -> list[Cell | None]:
    """Return the cells of a column, and mark the best cells by the rule in MARKING_RULE.

    Cells of biased estimators and of single replicas are never marked. If fewer than two of the
    remaining cells have a number, no cell is marked.
    """
    eligible = [
        cell if cell and cell.std is not None and not is_biased else None
        for cell, is_biased in zip(cells, biased, strict=True)
    ]
    numbers = [cell for cell in eligible if cell]
    if len(numbers) < 2:
        return list(cells)
    top = max(numbers, key=lambda cell: cell.mean)
    return [
        replace(one, best=True) if one and _as_good(one, top) else cell
        for cell, one in zip(cells, eligible, strict=True)
    ]


def _as_good(cell: Cell, top: Cell) -> bool:
    errors = [(one.std or 0.0) / math.sqrt(one.replicas or 1) for one in (cell, top)]
    return cell.mean == top.mean or top.mean - cell.mean < math.hypot(*errors)


def _labeled(
    rows: Sequence[Row], columns: Sequence[Sequence[Cell | None]]
) -> list[tuple[str, list[Cell | None]]]:
    """Return the label and the cells of every row. `columns` has the cells of every column.

    A label contains the number of replicas. It also contains the work of the estimator, unless the
    work is n evaluations.
    """
    labeled = []
    for index, row in enumerate(rows):
        config = row.runs[0].config
        started = sum(run.config.replicas for run in row.evaluated_runs)
        left = sum(run.surviving for run in row.evaluated_runs)
        counted = f"{row.label}, R={left}" + (f" of {started}" if left < started else "")
        label = ", ".join([counted, *cost_in_words(config.estimator, config.num_samples)])
        labeled.append((label, [column[index] for column in columns]))
    return labeled


# ---- tables as files (the HTML of the page is in templates/page.html.j2)


def markdown(table: Table) -> str:
    """Return the table as Markdown, with the best numbers in bold."""
    heading, *rows = [f"| {' | '.join(row)} |" for row in _texts(table, _escape_markdown, "**{}**")]
    rule = "|" + "---|" + "---:|" * len(table.columns)
    caveats = [f"{_escape_markdown(caveat)}\n" for caveat in table.caveats]
    return "\n".join(
        [f"**{_escape_markdown(table.title)}**", "", heading, rule, *rows, "", *caveats]
    )


def latex(table: Table) -> str:
    """Return the table as LaTeX (booktabs), with the best numbers in bold."""
    heading, *rows = [
        rf"{' & '.join(row)} \\" for row in _texts(table, _escape_latex, r"\textbf{{{}}}")
    ]
    comments = [f"% {_one_line(text)}" for text in (table.title, *table.caveats)]
    begin = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    end = [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*comments, *begin, heading, r"\midrule", *rows, *end])


def _texts(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the texts of the heading, and of all rows, of a table.

    `escape` escapes special characters in a text. `bold` is the format for the best numbers.
    """
    rows = [[escape(text) for text in (table.label_heading, *table.columns)]]
    for label, cells in table.rows:
        texts = [(escape(str(cell or "")), cell and cell.best) for cell in cells]
        rows.append([escape(label), *(bold.format(text) if best else text for text, best in texts)])
    return rows


def _escape_markdown(text: str) -> str:
    """Return `text` with the characters | and < escaped for a Markdown table."""
    return _one_line(text).replace("|", r"\|").replace("<", "&lt;")


def _escape_latex(text: str) -> str:
    return _one_line(text).translate(LATEX_ESCAPES)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write a table as Markdown, LaTeX and CSV files. Return the paths of the files."""
    paths = [folder / f"{table.name}.{ending}" for ending in ("md", "tex", "csv")]
    replace_file(paths[0], markdown(table))
    replace_file(paths[1], latex(table))
    headings = [f"{column} {part}" for column in table.columns for part in CSV_PARTS]
    rows: list[list[object]] = [[table.label_heading, *headings]]
    for label, cells in table.rows:
        values = [getattr(cell, part, None) for cell in cells for part in CSV_PARTS]
        rows.append([label, *(int(one) if isinstance(one, bool) else one for one in values)])
    write_csv(paths[2], rows)
    return paths


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    """Write rows to a CSV file, and return the path. The first row is the heading.

    Numbers are written in full precision.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    replace_file(path, out.getvalue())
    return path
