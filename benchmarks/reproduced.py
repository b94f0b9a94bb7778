"""The page «the paper, reproduced»: every number of the paper that a committed full run has one for, beside ours.

    python benchmarks/reproduced.py > docs/reproduced.md

Reads the archives in results/ and the printed numbers that `arms report` knows; trains nothing.
"""

import math
import sys
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
    released_count,
)
from arms.bench.report.tables import Stat, bound_stat
from arms.bench.sweeps.jobs import plan

RESULTS = Path(__file__).parents[1] / "results"
RUNS_OF_THE_PAPER = 5
FAR = 3.0
"""Standard errors beyond which a difference is in bold."""
BOUND_TABLES = (2, 4)
"""Of runs that were trained on the multi-sample bound."""
CHANCE = 0.03
"""How many of five seeds' differences are beyond them by chance, about: Student's t has 0.017 to 0.040 there."""

INTRODUCTION = f"""\
# The paper, reproduced in part

Every number that the paper prints and that one of our full runs can stand beside: a million steps, five seeds, the
paper's protocol ([where it departs](paper.md)). Made by `python benchmarks/reproduced.py > docs/reproduced.md` from the
archives in [results](../results); curves and further bounds: `arms report results -o report.html`. Bounds in nats,
higher is better.

{UNCERTAIN_K}
So each number stands beside two of ours: at *its K*, the released default, and at *K = n*, where all estimators can be
compared.

± is the standard deviation over five seeds. The paper does not say what its ± is; it is read as the same. A difference
is ours minus the paper's, and in brackets the same in standard errors, sqrt((s² + s'²)/5); beyond {FAR:g} of them it is
**bold**. If the paper's ± were a standard error already, the brackets would be smaller. With five seeds, 2 to 4 in a
hundred are bold by chance alone (Student's t with 8 to 4 degrees of freedom)."""


TWICE = "Every run is counted twice here, on train and on test, which go together: 24 numbers are 12 settings."
LEFT = (
    "What is left differs between data sets and networks, as this table says. The cause is not known; on Omniglot the "
    "images are a reconstruction."
)


BY_COUNT = """\
### On the bound, by K

VIMCO is trained on the bound with K = n, DisARM and ARMS with K = n/2, all with n evaluations. Our runs, the difference
between two estimators at the same K in nats, on average:"""


@dataclass(frozen=True)
class Beside:
    """A printed number, and ours at its K and at K = n."""

    setting: Setting
    estimator: str
    split: str
    number: Printed
    at_its_count: Stat
    at_n: Stat

    @property
    def count(self) -> int:
        """The K that it was printed for, by the released defaults."""
        return released_count(self.estimator, self.setting.num_samples)

    def difference(self, ours: Stat) -> float:
        """Return ours minus the paper's."""
        return ours.mean - self.number.mean

    def errors(self, ours: Stat, runs_of_the_paper: int = RUNS_OF_THE_PAPER) -> float:
        """Return the difference in standard errors; with one run of the paper, its ± is read as a standard error."""
        assert ours.std is not None
        assert ours.count is not None
        variance = ours.std**2 / ours.count + self.number.plus_minus**2 / runs_of_the_paper
        return self.difference(ours) / math.sqrt(variance)


def committed() -> list[Group]:
    """Return the committed runs that the paper's tables are made of."""
    wanted = [*configs("table1", "paper"), *configs("table2", "paper")]
    jobs = plan(wanted, "nowhere", results=[RESULTS])
    collection = collect([task.path for job in jobs for task in job.tasks if task.state == "done"])
    if collection.problems:
        raise ValueError(
            f"{RESULTS} must hold whole runs, got {collection.problems[0]}: archive them again"
        )
    return group_runs(collection.runs)


def beside(group: Group) -> list[Beside]:
    """Return the printed numbers of a group beside ours."""
    found = []
    for split in ("train", "test"):
        for row in group.rows:
            number = printed(group.setting, row.estimator, split)
            n = group.setting.num_samples
            stats = [
                bound_stat(row, split, count) for count in (released_count(row.estimator, n), n)
            ]
            if number and stats[0] and stats[1]:
                found.append(
                    Beside(group.setting, row.estimator, split, number, stats[0], stats[1])
                )
    return found


