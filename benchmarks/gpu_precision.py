"""Whether less precise matrix products move the bound: the same seeds trained at every precision, on dynamic MNIST.

    ARMS_DATA_DIR=... python benchmarks/gpu_precision.py --output benchmarks/results/gpu_precision.json

Replicas are seeds; all precisions start from the same weights and draw the same noise, so the difference is taken seed
by seed, and stands beside its own standard error and beside the spread of the seeds themselves.
"""

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import torch

from arms.data import load
from arms.engine import Engine
from arms.pipeline import evaluate
from arms.training import Precision, TrainConfig, Trainer

PRECISIONS: tuple[Precision, ...] = ("highest", "high", "medium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["linear", "nonlinear"])
    parser.add_argument("--num-samples", type=int, nargs="+", default=[10])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--replicas", type=int, default=25)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    dataset = load("dynamic-mnist")
    rows = []
    for network, n in product(options.networks, options.num_samples):
        config = TrainConfig("dynamic-mnist", network, "arms-d", n, options.replicas)
        bounds = {}
        for precision in PRECISIONS:
            trainer = Trainer(replace(config, precision=precision), dataset, "cuda")
            Engine(trainer).advance(options.steps)
            bounds[precision] = evaluate(trainer.model, dataset, "test", [1, 100], config.seed)
            torch.compiler.reset()
        for precision, count in product(PRECISIONS, ("1", "100")):
            found = bounds[precision][count]
            moved = [ours - exact for ours, exact in zip(found, bounds["highest"][count], strict=True)]
            row = {
                "network": network,
                "n": n,
                "precision": precision,
                "K": int(count),
                "test bound": round(mean(found), 4),
                "spread of seeds": round(stdev(found), 4),
                "moved by": round(mean(moved), 4),
                "standard error": round(stdev(moved) / len(moved) ** 0.5, 4),
            }
            rows.append(row)
            print(*row.values(), flush=True)
    if options.output:
        record = {
            "command": " ".join(["python", *sys.argv]),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "steps": options.steps,
            "replicas": options.replicas,
            "rows": rows,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
