"""Write the page "The paper, reproduced", which compares all numbers of the paper with ours.

`arms sweep paper` writes this Markdown page. Our numbers come from the archives of runs.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from arms.bench.experiments import BUDGETS, DATASETS, EXPERIMENTS, NETWORKS, configs
from arms.bench.report import collect
from arms.bench.report.groups import Group, Setting, group_runs
from arms.bench.report.paper import (
    UNCERTAIN_K,
    Printed,
    all_printed,
    caveats,
    printed,
    released_default_k,
)
from arms.bench.report.tables import Cell, bound_cell
from arms.bench.sweeps.jobs import plan

RUNS_OF_THE_PAPER = 5
FAR = 3.0
"""Differences of more than this number of standard errors are in bold."""
BOUND_TABLES = (2, 4)
"""Tables whose runs were trained on the importance-weighted bound."""
CHANCE = 0.03
"""Expected fraction of differences beyond FAR by chance, with five seeds (Student's t: 0.017 to
0.040)."""

INTRODUCTION = f"""\
This page compares the numbers of the paper with our full runs: a million steps, five seeds, and the
paper's protocol ([departures](paper.md#departures)). Bounds are in nats; higher is better.
`arms sweep paper` writes this page from the archives in [results](../results), and also trains
missing runs. For curves and more bounds, use `arms report results -o report.html`.

{UNCERTAIN_K}
Each number is therefore compared with two of ours: at *its K*, the released default, and at
*K = n*, where all estimators can be compared.

