"""Does lower variance show in the bound? Estimators trained side by side on a GPU, each at its own best rate.

    python benchmarks/training_comparison.py layers --output benchmarks/results/layer_training.json
    python benchmarks/training_comparison.py bound --output benchmarks/results/bound_training.json
    python benchmarks/training_comparison.py show --output benchmarks/results/layer_training.json

`layers` trains hierarchical VAEs of 200 200 bits on the ELBO with at most eight evaluations of the model per image and
step: chains with loorf, arms-s and midpoint (n = 6, seven evaluations) in the first layer, and DisARM with samples of
its own for each layer. Every layer's gradient variance is measured at the same models, given the images: with respect
to the biases of that layer's logits, summed over them and averaged over images.
`bound` trains VAEs of one layer on the multi-sample bound with n = 4 and n = 10: VIMCO, the papers' forms and the
folded ones, and midpoint-ms with as many samples as make no more evaluations (n = 2: K = 1, the ELBO; n = 6: K = 3).

Dynamic MNIST, five seeds, 100,000 steps, a cosine schedule from several rates. Runs that ask the same of the model
share the replica axis. What is finished is in the output file after every pack, and is not repeated; --seconds begins
no pack after so long. `show` prints the tables: for each estimator the rate with the best validation bound, and its
test bound.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, binarize, load
from arms.bench.ensemble import ensemble_trainer, group_for_ensembles, share_of_model
from arms.bench.evaluation import evaluate
from arms.bench.models import HierarchicalVAE, Network, seeded_generator
from arms.bench.runs.memory import free_memory
from arms.bench.training.engine import Engine
from arms.bench.training.layers import estimate_chains, estimate_separately
from arms.estimators import as_estimator

LAYERED: list[tuple[str, int, Any]] = [
    ("loorf", 8, "chains"),
    ("arms-s", 8, "chains"),
    ("midpoint", 6, "chains"),
    ("disarm", 8, "separate"),
]
"""Estimator, n, and where layers have their samples from: at most eight evaluations."""
BOUNDS: dict[int, dict[str, int]] = {
    budget: {
        **dict.fromkeys(
            ["vimco", "disarm-ms", "disarm-ms-paper", "arms-ms-d", "arms-ms-d-paper", "arms-ms-s", "arms-ms-s-paper"],
            budget,
        ),
        "midpoint-ms": 2 * (budget // 3),
    }
    for budget in (4, 10)
}
LOOKS = 10
BOUND = 100
IMAGES, DRAWS = 16, 400
REPORT = "arms-s"
"""At whose models variances are measured."""
Row: TypeAlias = dict[str, Any]
KEY = ("network", "estimator", "num_samples", "layers", "layer_samples", "learning_rate", "steps", "replicas")


def configurations(args: argparse.Namespace, network: Network) -> Iterator[tuple[TrainConfig, int]]:
    """Yield every run of one network, with its budget of evaluations."""
    usual = TrainConfig(
        args.dataset, network, steps=args.steps, replicas=args.replicas, schedule="cosine", precision=args.precision
    )
    for rate in args.rates:
        if args.phase == "layers":
            for name, count, scheme in LAYERED:
                layers = tuple(args.layers)
                yield (
                    replace(
                        usual,
                        estimator=name,
                        num_samples=count,
                        layers=layers,
                        layer_samples=scheme,
                        learning_rate=rate,
                    ),
                    8,
                )
        else:
            for budget, of_name in BOUNDS.items():
                for name, count in of_name.items():
                    yield replace(usual, estimator=name, num_samples=count, learning_rate=rate), budget


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # as JSON brings a tuple back


def run_pack(configs: Sequence[TrainConfig], dataset: Dataset, device: str) -> list[Row]:
    """Train runs as one ensemble, look at their test bounds on the way, and at all bounds at the end."""
    start, seconds, steps = perf_counter(), 0.0, configs[0].steps
    trainer = ensemble_trainer(configs, [dataset] * len(configs), device)
    engine, asked = Engine(trainer), trainer.estimator
    share = len(configs[0].layers) if configs[0].layer_samples == "separate" else 1
    rows: list[Row] = [
        {name: getattr(config, name) for name in KEY}
        | {"evaluations": (asked.evaluations or 0) * share, "derivatives": asked.derivatives, "curve": []}
        for config in configs
    ]
    for look in range(LOOKS):
        begin = perf_counter()
        engine.advance(steps // LOOKS)
        elbo = trainer.recent_elbo().chunk(len(configs))
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds += perf_counter() - begin if look else 0.0  # the first block compiles
        torch.set_float32_matmul_precision("high")
        for index, (config, row) in enumerate(zip(configs, rows, strict=True)):
            model = share_of_model(trainer, config, index, len(configs))
            counts = [BOUND] if look < LOOKS - 1 else [1, 4, 5, 10, BOUND]
            test = evaluate(model, dataset, "test", counts, seed=0, images=None if len(counts) > 1 else 2000)
            row["curve"].append({"step": trainer.steps_done, "elbo": rounded(elbo[index].tolist())})
            row["curve"][-1]["test"] = rounded(test[BOUND])
            if look == LOOKS - 1:
                row["test"] = {count: rounded(bounds) for count, bounds in test.items()}
                row["valid"] = rounded(evaluate(model, dataset, "valid", [BOUND], seed=0)[BOUND])
                if isinstance(model, HierarchicalVAE) and config.estimator == REPORT:
                    row["variance"] = layer_variances(model, dataset, config)
        torch.set_float32_matmul_precision("highest")
    for row in rows:
        row["us per step of the pack"] = round(1e6 * seconds / (steps - steps // LOOKS), 1)
        row["replicas of the pack"] = len(configs) * configs[0].replicas
    print(
        f"  {len(rows)} runs, {rows[0]['us per step of the pack']} us a step, {perf_counter() - start:.0f} s",
        flush=True,
    )
    del engine, trainer
    free_memory()
    return rows


def layer_variances(model: HierarchicalVAE, dataset: Dataset, config: TrainConfig) -> dict[str, list[float]]:
    """Return for each scheme the variance of every layer's gradient at one model, mean over replicas and images."""
    device = str(model.prior.device)
    generator = seeded_generator(config.seed, "layer variances", device=device)
    images = binarize(dataset.train[:IMAGES].to(device), dataset.levels, generator)
    x = images.expand(model.replicas, -1, -1)
    found = {}
    for name, count, scheme in LAYERED:
        estimator = as_estimator(name, count // len(config.layers) if scheme == "separate" else count)
        estimate = estimate_separately if scheme == "separate" else estimate_chains
        sums: list[Tensor] = []
        squares: list[Tensor] = []
        for _ in range(DRAWS):
            grads = estimate(model, estimator, x, generator).grads
            # Of chains, the sum over them: what the layer's biases receive from one image.
            flat = [(grad.sum(0) if grad.ndim > x.ndim else grad).double() for grad in grads]
            sums = [a + b for a, b in zip(sums, flat, strict=True)] if sums else flat
            squares = (
                [a + b.square() for a, b in zip(squares, flat, strict=True)] if squares else [f.square() for f in flat]
            )
        found[f"{name}, {scheme}"] = [
            float(f"{((b - a * a / DRAWS) / (DRAWS - 1)).sum(-1).mean().item():.5g}")
            for a, b in zip(sums, squares, strict=True)
        ]
    return found


def rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, 3) if math.isfinite(value) else None for value in values]


