"""The numbers printed in the ARMS paper (Dimitriev & Zhou, ICML 2021), and what must be said beside them."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from arms.bench.config import TrainConfig, paper_preset
from arms.bench.reports.groups import Group, Setting

DATASETS = {"dynamic-mnist": "dynamic_mnist", "fashion-mnist": "fashion_mnist", "omniglot": "omniglot"}
ESTIMATORS = {"arms-ms-d": "arms-ms"}
"""Where the paper's name is not ours."""

HALF_BUDGET = {"disarm", "relax", "rebar", "arm", "disarm-ms", "arms-ms-d", "arms-ms-n", "arms-ms-s"}
"""Estimators for which the released code averages over n/2 samples unless told otherwise."""

UNCERTAIN = (
    "The released code reports a K-sample bound, by default with K = n for ARMS, LOORF and VIMCO but K = n/2 for "
    "DisARM, RELAX and the multi-sample ARMS and DisARM. Which K stands behind the printed DisARM and RELAX numbers "
    "is not certain."
)
REPEATED_DISARM = "Table 2 of the paper repeats table 1's DisARM column in 23 of 24 rows: no multi-sample result."
REPEATED_ROW = "The paper's table 1 repeats its table 3 in this row (Omniglot, linear, n = 8)."


@dataclass(frozen=True)
class Printed:
    """One number of the paper."""

    table: int
    mean: float
    plus_minus: float


def printed(setting: Setting, estimator: str, split: str) -> Printed | None:
    """Return what the paper prints for this estimator on that split, or None."""
    key = (DATASETS.get(setting.dataset), setting.network, setting.num_samples, split)
    return _numbers().get((*key, ESTIMATORS.get(estimator, estimator)))


def released_count(estimator: str, num_samples: int) -> int:
    """Return the K of the bound that the released code reports by default.

    >>> released_count("arms-d", 4), released_count("disarm", 4)
    (4, 2)
    """
    return max(1, num_samples // 2) if estimator in HALF_BUDGET else num_samples


def caveats(group: Group) -> list[str]:
    """Return what to keep in mind when our numbers stand beside printed ones."""
    said = [UNCERTAIN]
    names = {row.estimator for row in group.rows}
    if "disarm-ms" in names:
        said.append(REPEATED_DISARM)
    if (group.setting.dataset, group.setting.network, group.setting.num_samples) == ("omniglot", "linear", 8):
        said.append(REPEATED_ROW)
    return [*said, *_departures(group)]


def _departures(group: Group) -> list[str]:
    """Name the settings in which these runs are not the paper's."""
    fields = ("steps", "decoder_samples", "batch_size", "latents", "learning_rate", "prior_learning_rate", "precision")
    paper = paper_preset(TrainConfig())
    found = []
    for name in fields:
        ours = {getattr(run.config, name) for row in group.rows for run in row.runs}
        if ours != {getattr(paper, name)}:
            found.append(f"{name} {', '.join(sorted(map(str, ours)))} (paper: {getattr(paper, name)})")
    return [f"These runs depart from the paper: {'; '.join(found)}."] if found else []


@cache
def _numbers() -> dict[tuple[str | None, str, int, str, str], Printed]:
    rows = json.loads(files("arms.bench.reports").joinpath("paper_tables.json").read_text(encoding="utf-8"))
    return {
        (row["dataset"], row["network"], row["num_samples"], row["split"], row["estimator"]): Printed(
            row["table"], row["mean"], row["plus_minus"]
        )
        for row in rows
    }
