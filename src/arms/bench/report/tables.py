"""Comparison tables: mean and standard deviation over replicas, best marked, one K per column."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from arms.bench.formatting import format_number, is_drawable
from arms.bench.metrics import TEST_BOUND_SAMPLES, surviving
from arms.bench.report import paper
from arms.bench.report.groups import Group, Row, work

MARKING_RULE = (
    "Mean ± standard deviation over replicas, in nats, higher is better. Bold: the highest mean of "
    "the column (in the overview, of the row), and every mean closer to it than the standard error "
    "of their difference, sqrt(s₁²/R₁ + s₂²/R₂). A single replica has no standard deviation, and is "
    "never marked. Nor is a biased estimator: its row has no part in the comparison."
)


@dataclass(frozen=True)
class Stat:
    """A mean and its standard deviation over replicas."""

    mean: float
    std: float | None
    """None for a single replica."""
    count: int | None = None
    """Replicas; None for a printed number."""

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "not finite"
        mean = format_number(self.mean).replace("-", "\u2212")
        return mean if self.std is None else f"{mean} ± {format_number(self.std)}"


@dataclass(frozen=True)
class Cell:
    """A number of a table, or an empty cell."""

    stat: Stat | None = None
    best: bool = False

    def __str__(self) -> str:
        return "" if self.stat is None else str(self.stat)


@dataclass(frozen=True)
class Table:
    """Labelled rows of numbers under column headings; its name is that of its files."""

    title: str
    name: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    caveats: Sequence[str] = ()
    heading: str = "estimator"


def comparison(group: Group, name: str) -> Table | None:
    """Return the table of one group, or None if none of its runs is finished."""
    rows = [row for row in group.rows if row.finished]
    n = group.setting.num_samples
    counts = {"train": {1, n}, "test": {1, n, TEST_BOUND_SAMPLES}}
    columns, cells = [], []
    for split, count in [(s, k) for s, of_split in counts.items() for k in sorted(of_split)]:
        stats = [bound_stat(row, split, count) for row in rows]
        if any(stats):
            columns.append(f"{split} K={count}" + (" (=n)" if count == n > 1 else ""))
            cells.append(mark_best(stats, [row.biased for row in rows]))
    return Table(group.setting.title, name, columns, _labelled(rows, cells)) if columns else None


def beside_paper(group: Group, name: str) -> list[Table]:
    """Return our numbers beside the printed ones, one table per default K of the released code."""
    n = group.setting.num_samples
    by_count: dict[int, list[Row]] = {}
    for row in group.rows:
        if row.finished:
            by_count.setdefault(paper.released_count(row.estimator, n), []).append(row)
    tables = [_beside_paper(replace(group, rows=by_count[k]), k, name) for k in sorted(by_count)]
    return [table for table in reversed(tables) if table is not None]


def _beside_paper(group: Group, count: int, name: str) -> Table | None:
    columns, cells = [], []
    for split in ("train", "test"):
        printed = [paper.printed(group.setting, row.estimator, split) for row in group.rows]
        numbers = sorted({str(number.table) for number in printed if number})
        columns += [f"{split} K={count}, ours", f"{split}, paper's table {' and '.join(numbers)}"]
        cells.append([Cell(bound_stat(row, split, count)) for row in group.rows])
        cells.append([Cell(Stat(one.mean, one.plus_minus) if one else None) for one in printed])
    if not any(cell.stat for column in cells[1::2] for cell in column):
        return None
    part = "n" if count == group.setting.num_samples else "n/2"
    title = f"Beside the paper's numbers, at its default K = {part} = {count}"
    rows = _labelled(group.rows, cells)
    return Table(title, f"{name}-paper-k{count}", columns, rows, paper.caveats(group))


def overview(groups: Sequence[Group], name: str) -> Table | None:
    """Return the test bound of every group (rows) and estimator (columns) of several groups."""
    biased = {row.label: row.biased for group in groups for row in group.rows if row.finished}
    places = list(zip(*(group.setting.parts for group in groups), strict=True))
    shared = [part for part, *others in places if part and {part} >= {*others}]
    rows = []
    for index, group in enumerate(groups):
        own = [place[index] for place in places if place[index] and len({*place}) > 1]
        stats = {row.label: bound_stat(row, "test", TEST_BOUND_SAMPLES) for row in group.rows}
        cells = mark_best([stats.get(label) for label in biased], list(biased.values()))
        if any(cell.stat for cell in cells):
            rows.append((", ".join(own), cells))
    title = ", ".join([f"test K={TEST_BOUND_SAMPLES}", *shared])
    return Table(title, name, list(biased), rows, heading="comparison") if len(rows) > 1 else None


def bound_stat(row: Row, split: str, count: int) -> Stat | None:
    """Return a bound over the row's surviving replicas, or None if a finished run lacks it."""
    lists = [(run.bounds or {}).get(split, {}).get(count) for run in row.finished]
    values = [value for one in lists for value in surviving(one or [])]
    return summarise(values) if values and None not in lists else None


def summarise(values: Sequence[float]) -> Stat:
    """Return mean and sample standard deviation, or NaN and None if a value is not finite.

    >>> str(summarise([-1.0, -2.0, -3.0]))
    '\u22122.00 ± 1.00'
    """
    if not all(is_drawable(value) for value in values):
        return Stat(math.nan, None, len(values))
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mark_best(stats: Sequence[Stat | None], biased: Sequence[bool]) -> list[Cell]:
    """Mark the numbers of a column by MARKING_RULE; one with a single number to rank has no best."""
    ranked = [
        stat if stat and stat.std is not None and not is_biased else None
        for stat, is_biased in zip(stats, biased, strict=True)
    ]
    numbers = [stat for stat in ranked if stat is not None]
    top = max(numbers, key=lambda stat: stat.mean) if len(numbers) > 1 else None
    return [
        Cell(stat, top is not None and one is not None and _as_good(one, top))
        for stat, one in zip(stats, ranked, strict=True)
    ]


def _as_good(stat: Stat, top: Stat) -> bool:
    errors = [(one.std or 0.0) / math.sqrt(one.count or 1) for one in (stat, top)]
    return stat.mean == top.mean or top.mean - stat.mean < math.hypot(*errors)


def _labelled(
    rows: Sequence[Row], columns: Sequence[Sequence[Cell]]
) -> list[tuple[str, list[Cell]]]:
    """Return the cells by row, each row with its label and how many replicas it has."""
    return [(_counted(row), [column[i] for column in columns]) for i, row in enumerate(rows)]


def _counted(row: Row) -> str:
    config = row.runs[0].config
    started = sum(run.config.replicas for run in row.finished)
    left = sum(run.surviving for run in row.finished)
    counted = f"{row.label}, R={left}" + (f" of {started}" if left < started else "")
    return ", ".join([counted, *work(config.estimator, config.num_samples)])
