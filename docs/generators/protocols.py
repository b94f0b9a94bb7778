"""Tables of RODEO's and ReinMax's protocols: printed numbers beside ours, from one result file."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from arms.bench.report.groups import labeled_if_biased
from arms.estimators import as_estimator
from generators.measured import ROOT, result, table

NAME = "published_protocols"
Row = dict[str, Any]
NOT_RUN = "Not measured yet."
COLLAPSED = 200.0
"""Losses above it: the decoder predicts the mean image, which alone has a loss of 206."""

LOSSES = ("train", "test K=1")
REINMAX_SHAPES = ((8, 4), (4, 24))
REINMAX_PRINTED = {
    (8, 4, "reinmax"): "124.66",
    (4, 24, "reinmax"): "99.77",
    (8, 4, "st-gumbel"): "126.85",
    (4, 24, "st-gumbel"): "101.32",
}
"""Training losses after 96,000 steps, recalled from the paper and not checked."""
RODEO_TITLES = {"bernoulli": "Bernoulli", "scaled-gaussian": "Gaussian"}
RODEO_PRINTED = {
    ("bernoulli", "arms"): "-100.84",
    ("bernoulli", "double-cv"): "-100.94",
    ("bernoulli", "rodeo"): "-100.46",
    ("scaled-gaussian", "arms"): "683.5",
    ("scaled-gaussian", "double-cv"): "686.5",
    ("scaled-gaussian", "rodeo"): "692.4",
}
"""Training ELBO after 10^6 steps: the first three are recalled, the others are from a summary page."""


def or_not_run(make: Callable[[], str], name: str = NAME) -> Callable[[], str]:
    """Return a function that says so where the result file is not there."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return lambda: make() if path.is_file() else NOT_RUN


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
    made = as_estimator(row["estimator"], row["num_samples"])
    temperature = row["temperature"] or getattr(made, "temperature", 0.0)
    hot = f", τ = {temperature:g}" if temperature else ""
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
    """Return a cell of negative ELBOs: the mean over the seeds that did not collapse, if any."""
    if values is None:
        return ""
    kept = [-value for value in values if -value < COLLAPSED]
    if len(kept) == len(values):
        return spread(kept)
    count = f"{len(values) - len(kept)} of {len(values)} collapsed"
    return f"{spread(kept)}; {count}" if kept else count


def seconds_used(row: Row) -> str:
    """Return the seconds that all seeds of a run took together, looks left out."""
    return f"{row['us per step of the pack'] * row['steps'] / 1e6:,.0f}"


def milliseconds(row: Row) -> str:
    """Return a cell with the time of a step."""
    found = microseconds(row)
    return f"{found / 1e3:.1f}" if found else ""


def reinmax_table() -> str:
    """Return one table per shape: losses at equal steps and at equal time."""
    return "\n\n".join(_reinmax_shape(shape) for shape in REINMAX_SHAPES if rows("gray", shape))


def _reinmax_shape(shape: tuple[int, int]) -> str:
    found = [row for row in rows("gray", shape) if row["estimator"] != "exact"]
    base = next(row for row in found if row["estimator"] == "reinmax")
    base_time = microseconds(base)
    columns = [
        *(f"{shape[0]}x{shape[1]}", "steps", "seconds used", "ms per step", "printed"),
        *("train", "test", "lowest test", "train, equal time", "test, equal time"),
    ]
    lines = []
    for row in found:
        curve, time = row["curve"], microseconds(row)
        share = min(1.0, base_time / time) if time and base_time else 0.0
        by_seed = zip(*(look["test K=1"] for look in curve), strict=True)
        lines.append(
            [
                named(row),
                f"{row['steps']:,}",
                seconds_used(row),
                milliseconds(row),
                REINMAX_PRINTED.get((*shape, row["estimator"]), ""),
                *(losses(curve[-1][name]) for name in LOSSES),
                losses([max(values) for values in by_seed]),
                *(losses(at_step(row, share * base["curve"][-1]["step"], name)) for name in LOSSES),
            ]
        )
    return table(columns, lines)


def exact_table() -> str:
    """Return the losses of 8x4 where the run with the exact gradient ends."""
    found = rows("gray", REINMAX_SHAPES[0])
    ends = [row["curve"][-1]["step"] for row in found if row["estimator"] == "exact"]
    if not ends:
        return NOT_RUN
    lines = [
        [
            named(row) if row["estimator"] != "exact" else "`exact`",
            str(len(row["curve"][-1]["train"])),
            *(losses(at_step(row, ends[0], name)) for name in LOSSES),
        ]
        for row in sorted(found, key=lambda row: row["estimator"] != "exact")
    ]
    return table([f"8x4, step {ends[0]:,}", "seeds", "train", "test"], lines)


def rodeo_table() -> str:
    """Return one table per likelihood and length: bounds, gradient variance, time."""
    parts = []
    for kind in RODEO_TITLES:
        found = rows(kind, (2, 200))
        if not found:
            parts.append(f"{RODEO_TITLES[kind]}: {NOT_RUN.lower()}")
        lengths = sorted({row["steps"] for row in found})
        parts += [_rodeo_runs(kind, [r for r in found if r["steps"] == steps]) for steps in lengths]
    return "\n\n".join(parts)


def _rodeo_runs(kind: str, found: Sequence[Row]) -> str:
    loorf = next(row for row in found if row["estimator"] == "loorf")
    columns = [
        f"{RODEO_TITLES[kind]}, {loorf['steps']:,} steps",
        *("seeds", "seconds used", "evaluations + derivatives", "ms per step"),
        "variance relative to LOORF",
        *("train", "test, K = 3", "test, K = 100", "printed, 10⁶ steps"),
    ]
    base = fmean(loorf["curve"][-1]["variance"])
    lines = []
    for row in sorted(found, key=lambda row: fmean(row["curve"][-1]["train"])):
        last = row["curve"][-1]
        lines.append(
            [
                named(row),
                str(len(last["train"])),
                seconds_used(row),
                f"{row['evaluations']} + {row['derivatives']}",
                milliseconds(row),
                f"{fmean(last['variance']) / base:.2f}",
                spread(last["train"]),
                spread(last["test K=3"]),
                spread(last["test K=100"]),
                RODEO_PRINTED.get((kind, row["estimator"]), "").replace("-", "\N{MINUS SIGN}"),
            ]
        )
    return table(columns, lines)


def command() -> str:
    """Return a link to the result file, and the commands that made it, by device."""
    found = result(NAME)
    by_device: dict[str, dict[str, None]] = {}
    for row in found["rows"] + found["times"]:
        where = f"{row['device']}, PyTorch {row['torch']}, precision {row['precision']}"
        by_device.setdefault(where, {})[row["command"]] = None
    link = f"[{NAME}.json](../benchmarks/results/{NAME}.json)"
    blocks = [
        "\n".join([f"On {where}:", "", "```text", *commands, "```"])
        for where, commands in by_device.items()
    ]
    return "\n\n".join([f"All are in {link}.", *blocks])
