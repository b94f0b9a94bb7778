"""The numbers of the ARMS paper (Dimitriev & Zhou, ICML 2021), and caveats about them.

The numbers are in paper_tables.json, under our names of estimators. The paper's ARMS-D, ARMS-N and
ARMS-MS are our arms-dirichlet, arms-gaussian and arms-ms-dirichlet. The paper does not fold the
direct term.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from arms.bench.presets import apply_preset
from arms.bench.report.groups import Group, Setting

# Estimators for which the released code averages over n/2 samples by default.
HALF_BUDGET = {"disarm", "relax", "rebar", "arm"}
COMPARED_FIELDS = (
    *("steps", "decoder_samples", "batch_size", "latents"),
    *("learning_rate", "prior_learning_rate", "precision"),
    *("schedule", "warmup_steps", "decay_every", "encoder_scale"),
)
UNCERTAIN_K = (
    "The released code reports a K-sample bound, by default with K = n for ARMS, LOORF and all "
    "estimators of the bound, but K = n/2 for DisARM and RELAX. Which K the printed numbers have "
    "is not certain."
)
REPEATED_DISARM = (
    "Table 2 of the paper repeats table 1's DisARM column in 23 of 24 rows: no multi-sample result."
)
REPEATED_ROW = "The paper's table 1 repeats its table 3 in this row (Omniglot, linear, n = 8)."


class Printed(NamedTuple):
    """One number of the paper, with the paper's ± and the number of the paper's table."""

    table: int
    mean: float
    plus_minus: float


def printed(setting: Setting, estimator: str, split: str) -> Printed | None:
    """Return the paper's number for an estimator in a setting, on one split of the data set.

    Return None if the paper has no such number.
    """
    # The paper's models have one layer of bits, binary pixels, centered inputs and a sampled KL.
    if setting.layers or setting.categories > 2 or setting.likelihood != "bernoulli":
        return None
    if (setting.inputs, setting.kl) != ("centered", "sampled"):
        return None
    key = (setting.dataset, setting.network, setting.num_samples, split, estimator)
    return all_printed().get(key)


def released_default_k(estimator: str, num_samples: int) -> int:
    """Return the K of the bound that the authors' released code reports by default."""
    return max(1, num_samples // 2) if estimator in HALF_BUDGET else num_samples


def caveats(group: Group) -> tuple[str, ...]:
    """Return remarks for readers who compare a group's numbers with the paper's numbers."""
    lines, setting = [UNCERTAIN_K], group.setting
    if any(row.estimator == "disarm-ms (unfolded)" for row in group.rows):
        lines.append(REPEATED_DISARM)
    if (setting.dataset, setting.network, setting.num_samples) == ("omniglot", "linear", 8):
        lines.append(REPEATED_ROW)
    departures = [text for name in COMPARED_FIELDS if (text := _departure(group, name))]
    if departures:
        lines.append(f"These runs differ from the paper: {'; '.join(departures)}.")
    return tuple(lines)


def _departure(group: Group, name: str) -> str:
    """Return a text that says how the field `name` of a group's runs differs from the paper.

    Return "" if the field is as in the paper.
    """
    configs = [run.config for row in group.rows for run in row.runs]
    if name == "decoder_samples":  # on a bound, the paper also trains the decoder on all samples
        configs = [one for one in configs if not one.make_estimator().target.subtracts_log_q]
    ours = {getattr(config, name) for config in configs}
    paper = getattr(apply_preset("paper"), name)
    if ours <= {paper}:
        return ""
    return f"{name} {', '.join(sorted(map(str, ours)))} (paper: {paper})"


@cache
def all_printed() -> Mapping[tuple[str, str, int, str, str], Printed]:
    """Return {(data set, network, n, split, estimator): number} for all numbers of the paper."""
    text = files("arms.bench.report").joinpath("paper_tables.json").read_text(encoding="utf-8")
    return {
        (dataset, network, n, split, estimator): Printed(table, mean, plus_minus)
        for table, split, dataset, network, n, estimator, mean, plus_minus in json.loads(text)
    }
