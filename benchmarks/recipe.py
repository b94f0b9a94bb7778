"""Search for a training recipe on MNIST, freeze it, and compare estimators with it on all data sets.

    python benchmarks/recipe.py search --output benchmarks/results/recipe_search.json
    python benchmarks/recipe.py freeze --search benchmarks/results/recipe_search.json \
        --output benchmarks/results/recipe.json
    python benchmarks/recipe.py compare --recipe benchmarks/results/recipe.json \
        --output benchmarks/results/recipe_comparison.json
    python benchmarks/recipe.py time --output benchmarks/results/recipe_time.json
    python benchmarks/recipe_tables.py search
    python benchmarks/recipe_tables.py comparison --figure docs/figures/recipe_comparison.png

A recipe has two numbers, which may depend on the network, the target and the length of training: the factor on the
initial weights of the encoder's last layer, and the learning rate at the start of a cosine schedule. `search` tries a
grid of them on dynamic MNIST with two seeds. `freeze` takes the pair with the best validation bound (K = 100). It
writes one recipe for all estimators, that of flips, and one for each estimator. `compare` trains five other seeds with
both recipes on every data set, and evaluates the test set. `time` measures a training step of each estimator.

Estimators of the ELBO get at most six evaluations of the model per image and step. For the bound with K = 4, flips-ms
makes eight evaluations, and vimco is also trained with K = 8.

Runs that differ in the data set, the rate or the factor share one ensemble. Finished runs are in the output file and
are not repeated. `merge` joins files that were written by several processes.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from training_ensembles import Results, Row, note_bounds, parser_of, train_ensemble

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.training.engine import advance_to
from arms.bench.training.trainer import Trainer

OF_ELBO = {"flips": 4, "midpoint": 4, "arms": 6, "loorf": 6, "reinmax": 6}
"""Estimators of the ELBO's gradient, and n: at most six evaluations."""
OF_BOUND = {"flips-ms": 4, "vimco": 4}
"""Estimators of the gradient of the bound with K = 4."""
SHARED = {"elbo": "flips", "bound": "flips-ms"}
"""The estimator whose recipe all estimators of a target share."""
Grid: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
GRIDS: dict[tuple[str, int], Grid] = {
    ("linear", 30_000): ((1.0, 4.0, 16.0, 32.0, 48.0), (0.002, 0.004, 0.006, 0.01)),
    ("linear", 100_000): ((1.0, 16.0, 24.0, 32.0, 48.0), (0.004, 0.006, 0.01)),
    ("nonlinear", 10_000): ((1.0, 4.0, 16.0, 32.0), (0.001, 0.002, 0.003, 0.005)),
    ("nonlinear", 100_000): ((1.0, 8.0, 16.0, 32.0), (0.001, 0.002, 0.003)),
}
"""Factors and rates that are tried, by network and number of steps."""
SEARCH_SEEDS, FINAL_SEEDS = (0, 2), (100, 5)
"""First seed, and number of replicas."""
MNIST = "dynamic-mnist"
DATASETS = (MNIST, "fashion-mnist", "omniglot")
KEY = (
    *("dataset", "network", "estimator", "num_samples", "encoder_scale", "learning_rate"),
    *("steps", "seed", "replicas"),
)
LOOKS = 10
TIMED_STEPS, TIMED_ROUNDS = 30, 8


def target_of(estimator: str) -> str:
    """Return the target of an estimator."""
    return "elbo" if estimator in OF_ELBO else "bound"


def configured(args: argparse.Namespace, seeds: tuple[int, int], **fields: Any) -> TrainConfig:
    seed, replicas = seeds
    usual = {"schedule": "cosine", "precision": args.precision, "seed": seed, "replicas": replicas}
    return TrainConfig(**usual, **fields)


def grid(args: argparse.Namespace, network: str, steps: int) -> Iterator[TrainConfig]:
    """Yield every configuration that the search tries."""
    scales, rates = GRIDS[network, steps]
    scales, rates = args.scales or scales, args.rates or rates
    for name, scale, rate in product(args.estimators, scales, rates):
        yield configured(
            args,
            SEARCH_SEEDS,
            dataset=MNIST,
            network=network,
            estimator=name,
            num_samples=(OF_ELBO | OF_BOUND)[name],
            encoder_scale=scale,
            learning_rate=rate,
            steps=steps,
        )


def frozen(args: argparse.Namespace, network: str, steps: int) -> Iterator[TrainConfig]:
    """Yield every estimator with its own recipe and with the shared one, on every data set."""
    recipe = json.loads(args.recipe.read_text())["recipe"]
    for dataset, name in product(args.datasets, args.estimators):
        target = target_of(name)
        counts = (4, 8) if name == "vimco" else ((OF_ELBO | OF_BOUND)[name],)
        found = [recipe.get(f"{target} {network} {steps} {who}") for who in (SHARED[target], name)]
        pairs = dict.fromkeys((one["encoder_scale"], one["learning_rate"]) for one in found if one)
        for (scale, rate), n in product(pairs, counts):
            yield configured(
                args,
                FINAL_SEEDS,
                dataset=dataset,
                network=network,
                estimator=name,
                num_samples=n,
                encoder_scale=scale,
                learning_rate=rate,
                steps=steps,
            )


