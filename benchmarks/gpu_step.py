"""Run-steps per second on a GPU: one step of every replica at once, compiled and replayed as CUDA graphs.

    python benchmarks/gpu_step.py --output benchmarks/results/gpu_step.json

A run-step is one optimisation step of one replica. Made-up images of MNIST's shape; batch 50, 200 latents. The floor is
the larger of two times on this device: Adam's traffic and the wide logits through memory, and the matrix products.
"""

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

import torch
from train_step import grey_images

from arms.engine import BLOCK, Engine
from arms.training import TrainConfig, Trainer


def measure(network: str, estimator: str, n: int, replicas: int, drive: str, seconds: float) -> dict[str, object]:
    start = perf_counter()
    config = TrainConfig(network=network, estimator=estimator, num_samples=n, replicas=replicas)  # type: ignore[arg-type]
    trainer = Trainer(config, grey_images(), "cuda")
    engine = Engine(trainer, drive)  # type: ignore[arg-type]
    engine.advance(2 * BLOCK)
    torch.cuda.synchronize()
    ready = perf_counter() - start
    steps, elapsed = 10 * BLOCK, 0.0
    while elapsed < seconds:
        steps *= 2
        start = perf_counter()
        engine.advance(steps)
        torch.cuda.synchronize()
        elapsed = perf_counter() - start
    return {
        "network": network,
        "estimator": estimator,
        "n": n,
        "R": replicas,
        "drive": drive,
        "us/step": 1e6 * elapsed / steps,
        "run-steps/s": replicas * steps / elapsed,
        "start s": ready,
        "elbo": trainer.recent_elbo().mean().item(),
        "MiB": torch.cuda.max_memory_allocated() / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["linear", "nonlinear"])
    parser.add_argument("--estimators", nargs="+", default=["arms-d"])
    parser.add_argument("--num-samples", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 5, 25, 75])
    parser.add_argument("--drives", nargs="+", default=["compiled"])
    parser.add_argument("--precision", default="highest", choices=["highest", "high"], help="high allows TF32 products")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision(options.precision)
    rows = []
    for network in options.networks:
        for estimator in options.estimators:
            for n in options.num_samples:
                for replicas in options.replicas:
                    for drive in options.drives:
                        torch.cuda.reset_peak_memory_stats()
                        row = measure(network, estimator, n, replicas, drive, options.seconds)
                        rows.append(row)
                        cells = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values())
                        print(options.precision, *cells, flush=True)
                        torch.compiler.reset()
    if options.output:
        record = {
            "command": " ".join(["python", *sys.argv]),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "precision": options.precision,
            "rows": rows,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
