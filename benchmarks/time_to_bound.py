"""Time until each estimator reaches a bound, at its best learning rate and schedule.

    python benchmarks/time_to_bound.py choose --output benchmarks/results/time_to_bound_choose.json
    python benchmarks/time_to_bound.py final --choice benchmarks/results/time_to_bound_choose.json \
        --output benchmarks/results/time_to_bound.json
    python benchmarks/time_to_bound.py show --output benchmarks/results/time_to_bound.json \
        --figure docs/figures/time_to_bound.png

Estimators get at most six evaluations of the decoder per image and step (five for midpoint, which cannot make six).
`choose` trains two seeds at every rate and schedule. `final` trains five other seeds at the rate and schedule with the
best validation bound (K = 100), for each data set, network, estimator and number of steps. Runs that make the same
evaluations of the model share the replica axis. Times are for the whole ensemble, without evaluations on the test set.
The output file is written after every ensemble, and finished runs are not repeated. `show` prints the tables, with the
best estimators first, and draws the curves, at the number of steps that most runs have.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch import Tensor
from training_ensembles import BOUND, Results, Row, note_bounds, parser_of, train_ensemble

from arms.bench.config import Schedule, TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.training.trainer import Trainer
from arms.estimators import BIASED_ESTIMATORS

BUDGETS = {
    "midpoint": 4,
    "arms": 6,
    "loorf": 6,
    "disarm": 6,
    "cross-paired": 6,
    "reinmax": 6,
    "relax": 4,
    "midpoint-single": 4,
}
RATES: list[tuple[Schedule, float]] = [
    ("constant", 1e-4),
    ("constant", 3e-4),
    ("constant", 1e-3),
    ("cosine", 1e-3),
    ("cosine", 3e-3),
    ("cosine", 6e-3),
    ("cosine", 1e-2),
]
LOOKS = {"choose": 10, "final": 20}
CHOOSING, FINAL = (1, 2), (0, 5)
"""The first seed, and the number of replicas."""
# Test bound, K = 100, of the paper's recipe after 10^6 steps: arms-dirichlet, n = 10, rate 1e-4 (mean of five seeds).
PAPER = {
    ("dynamic-mnist", "linear"): -107.80,
    ("dynamic-mnist", "nonlinear"): -96.66,
    ("omniglot", "linear"): -116.53,
    ("omniglot", "nonlinear"): -113.09,
}
CASE = ("dataset", "network", "estimator", "steps")
KEY = (
    "dataset",
    "network",
    "estimator",
    "num_samples",
    "schedule",
    "learning_rate",
    "steps",
    "seed",
)


def grid(args: argparse.Namespace, steps: int) -> Iterator[TrainConfig]:
    """Yield all configurations. With constant rates, the results of short runs are read from longer runs."""
    rates = [rate for rate in RATES if steps == max(args.steps) or rate[0] != "constant"]
    for dataset, network, estimator, (schedule, rate) in product(
        args.datasets, args.networks, args.estimators, rates
    ):
        yield configured(args, CHOOSING, dataset, network, estimator, schedule, rate, steps)


def chosen(args: argparse.Namespace, steps: int) -> Iterator[TrainConfig]:
    """Yield the best configuration of each estimator, by its validation bound, with other seeds.

    For a number of steps without results of `choose`, the best rate of the longest runs is used.
    """
    rows = json.loads(args.choice.read_text())["rows"]
    for case in product(args.datasets, args.networks, args.estimators):
        mine = [row for row in rows if (row["dataset"], row["network"], row["estimator"]) == case]
        tried = {row["steps"] for row in mine}
        judged = steps if steps in tried else max(tried, default=0)
        known = [
            (bound, row) for row in mine if (bound := bound_at(row, judged, "valid")) is not None
        ]
        if known:
            _, best = max(known, key=lambda pair: mean(pair[0]))
            yield configured(args, FINAL, *case, best["schedule"], best["learning_rate"], steps)


def configured(
    args: argparse.Namespace,
    seeds: tuple[int, int],
    dataset: str,
    network: Any,
    estimator: str,
    schedule: Any,
    rate: float,
    steps: int,
) -> TrainConfig:
    return TrainConfig(
        dataset=dataset,
        network=network,
        estimator=estimator,
        num_samples=BUDGETS[estimator],
        schedule=schedule,
        learning_rate=rate,
        steps=steps,
        precision=args.precision,
        seed=seeds[0],
        replicas=seeds[1],
    )


def bound_at(row: Row, steps: int, split: str) -> list[float] | None:
    """Return a run's bounds after some steps, if all are finite. Cosine schedules have bounds only at their end."""
    if row["schedule"] == "cosine" and row["steps"] != steps:
        return None
    found: list[float] | None = next(
        (one[split] for one in row["curve"] if one["step"] == steps and split in one), None
    )
    return None if found is None or None in found else found


