"""A limit on the time of training. How long its parts take is measured, so that it ends in time."""

import math
from time import time
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["start", "block", "save", "bounds"]
"""Of a training: all until its first steps are done, further steps, a save, a run's bounds."""


class OutOfTimeError(Exception):
    """The time is up. What was trained is saved, and can be resumed."""


class TimeLimit:
    """When training must have ended, and how long its parts have taken so far.

    The first part of each kind is not known in advance, so it may end too late.

    Args:
        minutes: From now on.
    """

    def __init__(self, minutes: float = math.inf) -> None:
        if not (isinstance(minutes, int | float) and minutes >= 0):
            raise ValueError(f"minutes must be a number >= 0, got {minutes!r}: 0 trains nothing")
        self._end = time() + 60 * minutes  # a clock that other processes share
        self._longest: dict[Part, float] = {}

    def add(self, part: Part, began: float) -> None:
        """Note that a part which began at that `time()` has just ended."""
        self._longest[part] = max(self._longest.get(part, 0.0), time() - began)

    def allows(self, *parts: Part) -> bool:
        """Whether there is time for all of these parts, each as long as the longest so far."""
        return time() + sum(self._longest.get(part, 0.0) for part in parts) < self._end
