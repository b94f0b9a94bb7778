"""CPU time of a training step (dynamic MNIST, linear, batch 50), relative to a hand-written loop and to the floor.

    python benchmarks/train_step.py --output benchmarks/results/train_step.json

Every contender has a separate process, as in a user's training. The contenders take turns: within a round, each makes a
few steps while the others wait. A ratio is the CPU time relative to the hand-written loop in the same round, as the
median over rounds. The floor consists only of the four matrix products of a step.
"""

import argparse
import json
import multiprocessing
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import process_time

import torch
from handwritten import Handwritten

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.training.engine import keep_freed_memory
from arms.bench.training.trainer import Trainer
from arms.estimators import ESTIMATORS

PIXELS, LATENTS, BATCH = 784, 200, 50
FLOOR, HAND = "matrix products", "by hand (loorf)"


@dataclass(frozen=True)
class Contender:
    name: str
    num_samples: int
    replicas: int = 1

    @property
    def label(self) -> str:
        return f"{self.name} R={self.replicas}" if self.name not in (FLOOR, HAND) else self.name


def gray_images() -> Dataset:
    """Return random images with the same mean as MNIST."""
    generator = torch.Generator().manual_seed(0)
    ink = torch.rand(2000, PIXELS, generator=generator) < 0.19
    gray = (torch.randint(1, 256, (2000, PIXELS), generator=generator) * ink).to(torch.uint8)
    return Dataset("made up", gray, gray[:10], gray[:10], 28, 28, levels=255)


def make_step(contender: Contender) -> Callable[[], object]:
    n = contender.num_samples
    if contender.name == FLOOR:
        x, logits = torch.rand(BATCH, PIXELS), torch.rand(BATCH, LATENTS)
        b, pixels = torch.rand(n * BATCH, LATENTS), torch.rand(n * BATCH, PIXELS)
        into, out = torch.rand(PIXELS, LATENTS), torch.rand(LATENTS, PIXELS)
        return lambda: (x @ into, b @ out, b.T @ pixels, x.T @ logits)
    dataset = gray_images()
    if contender.name == HAND:
        return Handwritten(dataset.train, dataset.levels, n).step
    keep_freed_memory()
    config = TrainConfig(
        dataset=dataset.name, estimator=contender.name, num_samples=n, replicas=contender.replicas
    )
    return Trainer(config, dataset).step


def work(contender: Contender, threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    step = make_step(contender)
    for _ in range(10):
        step()
    pipe.send("ready")
    while steps := pipe.recv():
        start = process_time()
        for _ in range(steps):
            step()
        pipe.send(
            (
                (process_time() - start) / steps,
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            )
        )


def race(
    contenders: list[Contender], threads: int, rounds: int, steps: int
) -> list[dict[str, object]]:
    """Return a row per contender: CPU time per step and replica relative to the hand-written loop, and memory."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for contender in contenders:
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(contender, threads, theirs), daemon=True).start()
        ours.recv()
        pipes.append(ours)
    times: list[list[float]] = [[] for _ in contenders]
    memory: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for index, (contender, pipe) in enumerate(zip(contenders, pipes, strict=True)):
            pipe.send(max(2, steps // contender.replicas))
            seconds, peak = pipe.recv()
            times[index].append(seconds / contender.replicas)
            memory[index].append(peak)
    for pipe in pipes:
        pipe.send(0)
    by_hand = next(i for i, contender in enumerate(contenders) if contender.name == HAND)
    floor = next(i for i, contender in enumerate(contenders) if contender.name == FLOOR)
    return [
        {
            "contender": contender.label,
            "n": contender.num_samples,
            "threads": threads,
            "time / by hand": median(t / h for t, h in zip(own, times[by_hand], strict=True)),
            "time / floor": median(t / f for t, f in zip(own, times[floor], strict=True)),
            "steps per CPU-second": 1 / median(own),
            "peak MiB": peaks[-1],
            "MiB grown since round 2": peaks[-1] - peaks[1],
        }
        for contender, own, peaks in zip(contenders, times, memory, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-samples", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--estimators",
        nargs="+",
        default=[name for name in ESTIMATORS if name != "exact"],
        help="names, or name=n for a different budget, because equal n is not always equal work",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for n in options.num_samples:
        contenders = [Contender(FLOOR, n), Contender(HAND, n)]
        for entry, replicas in product(options.estimators, options.replicas):
            name, _, own = entry.partition("=")
            contenders.append(Contender(name, int(own or n), replicas))
        for threads in options.threads:
            rows += race(contenders, threads, options.rounds, options.steps)
    print(
        f"{'contender':<18} {'n':>3} {'thr':>3} {'/hand':>7} {'/floor':>7} {'steps/cpu-s':>11} {'MiB':>6} {'grown':>6}"
    )
    for row in rows:
        name, n, threads, hand, floor, speed, peak, grown = row.values()
        print(
            f"{name:<18} {n:>3} {threads:>3} {hand:>7.3f} {floor:>7.2f} {speed:>11.0f} {peak:>6.0f} {grown:>6.1f}"
        )
    if options.output:
        command = " ".join(["python", *sys.argv])
        options.output.write_text(
            json.dumps({"command": command, "torch": torch.__version__, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