def run_ensemble(
    configs: Sequence[TrainConfig],
    data: dict[str, Dataset],
    device: str,
    looks: int,
    validate_at: Sequence[int],
) -> list[Row]:
    """Train runs as one ensemble, ordered by data set on the replica axis, and evaluate bounds during training."""
    configs = sorted(configs, key=lambda config: list(data).index(config.dataset))

    def look_at(trainer: Trainer, elbo: Tensor, rows: Sequence[Row]) -> None:
        splits = ["test", "valid"][: 1 + (trainer.steps_done in validate_at)]
        note_bounds(trainer, configs, data, rows, elbo, splits)

    return train_ensemble(
        configs, [data[config.dataset] for config in configs], device, looks, KEY, look_at
    )


def train(args: argparse.Namespace) -> None:
    data, results = {name: load(name) for name in args.datasets}, Results(args, KEY)
    for steps, network in product(args.steps, args.networks):
        everything = grid(args, steps) if args.phase == "choose" else chosen(args, steps)
        missing = results.missing([one for one in everything if one.network == network])
        for together in results.ensembles(
            missing, f"{network}, {steps:,} steps", lambda one: one.estimator
        ):
            rows = run_ensemble(together, data, args.device, LOOKS[args.phase], args.steps)
            # Keep one final run per case, because another rate may have become the best.
            results.add(rows, replacing=CASE if args.phase == "final" else ())


def show(args: argparse.Namespace) -> None:
    """Print a table for each data set and network: the test bound after each number of steps."""
    from arms.bench.report.groups import (
        labeled_if_biased,
    )  # imported here, because training does not need the packages for reports

    rows = json.loads(args.output.read_text())["rows"]
    for case in product(args.datasets, args.networks):
        mine = [row for row in rows if (row["dataset"], row["network"]) == case]
        lengths = sorted({row["steps"] for row in mine})
        print(f"\n{case[0]}, {case[1]} (the paper's recipe after 10^6 steps: {PAPER[case]})\n")
        print(
            "| estimator | "
            + " | ".join(f"{steps:,} steps: rate | test bound, K = {BOUND}" for steps in lengths)
            + " |"
        )
        print("|---" * (1 + 2 * len(lengths)) + "|")
        of_name: dict[str, list[str]] = {}
        order: dict[str, float] = {}
        for name in dict.fromkeys(row["estimator"] for row in mine):
            for steps in lengths:
                found = [
                    (row, bound_at(row, steps, "test")) for row in mine if row["estimator"] == name
                ]
                best = next(
                    ((row, bounds) for row, bounds in found if bounds and row["steps"] == steps),
                    None,
                )
                cells = of_name.setdefault(name, [])
                if best:
                    row, bounds = best
                    cells += [
                        f"{row['schedule']} {row['learning_rate']:g}",
                        f"{mean(bounds):.2f} ± {stdev(bounds):.2f}",
                    ]
                    if steps == common_length(rows):
                        order[name] = mean(bounds)
                else:
                    cells += ["", ""]
        for name in sorted(
            of_name, key=lambda name: (name in BIASED_ESTIMATORS, -order.get(name, -math.inf))
        ):
            print(f"| {labeled_if_biased(name)} | " + " | ".join(of_name[name]) + " |")
    print(
        "\nSteps, and seconds of the GPU for five seeds, until the mean test bound is the paper's recipe's\n"
    )
    print(
        "| estimator | " + " | ".join(f"{dataset}, {network}" for dataset, network in PAPER) + " |"
    )
    print("|---" * (1 + len(PAPER)) + "|")
    for name in sorted(
        dict.fromkeys(row["estimator"] for row in rows), key=lambda name: name in BIASED_ESTIMATORS
    ):
        print(
            f"| {labeled_if_biased(name)} | "
            + " | ".join(reached(rows, name, case) for case in PAPER)
            + " |"
        )
    if args.figure:
        draw(rows, args)


