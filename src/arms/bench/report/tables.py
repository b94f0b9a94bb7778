"""Comparison tables: mean and standard deviation over replicas, the best marked, one K per column."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from arms.bench.formatting import format_number, is_drawable
from arms.bench.metrics import TEST_BOUND_SAMPLES, surviving
from arms.bench.report import paper
from arms.bench.report.groups import Group, Row, work

MARKING_RULE = (
    "Mean ± standard deviation over replicas, in nats, higher is better. Bold: the highest mean of the column (in the "
    "overview, of the row), and every mean closer to it than the standard error of their difference, "
    "sqrt(s₁²/R₁ + s₂²/R₂). A single replica has no standard deviation, and is never marked. Nor is a biased "
    "estimator: its row has no part in the comparison."
)


@dataclass(frozen=True)
class Stat:
    """A mean and its standard deviation over replicas."""

    mean: float
    std: float | None
    """None if it is not known: a single replica has none."""
    count: int | None = None
    """Replicas; None for a printed number."""

    def __str__(self) -> str:
        mean = _signed(self.mean)
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
    """Labelled rows of numbers under column headings."""

    title: str
    name: str
    """The name of its files."""
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    caveats: Sequence[str] = ()
    heading: str = "estimator"


def comparison(group: Group, name: str) -> Table | None:
    """Return the table of one group, or None if none of its runs is finished."""
    rows = [row for row in group.rows if row.finished]
    columns = [
        (split, count)
        for split, count in _columns(group)
        if any(bound_stat(r, split, count) for r in rows)
    ]
    if not columns:
        return None
    biased = [row.biased for row in rows]
    by_column = [
        mark_best([bound_stat(row, split, count) for row in rows], biased)
        for split, count in columns
    ]
    cells = zip(*by_column, strict=True)
    headings = [_heading(split, count, group.setting.num_samples) for split, count in columns]
    labelled = [(_counted(row), tuple(of_row)) for row, of_row in zip(rows, cells, strict=True)]
    return Table(group.setting.title, name, headings, labelled)


def beside_paper(group: Group, name: str) -> list[Table]:
    """Return our numbers beside the printed ones, one table per K that the released code has as its default."""
    n = group.setting.num_samples
    rows = [row for row in group.rows if row.finished]
    counts = sorted({paper.released_count(row.estimator, n) for row in rows}, reverse=True)
    tables = [
        _beside_paper(
            group, [r for r in rows if paper.released_count(r.estimator, n) == k], k, name
        )
        for k in counts
    ]
    return [table for table in tables if table is not None]


def overview(groups: Sequence[Group], name: str) -> Table | None:
    """Return the test bound of every group (rows) and estimator (columns), if there is more than one group."""
    biased = {row.label: row.biased for group in groups for row in group.rows if row.finished}
    labels = list(biased)
    titles, shared = _differing_and_shared([group.setting.parts for group in groups])
    rows = []
    for title, group in zip(titles, groups, strict=True):
        stats = {row.label: bound_stat(row, "test", TEST_BOUND_SAMPLES) for row in group.rows}
        cells = mark_best([stats.get(label) for label in labels], list(biased.values()))
        if any(cell.stat for cell in cells):
            rows.append((title, cells))
    title = ", ".join([f"test K={TEST_BOUND_SAMPLES}", *shared])
    return Table(title, name, labels, rows, heading="comparison") if len(rows) > 1 else None


def bound_stat(row: Row, split: str, count: int) -> Stat | None:
    """Return a bound over the surviving replicas of the row's finished runs, or None if one of these runs lacks it."""
    values: list[float] = []
    for run in row.finished:
        assert run.bounds is not None
        of_run = run.bounds.get(split, {}).get(count)
        if of_run is None:
            return None
        values += surviving(of_run)
    return summarise(values) if values else None