± is the standard deviation over five seeds. The paper does not define its ±; we assume the same
meaning. A difference is ours minus the paper's. The number in parentheses is the difference in
standard errors, sqrt((s² + s'²)/5), and is **bold** beyond {FAR:g}. By chance, 2 to 4 in a hundred
would be bold (Student's t with 8 to 4 degrees of freedom). If the paper's ± is a standard error,
the numbers in parentheses are too small."""


TWICE = (
    "Each run counts twice, with its train and its test bound, which are correlated: 24 numbers "
    "are 12 settings."
)
LEFT = (
    "The remaining differences depend on the data set and the network (see the table). We do not "
    "know their cause. Our Omniglot images are a reconstruction."
)
COMPARED = (
    {"loorf", "disarm", "arms-dirichlet", "arms-gaussian"},
    {"vimco", "disarm-ms (unfolded)", "arms-ms-dirichlet (unfolded)"},
)
"""Sets of estimators that the conclusions compare. For each set, the runs must include a setting in
which all estimators of the set were trained."""


BY_COUNT = """\
### On the bound, by K

VIMCO is trained on the bound with K = n, and DisARM and ARMS are trained with K = n/2. All make n
evaluations. The table shows the mean difference between two estimators in our runs, in nats, at the
same K:"""


@dataclass(frozen=True)
class Beside:
    """A number of the paper beside two numbers of ours: at the paper's K, and at K = n."""

    setting: Setting
    estimator: str
    split: str
    number: Printed
    at_its_count: Cell
    at_n: Cell

    @property
    def count(self) -> int:
        """The K of the paper's number. We assume that it is the default of the released code."""
        return released_default_k(self.estimator, self.setting.num_samples)

    def difference(self, ours: Cell) -> float:
        """Return our number `ours` minus the paper's number, in nats."""
        return ours.mean - self.number.mean

    def errors(self, ours: Cell, runs_of_the_paper: int = RUNS_OF_THE_PAPER) -> float:
        """Return our number minus the paper's number, divided by the difference's standard error.

        The paper's ± is assumed to be the standard deviation over `runs_of_the_paper` runs. If this
        argument is 1, the ± is assumed to be a standard error.
        """
        assert ours.std is not None
        assert ours.replicas is not None
        variance = ours.std**2 / ours.replicas + self.number.plus_minus**2 / runs_of_the_paper
        return self.difference(ours) / math.sqrt(variance)


def committed(results: Path) -> list[Group]:
    """Return groups of the archived runs in `results`, only for settings of the paper's tables."""
    wanted = [*configs("table1", "paper"), *configs("table2", "paper")]
    jobs = plan(wanted, "nowhere", results=[results])
    collection = collect([task.path for job in jobs for task in job.tasks if task.state == "done"])
    if collection.problems:
        raise ValueError(
            f"{results} must contain complete runs, got {collection.problems[0]}: archive again"
        )
    return group_runs(collection.runs)


def beside(group: Group) -> list[Beside]:
    """Return the numbers of the paper that a group also has, each beside our two numbers."""
    found = []
    for split in ("train", "test"):
        for row in group.rows:
            number = printed(group.setting, row.estimator, split)
            n = group.setting.num_samples
            stats = [
                bound_cell(row, split, count) for count in (released_default_k(row.estimator, n), n)
            ]
            if number and stats[0] and stats[1]:
                found.append(
                    Beside(group.setting, row.estimator, split, number, stats[0], stats[1])
                )
    return found


def page_of(groups: Sequence[Group]) -> str:
    """Return the whole page in Markdown. `groups` has all runs that the page compares.

    If the groups do not contain all estimators in COMPARED, the page has no conclusions.
    """
    numbers = [one for group in groups for one in beside(group)]
    whole = len(numbers) == len(all_printed())
    title = f"# The paper, reproduced{'' if whole else ' in part'}"
    parts = [title, INTRODUCTION, coverage(numbers)]
    of_settings = [{row.estimator for row in group.rows} for group in groups]
    if all(any(names <= found for found in of_settings) for names in COMPARED):
        parts += [conclusion(numbers), by_count(groups)]
    for (dataset, network), same in groupby(
        groups, lambda group: (group.setting.dataset, group.setting.network)
    ):
        parts.append(section(f"## {dataset}, {network}", list(same)))
    return "\n\n".join(parts) + "\n"


def coverage(numbers: Sequence[Beside]) -> str:
    """Return the section that says how many numbers of the paper have a counterpart in our runs.

    The section counts them in three ways: for each table of the paper, for each setting, and for
    each estimator.
    """
    keys = all_printed()
    totals = [number.table for number in keys.values()]
    ours = [one.number.table for one in numbers]
    by_table = [
        [
            f"{table}: {EXPERIMENTS[f'table{table}'].description}",
            str(totals.count(table)),
            str(ours.count(table)),
        ]
        for table in sorted(set(totals))
    ]
    by_table.append(["all", f"{len(totals)}", f"**{len(ours)}**"])
    of = [(one.setting.dataset, one.setting.network, one.setting.num_samples) for one in numbers]
    each = len(totals) // (len(DATASETS) * len(NETWORKS) * len(BUDGETS))
    by_setting = [
        [
            f"{dataset}, {network}",
            *(f"{of.count((dataset, network, n))} of {each}" for n in BUDGETS),
        ]
        for dataset in DATASETS
        for network in NETWORKS
    ]
    names = [one.estimator for one in numbers]
    by_estimator = [
        [f"`{name}`", str(count), str(names.count(name))]
        for name, count in Counter(key[4] for key in keys).items()
    ]
    repeated = sum(map(is_repeated, numbers))
    return "\n\n".join(
        [
            "## Coverage",
            (
                f"In table 2, {repeated} numbers are in DisARM's column, which repeats table 1's. "
                "`arms sweep paper --dry-run` lists each number that is missing."
            ),
            table(["table of the paper", "printed", "compared with ours"], by_table),
            table(["", *(f"n = {n}" for n in BUDGETS)], by_setting),
            table(["estimator", "printed", "compared with ours"], by_estimator),
        ]
    )


def conclusion(numbers: Sequence[Beside]) -> str:
    """Return the section of conclusions.

    The section has our findings, and a table with a row for each data set and network.
    """
    elbo = [one for one in numbers if one.number.table not in BOUND_TABLES]
    bound = [one for one in numbers if one.number.table in BOUND_TABLES and not is_repeated(one)]
    points = [
        overall(elbo),
        disarm(elbo),
        against_loorf(elbo),
        overall_bound(bound),
        against_vimco(numbers),
        LEFT,
    ]
    rows = [
        [dataset, network, trained, *agreement(same)]
        for trained, of in (("ELBO", elbo), ("bound", bound))
        for dataset in DATASETS
        for network in NETWORKS
        if (same := [one for one in of if one.setting[:2] == (dataset, network)])
    ]
    columns = [
        "data",
        "network",
        "trained on",
        "numbers",
        "mean difference at its K",
        f"beyond {FAR:g} standard errors",
    ]
    return "\n\n".join(
        [
            "## What we conclude",
            TWICE,
            "\n".join(f"- {point}" for point in points),
            table(columns, rows),
        ]
    )


def is_repeated(one: Beside) -> bool:
    """Return whether a number is in DisARM's column of table 2, which repeats table 1's column."""
    return one.estimator == "disarm-ms (unfolded)" and one.number.table == min(BOUND_TABLES)


def closeness(numbers: Sequence[Beside]) -> tuple[int, int, list[float]]:
    """Return two counts of our numbers that are close to the paper's, and all distances in nats.

    A number is close if the difference is at most FAR standard errors. The first count assumes that
    the paper's ± is a standard deviation over runs. The second count assumes that the ± is a
    standard error.
    """
    near, near_if_errors = (
        sum(abs(one.errors(one.at_its_count, runs)) <= FAR for one in numbers)
        for runs in (RUNS_OF_THE_PAPER, 1)
    )
    return near, near_if_errors, [abs(one.difference(one.at_its_count)) for one in numbers]


def overall(numbers: Sequence[Beside]) -> str:
    """Return text on how our numbers differ from the paper's, after training on the ELBO."""
    near, near_if_errors, distances = closeness(numbers)
    return (
        f"**Trained on the ELBO, at its K, every number is within {up(max(distances))} nats of the "
        f"paper's**, {mean(distances):.2f} on average. {near} of {len(numbers)} are within {FAR:g} "
        f"standard errors; by chance about {CHANCE * len(numbers):.0f} would not be. (If the "
        f"paper's ± is a standard error, as its size suggests, {near_if_errors} are within.)"
    )


def agreement(numbers: Sequence[Beside]) -> list[str]:
    """Return three cells for the table of conclusions.

    The cells are the count of our numbers, their mean difference from the paper's, and the count of
    differences beyond FAR standard errors.
    """
    far = sum(abs(one.errors(one.at_its_count)) > FAR for one in numbers)
    return [
        str(len(numbers)),
        signed(mean(one.difference(one.at_its_count) for one in numbers)),
        str(far),
    ]


def disarm(numbers: Sequence[Beside]) -> str:
    """Return text that compares the paper's numbers of DisARM with ours at K = n/2 and K = n."""
    found = [one for one in numbers if one.estimator == "disarm"]
    nearer = [
        one
        for one in found
        if abs(one.difference(one.at_its_count)) < abs(one.difference(one.at_n))
    ]
    settings = [one.setting for one in found if one not in nearer]
    others = dict.fromkeys(
        f"{one.dataset}, {one.network}, n = {one.num_samples}" for one in settings
    )
    exception = f" (except {'; '.join(others)})" if others else ""
    half = mean(one.difference(one.at_its_count) for one in found)
    full = mean(one.difference(one.at_n) for one in found)
    gap_printed, gap_ours = (mean(gaps(numbers, "disarm", of)) for of in (in_paper, in_our_runs))
    return (
        f"**K = n/2 explains most of DisARM's printed gap.** {len(nearer)} of its {len(found)} "
        f"numbers are closer to ours at K = n/2 than at K = n{exception}. The mean difference is "
        f"{signed(half)} at K = n/2 and {signed(full)} at K = n. DisARM minus LOORF is "
        f"{signed(gap_printed)} nats in the paper on average, and {signed(gap_ours)} in our runs "
        "at equal K."
    )


def against_loorf(numbers: Sequence[Beside]) -> str:
    """Return text that says how far ARMS is above LOORF in the paper, and in our runs."""
    parts = []
    for name in ("arms-dirichlet", "arms-gaussian"):
        gap_printed, gap_ours = (gaps(numbers, name, of) for of in (in_paper, in_our_runs))
        parts.append(
            f"`{name}` is {signed(mean(gap_printed))} nats in the paper and "
            f"{signed(mean(gap_ours))} in our runs "
            f"(above LOORF in {sum(gap > 0 for gap in gap_ours)} of {len(gap_ours)})"
        )
    spread = mean(one.at_n.std or 0.0 for one in numbers)
    return (
        "**ARMS and LOORF end close together.** The mean difference from LOORF: "
        f"{'; '.join(parts)}. The mean standard deviation over seeds is {spread:.2f}."
    )


def overall_bound(numbers: Sequence[Beside]) -> str:
    """Return text on how our numbers differ from the paper's, after training on the bound."""
    near, near_if_errors, distances = closeness(numbers)
    parts = []
    for name in dict.fromkeys(one.estimator for one in numbers):
        found = [one.difference(one.at_its_count) for one in numbers if one.estimator == name]
        parts.append(f"`{name}` {signed(mean(found))} ({len(found)} numbers)")
    return (
        f"**Trained on the bound, every number is within {up(max(distances))} nats of the "
        f"paper's**, {mean(distances):.2f} on average. That is more than chance: only {near} of "
        f"{len(numbers)} are within {FAR:g} standard errors ({near_if_errors} if the paper's ± is "
        f"a standard error). Mean difference, ours minus the paper's: {', '.join(parts)}. This "
        "point and the table below omit DisARM's column of table 2, which repeats table 1's."
    )


def against_vimco(numbers: Sequence[Beside]) -> str:
    """Return text that says how far multi-sample ARMS is above VIMCO in the paper and our runs."""
    gap_printed, gap_ours = (
        gaps(numbers, "arms-ms-dirichlet (unfolded)", of, "vimco") for of in (in_paper, in_our_runs)
    )
    to_disarm = gaps(numbers, "arms-ms-dirichlet (unfolded)", in_our_runs, "disarm-ms (unfolded)")
    return (
        "**At K = n, multi-sample ARMS is above VIMCO in the paper** "
        f"({above(gap_printed)}) **and below it in our runs** ({above(gap_ours)}). VIMCO was "
        "trained on the bound with K = n, and ARMS with K = n/2. Below K = n, ARMS is equal or "
        "above: [by K](#on-the-bound-by-k). DisARM is trained on the same bound as ARMS, with the "
        f"same number of evaluations. ARMS minus DisARM is {above(to_disarm)}, as expected from "
        "the [gradient variances](bound.md#measured). We do not know why the paper differs, "
        "because the code that made its numbers [is not released](released_code.md#estimators), "
        "except for one unused function that omits the direct term. Training with that function "
        "alone is biased, and in short runs it also [ends above VIMCO](direct_term.md)."
    )


def by_count(groups: Sequence[Group]) -> str:
    """Return the section that compares estimators of the bound at several K.

    Its table shows the mean difference between two estimators.
    """
    pairs = [
        ("arms-ms-dirichlet (unfolded)", "vimco"),
        ("disarm-ms (unfolded)", "vimco"),
        ("arms-ms-dirichlet (unfolded)", "disarm-ms (unfolded)"),
    ]
    counts: list[tuple[str, Callable[[int], int], tuple[str, ...]]] = [
        ("K = 1, train and test", lambda _: 1, ("train", "test")),
        ("K = n/2, train and test", lambda n: n // 2, ("train", "test")),
        ("K = n, train and test", lambda n: n, ("train", "test")),
        ("K = 100, test", lambda _: 100, ("test",)),
    ]
    rows = []
    for name, count_of, splits in counts:
        values = {
            (row.estimator, (group.setting, split)): stat.mean
            for group in groups
            for row in group.rows
            for split in splits
            if (stat := bound_cell(row, split, count_of(group.setting.num_samples)))
        }
        cells = [
            above(
                [
                    value - values[other, where]
                    for (one, where), value in values.items()
                    if one == mine
                ]
            )
            for mine, other in pairs
        ]
        rows.append([name, *cells])
    return "\n\n".join(
        [BY_COUNT, table(["bound", *(f"`{one}` \u2212 `{other}`" for one, other in pairs)], rows)]
    )


def above(differences: Sequence[float]) -> str:
    """Return text with the mean of the differences, and with the number of positive differences."""
    higher = sum(gap > 0 for gap in differences)
    return f"{signed(mean(differences))}, above in {higher} of {len(differences)}"


def up(value: float) -> str:
    """Return a number as text with two decimals, rounded up."""
    return f"{math.ceil(100 * value) / 100:.2f}"


def in_paper(one: Beside) -> float:
    return one.number.mean


def in_our_runs(one: Beside) -> float:
    """Return our number at K = n. All estimators can be compared at this K."""
    return one.at_n.mean


def gaps(
    numbers: Sequence[Beside],
    estimator: str,
    value: Callable[[Beside], float],
    other: str = "loorf",
) -> list[float]:
    """Return the value of `estimator` minus the value of `other`, for each setting with both.

    `value` is a function that returns the paper's value or our value.
    """
    theirs = {(one.setting, one.split): value(one) for one in numbers if one.estimator == other}
    mine = {(one.setting, one.split): value(one) for one in numbers if one.estimator == estimator}
    return [mine[key] - theirs[key] for key in mine if key in theirs]


def section(title: str, groups: Sequence[Group]) -> str:
    """Return the Markdown section about the runs with one data set and one network."""
    parts = [title]
    numbers = sorted(
        (one for group in groups for one in beside(group)), key=lambda one: one.number.table
    )
    for number, same in groupby(numbers, lambda one: one.number.table):
        rows = [row(one) for one in same]
        heading = f"Table {number}: {EXPERIMENTS[f'table{number}'].description}"
        columns = [
            "n",
            "estimator",
            "its K",
            "paper",
            "ours, its K",
            "difference",
            "ours, K = n",
            "difference",
        ]
        parts += [heading, table(columns, rows)]
    return "\n\n".join([*parts, *remarks(groups)])


def row(one: Beside) -> list[str]:
    """Return the table cells that show a number of the paper beside our numbers."""
    ours = [
        text for stat in (one.at_its_count, one.at_n) for text in (str(stat), difference(one, stat))
    ]
    paper = str(Cell(one.number.mean, one.number.plus_minus))
    return [str(one.setting.num_samples), f"`{one.estimator}`", str(one.count), paper, *ours]


def difference(one: Beside, ours: Cell) -> str:
    """Return our number `ours` minus the paper's as text, in nats and in standard errors.

    A difference beyond FAR standard errors is bold.
    """
    errors = one.errors(ours)
    text = f"{signed(one.difference(ours))} ({signed(errors, 1)})"
    return f"**{text}**" if abs(errors) > FAR else text


def remarks(groups: Sequence[Group]) -> list[str]:
    """Return the caveats and notes about these groups as lines of a Markdown list.

    Each caveat appears once, with the tables and the numbers of samples n to which it applies.
    """
    of: dict[tuple[str, str], list[int]] = {}
    for group in groups:
        tables = sorted({one.number.table for one in beside(group)})
        for line in (*caveats(group), *group.notes):
            if line != UNCERTAIN_K:
                of.setdefault((" and ".join(map(str, tables)), line), []).append(
                    group.setting.num_samples
                )
    lines = [
        f"- Tables {tables}, n = {', '.join(map(str, sorted(set(counts))))}: {line}"
        for (tables, line), counts in sorted(of.items())
    ]
    return ["\n".join(lines)] if lines else []


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with the headings `columns` and these rows."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def mean(values: Iterable[float]) -> float:
    return fmean(list(values))


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "\u2212")