def train(args: argparse.Namespace) -> None:
    start, dataset = perf_counter(), load(args.dataset)
    result = json.loads(args.output.read_text()) if args.output.exists() else {"rows": []}
    result |= {"command": " ".join(["python", *sys.argv]), "torch": torch.__version__, "precision": args.precision}
    result["commit"] = os.environ.get("ARMS_COMMIT", "")
    if args.device.startswith("cuda"):
        result["device"] = torch.cuda.get_device_name()
    done = {tuple(_plain(row[name]) for name in KEY) for row in result["rows"]}
    for network in args.networks:
        wanted = dict(configurations(args, network))
        missing = [one for one in wanted if tuple(_plain(getattr(one, name)) for name in KEY) not in done]
        for together in group_for_ensembles(missing):
            names = ", ".join(f"{one.estimator} n = {one.num_samples} rate {one.learning_rate:g}" for one in together)
            if perf_counter() - start > args.seconds:
                print(f"left: {network}: {names}", flush=True)
                continue
            print(f"{network}: {names}", flush=True)
            rows = run_pack(together, dataset, args.device)
            result["rows"] += [row | {"budget": wanted[one]} for row, one in zip(rows, together, strict=True)]
            args.output.write_text(json.dumps(result))


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Return of every estimator the run with the best validation bound."""
    found: dict[object, Row] = {}
    for row in rows:
        key = (row["network"], row["budget"], row["estimator"], row["layer_samples"])
        if None not in row["valid"] and (key not in found or mean(row["valid"]) > mean(found[key]["valid"])):
            found[key] = row
    return list(found.values())


def show(args: argparse.Namespace) -> None:
    """Print a table for each network and budget, best first, and of several layers the variances."""
    result = json.loads(args.output.read_text())
    best = best_rows(result["rows"])
    for network, budget in dict.fromkeys((row["network"], row["budget"]) for row in best):
        print(f"\n{network}, at most {budget} evaluations\n")
        print("| estimator | evaluations | derivatives | rate | test bound, K = 1 | K = 100 | us per step and seed |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        mine = [row for row in best if (row["network"], row["budget"]) == (network, budget)]
        for row in sorted(mine, key=lambda row: -mean(row["test"][str(BOUND)])):
            cells = [f"{mean(row['test'][k]):.2f} ± {stdev(row['test'][k]):.2f}" for k in ("1", str(BOUND))]
            name = f"{row['estimator']}, {row['layer_samples']}" if row["layers"] else row["estimator"]
            cost = row["us per step of the pack"] / row["replicas of the pack"]
            work = f"{row['evaluations']} | {row['derivatives']} | {row['learning_rate']:g}"
            print(f"| {name} | {work} | {' | '.join(cells)} | {cost:.1f} |")
    for row in best:
        if "variance" in row:
            unit = row["variance"]["loorf, chains"]
            print(f"\nvariance / loorf chains' at {row['network']} models of {row['estimator']}: layer by layer\n")
            for name, found in row["variance"].items():
                print(f"| {name} | " + " | ".join(f"{a / b:.3f}" for a, b in zip(found, unit, strict=True)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["layers", "bound", "show"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dataset", default="dynamic-mnist")
    parser.add_argument("--networks", nargs="+", default=["linear", "nonlinear"])
    parser.add_argument("--layers", nargs="+", type=int, default=[200, 200])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="medium")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no pack after this long")
    args = parser.parse_args()
    (show if args.phase == "show" else train)(args)


if __name__ == "__main__":
    main()
