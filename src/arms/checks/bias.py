"""The bias test: an estimator's mean over many draws against the enumerated gradient of random tables."""

import math

import torch
from torch import Generator, Tensor

from arms.checks.oracle import exact_gradient, random_table, table_objective
from arms.checks.report import FAILURE_RATE, Finding, judge_score
from arms.estimators.base import Estimator, Objective

LATENTS = 3
# Both signs, near and far from one half: a wrong correlation shows at one of them. Rarer bits make z-scores unreliable.
LOGITS = ((0.0, 0.7, -1.3), (2.0, -0.4, 1.1), (-2.2, 1.6, 0.3))


def bias_scores(estimator: Estimator, objective: Objective, logits: Tensor, draws: int, generator: Generator) -> Tensor:
    """Return the z-score `[d]` of the mean of `draws` estimates against enumeration, for logits `[d]`."""
    with torch.no_grad():
        grad = estimator(objective, logits.expand(draws, -1), generator).grad.double()
    error = grad.mean(0) - exact_gradient(objective, logits)
    spread = grad.std(0) / math.sqrt(draws)
    # Where an estimate never varies, only rounding may separate it from the truth.
    return error / spread.clamp(min=1e-12)


def check_bias(
    estimator: Estimator, draws: int = 100_000, failure_rate: float = FAILURE_RATE, seed: int = 0
) -> Finding:
    """Test in float64 whether an estimator of the expectation's gradient is unbiased on random tables over {0,1}^3.

    A correct estimator fails with probability `failure_rate`; the smallest bias that is surely seen shrinks as
    1/sqrt(draws).

    >>> from arms import LOORF
    >>> check_bias(LOORF(4), draws=1000).passed
    True
    """
    generator = torch.Generator().manual_seed(seed)
    scores = [
        bias_scores(
            estimator,
            table_objective(random_table(LATENTS, generator)),
            torch.tensor(row, dtype=torch.float64),
            draws,
            generator,
        )
        for row in LOGITS
    ]
    largest = torch.stack(scores).abs().max().item()
    return judge_score(f"unbiased, n = {estimator.num_samples}", largest, LATENTS * len(LOGITS), failure_rate)
