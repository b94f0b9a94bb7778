"""A time limit for training, which uses the measured durations of earlier parts."""

import math
from time import time
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["start", "block", "save", "bounds"]
"""A part of training: up to the end of the first steps, further steps, a save, or final bounds."""


class OutOfTimeError(Exception):
    """The time limit was reached. The training was saved, and can be resumed."""


class TimeLimit:
    """A time limit, with the durations of all parts so far.

    The first part of each kind may exceed the limit, because its duration is not known in advance.

    Args:
        minutes: The limit, counted from now.
    """

    def __init__(self, minutes: float = math.inf) -> None:
        if not (isinstance(minutes, int | float) and minutes >= 0):
            raise ValueError(f"minutes must be a number >= 0, got {minutes!r}: 0 trains nothing")
        self._end = time() + 60 * minutes  # a clock that all processes share
        self._longest: dict[Part, float] = {}

    def add(self, part: Part, began: float) -> None:
        """Record the duration of a part that began at `began` and ends now."""
        self._longest[part] = max(self._longest.get(part, 0.0), time() - began)

    def allows(self, *parts: Part) -> bool:
        """Return whether all these parts fit, if each takes its longest duration so far."""
        return time() + sum(self._longest.get(part, 0.0) for part in parts) < self._end
