"""Time of a training step of a 784-200-784 linear VAE with each estimator, relative to hand-written LOORF.

    python benchmarks/estimator_overhead.py --output benchmarks/results/estimator_overhead.json

Contenders take turns in every round, and ratios are taken within a round, so that a busy machine slows all of them.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import arms

PIXELS, LATENTS, BATCH = 784, 200, 50
Step = Callable[[], None]


class Model:
    """The encoder, decoder, prior and optimizer, which are the same for every contender."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(PIXELS, LATENTS), nn.Linear(LATENTS, PIXELS)
        self.prior = nn.Parameter(torch.zeros(LATENTS))
        parameters = [*self.encoder.parameters(), *self.decoder.parameters(), self.prior]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-4)
        self.x = (torch.rand(BATCH, PIXELS) < 0.2).float()

    def log_joint(self, b: Tensor) -> Tensor:
        pixels = cross_entropy(
            self.decoder(2 * b - 1), self.x.expand(len(b), -1, -1), reduction="none"
        ).sum(-1)
        return -pixels - log_loss(self.prior, b)

    def update(self, value: Tensor) -> None:
        self.optimizer.zero_grad()
        (-value.mean()).backward()
        self.optimizer.step()


def log_loss(logits: Tensor, b: Tensor) -> Tensor:
    return cross_entropy(logits.expand_as(b), b, reduction="none").sum(-1)


def by_hand(n: int) -> Step:
    """Leave-one-out REINFORCE, written efficiently in plain PyTorch."""
    model = Model()

    def step() -> None:
        logits = model.encoder(model.x)
        b = (torch.rand(n, *logits.shape) < torch.sigmoid(logits.detach())).float()
        log_q, log_joint = -log_loss(logits, b), model.log_joint(b)
        elbo = (log_joint - log_q).detach()
        signal = (elbo - elbo.mean(0)) / (n - 1)
        surrogate = (signal * log_q).sum(0) + log_joint.mean(0)
        model.update(surrogate)

    return step


def by_library(name: str, n: int) -> Step:
    model, estimator = Model(), arms.as_estimator(name, n)

    def step() -> None:
        logits = model.encoder(model.x)
        constant = logits.detach()
        if estimator.target.subtracts_log_q:
            value = arms.importance_bound(model.log_joint, logits, estimator)
        else:
            value = arms.expectation(
                lambda b: model.log_joint(b) + log_loss(constant, b), logits, estimator
            )
        model.update(value)

    return step


def by_relax(n: int, *, floor: bool) -> Step:
    """RELAX with a learned control variate, or its lower limit, which only makes the necessary evaluations."""
    model = Model()
    estimator = arms.RELAX(n, control=arms.relax_control(LATENTS))
    control = torch.optim.Adam(estimator.parameters(), lr=1e-4)

    def evaluations() -> None:
        logits = model.encoder(model.x)
        bits = (torch.rand(n // 2, *logits.shape) < 0.5).float()
        relaxed = torch.rand(n, *logits.shape).requires_grad_()
        (found,) = torch.autograd.grad(model.log_joint(relaxed).sum(), relaxed, create_graph=True)
        model.update(model.log_joint(bits).mean(0) + (logits * found.mean(0)).sum(-1))

    def step() -> None:
        logits = model.encoder(model.x)
        constant = logits.detach()
        estimate = estimator(lambda b: model.log_joint(b) + log_loss(constant, b), logits)
        control.zero_grad()
        arms.variance_loss(estimate).backward()
        control.step()
        model.update(estimate.values.mean(0) + (logits * estimate.grad.detach()).sum(-1))

    return evaluations if floor else step


def measure(steps: dict[str, Step], rounds: int, inner: int) -> dict[str, float]:
    """Return each contender's CPU time relative to the first contender, as the median over rounds."""
    for step in steps.values():
        for _ in range(3):
            step()
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        seconds = {}
        for name, step in steps.items():
            start = process_time()
            for _ in range(inner):
                step()
            seconds[name] = process_time() - start
        reference = next(iter(seconds.values()))
        for name, elapsed in seconds.items():
            ratios[name].append(elapsed / reference)
    return {name: median(values) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-samples", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--inner", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = [
        name
        for name, make in arms.ESTIMATORS.items()
        if name != "exact" and not make(4).design.needs.derivatives
    ]
    steps = {"by hand (loorf)": by_hand(options.num_samples)}
    steps |= {name: by_library(name, options.num_samples) for name in names}
    steps["by hand again"] = by_hand(options.num_samples)
    ratios = measure(steps, options.rounds, options.inner)
    relaxed = {
        "by hand (loorf)": by_hand(options.num_samples),
        "relax": by_relax(options.num_samples, floor=False),
        "relax's floor": by_relax(options.num_samples, floor=True),
    }
    ratios |= measure(
        relaxed, options.rounds // 3, options.inner
    )  # measured separately, because its large tensors slow the other contenders
    for name, ratio in ratios.items():
        print(f"{name:<16} {ratio:6.3f}")
    if options.output:
        machine = {
            "torch": torch.__version__,
            "processor": platform.processor() or platform.machine(),
        }
        settings = {
            "num_samples": options.num_samples,
            "rounds": options.rounds,
            "threads": options.threads,
        }
        command = {"command": " ".join(["python", *sys.argv])}
        options.output.write_text(
            json.dumps({"ratios": ratios, **settings, **machine, **command}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
