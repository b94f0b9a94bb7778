"""Time of `arms.expectation` on a small problem, relative to hand-written LOORF: mostly Python overhead.

    python benchmarks/small_problem.py --output benchmarks/results/small_problem.json

The problem has ten bits, a batch of eight, n = 8, and an objective with learned weights, and the time includes the
backward pass. Contenders take turns in random order in every round, so that caches favor none of them. Ratios are taken
within a round, so that a busy machine slows all contenders.
"""

import argparse
import json
import platform
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import arms

LATENTS, BATCH, SAMPLES = 10, 8, 8
HAND = "by hand (loorf)"
NAMES = ("loorf", "arms", "disarm", "midpoint")
Step = Callable[[], None]


class Problem:
    """Logits and an objective, which are both differentiated."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.initial = torch.randn(BATCH, LATENTS, generator=generator)
        self.target = torch.randn(BATCH, LATENTS, generator=generator)
        self.weight = torch.randn(LATENTS, LATENTS, generator=generator).requires_grad_()

    def objective(self, b: Tensor) -> Tensor:
        return (b @ self.weight - self.target).square().sum(-1)

    def new_logits(self) -> Tensor:
        self.weight.grad = None
        return self.initial.clone().requires_grad_()


def by_hand() -> Step:
    """Return leave-one-out REINFORCE, written efficiently in plain PyTorch."""
    problem = Problem()

    def step() -> None:
        logits = problem.new_logits()
        probs = torch.sigmoid(logits.detach())
        b = (torch.rand(SAMPLES, BATCH, LATENTS) < probs).float()
        every = logits.expand_as(b)
        log_q = -binary_cross_entropy_with_logits(every, b, reduction="none").sum(-1)
        values = problem.objective(b)
        known = values.detach()
        signal = (known - known.mean(0)) / (SAMPLES - 1)
        (values.mean(0) + (signal * log_q).sum(0)).sum().backward()

    return step


def by_library(name: str) -> Step:
    problem = Problem()

    def step() -> None:
        logits = problem.new_logits()
        arms.expectation(problem.objective, logits, name, SAMPLES).sum().backward()

    return step


def measure(rounds: int, inner: int) -> dict[str, dict[str, float]]:
    """Return the median ratio to the first contender and the least microseconds per step, for each contender."""
    steps = {HAND: by_hand()} | {name: by_library(name) for name in NAMES}
    steps["by hand, again"] = by_hand()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = random.Random(0)  # noqa: S311 (nothing is secret)
    for round_number in range(-2, rounds):  # the first two rounds are a warmup
        for name, step in order.sample(list(steps.items()), len(steps)):
            start = process_time()
            for _ in range(inner):
                step()
            if round_number >= 0:
                times[name].append((process_time() - start) / inner)
    first = times[HAND]
    return {
        name: {
            "time / by hand": median(t / f for t, f in zip(own, first, strict=True)),
            "least us": 1e6 * min(own),
        }
        for name, own in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--inner", type=int, default=20)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.rounds, options.inner)
    for name, row in found.items():
        print(f"{name:<16} {row['time / by hand']:6.2f} {row['least us']:8.1f} us")
    if options.output:
        content = {
            "command": " ".join(["python", *sys.argv]),
            "torch": torch.__version__,
            "processor": platform.processor() or platform.machine(),
            "rounds": options.rounds,
            "rows": found,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