def summarise(values: Sequence[float]) -> Stat:
    """Return mean and sample standard deviation, or NaN and None if a value is not finite.

    >>> str(summarise([-1.0, -2.0, -3.0]))
    '\u22122.00 ± 1.00'
    """
    if not all(is_drawable(value) for value in values):
        return Stat(math.nan, None, len(values))
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mark_best(stats: Sequence[Stat | None], biased: Sequence[bool] | None = None) -> list[Cell]:
    """Mark by MARKING_RULE; a column with a single number to rank has no best.

    Args:
        stats: The numbers of one column.
        biased: Which of them are a biased estimator's: those are not ranked at all, nor are numbers without std.
            None of them unless given.
    """
    pairs = zip(stats, biased or [False] * len(stats), strict=True)
    ranked = [None if stat is None or stat.std is None or apart else stat for stat, apart in pairs]
    numbers = [stat for stat in ranked if stat is not None]
    if len(numbers) < 2:
        return [Cell(stat) for stat in stats]
    top = max(numbers, key=lambda stat: stat.mean)
    return [
        Cell(stat, one is not None and _as_good(one, top))
        for stat, one in zip(stats, ranked, strict=True)
    ]


def _as_good(stat: Stat, top: Stat) -> bool:
    return stat.mean == top.mean or top.mean - stat.mean < math.hypot(
        _standard_error(stat), _standard_error(top)
    )


def _standard_error(stat: Stat) -> float:
    assert stat.std is not None
    assert stat.count is not None
    return stat.std / math.sqrt(stat.count)


def _columns(group: Group) -> list[tuple[str, int]]:
    counts = sorted({1, group.setting.num_samples})
    tested = sorted({*counts, TEST_BOUND_SAMPLES})
    return [("train", count) for count in counts] + [("test", count) for count in tested]


def _heading(split: str, count: int, num_samples: int) -> str:
    return f"{split} K={count}" + (" (=n)" if count == num_samples and count > 1 else "")


def _counted(row: Row) -> str:
    started = sum(run.config.replicas for run in row.finished)
    left = sum(run.surviving for run in row.finished)
    counted = f"{row.label}, R={left}" + (f" of {started}" if left < started else "")
    return ", ".join([counted, *work(row.runs[0].config.estimator, row.runs[0].config.num_samples)])


def _beside_paper(group: Group, rows: Sequence[Row], count: int, name: str) -> Table | None:
    pairs = [
        (split, [paper.printed(group.setting, row.estimator, split) for row in rows])
        for split in ("train", "test")
    ]
    if not any(number for _, numbers in pairs for number in numbers):
        return None
    columns, cells = [], []
    for split, numbers in pairs:
        tables = sorted({number.table for number in numbers if number})
        columns += [
            f"{split} K={count}, ours",
            f"{split}, paper's table {' and '.join(map(str, tables))}",
        ]
        cells.append([Cell(bound_stat(row, split, count)) for row in rows])
        cells.append(
            [Cell(Stat(number.mean, number.plus_minus) if number else None) for number in numbers]
        )
    part = "n" if count == group.setting.num_samples else "n/2"
    return Table(
        f"Beside the paper's numbers, at its default K = {part} = {count}",
        f"{name}-paper-k{count}",
        columns,
        [
            (_counted(row), of_row)
            for row, of_row in zip(rows, zip(*cells, strict=True), strict=True)
        ],
        paper.caveats(replace(group, rows=rows)),
    )


def _differing_and_shared(lists: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the parts in which each list differs from the others, joined, and the parts that all lists share."""
    common = [len(set(place)) == 1 for place in zip(*lists, strict=True)]
    own = [
        ", ".join(part for part, same in zip(parts, common, strict=True) if part and not same)
        for parts in lists
    ]
    return own, [
        part for part, same in zip(lists[0], common, strict=True) if part and same
    ] if lists else []


def _signed(value: float) -> str:
    return format_number(value).replace("-", "\u2212") if math.isfinite(value) else "not finite"