def train(args: argparse.Namespace) -> None:
    """Train the runs that are missing in the output file."""
    search = args.phase == "search"
    names = [MNIST] if search else args.datasets
    data, results = {name: load(name) for name in names}, Results(args, KEY)
    for network in args.networks:
        for steps in [steps for (of, steps) in GRIDS if of == network]:
            if args.steps and steps not in args.steps:
                continue
            wanted = (grid if search else frozen)(args, network, steps)
            missing = results.missing(list(wanted))
            title = f"{network}, {steps:,} steps"
            for name in args.estimators:  # one ensemble per estimator, to measure its time
                mine = [one for one in missing if one.estimator == name]
                for together in results.ensembles(mine, title, lambda one: one.estimator):
                    results.add(run_ensemble(together, data, args))


def run_ensemble(
    configs: Sequence[TrainConfig], data: dict[str, Dataset], args: argparse.Namespace
) -> list[Row]:
    """Train runs as one ensemble, data set by data set on the replica axis."""
    configs = sorted(configs, key=lambda config: list(data).index(config.dataset))
    search = args.phase == "search"

    def look_at(trainer: Trainer, elbo: Tensor, rows: Sequence[Row]) -> None:
        if search and trainer.steps_done < configs[0].steps:
            return
        note_bounds(trainer, configs, data, rows, elbo, ["valid"] if search else ["test"])

    datasets = [data[config.dataset] for config in configs]
    return train_ensemble(configs, datasets, args.device, LOOKS, KEY, look_at)


def freeze(args: argparse.Namespace) -> None:
    """Write the pair with the best validation bound for every estimator, network and length."""
    rows = json.loads(args.search.read_text())["rows"]
    found: dict[str, tuple[float, Row]] = {}
    for row in rows:
        values = row["curve"][-1]["valid"]
        if None in values:
            continue
        name = row["estimator"]
        case = f"{target_of(name)} {row['network']} {row['steps']} {name}"
        score = mean(values)
        if case not in found or score > found[case][0]:
            found[case] = score, row
    recipe = {
        case: {key: row[key] for key in ("encoder_scale", "learning_rate")}
        | {"valid": round(score, 3)}
        for case, (score, row) in sorted(found.items())
    }
    command = f"python benchmarks/recipe.py freeze --search {args.search} --output {args.output}"
    args.output.write_text(json.dumps({"command": command, "recipe": recipe}, indent=1) + "\n")
    print(args.output.read_text())


def merge(args: argparse.Namespace) -> None:
    """Join the rows of several files, and list the command and machine of each file."""
    contents = [json.loads(path.read_text()) for path in args.files]
    joined = contents[0] | {
        "command": "\n".join(dict.fromkeys(one["command"] for one in contents)),
        "rows": [row for one in contents for row in one["rows"]],
    }
    args.output.write_text(json.dumps(joined))


def time_steps(args: argparse.Namespace) -> None:
    """Measure the least time of a training step of five seeds. Estimators take turns."""
    if args.device == "cpu":
        torch.set_num_threads(1)
    rows: list[Row] = []
    for network in args.networks:
        trainers, least = {}, dict[str, float]()
        for name in args.estimators:
            fields = {"dataset": MNIST, "network": network, "estimator": name}
            fields["num_samples"] = (OF_ELBO | OF_BOUND)[name]
            steps = TIMED_STEPS * (TIMED_ROUNDS + 1)
            config = configured(args, FINAL_SEEDS, **fields, steps=steps)
            trainers[name] = Trainer(config, load(MNIST), args.device)
            _seconds(trainers[name])  # compiles on a GPU
            asked = trainers[name].estimator.design.needs
            work = {"evaluations": asked.evaluations or 0, "derivatives": asked.derivatives}
            rows.append(fields | {"replicas": config.replicas} | work)
        for _ in range(TIMED_ROUNDS):
            for name, trainer in trainers.items():
                least[name] = min(_seconds(trainer), least.get(name, math.inf))
        for row in rows[-len(trainers) :]:
            row["us per step"] = 1e6 * least[row["estimator"]] / TIMED_STEPS
    command = " ".join(["python", *sys.argv])
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu"
    content = {"command": command, "torch": torch.__version__, "device": device, "rows": rows}
    args.output.write_text(json.dumps(content, indent=1) + "\n")


def _seconds(trainer: Trainer) -> float:
    """Return the duration of the next steps."""
    begin = perf_counter()
    for _ in advance_to(trainer, trainer.steps_done + TIMED_STEPS, TIMED_STEPS):
        pass
    trainer.take_elbo()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - begin


def main() -> None:
    parser = parser_of(__doc__, ["search", "freeze", "compare", "merge", "time"])
    parser.add_argument("--search", type=Path, help="output file of `search`, for `freeze`")
    parser.add_argument("--recipe", type=Path, help="output file of `freeze`, for `compare`")
    parser.add_argument("--files", type=Path, nargs="+", help="what `merge` joins")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--estimators", nargs="+", default=[*OF_ELBO, *OF_BOUND])
    parser.add_argument(
        "--steps", nargs="+", type=int, help="train only for these numbers of steps"
    )
    parser.add_argument("--scales", nargs="+", type=float, help="try these factors instead")
    parser.add_argument("--rates", nargs="+", type=float, help="try these rates instead")
    args = parser.parse_args()
    phases = {
        "search": train,
        "compare": train,
        "freeze": freeze,
        "merge": merge,
        "time": time_steps,
    }
    phases[args.phase](args)


if __name__ == "__main__":
    main()
