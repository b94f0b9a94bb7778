"""The numbers printed in the ARMS paper (Dimitriev & Zhou, ICML 2021), and their caveats."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from arms.bench.config import TrainConfig, paper_preset
from arms.bench.report.groups import Group, Setting

PRINTED_DATASETS = {
    "dynamic-mnist": "dynamic_mnist",
    "fashion-mnist": "fashion_mnist",
    "omniglot": "omniglot",
}
PRINTED_ESTIMATORS = {
    "arms-dirichlet": "arms-d",
    "arms-gaussian": "arms-n",
    "arms": "",
    "arms-ms-dirichlet (unfolded)": "arms-ms",
    "arms-ms": "",
    "disarm-ms (unfolded)": "disarm-ms",
    "disarm-ms": "",
}
"""The paper's names, where they differ from ours; it has neither our coupling nor folded estimators of the bound."""

HALF_BUDGET = {"disarm", "relax", "rebar", "arm"}
"""Estimators for which the released code averages over n/2 samples by default."""

UNCERTAIN_K = (
    "The released code reports a K-sample bound, by default with K = n for ARMS, LOORF and all estimators of the "
    "bound, but K = n/2 for DisARM and RELAX. Which K the printed numbers have is not certain."
)
REPEATED_DISARM = (
    "Table 2 of the paper repeats table 1's DisARM column in 23 of 24 rows: no multi-sample result."
)
REPEATED_ROW = "The paper's table 1 repeats its table 3 in this row (Omniglot, linear, n = 8)."


@dataclass(frozen=True)
class Printed:
    """One number of the paper."""

    table: int
    mean: float
    plus_minus: float


def printed(setting: Setting, estimator: str, split: str) -> Printed | None:
    """Return the number that the paper prints for an estimator on a split, or None."""
    if setting.layers:
        return None
    key = (PRINTED_DATASETS.get(setting.dataset), setting.network, setting.num_samples, split)
    return all_printed().get((*key, PRINTED_ESTIMATORS.get(estimator, estimator)))


def released_count(estimator: str, num_samples: int) -> int:
    """Return the K of the bound that the released code reports by default.

    >>> released_count("arms-dirichlet", 4), released_count("disarm", 4)
    (4, 2)
    """
    return max(1, num_samples // 2) if estimator in HALF_BUDGET else num_samples


def caveats(group: Group) -> list[str]:
    """Return the caveats of a comparison of our numbers with printed ones."""
    lines = [UNCERTAIN_K]
    names = {row.estimator for row in group.rows}
    if "disarm-ms (unfolded)" in names:
        lines.append(REPEATED_DISARM)
    if (group.setting.dataset, group.setting.network, group.setting.num_samples) == (
        "omniglot",
        "linear",
        8,
    ):
        lines.append(REPEATED_ROW)
    return [*lines, *_departures(group)]


def _departures(group: Group) -> list[str]:
    """Return a sentence with the fields in which these runs differ from the paper, if there are any."""
    fields = (
        "steps",
        "decoder_samples",
        "batch_size",
        "latents",
        "categories",
        "likelihood",
        "learning_rate",
        "prior_learning_rate",
        "precision",
    )
    paper = paper_preset(TrainConfig())
    differences = []
    for name in fields:
        configs = [run.config for row in group.rows for run in row.runs]
        if (
            name == "decoder_samples"
        ):  # a bound trains its decoder on its own samples, in the paper too
            configs = [one for one in configs if not one.make_estimator().target.subtracts_log_q]
        ours = {getattr(config, name) for config in configs}
        if ours - {getattr(paper, name)}:
            differences.append(
                f"{name} {', '.join(sorted(map(str, ours)))} (paper: {getattr(paper, name)})"
            )
    return [f"These runs differ from the paper: {'; '.join(differences)}."] if differences else []


@cache
def all_printed() -> Mapping[tuple[str | None, str, int, str, str], Printed]:
    """Return every number by data set, network, n, split and estimator, as the paper names them."""
    rows = json.loads(
        files("arms.bench.report").joinpath("paper_tables.json").read_text(encoding="utf-8")
    )
    return {
        (
            row["dataset"],
            row["network"],
            row["num_samples"],
            row["split"],
            row["estimator"],
        ): Printed(row["table"], row["mean"], row["plus_minus"])
        for row in rows
    }
