"""A time limit for training, which uses the measured durations of earlier parts."""

import math
from time import time
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["start", "block", "save", "bounds"]
"""A part of training: `start` lasts until the end of the first block of steps, `block` is a further
block of steps, `save` writes a checkpoint, and `bounds` computes the final bounds."""


class OutOfTimeError(Exception):
    """Raised if the time limit was reached. The training was saved, and can be resumed."""


class TimeLimit:
    """A time limit for training. It predicts the duration of a part from earlier parts.

    The first part of each kind may exceed the limit, because no earlier duration is known.

    Args:
        minutes: The limit, counted from now.
    """

    def __init__(self, minutes: float = math.inf) -> None:
        if not (isinstance(minutes, int | float) and minutes >= 0):
            raise ValueError(f"minutes must be a number >= 0, got {minutes!r}: 0 trains nothing")
        self._end = time() + 60 * minutes  # a clock that all processes share
        self._longest: dict[Part, float] = {}

    def add(self, part: Part, began: float) -> None:
        """Record the duration of a part that began at the time `began` and ends now."""
        self._longest[part] = max(self._longest.get(part, 0.0), time() - began)

    def allows(self, *parts: Part) -> bool:
        """Return whether all of these parts, one after the other, would end before the limit.

        Each part is expected to take as long as the longest earlier part of its kind.
        """
        return time() + sum(self._longest.get(part, 0.0) for part in parts) < self._end
