"""Numbers of a run's replicas as text, and names from files made safe to print."""

import math
import re
from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from arms.bench.metrics import Metric, surviving

NO_REPLICA_LEFT = "no replica left"
LARGEST = 1e100  # beyond it squares overflow: a number that size is as good as infinite
# Every control character but tab and line feed. Terminals obey some, and others reverse text.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_NAME = 255  # characters: no file system allows a longer name
LONGEST_WORD = 1000  # characters: few paths are longer


def is_drawable(value: float) -> bool:
    """Whether a number is finite, and small enough for means, deviations and axes."""
    return math.isfinite(value) and abs(value) < LARGEST


def format_mean_std(values: Sequence[float | None]) -> str:
    """Return mean and standard deviation over the surviving replicas, and how many those are."""
    numbers = surviving(values)
    if not numbers:
        return NO_REPLICA_LEFT
    # The deviation of numbers that are too large to draw may overflow.
    has_deviation = len(numbers) > 1 and all(map(is_drawable, numbers))
    deviation = f" ±{format_number(stdev(numbers))}" if has_deviation else ""
    return f"{format_number(mean(numbers))}{deviation}{format_survivors(values)}"


def format_number(value: float) -> str:
    """Return a number with two decimals, or from a million on with three digits and an exponent."""
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.3g}"


def format_metric(metric: Metric, values: Sequence[float | None]) -> str:
    """Return the mean of a metric over the surviving replicas, in the form that suits its axis."""
    numbers = surviving(values)
    if not numbers:
        return NO_REPLICA_LEFT
    return f"{mean(numbers):.2e}" if metric.scale == "log" else format_number(mean(numbers))


def format_survivors(values: Sequence[float | None]) -> str:
    """Return how many replicas survive, in brackets, or nothing where all of them do."""
    count = len(surviving(values))
    return "" if count == len(values) else f" ({count} of {len(values)} replicas)"


def printable(text: str) -> str:
    """Return a text with its control characters written out, so that no terminal obeys them."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shorten(name: str) -> str:
    """Return a name from a file, cut if it is longer than any name of a file."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}... ({len(name)} characters)"


def shorten_words(line: str, words: Iterable[str]) -> str:
    """Return a line in which long words of a command, and any other long words, are cut."""
    for word in words:
        for form in (word, repr(word)[1:-1]):
            if len(form) > LONGEST_NAME:
                line = line.replace(form, shorten(form))
    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda found: shorten(found[0]), line)
