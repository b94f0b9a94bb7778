"""Train a categorical VAE, and compare test bounds after equal steps, at each estimator's best learning rate.

    python benchmarks/categorical_training.py train --output benchmarks/results/categorical_training.json
    python benchmarks/categorical_training.py show --output benchmarks/results/categorical_training.json

The data set is dynamic MNIST. There are 20 latents of 10 categories, n = 4, five seeds, and cosine schedules with
three learning rates. All rates of an estimator, and estimators that make the same evaluations of the model, share one
ensemble. `show` prints the test bound at the rate with the best validation bound (both K = 100). The output file is
written after every ensemble, and finished runs are not repeated.
"""

import argparse
import json
from itertools import product
from statistics import mean, stdev
from typing import Any

from time_to_bound import run_ensemble
from training_ensembles import Results, parser_of

from arms.bench.config import TrainConfig
from arms.bench.data import load
from arms.estimators import BIASED_ESTIMATORS

BUDGETS = {
    "loorf": 4,
    "arms": 4,
    "disarm": 4,
    "midpoint": 4,
    "midpoint-single": 2,
    "reinmax": 4,
    "unordered-set": 4,
}
RATES = (1e-3, 3e-3, 6e-3)
LATENTS, CATEGORIES = 20, 10
LOOKS = 5
KEY = ("network", "estimator", "num_samples", "learning_rate", "steps", "seed")


def configs(args: argparse.Namespace, network: str) -> list[TrainConfig]:
    return [
        TrainConfig(
            dataset=args.dataset,
            network=network,
            estimator=estimator,
            num_samples=BUDGETS[estimator],
            latents=LATENTS,
            categories=CATEGORIES,
            schedule="cosine",
            learning_rate=rate,
            steps=args.steps,
            replicas=args.replicas,
            precision=args.precision,
        )
        for estimator, rate in product(args.estimators, RATES)
    ]


def train(args: argparse.Namespace) -> None:
    data, results = {args.dataset: load(args.dataset)}, Results(args, KEY)
    for network in args.networks:
        missing = results.missing(configs(args, network))
        for together in results.ensembles(missing, network, lambda one: one.estimator):
            results.add(run_ensemble(together, data, args.device, LOOKS, [args.steps]))


def show(args: argparse.Namespace) -> None:
    """Print a table for each network. The best estimators come first, and biased estimators last."""
    from arms.bench.report.groups import (
        labeled_if_biased,
    )  # imported here, because training does not need the packages for reports

    rows = json.loads(args.output.read_text())["rows"]
    for network in dict.fromkeys(row["network"] for row in rows):
        best: dict[str, dict[str, Any]] = {}
        for row in rows:
            last = row["curve"][-1]
            if row["network"] == network and None not in last["valid"]:
                known = best.get(row["estimator"])
                if known is None or mean(last["valid"]) > mean(known["curve"][-1]["valid"]):
                    best[row["estimator"]] = row
        print(f"\n{network}\n")
        print(
            "| estimator | n | evaluations | derivatives | rate | train ELBO | test bound, K = 100 | us a step |"
        )
        print("|---" * 8 + "|")
        for row in sorted(
            best.values(), key=lambda row: (row["estimator"] in BIASED_ESTIMATORS, -bound(row))
        ):
            last = row["curve"][-1]
            share = row["us per step of the pack"] * args.replicas / row["replicas of the pack"]
            work = f"{row['num_samples']} | {row['evaluations']} | {row['derivatives']}"
            test = f"{bound(row):.2f} ± {stdev(last['test']):.2f}"
            rate, elbo = f"{row['learning_rate']:g}", f"{mean(last['train']):.2f}"
            print(
                f"| {labeled_if_biased(row['estimator'])} | {work} | {rate} | {elbo} | {test} | {share:.0f} |"
            )


def bound(row: dict[str, Any]) -> float:
    return float(mean(row["curve"][-1]["test"]))


def main() -> None:
    parser = parser_of(__doc__, ["train", "show"])
    parser.add_argument("--dataset", default="dynamic-mnist")
    parser.add_argument("--estimators", nargs="+", default=list(BUDGETS))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=5)
    args = parser.parse_args()
    (show if args.phase == "show" else train)(args)


if __name__ == "__main__":
    main()