def page(groups: Sequence[Group]) -> str:
    """Return the page."""
    numbers = [one for group in groups for one in beside(group)]
    parts = [INTRODUCTION, coverage(numbers), conclusion(numbers), by_count(groups)]
    for (dataset, network), same in groupby(
        groups, lambda group: (group.setting.dataset, group.setting.network)
    ):
        parts.append(section(f"## {dataset}, {network}", list(same)))
    return "\n\n".join(parts) + "\n"


def coverage(numbers: Sequence[Beside]) -> str:
    """Return how many printed numbers have ours beside them: by table, and by data set, network and n."""
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
    repeated = sum(map(is_repeated, numbers))
    return "\n\n".join(
        [
            "## Coverage",
            (
                "Missing are RELAX, n = 6, and n = 8 except for the bound on linear networks. Of table 2, "
                f"{repeated} are DisARM's column, which repeats table 1's."
            ),
            table(["table of the paper", "printed", "ours beside them"], by_table),
            table(["", *(f"n = {n}" for n in BUDGETS)], by_setting),
        ]
    )


def conclusion(numbers: Sequence[Beside]) -> str:
    """Return what the numbers say, in numbers."""
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
    """Return whether it is of the column of table 2 that is table 1's, and so no result on the bound."""
    return one.estimator == "disarm-ms (unfolded)" and one.number.table == min(BOUND_TABLES)


def closeness(numbers: Sequence[Beside]) -> tuple[int, int, list[float]]:
    """Return how many are not far from print, if its ± is a standard deviation or error, and each distance in nats."""
    near, near_if_errors = (
        sum(abs(one.errors(one.at_its_count, runs)) <= FAR for one in numbers)
        for runs in (RUNS_OF_THE_PAPER, 1)
    )
    return near, near_if_errors, [abs(one.difference(one.at_its_count)) for one in numbers]


def overall(numbers: Sequence[Beside]) -> str:
    """Return how far ours are from the printed ones."""
    near, near_if_errors, distances = closeness(numbers)
    return (
        f"**Trained on the ELBO: at its K every number lies within {up(max(distances))} nats of print**, "
        f"{mean(distances):.2f} on average; {near} of {len(numbers)} lie within {FAR:g} standard errors, where chance "
        f"alone would leave out about {CHANCE * len(numbers):.0f}. (If the paper's ± is a standard error already, as "
        f"its size suggests, {near_if_errors}.)"
    )


def agreement(numbers: Sequence[Beside]) -> list[str]:
    """Return how many numbers there are, their mean difference, and how many are far from the printed ones."""
    far = sum(abs(one.errors(one.at_its_count)) > FAR for one in numbers)
    return [
        str(len(numbers)),
        signed(mean(one.difference(one.at_its_count) for one in numbers)),
        str(far),
    ]


def disarm(numbers: Sequence[Beside]) -> str:
    """Return what becomes of DisARM at either K."""
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
    exception = f" (the others: {'; '.join(others)})" if others else ""
    half = mean(one.difference(one.at_its_count) for one in found)
    full = mean(one.difference(one.at_n) for one in found)
    gap_printed, gap_ours = (mean(gaps(numbers, "disarm", of)) for of in (in_print, in_our_runs))
    return (
        f"**DisARM's printed gap is about what K = n/2 explains.** {len(nearer)} of its {len(found)} numbers are "
        f"nearer to ours at K = n/2 than at K = n{exception}; the mean difference is {signed(half)} at K = n/2 and "
        f"{signed(full)} at K = n. In print DisARM is {signed(gap_printed)} nats from LOORF on average; in our runs, "
        f"at equal K, {signed(gap_ours)}."
    )


def against_loorf(numbers: Sequence[Beside]) -> str:
    """Return how far ARMS is above LOORF, in print and in our runs."""
    parts = []
    for name in ("arms-dirichlet", "arms-gaussian"):
        gap_printed, gap_ours = (gaps(numbers, name, of) for of in (in_print, in_our_runs))
        parts.append(
            f"`{name}` is {signed(mean(gap_printed))} nats from LOORF in print and {signed(mean(gap_ours))} in our "
            f"runs, where it is above it in {sum(gap > 0 for gap in gap_ours)} of {len(gap_ours)}"
        )
    spread = mean(one.at_n.std or 0.0 for one in numbers)
    return (
        f"**ARMS and LOORF end close together.** On average {'; '.join(parts)}. The standard deviation over seeds is "
        f"{spread:.2f} on average."
    )


