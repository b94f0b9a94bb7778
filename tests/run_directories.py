"""Run directories made by hand: known bounds, known curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from arms.bench.config import TrainConfig
from arms.bench.runs.run import Run

SHORT_FLAGS = ["--steps", "20", "--report-every", "10", "--latents", "4", "--num-samples", "2"]
"""A short training for tests of the command line."""
Bounds = Mapping[str, Mapping[int, Sequence[float]]]


def bounds_of(config: TrainConfig, level: float = -100.0, spread: float = 1.0) -> Bounds:
    """Bounds that identify split and K: train ends in .1, test ends in .2, and K is added."""
    values = [spread * (r - (config.replicas - 1) / 2) for r in range(config.replicas)]
    n = config.num_samples
    counts = {"train": (1, n // 2, n), "test": (1, n // 2, n, 100)}
    decimals = {"train": 0.1, "test": 0.2}
    return {
        split: {k: [level + k + decimals[split] + v for v in values] for k in counts[split]}
        for split in counts
    }


def make_run(
    path: Path,
    config: TrainConfig,
    bounds: Bounds | None = None,
    records: int = 5,
    note: str = "",
    finish: bool = True,
) -> Run:
    run = Run(path).begin(config)
    for step in range(1, records + 1):
        values = [-100.0 + step + r for r in range(config.replicas)]
        run.append(
            {
                "step": step,
                "train_elbo": values,
                "gradient_variance": [10.0**-step] * config.replicas,
            }
        )
    if finish:
        found = bounds_of(config) if bounds is None else bounds
        run.finish({"steps": config.steps, "note": note, "bounds": found})
    return run
