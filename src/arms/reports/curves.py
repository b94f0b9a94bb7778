"""Training curves: mean and standard deviation over replicas, thinned to what a screen can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arms.reports.collect import RunData
from arms.reports.groups import Group, Row

MOST_POINTS = 400


@dataclass(frozen=True)
class Quantity:
    """Something that run directories report while they train."""

    key: str
    """Its name in metrics.jsonl."""
    title: str
    axis: str
    logarithmic: bool = False


QUANTITIES = (
    Quantity("train_elbo", "Train ELBO (K=1)", "ELBO / nats"),
    Quantity("test_bound_100", "Test bound (K=100)", "bound / nats"),
    Quantity("gradient_variance", "Gradient variance, encoder", "variance", logarithmic=True),
)


@dataclass(frozen=True)
class Curve:
    """One row of a comparison against the step."""

    label: str
    estimator: str
    replicas: int
    steps: list[int]
    mean: list[float]
    std: list[float] | None
    """None for one replica."""


@dataclass(frozen=True)
class Plot:
    """The curves of one quantity in one comparison."""

    quantity: Quantity
    curves: Sequence[Curve]

    def frame(self) -> tuple[float, float] | None:
        """Return the range of values after the first tenth of the steps, which would dwarf the rest; None shows all."""
        last = max(curve.steps[-1] for curve in self.curves)
        late = [v for curve in self.curves for s, v in zip(curve.steps, curve.mean, strict=True) if s >= last / 10]
        low, high = min(late), max(late)
        if self.quantity.logarithmic or low == high:
            return None
        margin = 0.06 * (high - low)
        return low - margin, high + margin


def plots(group: Group) -> list[Plot]:
    """Return a plot for every quantity that the group's runs reported."""
    found = []
    for quantity in QUANTITIES:
        curves = [curve for row in group.rows if (curve := _curve(row, quantity.key)) is not None]
        if curves:
            found.append(Plot(quantity, curves))
    return found


def _curve(row: Row, key: str) -> Curve | None:
    # An unfinished run would cut short the curve it is pooled into.
    runs = [_series(run, key) for run in row.finished or row.runs]
    steps = sorted(set.intersection(*(set(series) for series in runs)))
    if not steps:
        return None
    values = np.array([[value for series in runs for value in series[step]] for step in steps], dtype=np.float64)
    finite = np.isfinite(values).all(1)
    if not finite.any():
        return None
    thin_steps, thin = _thin(np.array(steps)[finite], values[finite])
    std = thin.std(1, ddof=1).tolist() if thin.shape[1] > 1 else None
    return Curve(row.label, row.estimator, thin.shape[1], thin_steps, thin.mean(1).tolist(), std)


def _series(run: RunData, key: str) -> dict[int, list[float]]:
    return {record["step"]: record[key] for record in run.metrics if key in record}


def _thin(steps: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[list[int], NDArray[np.float64]]:
    """Average consecutive reports, each under its last step, down to MOST_POINTS."""
    width = math.ceil(len(steps) / MOST_POINTS)
    starts = np.arange(0, len(steps), width)
    ends = np.append(starts[1:], len(steps))
    sums = np.add.reduceat(values, starts, axis=0)
    return steps[ends - 1].tolist(), sums / (ends - starts)[:, None]
