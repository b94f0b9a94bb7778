"""Train on dynamic MNIST for 10,000 steps by the package and by a hand-written loop, and compare the curves.

ARMS_DATA_DIR=... python benchmarks/mnist_agreement.py --output benchmarks/results/mnist_agreement.json
"""

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev

import torch
from handwritten import Handwritten

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.training.engine import keep_freed_memory
from arms.bench.training.trainer import Trainer

WINDOW = 1000
SEEDS = 3


def by_package(dataset: Dataset, estimator: str, steps: int, n: int) -> list[list[float]]:
    config = TrainConfig(
        dataset=dataset.name, estimator=estimator, num_samples=n, replicas=SEEDS, steps=steps
    )
    trainer = Trainer(config, dataset)
    curve = []
    for step in range(1, steps + 1):
        trainer.step()
        if step % WINDOW == 0:
            curve.append(trainer.take_elbo().tolist())
    return curve


def by_hand(dataset: Dataset, steps: int, n: int) -> list[list[float]]:
    curves = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        loop = Handwritten(dataset.train, dataset.levels, n)
        elbos = [loop.step().item() for _ in range(steps)]
        curves.append([mean(elbos[start : start + WINDOW]) for start in range(0, steps, WINDOW)])
    return [list(row) for row in zip(*curves, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--num-samples", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.steps % WINDOW:
        parser.error(f"--steps must be a multiple of {WINDOW}, got {options.steps}")
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    dataset = load("dynamic-mnist")
    curves = {
        name: by_package(dataset, name, options.steps, options.num_samples)
        for name in ("loorf", "arms-dirichlet")
    }
    curves["by hand (loorf)"] = by_hand(dataset, options.steps, options.num_samples)
    for window, rows in enumerate(zip(*curves.values(), strict=True), 1):
        cells = [
            f"{name} {mean(row):8.2f} ± {stdev(row):.2f}"
            for name, row in zip(curves, rows, strict=True)
        ]
        print(f"{window * WINDOW:>6}  " + "  ".join(cells))
    ours, theirs = curves["loorf"][-1], curves["by hand (loorf)"][-1]
    error = math.sqrt((stdev(ours) ** 2 + stdev(theirs) ** 2) / SEEDS)
    print(
        f"loorf minus by hand in the last window: {mean(ours) - mean(theirs):.3f}, standard error {error:.3f}"
    )
    if options.output:
        settings = {
            "steps": options.steps,
            "num_samples": options.num_samples,
            "seeds": SEEDS,
            "window": WINDOW,
        }
        command = " ".join(["python", *sys.argv])
        found = {"command": command, "settings": settings, "train_elbo": curves}
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
