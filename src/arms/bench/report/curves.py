"""Training curves: mean and standard deviation of every metric over replicas, thinned to what a screen can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arms.bench.formatting import is_drawable
from arms.bench.metrics import METRICS, Metric
from arms.bench.report.collect import RunData
from arms.bench.report.groups import Group, Row

MAX_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """One metric of one row of a comparison, as a function of the step."""

    label: str
    estimator: str
    replicas: int
    steps: list[int]
    mean: list[float]
    std: list[float] | None
    """None for a single replica."""

    def edges(self, first: float) -> list[float]:
        """Return the lower and upper edges of the band from step `first` on."""
        std = self.std or [0.0] * len(self.mean)
        late = [
            (m, s) for step, m, s in zip(self.steps, self.mean, std, strict=True) if step >= first
        ]
        return [edge for m, s in late for edge in (m - s, m + s)]


@dataclass(frozen=True)
class Plot:
    """The curves of one metric in one comparison."""

    metric: Metric
    curves: Sequence[Curve]

    def frame(self) -> tuple[float, float] | None:
        """Return the range of the axis: that of the bands after the first fifth of the steps; None shows everything.

        The rise of the first steps would dwarf all later differences.
        """
        if self.metric.scale == "log":
            return None
        last = max(curve.steps[-1] for curve in self.curves)
        edges = [edge for curve in self.curves for edge in curve.edges(first=last / 5)]
        low, high = min(edges), max(edges)
        margin = 0.06 * (high - low)
        return (low - margin, high + margin) if margin > 0 else None


def plots(group: Group) -> list[Plot]:
    """Return a plot for every metric that the group's runs recorded."""
    found = []
    for metric in METRICS.values():
        curves = [curve for row in group.rows if (curve := _curve(row, metric.key)) is not None]
        if curves:
            found.append(Plot(metric, curves))
    return found


def _curve(row: Row, key: str) -> Curve | None:
    # An unfinished run would shorten the curve of the runs it is pooled with.
    runs = [_series(run, key) for run in row.finished or row.runs]
    steps = sorted(set.intersection(*(set(series) for series in runs)))
    if not steps:
        return None
    values = np.array(
        [[_number(value) for series in runs for value in series[step]] for step in steps]
    )
    # A replica that stopped is omitted from the first step on: shortly before, its values would dominate the mean.
    if (going := np.isfinite(values[-1])).any():
        values = values[:, going]
    finite = np.isfinite(values).all(1)
    if not finite.any():
        return None
    thin_steps, thin = _thin(np.array(steps)[finite], values[finite])
    std = thin.std(1, ddof=1).tolist() if thin.shape[1] > 1 else None
    label = (
        row.label
        if thin.shape[1] == len(going)
        else f"{row.label}, R={thin.shape[1]} of {len(going)}"
    )
    return Curve(label, row.estimator, thin.shape[1], thin_steps, thin.mean(1).tolist(), std)


def _series(run: RunData, key: str) -> dict[int, list[float | None]]:
    return {record["step"]: record[key] for record in run.metrics if key in record}


def _number(value: float | None) -> float:
    return float(value) if value is not None and is_drawable(value) else math.nan


def _thin(
    steps: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[list[int], NDArray[np.float64]]:
    """Average consecutive records, under the last of their steps, so that at most MAX_POINTS are left."""
    width = math.ceil(len(steps) / MAX_POINTS)
    starts = np.arange(0, len(steps), width)
    ends = np.append(starts[1:], len(steps))
    sums = np.add.reduceat(values, starts, axis=0)
    return steps[ends - 1].tolist(), sums / (ends - starts)[:, None]
