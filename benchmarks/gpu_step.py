"""Run-steps per second on a GPU, with one step for all replicas, compiled and replayed as CUDA graphs.

    python benchmarks/gpu_step.py --precision medium --output benchmarks/results/gpu_step.json

A run-step is one optimization step of one replica. Images are random, in MNIST's shape; the batch size is 50, and there
are 200 latents. Estimators joined by + are an ensemble: `loorf+disarm` with R = 10 is five replicas of each. The floor
is a lower limit from rates measured on the same device: Adam's memory traffic, 28 bytes per parameter, at the speed of
a copy, plus the matrix products at the speed of a large TF32 product.
"""

import argparse
import json
import sys
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from time import perf_counter

import torch
from train_step import gray_images

from arms.bench.config import TrainConfig
from arms.bench.runs.ensemble import ensemble_trainer
from arms.bench.training.engine import BLOCK, Engine, free_memory

WIDTHS = {"linear": (784, 200), "nonlinear": (784, 200, 200, 200)}
BATCH = 50


def device_rates() -> tuple[float, float]:
    """Return bytes per second of a large copy, and operations per second of a large TF32 product."""
    source = torch.empty(2**30, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source))
    torch.set_float32_matmul_precision("high")
    a = torch.randn(8192, 8192, device="cuda")
    multiplied = 2 * 8192**3 / seconds(lambda: a @ a)
    torch.set_float32_matmul_precision("highest")
    return copied, multiplied


def seconds(call: Callable[[], object], repeats: int = 10) -> float:
    call()
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (perf_counter() - start) / repeats


def floor(network: str, n: int, rates: tuple[float, float]) -> float:
    """Microseconds of one run-step."""
    copied, multiplied = rates
    weights = sum(inputs * outputs for inputs, outputs in pairwise(WIDTHS[network]))
    first = WIDTHS[network][0] * WIDTHS[network][1]
    # Count the forward product and the weight gradient of every layer, and the input gradient of all layers except the
    # first of each network, whose inputs are images and bits.
    encoder = BATCH * (3 * weights - first)
    decoder = n * BATCH * (3 * weights - (weights if network == "linear" else 200 * 200))
    return 1e6 * (2 * weights * 28 / copied + 2 * (encoder + decoder) / multiplied)


def build(
    network: str, estimators: str, n: int, replicas: int, precision: str, decoder_samples: str
) -> Engine:
    names = estimators.split("+")
    if replicas % len(names):
        raise SystemExit(
            f"--replicas must be a multiple of {len(names)} for {estimators}, got {replicas}"
        )
    configs = [
        TrainConfig(
            network=network,
            estimator=name,
            num_samples=n,
            replicas=replicas // len(names),
            precision=precision,  # type: ignore[arg-type]
            decoder_samples=decoder_samples,  # type: ignore[arg-type]
        )
        for name in names
    ]
    engine = Engine(ensemble_trainer(configs, [gray_images()] * len(names), "cuda"))
    engine.advance(2 * BLOCK)
    torch.cuda.synchronize()
    return engine


def measure(engine: Engine, least: float) -> float:
    """Return seconds per step."""
    steps, elapsed = 10 * BLOCK, 0.0
    while elapsed <= least:
        steps *= 2
        start = perf_counter()
        engine.advance(steps)
        torch.cuda.synchronize()
        elapsed = perf_counter() - start
    return elapsed / steps


def timed(
    network: str, estimators: str, n: int, replicas: int, options: argparse.Namespace
) -> dict[str, object]:
    torch.cuda.reset_peak_memory_stats()
    start = perf_counter()
    engine = build(network, estimators, n, replicas, options.precision, options.decoder_samples)
    ready = perf_counter() - start
    step = measure(engine, options.seconds)
    return {
        "network": network,
        "estimator": estimators,
        "n": n,
        "R": replicas,
        "us/step": round(1e6 * step, 2),
        "run-steps/s": round(replicas / step),
        "start s": round(ready, 2),
        "elbo": round(engine.trainer.take_elbo().mean().item(), 3),
        "MiB": round(torch.cuda.max_memory_allocated() / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["linear", "nonlinear"])
    parser.add_argument("--estimators", nargs="+", default=["arms-dirichlet"])
    parser.add_argument("--num-samples", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 5, 25, 75, 150])
    parser.add_argument("--precision", default="highest", choices=["highest", "high", "medium"])
    parser.add_argument("--decoder-samples", default="all", choices=["all", "extra"])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, got a machine without one")
    rates = device_rates()
    record = {
        "command": " ".join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "precision": options.precision,
        "decoder_samples": options.decoder_samples,
        "copy TB/s": rates[0] / 1e12,
        "TF32 TFLOP/s": rates[1] / 1e12,
    }
    rows: list[dict[str, object]] = []
    everything = product(
        options.networks, options.estimators, options.num_samples, options.replicas
    )
    for network, estimators, n, replicas in everything:
        row = timed(network, estimators, n, replicas, options)
        row["floor run-steps/s"] = round(1e6 / floor(network, n, rates))
        rows.append(row)
        print(options.precision, *row.values(), flush=True)
        free_memory()  # so that the memory of the next row is measured separately
        if options.output:
            options.output.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
