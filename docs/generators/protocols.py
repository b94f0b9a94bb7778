"""Tables of RODEO's and ReinMax's protocols: printed numbers beside ours, from one result file."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from arms.bench.report.groups import labeled_if_biased
from generators.measured import ROOT, result, table

NAME = "published_protocols"
Row = dict[str, Any]
NOT_RUN = "Not measured yet."
CHECKPOINT = 10_000
"""The step at which the exact gradient of 8x4 ends, and all others are compared with it."""

REINMAX_SHAPES = ((8, 4), (4, 24))
REINMAX_PRINTED = {
    (8, 4, "reinmax"): "124.66",
    (4, 24, "reinmax"): "99.77",
    (8, 4, "st-gumbel"): "126.85",
    (4, 24, "st-gumbel"): "101.32",
}
"""Training losses after 96,000 steps, recalled from the paper and not checked."""
RODEO_PRINTED = {
    ("bernoulli", "arms"): "-100.84",
    ("bernoulli", "double-cv"): "-100.94",
    ("bernoulli", "rodeo"): "-100.46",
    ("scaled-gaussian", "arms"): "683.5",
    ("scaled-gaussian", "double-cv"): "686.5",
    ("scaled-gaussian", "rodeo"): "692.4",
}
"""Training ELBO after 10^6 steps: the first three are recalled, the others are from a summary page."""


def available() -> bool:
    """Return whether the result file is there."""
    return (ROOT / "benchmarks" / "results" / f"{NAME}.json").is_file()


def or_not_run(make: Callable[[], str]) -> Callable[[], str]:
    """Return a function that says so where nothing was measured."""
    return lambda: make() if available() else NOT_RUN


def number(value: float, form: str = ".2f") -> str:
    """Return a number with a typographic minus."""
    return format(value, form).replace("-", "\N{MINUS SIGN}")


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation over seeds."""
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return number(fmean(values)) + deviation


@cache
def rows(likelihood: str, shape: tuple[int, int]) -> list[Row]:
    """Return the rows of a likelihood and a shape of the latents."""
    every = result(NAME)["rows"]
    wanted = (likelihood, *shape)
    return [
        row for row in every if (row["likelihood"], row["categories"], row["latents"]) == wanted
    ]


def named(row: Row) -> str:
    """Return the estimator, its temperature and n, marked if biased."""
    hot = f", τ = {row['temperature']:g}" if row["temperature"] else ""
    return f"`{labeled_if_biased(row['estimator'])}`{hot}, n = {row['num_samples']}"


def microseconds(row: Row) -> float | None:
    """Return the time of a step, measured alone; None if it was not."""
    same = ("likelihood", "categories", "latents", "estimator", "num_samples", "temperature")
    for one in result(NAME)["times"]:
        if all(one[key] == row[key] for key in same):
            return float(one["us per step"])
    return None


def at_step(row: Row, step: float, name: str = "train") -> list[float] | None:
    """Return a curve at some step, for every seed, between looks on a line; None beyond its end."""
    curve = row["curve"]
    for before, after in pairwise(curve):
        if before["step"] <= step <= after["step"]:
            share = (step - before["step"]) / (after["step"] - before["step"])
            pairs = zip(before[name], after[name], strict=True)
            return [(1 - share) * one + share * other for one, other in pairs]
    return None


def losses(values: Sequence[float] | None) -> str:
    """Return a cell of negative ELBOs."""
    return "" if values is None else spread([-value for value in values])


def reinmax_table() -> str:
    """Return one table per shape: losses at equal steps and at equal time."""
    return "\n\n".join(_reinmax_shape(shape) for shape in REINMAX_SHAPES if rows("gray", shape))


def _reinmax_shape(shape: tuple[int, int]) -> str:
    found = rows("gray", shape)
    base = next(row for row in found if row["estimator"] == "reinmax")
    base_time = microseconds(base)
    columns = [
        *(f"{shape[0]}x{shape[1]}", "steps", "us per step", "seconds", "printed"),
        *(f"train at {CHECKPOINT:,}", "train at the end", "test at the end", "train, equal time"),
    ]
    lines = []
    for row in sorted(found, key=lambda row: row["estimator"] == "exact"):
        last, time = row["curve"][-1], microseconds(row)
        equal = None
        if time and base_time:
            equal = at_step(row, min(1.0, base_time / time) * base["curve"][-1]["step"])
        lines.append(
            [
                named(row),
                f"{row['steps']:,}",
                f"{time:,.0f}" if time else "",
                f"{time * row['steps'] / 1e6:,.0f}" if time else "",
                REINMAX_PRINTED.get((*shape, row["estimator"]), ""),
                losses(at_step(row, CHECKPOINT)),
                losses(last["train"]),
                losses(last["test K=1"]),
                "" if row["estimator"] == "exact" else losses(equal),
            ]
        )
    return table(columns, lines)


def rodeo_table() -> str:
    """Return one table per likelihood: bounds, gradient variance, time."""
    found = {kind: rows(kind, (2, 200)) for kind in ("bernoulli", "scaled-gaussian")}
    return "\n\n".join(_rodeo_likelihood(kind, of) for kind, of in found.items() if of)


def _rodeo_likelihood(kind: str, found: Sequence[Row]) -> str:
    loorf = next(row for row in found if row["estimator"] == "loorf")
    title = "Bernoulli" if kind == "bernoulli" else "Gaussian"
    columns = [
        *(title, "seeds", "evaluations + derivatives", "us per step", "variance / LOORF"),
        *("train", "test, K = 3", "test, K = 100", "printed, 10⁶ steps"),
    ]
    base = fmean(loorf["curve"][-1]["variance"])
    lines = []
    for row in sorted(found, key=lambda row: fmean(row["curve"][-1]["train"])):
        last, time = row["curve"][-1], microseconds(row)
        lines.append(
            [
                named(row),
                str(len(last["train"])),
                f"{row['evaluations']} + {row['derivatives']}",
                f"{time:,.0f}" if time else "",
                f"{fmean(last['variance']) / base:.2f}",
                spread(last["train"]),
                spread(last["test K=3"]),
                spread(last["test K=100"]),
                RODEO_PRINTED.get((kind, row["estimator"]), "").replace("-", "\N{MINUS SIGN}"),
            ]
        )
    return table(columns, lines)


def command() -> str:
    """Return a link to the result file, and the commands that made it."""
    lines = result(NAME)["command"].splitlines()
    link = f"[{NAME}.json](../benchmarks/results/{NAME}.json), on {result(NAME)['device']}:"
    return "\n".join([link, "", "```text", *lines, "```"])
