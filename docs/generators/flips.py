"""The tables of the page on flips, from the result files of models that no constant was chosen on."""

import math
from collections.abc import Sequence
from itertools import product

from generators.measured import NETWORKS, Row, result, shown, table

MODELS = list(product(NETWORKS, (2_000, 20_000)))
HEADS = [f"{network}, {steps // 1000}k" for network, steps in MODELS]
ON_VAES = [("midpoint", 6), ("flips", 3), ("flips", 6), ("flips", 15), ("reinmax", 6)]
SIZES = [(64, "flips"), (8, "flips"), (64, "flips, safe=False")]


def _of_models(rows: Sequence[Row]) -> list[Row]:
    """Return the row of each model, in the order of the columns."""
    return [
        next(row for row in rows if (row["network"], row["steps"]) == model) for model in MODELS
    ]


def _with_error(row: Row) -> str:
    """Return a ratio and its error, rounded up, with as many digits."""
    ratio = shown(row["ratio"])
    digits = len(ratio.partition(".")[2])
    return f"{ratio} ± {math.ceil(row['ratio_error'] * 10**digits) / 10**digits:.{digits}f}"


def _tails(rows: Sequence[Row]) -> str:
    tails = [100 * row["tail"] for row in rows]
    return f"{min(tails):.0f} to {max(tails):.0f} %"


def vae_table() -> str:
    """Return the variance on trained VAEs, relative to LOORF at equal evaluations."""
    every, lines = result("vae_variance_seed1")["rows"], []
    for name, budget in ON_VAES:
        rows = _of_models(
            [row for row in every if (row["estimator"], row["budget"]) == (name, budget)]
        )
        cells = [_with_error(row) for row in rows]
        biased = "" if rows[0]["unbiased"] else " (biased)"
        lines.append([f"`{name}`{biased}", str(rows[0]["evaluations"]), *cells, _tails(rows)])
    return table(["estimator", "evaluations", *HEADS, "largest 1 %"], lines)


def bound_table() -> str:
    """Return the variance on the bound, relative to VIMCO at equal evaluations."""
    every, lines = result("bound_variance_seed1")["rows"], []
    for samples, name in product((4, 10), ("flips-ms, K flips", "flips-ms, K/2 flips")):
        rows = _of_models([row for row in every if (row["estimator"], row["n"]) == (name, samples)])
        flips = samples if "K flips" in name else samples // 2
        cells = [_with_error(row) for row in rows]
        lines.append([str(samples), str(flips), *cells, _tails(rows)])
    return table(["K", "flips m", *HEADS, "largest 1 %"], lines, left=0)


def step_table() -> str:
    """Return the time of a training step, relative to LOORF at equal evaluations."""
    rows = {
        row["contender"].removesuffix(" R=1"): row for row in result("train_step_flips")["rows"]
    }
    unit = rows["loorf"]["time / by hand"]
    names = ["arms", "midpoint", "reinmax", "flips"]
    times = [f"{rows[name]['time / by hand'] / unit:.2f}" for name in names]
    return table([f"`{name}`" for name in names], [times], left=0)


def small_table() -> str:
    """Return the variance on small objectives, relative to LOORF at equal evaluations."""
    every, lines = result("small_problems")["rows"], []
    for kind in dict.fromkeys(row["objective"] for row in every):
        cells = [
            " / ".join(
                f"{row['ratio']:.2g}"
                for row in every
                if (row["objective"], row["rows"], row["estimator"]) == (kind, rows, name)
            )
            for rows, name in SIZES
        ]
        lines.append([f"{kind} of 50" if kind[-1] == "8" else kind, *cells])
    return table(["f", "64 rows", "8 rows", "64 rows, `safe=False`"], lines, left=4)
