"""Effect of the precision of matrix products on the bound: train the same seeds at every precision on dynamic MNIST.

    ARMS_DATA_DIR=... python benchmarks/precision.py --output benchmarks/results/precision.json

Replicas are seeds. All precisions use the same initial weights and noise, so differences are taken per seed. The result
contains the mean difference, its standard error, and the standard deviation over seeds. Needs a GPU.
"""

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import torch

from arms.bench.config import Precision, TrainConfig
from arms.bench.data import load
from arms.bench.evaluation import evaluate
from arms.bench.training.engine import Engine
from arms.bench.training.trainer import Trainer

PRECISIONS: tuple[Precision, ...] = ("highest", "high", "medium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["linear", "nonlinear"])
    parser.add_argument("--num-samples", type=int, nargs="+", default=[10])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--replicas", type=int, default=25)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, got a machine without one")
    dataset = load("dynamic-mnist")
    record = {
        "command": " ".join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "steps": options.steps,
        "replicas": options.replicas,
    }
    rows: list[dict[str, object]] = []
    for network, n in product(options.networks, options.num_samples):
        config = TrainConfig(
            dataset="dynamic-mnist",
            network=network,
            estimator="arms-dirichlet",
            num_samples=n,
            replicas=options.replicas,
        )
        exact: dict[int, list[float]] = {}
        for precision in PRECISIONS:
            trainer = Trainer(replace(config, precision=precision), dataset, "cuda")
            Engine(trainer).advance(options.steps)
            found = evaluate(trainer.model, dataset, "test", [1, 100], config.seed)
            exact = exact or found
            for count, bounds in found.items():
                moved = [ours - theirs for ours, theirs in zip(bounds, exact[count], strict=True)]
                row = {
                    "network": network,
                    "n": n,
                    "precision": precision,
                    "K": count,
                    "test bound": round(mean(bounds), 4),
                    "spread of seeds": round(stdev(bounds), 4),
                    "moved by": round(mean(moved), 4),
                    "standard error": round(stdev(moved) / len(moved) ** 0.5, 4),
                }
                rows.append(row)
                print(*row.values(), flush=True)
            if options.output:
                options.output.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")
            torch.compiler.reset()


if __name__ == "__main__":
    main()
