"""What a run records while it trains."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]


def surviving(values: Sequence[float | None]) -> list[float]:
    """Return the numbers of the replicas that have not stopped.

    >>> surviving([-1.5, None, -2.5])
    [-1.5, -2.5]
    """
    return [value for value in values if value is not None]


def stopped_replicas(records: Iterable[Record]) -> dict[int, int]:
    """Return the replicas that have stopped, each with the step of the report that found it.

    >>> stopped_replicas([{"step": 10, "train_elbo": [-1.0, None]}, {"step": 20, "train_elbo": [-1.0, None]}])
    {1: 10}
    """
    found: dict[int, int] = {}
    for record in records:
        for replica, value in enumerate(record.get("train_elbo", [])):
            if value is None:
                found.setdefault(replica, record["step"])
    return found
