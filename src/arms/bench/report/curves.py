"""Training curves with few points: each metric's mean and standard deviation over replicas."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from arms.bench.metrics import METRICS, Metric
from arms.bench.output import is_drawable
from arms.bench.report.figures import Curve, Panel, style_of
from arms.bench.report.groups import Group, Row

MAX_POINTS = 200  # per curve; a panel on a screen cannot show more


def training_panels(group: Group) -> dict[str, Panel]:
    """Return {key of a metric: its panel} for every recorded metric.

    Each panel has one curve for every row of the group.
    """
    panels = {}
    for key, metric in METRICS.items():
        curves = [curve for row in group.rows if (curve := _curve(row, metric)) is not None]
        if curves:
            last, log = max(curve.x[-1] for curve in curves), metric.scale == "log"
            ylim = None if log else _frame(curves, last / 5)
            labels = (metric.title, "step", metric.axis_label)
            panels[key] = Panel(curves, *labels, log, (0, 1.03 * last), ylim)
    return panels


def budget_grid(panels: Mapping[int, Mapping[str, Panel]]) -> list[list[Panel | None]]:
    """Return a grid of panels with a row for each metric, and a column for each n.

    `panels` is {n: {key of a metric: its panel}}. The grid has None where there is no panel.
    """
    grid = []
    for key, metric in METRICS.items():
        row: list[Panel | None] = []
        for n, by_metric in panels.items():
            label = "" if row else f"{metric.short_title}\n{metric.axis_label}"
            panel = by_metric.get(key)
            row.append(replace(panel, title=f"n = {n}", ylabel=label) if panel else None)
        grid.append(row)
    return [row for row in grid if any(row)]


def _frame(curves: Sequence[Curve], first: float) -> tuple[float, float] | None:
    """Return limits (low, high) for the vertical axis of a panel.

    From step `first` on, the limits contain all curves and their bands. Before this step, the steep
    start of a curve may be outside. Return None if all curves are constant.
    """
    bands = [np.array([curve.low or curve.y, curve.high or curve.y]) for curve in curves]
    late = [np.array(curve.x) >= first for curve in curves]
    edges = np.concatenate([band[:, of].ravel() for band, of in zip(bands, late, strict=True)])
    low, high = float(edges.min()), float(edges.max())
    margin = 0.06 * (high - low)
    return (low - margin, high + margin) if margin > 0 else None


def _curve(row: Row, metric: Metric) -> Curve | None:
    # Leave out unfinished runs, because the mean curve would end where the shortest run ends.
    runs = [
        {record["step"]: record[metric.key] for record in run.metrics if metric.key in record}
        for run in row.evaluated_runs or row.runs
    ]
    steps = np.array(sorted(set.intersection(*map(set, runs))))
    if not len(steps):
        return None
    values = np.array([[_number(value) for run in runs for value in run[step]] for step in steps])
    # Omit stopped replicas at all steps, because their last values would dominate the mean.
    if (going := np.isfinite(values[-1])).any():
        values = values[:, going]
    finite = np.isfinite(values).all(1)
    if not finite.any():
        return None
    steps, values = steps[finite], values[finite]
    # Average consecutive records, and use the last of their steps.
    starts = np.arange(0, len(steps), math.ceil(len(steps) / MAX_POINTS))
    ends = np.append(starts[1:], len(steps))
    values = np.add.reduceat(values, starts, axis=0) / (ends - starts)[:, None]
    left, mean = values.shape[1], values.mean(1)
    name = row.label if left == len(going) else f"{row.label}, R={left} of {len(going)}"
    curve = Curve(name, style_of(row.estimator), steps[ends - 1].tolist(), mean.tolist())
    if left == 1:
        return curve
    std = values.std(1, ddof=1)
    # On a logarithmic axis, the lower edge of the band must be above zero.
    low = np.where((mean > std) | (metric.scale != "log"), mean - std, mean / 10)
    return replace(curve, low=low.tolist(), high=(mean + std).tolist())


def _number(value: float | None) -> float:
    return float(value) if value is not None and is_drawable(value) else math.nan
