"""The bias test: an estimator's mean over many draws against the enumerated gradient of random, curved tables."""

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from arms.checks.oracle import as_seen, exact_target_gradient, random_table, table_objective
from arms.checks.verdicts import FAILURE_RATE, Finding, judge_score
from arms.estimators.base import Estimator, TensorObjective
from arms.estimators.pipeline import Options, estimate
from arms.latents import Bernoulli, Latent, OneHot

__all__ = ["BINARY_LOGITS", "CATEGORICAL_LOGITS", "bias_scores", "check_bias", "gradients", "latents_of"]

# Both signs, near and far from one half: a wrong correlation shows at one of them. Rarer bits make z-scores unreliable.
BINARY_LOGITS = ((0.0, 0.7, -1.3), (2.0, -0.4, 1.1), (-2.2, 1.6, 0.3))
CATEGORICAL_LOGITS = (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((1.2, -0.8, 0.1), (0.0, 0.0, 0.6)))


def latents_of(estimator: Estimator) -> Iterator[Latent]:
    """Yield the float64 latents on which an estimator is tested: those of every kind that it takes."""
    for kind, rows in ((Bernoulli, BINARY_LOGITS), (OneHot, CATEGORICAL_LOGITS)):
        if issubclass(kind, estimator.latents):
            for row in rows:
                yield kind(torch.tensor(row, dtype=torch.float64))


def gradients(estimator: Estimator, objective: TensorObjective, latent: Latent, generator: Generator | None) -> Tensor:
    """Return one whole estimate for every entry of the batch: the score part, and autograd's direct term if any."""
    target = estimator.target
    with torch.set_grad_enabled(target.direct):
        own = type(latent)(latent.logits.detach().clone().requires_grad_(target.direct))
        found = estimate(estimator, as_seen(objective, own, target), own, generator, Options(checks="cheap"))
        if not target.direct:
            return found.grad.detach()
        (direct,) = torch.autograd.grad(found.value.sum(), own.logits)
        return found.grad.detach() + direct


def bias_scores(
    estimator: Estimator, objective: TensorObjective, latent: Latent, draws: int, generator: Generator
) -> Tensor:
    """Return the z-score of the mean of many estimates against enumeration, for logits `[*event]`.

    Args:
        estimator: Any estimator, of any target. Where the target has a direct term, the log-weight is objective(b) -
            log q(b), and the direct term counts.
        objective: Defined on states, and between them for estimators that need slopes.
        latent: Where to test, without batch axes.
        draws: How many estimates.
        generator: Source of all randomness.
    """
    many = type(latent)(latent.logits.expand(draws, *latent.logits.shape))
    grad = gradients(estimator, objective, many, generator).double()
    spread = grad.std(0) / math.sqrt(draws)
    # Where an estimate never varies, only rounding may separate it from the truth.
    return (grad.mean(0) - exact_target_gradient(objective, latent, estimator.target)) / spread.clamp(min=1e-12)


def check_bias(
    estimator: Estimator, draws: int = 100_000, failure_rate: float = FAILURE_RATE, seed: int = 0
) -> Finding:
    """Test in float64 whether an estimator's label is true: that of an unbiased one, and that of a biased one too.

    An unbiased estimator fails with probability `failure_rate`; the smallest bias that is surely seen shrinks as
    1/sqrt(draws). An estimator marked `unbiased = False` must be seen to be biased; its verdict is "biased".

    Args:
        estimator: What is tested.
        draws: Estimates of each table's gradient.
        failure_rate: How often a right one may fail by chance.
        seed: Of tables and draws.

    >>> from arms import LOORF
    >>> check_bias(LOORF(4), draws=1000).passed
    True
    """
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for latent in latents_of(estimator):
        objective = table_objective(random_table(latent.count_states(), generator), latent)
        scores.append(bias_scores(estimator, objective, latent, draws, generator).flatten())
    every = torch.cat(scores).abs()
    name = f"unbiased, n = {estimator.num_samples}"
    judged = judge_score(name, every.max().item(), every.numel(), failure_rate)
    if estimator.unbiased:
        return judged
    name, figure = f"biased, n = {estimator.num_samples}", judged.figure
    if judged.passed:
        return Finding(name, False, f"{figure}: marked as biased, and no bias is seen")
    return Finding(name, True, f"{figure}: as it is marked", "biased")
