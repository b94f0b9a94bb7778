"""Bounds of a trained model, for any K, and the clean variance of estimators at its parameters."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, binarize
from arms.bench.models import BinaryVAE, seeded_generator
from arms.checks import VarianceTable, variance
from arms.couplings import Coupling
from arms.estimators import Estimator
from arms.latents import Bernoulli
from arms.targets import log_mean_exp

ROWS = {"cpu": 8192, "cuda": 262_144}
"""Decoder rows at a time: enough to keep the matrix products busy, few enough to stay in memory."""
SAMPLES = 4
"""Samples at a time, whatever K is: the first K are the same, whichever other K are asked for."""
TEST_SAMPLES = 100
"""K of the bound that stands for the test set's log-likelihood."""


def final_bounds(model: BinaryVAE, dataset: Dataset, config: TrainConfig) -> dict[str, Any]:
    """Return the bounds that papers report, per replica: K = 1, n/2 and n on all three splits, and K = 100 on test."""
    counts = sorted({1, max(1, config.num_samples // 2), config.num_samples})
    return {
        "steps": config.steps,
        "note": dataset.note,
        "bounds": {
            split: evaluate(model, dataset, split, [*counts, TEST_SAMPLES] if split == "test" else counts, config.seed)
            for split in ("train", "valid", "test")
        },
    }


def evaluate(
    model: BinaryVAE, dataset: Dataset, split: str, sample_counts: list[int], seed: int, images: int | None = None
) -> dict[str, list[float]]:
    """Return {K: bound of each replica} on a split; the same seed draws the same bits and samples."""
    device = model.prior.device
    rows: Tensor = getattr(dataset, split)[:images].to(device)
    generator = seeded_generator(seed, f"evaluate {split}", device=str(device))
    found = bounds(model, rows, dataset.levels, sample_counts, generator)
    return {str(count): bound.tolist() for count, bound in found.items()}


def bounds(
    model: BinaryVAE,
    images: Tensor,
    levels: int,
    sample_counts: Sequence[int],
    generator: Generator,
    coupling: Coupling | None = None,
) -> dict[int, Tensor]:
    """Return the K-sample bound `[R]` in nats, mean over all images, for every K in `sample_counts`.

    K = 1 is the ELBO. Bits are drawn from the images once; all K look at the first K samples of one draw. With a
    `coupling` the samples of every K are coupled ones instead: another lower bound, mostly a tighter one. A bound does
    not depend on which others are asked for.
    """
    counts = sorted({as_count(count, 1, "sample_counts") for count in sample_counts})
    if not counts:
        raise ValueError("sample_counts must name at least one K, got none")
    device = images.device
    totals = {count: torch.zeros(model.replicas, dtype=torch.float64, device=device) for count in counts}
    parts = images.split(max(1, ROWS.get(device.type, ROWS["cpu"]) // (SAMPLES * model.replicas)))
    seeds = torch.randint(2**62, (len(parts),), generator=generator, device=device).tolist()
    with torch.no_grad(), _evaluating(model):
        for rows, seed in zip(parts, seeds, strict=True):
            noise = Generator(device).manual_seed(seed)
            x = binarize(rows, levels, noise).expand(model.replicas, -1, -1)
            logits = model.encode(x)
            weights = None if coupling else _log_weights(model, x, logits, counts[-1], noise)
            for count in counts:
                of_count = weights
                if of_count is None:
                    noise.manual_seed(seed + count)
                    of_count = _log_weights(model, x, logits, count, noise, coupling)
                totals[count] += log_mean_exp(of_count[:count].double()).sum(-1)
    return {count: (total / len(images)).cpu() for count, total in totals.items()}


def gradient_variances(
    model: BinaryVAE,
    x: Tensor,
    num_samples: int,
    estimators: Sequence[str | Estimator] | None,
    repeats: int,
    generator: Generator,
) -> VarianceTable:
    """Compare the estimators' variance of the logit gradient over repeated draws, at fixed parameters and bits x."""
    with _evaluating(model):
        with torch.no_grad():
            logits = model.encode(x)
        return variance(lambda b: model.log_weights(b, x, logits), logits, num_samples, estimators, repeats, generator)


@contextmanager
def _evaluating(model: BinaryVAE) -> Iterator[None]:
    """Switch dropout and the like off while looking at a model."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _log_weights(
    model: BinaryVAE, x: Tensor, logits: Tensor, count: int, noise: Generator, coupling: Coupling | None = None
) -> Tensor:
    drawn: Iterable[Tensor]
    if coupling and count > 1:
        drawn = coupling.sample(Bernoulli(logits), count, noise).split(SAMPLES)
    else:  # drawn as a whole, evaluated as needed
        starts = range(0, count, SAMPLES)
        drawn = (Bernoulli(logits).sample(SAMPLES, noise)[: count - start] for start in starts)
    return torch.cat([model.log_weights(b, x, logits) for b in drawn])
