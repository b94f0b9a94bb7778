"""Tables of examples/gates.py, from its result files."""

import json
import math
from statistics import fmean, stdev
from typing import Any

from arms.bench.report.groups import labeled_if_biased
from generators.measured import ROOT, table

RESULTS = ROOT / "examples" / "results"
DRAWS = {"row": "per image", "shared": "shared"}
COLUMNS = ("objective, test", "lead of flips", "objective, training", "accuracy", "gates open")
Row = dict[str, Any]


def gates_table(steps: int) -> str:
    """Return estimators by the sampled objective on the test set, best first."""
    rows: list[Row] = json.loads((RESULTS / f"gates_{steps}.json").read_text())["rows"]
    flips = {row["draws"]: row["test"] for row in rows if row["estimator"] == "flips"}
    lines = [
        [
            f"`{labeled_if_biased(row['estimator'])}`",
            DRAWS[row["draws"]],
            f"{row['rate']:g}",
            spread(row["test"]),
            "" if row["estimator"] == "flips" else lead(flips[row["draws"]], row["test"]),
            *(spread(row[key]) for key in ("train", "accuracy")),
            f"{fmean(row['open']):.1f}",
        ]
        for row in sorted(rows, key=lambda row: (row["draws"], -fmean(row["test"])))
    ]
    return table(["estimator", "draws", "rate", *COLUMNS], lines, left=2)


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    return signed(f"{fmean(values):.3f} ± {stdev(values):.3f}")


def lead(ours: list[float], theirs: list[float]) -> str:
    """Return the mean difference over seeds, which share their splits, and its standard error."""
    found = [one - other for one, other in zip(ours, theirs, strict=True)]
    return signed(f"{fmean(found):+.3f} ± {stdev(found) / math.sqrt(len(found)):.3f}")


def signed(number: str) -> str:
    """Return a number with a typographic minus."""
    return number.replace("-", "\N{MINUS SIGN}")
