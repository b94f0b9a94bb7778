"""K-sample bounds of a trained model, and gradient variances at its parameters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, observe
from arms.bench.metrics import TEST_BOUND_SAMPLES
from arms.bench.models import DiscreteVAE, evaluating, seeded_generator
from arms.checks import VarianceTable, variance
from arms.estimators import Estimator
from arms.targets import log_mean_exp

DECODER_ROWS_AT_ONCE = {"cpu": 8192, "cuda": 262_144}
"""{kind of device: the most rows that the decoder gets in one call}. The numbers are large enough
to be fast, and small enough for the device's memory."""
SAMPLES_AT_ONCE = 4
"""The number of samples that are drawn at once. This number does not depend on K, and therefore the
first samples do not depend on K."""


def final_bounds(
    model: DiscreteVAE, dataset: Dataset, config: TrainConfig, images: int | None = None
) -> dict[str, Any]:
    """Return the content of result.json: the final bounds of a trained model.

    Each split has bounds with K = 1, n/2 and n, where n is the number of samples in training. The
    test split also has a bound with K = 100. If `images` is given, only the first `images` images
    of each split are used, and the content says so.
    """
    counts = sorted({1, max(1, config.num_samples // 2), config.num_samples})
    bounds = {}
    for split in ("train", "valid", "test"):
        wanted = [*counts, TEST_BOUND_SAMPLES] if split == "test" else counts
        found = evaluate(model, dataset, split, wanted, config.seed, images)
        bounds[split] = {str(count): values for count, values in found.items()}
    part = {"images": images} if images is not None else {}
    return {"steps": config.steps, "note": dataset.note, **part, "bounds": bounds}


def evaluate(
    model: DiscreteVAE,
    dataset: Dataset,
    split: str,
    sample_counts: list[int],
    seed: int,
    images: int | None = None,
) -> dict[int, list[float]]:
    """Compute the K-sample bounds of a model on one split of a data set, for several K.

    Args:
        model: The model.
        dataset: The data set.
        split: "train", "valid" or "test".
        sample_counts: The values of K; 1 is the ELBO.
        seed: The seed for drawing binary pixels and for sampling latents.
        images: Use only this many images, the first of the split. By default, use all images.

    Returns:
        A dictionary from K to a list with the bound of every replica, in nats.
    """
    device = model.prior.device
    rows: Tensor = getattr(dataset, split)[:images].to(device)
    generator = seeded_generator(seed, f"evaluate {split}", device=str(device))
    of_count = bounds(model, rows, dataset.levels, sample_counts, generator)
    return {count: bound.tolist() for count, bound in of_count.items()}


def bounds(
    model: DiscreteVAE,
    images: Tensor,
    levels: int,
    sample_counts: Sequence[int],
    generator: Generator,
) -> dict[int, Tensor]:
    """Return {K: bounds of all replicas in nats, `[R]`} for every K in `sample_counts`.

    A bound is the mean over `images` (gray levels `[images, pixels]`). The images and the
    generator must be on the device of the model. Binary pixels are drawn once. Every K uses the
    first K samples of the same draw, so a bound does not depend on the other values of K.
    """
    counts = sorted({as_count(count, 1, "sample_counts") for count in sample_counts})
    if not counts:
        raise ValueError("sample_counts must list at least one K, got none: try [1, 100]")
    device = images.device
    zeros = torch.zeros(model.replicas, dtype=torch.float64, device=device)
    totals = {count: zeros.clone() for count in counts}
    rows_at_once = DECODER_ROWS_AT_ONCE.get(device.type, DECODER_ROWS_AT_ONCE["cpu"])
    parts = images.split(max(1, rows_at_once // (SAMPLES_AT_ONCE * model.replicas)))
    # Each part has its own seed, so that its noise does not depend on how many samples earlier
    # parts drew.
    seeds = torch.randint(2**62, (len(parts),), generator=generator, device=device).tolist()
    with torch.no_grad(), evaluating(model):
        for rows, seed in zip(parts, seeds, strict=True):
            noise = Generator(device).manual_seed(seed)
            x = observe(rows, levels, noise, bits=model.likelihood.binarizes_input)
            x = x.expand(model.replicas, -1, -1)
            logits = model.encode(x)
            weights = _log_weights(model, x, logits, counts[-1], noise)
            for count in counts:
                totals[count] += log_mean_exp(weights[:count].double()).sum(-1)
    return {count: (total / len(images)).cpu() for count, total in totals.items()}


def logit_gradient_variances(
    model: DiscreteVAE,
    x: Tensor,
    estimators: str | Estimator | Sequence[str | Estimator] | None,
    num_samples: int | None,
    generator: Generator,
    *,
    evaluations: int | None = None,
    repeats: int = 1000,
) -> VarianceTable:
    """Compare the gradient variances of estimators at the current parameters of a model.

    The estimators estimate the gradient with respect to the logits of q(b|x), for one minibatch of
    pixels `x`, float `[R, B, pixels]`. The variance is over the samples of the latents. The
    minibatch is fixed. For the other arguments, see `arms.variance`.
    """
    if len(model.layers) > 1:
        what = "gradient variances can be compared for models of one stochastic layer only"
        remedy = "benchmarks/layer_variance.py measures them layer by layer"
        raise ValueError(f"{what}, got {len(model.layers)} layers: {remedy}")
    with evaluating(model):
        with torch.no_grad():
            logits = model.encode(x)
        return variance(
            lambda b: model.log_weights(b, x, logits),
            model.latent(logits),
            estimators,
            num_samples,
            generator,
            evaluations=evaluations,
            repeats=repeats,
        )


def _log_weights(
    model: DiscreteVAE, x: Tensor, logits: Tensor, count: int, noise: Generator
) -> Tensor:
    """Return the log-weights `[count, R, B]` of `count` samples from q(b|x), drawn in blocks."""
    # Allocate the result first, so that a `count` too large for memory fails at once.
    weights = logits.new_empty(count, *x.shape[:-1])
    for start in range(0, count, SAMPLES_AT_ONCE):
        # Samples are drawn in whole blocks, and the last block is cut. The first samples therefore
        # do not depend on the number of samples.
        b = model.latent(logits).sample(SAMPLES_AT_ONCE, noise)
        if len(model.layers) == 1:  # deeper layers also need whole blocks
            b = b[: count - start]
        block = model.chain_log_weights(b, x, logits, noise)
        weights[start : start + SAMPLES_AT_ONCE] = block[: count - start]
    return weights
