"""How the numbers of a run's replicas are written: mean, spread, and how many are left."""

from collections.abc import Sequence
from statistics import mean, stdev

from arms.bench.metrics import surviving


def spread(values: Sequence[float | None]) -> str:
    """Return mean and standard deviation over the replicas that are left, and how many those are where some stopped.

    >>> spread([-1.0, None, -2.0])
    '-1.50 ±0.71 (2 of 3 replicas)'
    """
    numbers = surviving(values)
    if not numbers:
        return "no replica left"
    deviation = f" ±{number(stdev(numbers))}" if len(numbers) > 1 else ""
    return f"{number(mean(numbers))}{deviation}{fewer(values)}"


def number(value: float) -> str:
    """Return a number so that it can be read; beyond a million that is its size.

    >>> number(-123.456), number(-1.2345e31)
    ('-123.46', '-1.23e+31')
    """
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.3g}"


def fewer(values: Sequence[float | None]) -> str:
    """Return how many replicas are left, in brackets, where that is not all of them."""
    count = len(surviving(values))
    return "" if count == len(values) else f" ({count} of {len(values)} replicas)"
