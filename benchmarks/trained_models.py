"""Code that benchmarks of variances at trained VAEs share: models, images, and numbers with errors."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from torch import Generator, Tensor

from arms.bench.config import TrainConfig, run_name
from arms.bench.data import observe
from arms.bench.models import DiscreteVAE
from arms.bench.runs.loading import load_model
from arms.bench.runs.train import train

IMAGES = 16
NETWORKS = ("linear", "nonlinear")
"""The networks that are measured."""


class Known(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class LogWeights:
    """Log-weights of fixed images as a function of the latents, and a source of noise."""

    def __init__(self, model: DiscreteVAE, images: Tensor, seed: int) -> None:
        self.model, self.images = model.requires_grad_(False), images
        self.logits = model.encode(images)
        self.generator = Generator().manual_seed(seed)

    def objective(self, points: Tensor) -> Tensor:
        """Return log w `[m, draws, images]` at points `[m, draws, images, latents]`."""
        flat = points.flatten(0, 1).unsqueeze(1)  # the model's replica axis has length one
        return self.model.log_weights(flat, self.images, self.logits).view(points.shape[:-1])


def configured(network: str, steps: int, estimator: str, seed: int = 0) -> TrainConfig:
    return TrainConfig(
        seed=seed,
        dataset="dynamic-mnist",
        network=network,
        estimator=estimator,
        num_samples=4,
        steps=steps,
        learning_rate=1e-3,
    )


def trained(config: TrainConfig, runs: Path) -> tuple[DiscreteVAE, Tensor]:
    """Return a model, which is trained if necessary, and the images for its evaluation.

    The seed determines weights, images and binarisation.
    """
    run = train(config, runs / run_name(config), device="cpu")
    model, dataset = load_model(run, "cpu")
    first = IMAGES * config.seed
    gray = dataset.train[first : first + IMAGES]
    images = observe(gray, dataset.levels, Generator().manual_seed(config.seed))
    return model, images.unsqueeze(0)


def variance(estimates: Tensor) -> Known:
    """Return the variance of one estimate, summed over latents and averaged over images."""
    draws = len(estimates)
    squares = (
        (estimates - estimates.mean(0)).double().square().sum(-1).mean(-1) * draws / (draws - 1)
    )
    return Known(squares.mean().item(), squares.std().item() / math.sqrt(draws))


def tail_share(estimates: Tensor) -> float:
    """Return the share of the largest hundredth of the draws in the variance, averaged over images.

    The share is 0.01 if all draws are equally large, and 1 if only one draw in a hundred is not zero.
    """
    squares = (estimates - estimates.mean(0)).double().square().sum(-1)
    largest = squares.sort(0, descending=True).values[: max(1, round(len(squares) / 100))]
    return (largest.sum(0) / squares.sum(0).clamp(min=1e-300)).mean().item()


def quotient(one: Known, other: Known) -> Known:
    """Return the ratio of two independent numbers, with its first-order error."""
    ratio = one.value / other.value
    return Known(ratio, ratio * math.hypot(one.error / one.value, other.error / other.value))


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def write(result: dict[str, Any], path: Path, tables: tuple[str, ...] = ("rows",)) -> None:
    """Write results, the tables with one row per line."""
    head = json.dumps(
        {name: value for name, value in result.items() if name not in tables}, indent=1
    )[:-2]
    rows = [
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, result[name])) + "\n ]"
        for name in tables
    ]
    path.write_text(",\n".join([head, *rows]) + "\n}\n")