def overall_bound(numbers: Sequence[Beside]) -> str:
    """Return how far ours are from the printed ones, of the runs on the multi-sample bound."""
    near, near_if_errors, distances = closeness(numbers)
    parts = []
    for name in dict.fromkeys(one.estimator for one in numbers):
        found = [one.difference(one.at_its_count) for one in numbers if one.estimator == name]
        parts.append(f"`{name}` {signed(mean(found))} ({len(found)} numbers)")
    return (
        f"**Trained on the bound: within {up(max(distances))} nats of print**, {mean(distances):.2f} on average, which "
        f"is more than chance: {near} of {len(numbers)} lie within {FAR:g} standard errors ({near_if_errors}, if the "
        "paper's ± is a standard error). DisARM's column of table 2, which repeats table 1's, is left out here and in "
        f"the table below. Ours minus print, on average: {', '.join(parts)}."
    )


def against_vimco(numbers: Sequence[Beside]) -> str:
    """Return how far multi-sample ARMS is above VIMCO, in print and in our runs."""
    gap_printed, gap_ours = (
        gaps(numbers, "arms-ms-dirichlet (unfolded)", of, "vimco") for of in (in_print, in_our_runs)
    )
    to_disarm = gaps(numbers, "arms-ms-dirichlet (unfolded)", in_our_runs, "disarm-ms (unfolded)")
    return (
        f"**Multi-sample ARMS is above VIMCO in print** ({above(gap_printed)}) **and below it in our runs** "
        f"({above(gap_ours)}), at K = n, which VIMCO was trained on and ARMS, with K = n/2, was not. Below that K it "
        "is level or above: [the table below](#on-the-bound-by-k). Against DisARM, which is trained on the same bound "
        f"with as many evaluations, the difference is {above(to_disarm)}, as the [gradient "
        "variances](bound.md#measured) lead one to expect. Why print differs is not known: the code that made those "
        "numbers [is not released](released_code.md#estimators), but for a function for multi-sample ARMS, without its "
        "direct term, that nothing calls. Whoever trains by that alone is biased, and [ends above "
        "VIMCO](bound.md#without-the-direct-term) in short runs, too."
    )


def by_count(groups: Sequence[Group]) -> str:
    """Return how far apart the estimators of the bound end, by the K at which one looks."""
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
            if (stat := bound_stat(row, split, count_of(group.setting.num_samples)))
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
        [
            BY_COUNT,
            table(["looked at with", *(f"`{one}` \u2212 `{other}`" for one, other in pairs)], rows),
        ]
    )


def above(differences: Sequence[float]) -> str:
    """Return a mean difference, and how many are above zero."""
    return f"{signed(mean(differences))}, above in {sum(gap > 0 for gap in differences)} of {len(differences)}"


def up(value: float) -> str:
    """Return a limit, with two digits: rounded up."""
    return f"{math.ceil(100 * value) / 100:.2f}"


def in_print(one: Beside) -> float:
    return one.number.mean


def in_our_runs(one: Beside) -> float:
    """Return our number at K = n, which all estimators have in common."""
    return one.at_n.mean


def gaps(
    numbers: Sequence[Beside],
    estimator: str,
    value: Callable[[Beside], float],
    other: str = "loorf",
) -> list[float]:
    """Return how far an estimator is above another one, wherever both are there."""
    theirs = {(one.setting, one.split): value(one) for one in numbers if one.estimator == other}
    mine = {(one.setting, one.split): value(one) for one in numbers if one.estimator == estimator}
    return [mine[key] - theirs[key] for key in mine if key in theirs]


def section(title: str, groups: Sequence[Group]) -> str:
    """Return the numbers of one data set and network, a table for each of the paper's, and what to know about them."""
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
    """Return a line of a table."""
    ours = [
        text for stat in (one.at_its_count, one.at_n) for text in (str(stat), difference(one, stat))
    ]
    paper = str(Stat(one.number.mean, one.number.plus_minus))
    return [str(one.setting.num_samples), f"`{one.estimator}`", str(one.count), paper, *ours]


def difference(one: Beside, ours: Stat) -> str:
    """Return a difference in nats and in standard errors."""
    errors = one.errors(ours)
    text = f"{signed(one.difference(ours))} ({signed(errors, 1)})"
    return f"**{text}**" if abs(errors) > FAR else text


def remarks(groups: Sequence[Group]) -> list[str]:
    """Return the caveats of some groups, each once, with the tables and the n that it holds for."""
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
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def mean(values: Iterable[float]) -> float:
    return fmean(list(values))


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "\u2212")


if __name__ == "__main__":
    sys.stdout.write(page(committed()))