def common_length(rows: Sequence[Row]) -> int:
    """Return the number of steps at which most runs can be compared; of several, the largest."""
    lengths: list[int] = [row["steps"] for row in rows]
    return max(lengths, key=lambda steps: (lengths.count(steps), steps))


def reached(rows: Sequence[Row], estimator: str, case: tuple[str, str]) -> str:
    """Describe when an estimator first reaches the paper's bound in any of its runs."""
    found = [
        (
            one["step"],
            one["step"]
            * row["us per step of the pack"]
            * 1e-6
            * FINAL[1]
            / row["replicas of the pack"],
        )
        for row in rows
        if (row["estimator"], row["dataset"], row["network"]) == (estimator, *case)
        for one in row["curve"]
        if None not in one["test"] and mean(one["test"]) >= PAPER[case]
    ]
    return "{:,}, {:.1f} s".format(*min(found)) if found else ""


def draw(rows: Sequence[Row], args: argparse.Namespace) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from arms.bench.report.figures import DASHES, style_of
    from arms.bench.report.groups import labeled_if_biased

    cases = list(product(args.datasets, args.networks))
    figure, axes = plt.subplots(
        1, len(cases), figsize=(4.2 * len(cases), 3.4), layout="constrained"
    )
    for axis, case in zip(axes, cases, strict=True):
        for row in rows:
            if (row["dataset"], row["network"]) != case or row["steps"] != common_length(rows):
                continue
            style = style_of(row["estimator"])
            curve = [
                (one["step"], mean(one["test"])) for one in row["curve"] if None not in one["test"]
            ]
            label = labeled_if_biased(row["estimator"])
            axis.plot(
                *zip(*curve, strict=True),
                color=style.color,
                linestyle=DASHES[style.dash],
                label=label,
                lw=1.3,
            )
        axis.axhline(PAPER[case], color="black", lw=0.8, ls=":")
        axis.set(
            title=f"{case[0]}, {case[1]}",
            xlabel="training steps",
            ylim=(PAPER[case] - 6, PAPER[case] + 2),
        )
    axes[0].set_ylabel(f"test bound (K = {BOUND}, nats)\nhigher is better")
    axes[-1].legend(fontsize=7)
    figure.savefig(args.figure, dpi=110)


def main() -> None:
    parser = parser_of(__doc__, ["choose", "final", "show"])
    parser.add_argument("--choice", type=Path, help="output file of `choose`, for `final`")
    parser.add_argument("--datasets", nargs="+", default=["dynamic-mnist", "omniglot"])
    parser.add_argument("--estimators", nargs="+", default=list(BUDGETS))
    parser.add_argument("--steps", nargs="+", type=int, default=[100_000, 30_000])
    parser.add_argument("--figure", type=Path, help="where `show` draws the curves")
    args = parser.parse_args()
    (show if args.phase == "show" else train)(args)


if __name__ == "__main__":
    main()
