"""The paper's toy problem: ascend E[(b - 0.499)^2], whose two values hardly differ, from sigma(phi) = 0.1 to 0.9."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.checks import univariate_variance
from arms.estimators import estimator as as_estimator

P0 = 0.499
ESTIMATORS = ("arm", "disarm", "loorf", "arms-d", "arms-n", "arms-s")


@dataclass(frozen=True)
class ToyCurve:
    """Variance of one estimator's gradient against sigma(phi)."""

    estimator: str
    num_samples: int
    probs: Tensor
    measured: Tensor
    """By Monte Carlo, float64 `[points]`."""
    exact: Tensor | None
    """In closed form, where there is one."""


def objective(b: Tensor) -> Tensor:
    """Return (b - 0.499)^2."""
    return (b - P0).square().sum(-1)


def variance_curves(
    num_samples: int,
    estimators: Sequence[str] = ESTIMATORS,
    points: int = 81,
    replicas: int = 1000,
    generator: Generator | None = None,
) -> list[ToyCurve]:
    """Measure every estimator's variance at `points` probabilities from 0.1 to 0.9, all replicas in one batch.

    >>> [curve.estimator for curve in variance_curves(4, ["loorf", "arms-s"], points=3, replicas=10)]
    ['loorf', 'arms-s']
    """
    probs = torch.linspace(0.1, 0.9, as_count(points, 1, "points"), dtype=torch.float64)
    logits = torch.logit(probs)
    batch = logits.expand(as_count(replicas, 2, "replicas"), -1).unsqueeze(-1)
    curves = []
    for name in estimators:
        estimator = as_estimator(name, num_samples)
        measured = estimator(objective, batch, generator).grad.squeeze(-1).var(0)
        exact = univariate_variance(estimator, logits, P0**2, (1 - P0) ** 2)
        curves.append(ToyCurve(name, num_samples, probs, measured, exact))
    return curves
