"""The paper's toy problem: maximize E[(b - 0.499)^2] from sigma(phi) = 0.1 to 0.9."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from arms.arguments import as_count
from arms.checks import univariate_variance
from arms.estimators import as_estimator

P0 = 0.499  # the value in the paper
ESTIMATORS = ("arm", "disarm", "loorf", "arms-dirichlet", "arms-gaussian", "arms")
BUDGETS = (2, 4, 6, 8, 10, 20, 50, 100)
# If n times p is an integer, `arms` has no variance. With 97 intervals (a prime number), this
# rarely happens.
GRID_POINTS = 98
NUMBERS_AT_ONCE = 200_000  # larger batches do not fit into the cache, and take twice as long
LEARNING_RATE = 100.0  # needs 133 steps from 0.1 to 0.9; the paper needs about 20,000


@dataclass(frozen=True)
class ToyCurve:
    """The gradient variances of one estimator on the toy problem, one per probability.

    `probs` contains the probabilities sigma(phi). All tensors are float64 `[points]`.
    """

    estimator: str
    num_samples: int
    probs: Tensor
    measured: Tensor
    exact: Tensor | None  # None if no closed form is known


@dataclass(frozen=True)
class Ascent:
    """Gradient ascents with one estimator in many replicas. All start at sigma(phi) = 0.1."""

    estimator: str
    num_samples: int
    logits: Tensor  # before each step and after the last step, [steps + 1, replicas]

    def std(self) -> Tensor:
        """Return the standard deviations `[steps + 1]` of phi over the replicas, one per step."""
        return self.logits.std(1)


def objective(b: Tensor) -> Tensor:
    return (b - P0).square().sum(-1)


def variance_curves(
    num_samples: int,
    estimators: Sequence[str] = ESTIMATORS,
    points: int = GRID_POINTS,
    replicas: int = 1000,
    generator: Generator | None = None,
) -> list[ToyCurve]:
    """Measure the gradient variance of every estimator at `points` probabilities from 0.1 to 0.9.

    Each variance is computed from `replicas` independent estimates at one probability.
    """
    probs, curves = probabilities(points), []
    batch = torch.logit(probs).expand(as_count(replicas, 2, "replicas"), -1).unsqueeze(-1)
    for name in estimators:
        estimator = as_estimator(name, num_samples)
        parts = batch.split(max(1, NUMBERS_AT_ONCE // (points * num_samples)))
        grads = torch.cat([estimator(objective, part, generator).grad for part in parts])
        exact = exact_variance(name, num_samples, probs)
        curves.append(ToyCurve(name, num_samples, probs, grads.squeeze(-1).var(0), exact))
    return curves


def probabilities(points: int) -> Tensor:
    """Return evenly spaced probabilities from 0.1 to 0.9, float64 `[points]`."""
    return torch.linspace(0.1, 0.9, as_count(points, 1, "points"), dtype=torch.float64)


def exact_variance(estimator: str, num_samples: int, probs: Tensor) -> Tensor | None:
    """Return the exact gradient variances `[points]` of an estimator at the probabilities `probs`.

    Return None if no closed form of the variance is known.
    """
    made = as_estimator(estimator, num_samples)
    return univariate_variance(made, torch.logit(probs), P0**2, (1 - P0) ** 2)


def ascents(
    num_samples: int,
    estimators: Sequence[str] = ESTIMATORS,
    steps: int = 150,
    replicas: int = 1000,
    generator: Generator | None = None,
) -> list[Ascent]:
    """Run gradient ascent on the toy problem with every estimator, in many replicas at once.

    The estimator `exact` has no noise, so all of its replicas are equal.
    """
    shape = (as_count(replicas, 2, "replicas"), 1)
    start = torch.full(shape, 0.1, dtype=torch.float64).logit()
    found = []
    for name in estimators:
        estimator, path = as_estimator(name, num_samples), [start]
        for _ in range(as_count(steps, 1, "steps")):
            grad = estimator(objective, path[-1], generator, validate=False).grad
            path.append(path[-1] + LEARNING_RATE * grad)
        found.append(Ascent(name, num_samples, torch.cat(path, 1).T))
    return found


def measure(
    budgets: Sequence[int], replicas: int = 1000, seed: int = 0
) -> tuple[list[ToyCurve], list[Ascent]]:
    """Return the variance curves for every n in `budgets`, and the gradient ascents for one n.

    The ascents use n = 10 if `budgets` contains 10. Otherwise, they use the last n in `budgets`.
    """
    generator = torch.Generator().manual_seed(seed)
    found = [variance_curves(n, replicas=replicas, generator=generator) for n in budgets]
    shown = 10 if 10 in budgets else budgets[-1]
    paths = ascents(shown, replicas=replicas, generator=generator)
    return [curve for curves in found for curve in curves], paths
