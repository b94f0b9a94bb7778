"""The paper's toy problem: ascend E[(b - 0.499)^2], whose two values hardly differ, from sigma(phi) = 0.1 to 0.9."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.checks import univariate_variance
from arms.estimators import as_estimator

P0 = 0.499
ESTIMATORS = ("arm", "disarm", "loorf", "arms-d", "arms-n", "arms-s")
BUDGETS = (2, 4, 6, 8, 10, 20, 50, 100)
POINTS = 98
"""Probabilities from 0.1 to 0.9, 97 steps apart: a prime, so that np is hardly ever whole, where arms-s is exact."""
IN_CACHE = 200_000
"""Numbers at a time: a batch that leaves the processor's cache takes twice as long."""
LEARNING_RATE = 100.0
"""Large, so that it takes 133 steps from 0.1 to 0.9 where the paper takes some 20,000: noise enough to see."""


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


@dataclass(frozen=True)
class Ascent:
    """Many ascents with one estimator, from sigma(phi) = 0.1."""

    estimator: str
    num_samples: int
    logits: Tensor
    """phi before each step and after the last, `[steps + 1, replicas]`."""

    def spread(self) -> Tensor:
        """Return the standard deviation of phi over the replicas `[steps + 1]`."""
        return self.logits.std(1)


def objective(b: Tensor) -> Tensor:
    """Return (b - 0.499)^2."""
    return (b - P0).square().sum(-1)


def variance_curves(
    num_samples: int,
    estimators: Sequence[str] = ESTIMATORS,
    points: int = POINTS,
    replicas: int = 1000,
    generator: Generator | None = None,
) -> list[ToyCurve]:
    """Measure every estimator's variance at `points` probabilities from 0.1 to 0.9, replicas in large batches.

    >>> [curve.estimator for curve in variance_curves(4, ["loorf", "arms-s"], points=3, replicas=10)]
    ['loorf', 'arms-s']
    """
    probs = torch.linspace(0.1, 0.9, as_count(points, 1, "points"), dtype=torch.float64)
    logits = torch.logit(probs)
    batch = logits.expand(as_count(replicas, 2, "replicas"), -1).unsqueeze(-1)
    curves = []
    for name in estimators:
        estimator = as_estimator(name, num_samples)
        parts = batch.split(max(1, IN_CACHE // (points * num_samples)))
        measured = torch.cat([estimator(objective, part, generator).grad for part in parts]).squeeze(-1).var(0)
        exact = univariate_variance(estimator, logits, P0**2, (1 - P0) ** 2)
        curves.append(ToyCurve(name, num_samples, probs, measured, exact))
    return curves


def exact_curve(estimator: str, num_samples: int, points: int = POINTS) -> tuple[list[float], list[float]]:
    """Return probabilities and the variance there in closed form, for an estimator that has one.

    >>> probs, variances = exact_curve("loorf", 2, points=1)
    >>> f"{variances[0]:.4e} at {probs[0]}"
    '1.4760e-07 at 0.1'
    """
    probs = torch.linspace(0.1, 0.9, as_count(points, 1, "points"), dtype=torch.float64)
    exact = univariate_variance(as_estimator(estimator, num_samples), torch.logit(probs), P0**2, (1 - P0) ** 2)
    if exact is None:
        raise ValueError(f"{estimator} has no closed form here: measure it with variance_curves")
    return probs.tolist(), exact.tolist()


def ascents(
    num_samples: int,
    estimators: Sequence[str] = ESTIMATORS,
    steps: int = 150,
    replicas: int = 1000,
    generator: Generator | None = None,
) -> list[Ascent]:
    """Ascend with every estimator; `exact` would show the path without noise.

    >>> ascents(4, ["exact"], steps=1, replicas=2)[0].logits.sigmoid()
    tensor([[0.1000, 0.1000],
            [0.1016, 0.1016]], dtype=torch.float64)
    """
    start = torch.logit(torch.full((as_count(replicas, 2, "replicas"), 1), 0.1, dtype=torch.float64))
    found = []
    for name in estimators:
        estimator = as_estimator(name, num_samples)
        path = [start]
        for _ in range(as_count(steps, 1, "steps")):
            path.append(path[-1] + LEARNING_RATE * estimator(objective, path[-1], generator, validate=False).grad)
        found.append(Ascent(name, num_samples, torch.cat(path, 1).T))
    return found
