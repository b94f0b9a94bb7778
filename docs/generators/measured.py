"""Measured numbers from the committed result files: tables, and the measurements on an estimator's page."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parents[2]
BUDGET = 6
"""The most evaluations in the tables."""
STEPS = 20_000
"""Training steps before the variance was measured."""
NETWORKS = ("linear", "nonlinear")
Row = dict[str, Any]


@cache
def result(name: str) -> Any:
    """Return a result file."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def source(name: str, depth: int = 0) -> str:
    """Return a link to a result file and the script that made it, from a page that many folders below docs/."""
    script = name.replace("_seed1", ".py --seed 1") if name.endswith("_seed1") else f"{name}.py"
    file = f"{'../' * (depth + 1)}benchmarks/results/{name}.json"
    return f"[{name}.json]({file}), by `python benchmarks/{script}`"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown; the first columns are aligned to the left, the others to the right."""
    line = ["---"] * left + ["--:"] * (len(columns) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, line, *rows])


def shown(ratio: float) -> str:
    """Return a ratio with two significant digits."""
    return f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:#.2g}"


def vae_rows(name: str | None = None, budget: int = BUDGET, steps: int = STEPS) -> list[Row]:
    """Return the rows of the measurement on trained VAEs, of one estimator or of all."""
    return [
        row
        for row in result("vae_variance")["rows"]
        if row["budget"] == budget and row["steps"] == steps and name in (None, row["estimator"])
    ]


def step_time(name: str, n: int) -> str:
    """Return the time of a training step on one CPU thread relative to LOORF with six samples; empty if not there."""
    rows = result("train_step_slopes")["rows"]
    times = {
        (row["contender"].removesuffix(" R=1"), row["n"]): row["time / by hand"] for row in rows
    }
    return f"{times[name, n] / times['loorf', BUDGET]:.2f}" if (name, n) in times else ""


def overhead(name: str) -> str:
    """Return the time of a step at ten samples relative to LOORF; empty if it was not measured."""
    ratios = result("estimator_overhead")["ratios"]
    return f"{ratios[name] / ratios['loorf']:.2f}" if name in ratios else ""


def by_network(rows: Sequence[Row]) -> list[Row]:
    """Return the two rows of an estimator, linear first."""
    return [next(row for row in rows if row["network"] == network) for network in NETWORKS]


def linked(name: str, folder: str) -> str:
    return f"[`{name}`](estimators/{folder}/{name}.md)"


def variance_table() -> str:
    """Return the table of unbiased estimators: work, variance on trained VAEs, time."""
    rows = [row for row in vae_rows() if row["unbiased"]]
    names = list(dict.fromkeys(row["estimator"] for row in rows))
    lines = []
    for name in sorted(
        names,
        key=lambda name: by_network([row for row in rows if row["estimator"] == name])[0]["ratio"],
    ):
        linear, nonlinear = by_network([row for row in rows if row["estimator"] == name])
        lines.append(
            [linked(name, "expectation"), str(linear["evaluations"]), str(linear["derivatives"])]
            + [shown(row["ratio"]) for row in (linear, nonlinear)]
            + [step_time(name, linear["n"]), overhead(name)]
        )
    columns = [
        "estimator",
        "evaluations",
        "derivatives",
        "linear",
        "nonlinear",
        "time, listed evaluations",
        "time, n = 10",
    ]
    return table(columns, lines)


def bias_table() -> str:
    """Return the table of biased estimators: bias and variance."""
    rows = [row for row in vae_rows() if not row["unbiased"]]
    lines = []
    for name in dict.fromkeys(row["estimator"] for row in rows):
        both = by_network([row for row in rows if row["estimator"] == name])
        bias = [f"{row['bias']:.3f} ± {row['bias_error']:.3f}" for row in both]
        lines.append([linked(name, "biased"), *bias, *(shown(row["ratio"]) for row in both)])
    return table(
        ["estimator", "bias, linear", "bias, nonlinear", "variance, linear", "variance, nonlinear"],
        lines,
    )


def toy_table() -> str:
    """Return the table of the toy problem."""
    numbers = result("toy_variance")["ratios"]
    names = list(next(iter(numbers.values())))
    return table(
        ["n", *(f"`{name}`" for name in names)],
        [[n, *(shown(of[name]) for name in names)] for n, of in numbers.items()],
    )


def agreement_table() -> str:
    """Return the mean training ELBO of the last steps on dynamic MNIST, of the package and of a hand-written loop."""
    curves = result("mnist_agreement")["train_elbo"]
    columns = {
        "`arms-dirichlet`": "arms-dirichlet",
        "`loorf`": "loorf",
        "hand-written, LOORF": "by hand (loorf)",
    }
    last = [
        f"{fmean(curve[-1]):.2f} ± {stdev(curve[-1]):.2f}"
        for curve in map(curves.get, columns.values())
    ]
    return table(list(columns), [[cell.replace("-", "\u2212") for cell in last]], left=0)


# ---- what the page of an estimator says


def about(name: str) -> str:
    """Return all measurements of an estimator, as Markdown for its page, which is two folders down."""
    parts = [_on_vaes(name), _on_toy(name), _on_bounds(name), _on_categories(name), _time(name)]
    return (
        "\n\n".join(part for part in parts if part)
        or "No measurements of this estimator are committed."
    )


def _vae_file(name: str) -> tuple[str, list[Row]]:
    """Return the measurement on trained VAEs that contains an estimator: its name and its rows."""
    files = {file: result(file)["rows"] for file in ("vae_variance", "vae_variance_seed1")}
    having = (file for file, rows in files.items() if name in {row["estimator"] for row in rows})
    file = next(having, "vae_variance")
    return file, files[file]


def _on_vaes(name: str) -> str:
    file, rows = _vae_file(name)
    rows = [row for row in rows if row["estimator"] == name]
    if not rows:
        note = result("vae_variance")["notes"].get(name)
        return (
            f"This estimator was not measured on trained VAEs: {note.removeprefix('left out: ')}."
            if note
            else ""
        )
    lines = []
    for budget in sorted({row["budget"] for row in rows}):
        mine = [row for row in rows if (row["budget"], row["steps"]) == (budget, STEPS)]
        if mine:
            mine = by_network(mine)
            cells = [
                str(mine[0]["evaluations"]),
                str(mine[0]["derivatives"]),
                *(shown(row["ratio"]) for row in mine),
            ]
            lines.append(
                cells + ([] if mine[0]["unbiased"] else [f"{row['bias']:.3f}" for row in mine])
            )
    columns = ["evaluations", "derivatives", "linear", "nonlinear"]
    unbiased = rows[0]["unbiased"]
    columns += [] if unbiased else ["bias, linear", "bias, nonlinear"]
    note = result(file)["notes"].get(name)
    more = "" if unbiased else " The bias is relative to the length of the gradient."
    words = (
        f"**Discrete VAEs.** The models have 200 binary latents and were trained for {STEPS:,} steps on dynamic "
        "MNIST, with linear and with nonlinear networks. The table shows the variance of the gradient relative to "
        f"LOORF with the same number of evaluations. Lower is better.{more} "
        f"{f'Note: {note}. ' if note else ''}Source: {source(file, 2)}."
    )
    parts = [words, table(columns, lines, left=0)]
    return "\n\n".join([*parts, _wins(name)] if unbiased else parts)


def _wins(name: str) -> str:
    """Return in how many cases the estimator has the lowest variance of those that need no more from f."""
    every = [row for row in _vae_file(name)[1] if row["unbiased"]]
    values_only = not any(row["derivatives"] for row in every if row["estimator"] == name)
    peers = f"unbiased{', derivative-free' if values_only else ''} estimators"
    cases: dict[tuple[str, int, int], list[Row]] = {}
    for row in every:
        if not (values_only and row["derivatives"]):
            cases.setdefault((row["network"], row["steps"], row["budget"]), []).append(row)
    won = [
        case
        for case, rows in cases.items()
        if min(rows, key=lambda row: row["ratio"])["estimator"] == name
    ]
    cases_of_it = [
        case for case, rows in cases.items() if name in {row["estimator"] for row in rows}
    ]
    about = "A case is a network, a number of training steps and a limit on the evaluations."
    wins = f"`{name}` has the lowest variance among the {peers} in"
    if len(won) in (0, len(cases_of_it)):
        share = "all" if won else "none of the"
        return f"{wins} {share} {len(cases_of_it)} measured cases. {about}"
    budgets: dict[tuple[str, int], list[str]] = {}
    for network, steps, budget in won:
        budgets.setdefault((network, steps), []).append(str(budget))
    told = "; ".join(
        f"{network}, {'untrained' if steps == 1 else f'{steps:,} steps'}, at most {_listed(counts)} evaluations"
        for (network, steps), counts in budgets.items()
    )
    which = "That case is" if len(won) == 1 else f"The {len(won)} cases are"
    return f"{wins} {len(won)} of the {len(cases_of_it)} measured cases. {about} {which}: {told}."


def _listed(counts: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))


def _on_toy(name: str) -> str:
    numbers = result("toy_variance")["ratios"]
    if name not in numbers["2"]:
        return ""
    cells = [shown(of[name]) for of in numbers.values()]
    return (
        "**Toy problem of the ARMS paper.** The problem has a single latent. The table shows the exact variance "
        "relative to LOORF, averaged over probabilities p from 0.1 to 0.9. Lower is better. "
        f"Source: {source('toy_variance', 2)}.\n\n"
        + table([f"n = {n}" for n in numbers], [cells], left=0)
    )


def _on_bounds(name: str) -> str:
    rows = [
        row
        for row in result("bound_variance")["rows"]
        if row["estimator"] == name and row["steps"] == STEPS
    ]
    if not rows:
        return ""
    lines = []
    for n in sorted({row["n"] for row in rows}):
        both = by_network([row for row in rows if row["n"] == n])
        facts = [str(both[0][key]) for key in ("evaluations", "derivatives", "bound_samples")]
        lines.append([str(n), *facts, *(shown(row["ratio"]) for row in both)])
    return (
        f"**Discrete VAEs.** The models were trained for {STEPS:,} steps. The table shows the variance of the whole "
        "gradient of the bound relative to VIMCO with K = n. Lower is better. "
        f"Source: {source('bound_variance', 2)}.\n\n"
        + table(
            ["n, at most", "evaluations", "derivatives", "K", "linear", "nonlinear"], lines, left=0
        )
    )


def _on_categories(name: str) -> str:
    rows = [row for row in _sampled() if row["estimator"] == name]
    if not rows or name == "loorf":
        return ""
    lines = []
    for n in sorted({row["n"] for row in rows}):
        mine = [row for row in rows if row["n"] == n]
        ratios = sorted(row["ratio"] for row in mine)
        won = sum(_lowest(row) for row in mine)
        lines.append(
            [
                str(n),
                str(len(mine)),
                shown(ratios[0]),
                shown(ratios[len(ratios) // 2]),
                shown(ratios[-1]),
                str(won),
            ]
        )
    return (
        "**Categories.** Each problem is a toy problem, a random table or a network, with 1 to 60 latents. The table "
        "shows the lowest, median and highest variance over these problems, relative to LOORF with the same number "
        "of evaluations. The last column counts the problems on which this estimator is the best. "
        f"[All problems](../../measurements/categories.md). Source: {source('categorical_variance', 2)}.\n\n"
        + table(["n", "problems", "lowest", "median", "highest", "best on"], lines, left=0)
    )


def _sampled() -> list[Row]:
    """Return the rows on categories, without those of the enumeration."""
    return [row for row in result("categorical_variance")["rows"] if row["estimator"] != "exact"]


def _lowest(row: Row) -> bool:
    """Return whether a row is the lowest of its problem and n, among unbiased or among biased estimators."""
    rivals = [
        other["ratio"]
        for other in _sampled()
        if (other["problem"], other["n"], other["unbiased"])
        == (row["problem"], row["n"], row["unbiased"])
    ]
    return bool(row["ratio"] == min(rivals))


def _time(name: str) -> str:
    ratio = overhead(name)
    if not ratio:
        return ""
    return (
        f"**Time.** With n = 10, a training step of a linear VAE takes {ratio} times as long as with `loorf` on one "
        f"CPU thread. Source: {source('estimator_overhead', 2)}."
    )
