"""Output for users: numbers and names as text, the console, and progress.

Names may come from other people's files. The console shows control characters in them as text,
because an escape sequence could clear the screen, hide lines or set the title.
"""

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from arms.bench.metrics import (
    METRICS,
    TEST_BOUND_SAMPLES,
    Metric,
    Record,
    stopping_values,
    surviving,
)

NO_REPLICA_LEFT = "no replica left"
LARGEST = 1e100  # beyond it squares overflow: a number that size is as good as infinite
# Every control character but tab and line feed. Terminals obey some, and others reverse text.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_NAME = 255  # characters: no file system allows a longer name
LONGEST_WORD = 1000  # characters: few paths are longer
MIN_WIDTH = 40
"""Narrower tables have empty cells. At width 0, which COLUMNS=0 asks for, rich prints nothing."""
LONGEST_HIGHLIGHTED = 1000
"""In characters. The time in which rich finds numbers in a long word grows with its square."""
LINES_OF_A_RUN = 10
"""How many lines a run has in a log, if it is not slow."""
LINE_SECONDS = 30.0
"""How long a log waits for the next line of a slow run, which comes with its next record."""


# ---- numbers and names as text


def is_drawable(value: float) -> bool:
    """Return whether a number is finite, and small enough for means, deviations and axes."""
    return math.isfinite(value) and abs(value) < LARGEST


def format_mean_std(values: Sequence[float | None]) -> str:
    """Return mean, standard deviation and number of the surviving replicas."""
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
    """Return how many replicas survive, in parentheses, or nothing if all do."""
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


def describe_result(result: Record) -> str:
    """Return the final bounds of a run on the test set."""
    bounds = result["bounds"].get("test", {})
    shown = [str(count) for count in (1, TEST_BOUND_SAMPLES) if str(count) in bounds]
    parts = [f"K={count} {format_mean_std(bounds[count])}" for count in shown]
    over = f" over {result['images']:,} images of each split" if "images" in result else ""
    note = f", {result['note']}" if result["note"] else ""
    return f"test bound {', '.join(parts) or 'missing'}{over}{note}"


# ---- the console


class SafeConsole(Console):
    """A console that prints control characters as text, and nothing once its reader has left.

    Training then continues, because it is worth more than its output. The exit code shows it.
    """

    reader_left = False
    """Whether the reader of the output has left before its end."""

    def on_broken_pipe(self) -> None:
        """Stop printing. Rich's own console would end the process here."""
        self.quiet = True
        self.reader_left = True
        # Python would otherwise try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich's text. Rich calls this for every string, also in tables."""
        if len(text) > LONGEST_HIGHLIGHTED:
            options["highlight"] = False
        return super().render_str(printable(text), **options)


@cache
def get_console() -> SafeConsole:
    """Return the console on stdout, always the same one: lines then appear above a progress bar."""
    console = SafeConsole(emoji=False)  # ":car:" in a name is no picture
    if console.width < MIN_WIDTH:
        console.width = MIN_WIDTH
    return console


def print_markup(line: str) -> None:
    """Print a line with rich's markup, unbroken, so that paths in it can be copied.

    Line breaks are written out: with one in its name, a run could add lines about other runs.
    """
    get_console().print(line.replace("\n", "\\n"), soft_wrap=True)


def print_plain(line: str) -> None:
    """Print a line as it is: it may contain anything, such as a path with brackets."""
    print_markup(escape(line))


def print_table(table: Table) -> None:
    """Print a table; on a narrow terminal, long words continue on the next line of their cell."""
    for column in table.columns:
        column.overflow = "fold"  # the default replaces the rest of a word by "…"
    get_console().print(table)


def print_paths(paths: Sequence[Path]) -> None:
    """Print the files that a verb has written."""
    for path in paths:
        print_markup(f"[bold]{escape(str(path))}")


# ---- progress


class Bars(Progress):
    """A bar for each run, or lines where the output is no terminal and no notebook.

    Bars appear with the first record, so that a mistake of the user is a single line. They fit into
    80 columns. On stderr there are no lines.
    """

    def __init__(self, *, on_stderr: bool = False) -> None:
        console = Console(stderr=True) if on_stderr else get_console()
        has_bars = console.is_terminal or console.is_jupyter
        super().__init__(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),  # whatever the others leave
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=console,
            expand=True,
            disable=not has_bars,
        )
        self.has_lines = not has_bars and not on_stderr
        self.figures: dict[TaskID, str] = {}

    def __enter__(self) -> Self:
        return self  # the first record starts them

    def __exit__(self, *_: object) -> None:
        if self.figures:
            for task, text in self.figures.items():
                self.update(task, figures=text)
            self.stop()


class Watcher:
    """Shows the records of one run, which it is called with, as a bar with a label or as lines."""

    def __init__(self, bars: Bars, label: str, steps: int) -> None:
        self._bars, self._label, self._steps = bars, label, steps
        self._task: TaskID | None = None
        self._shown_step, self._shown_at = 0, perf_counter()

    def start(self, step: int) -> None:
        """Print the step at which a run resumes, in a log; a bar shows it by itself."""
        self._shown_step = step
        if step:
            self._print(f"resumes at step {step:,} of {self._steps:,}")

    def __call__(self, record: Record) -> None:
        step, text = record["step"], figures(record)
        if not self._bars.has_lines:
            self._move_bar(step, text)
            return
        is_due = perf_counter() - self._shown_at >= LINE_SECONDS
        share = LINES_OF_A_RUN * step // self._steps
        if is_due or share > LINES_OF_A_RUN * self._shown_step // self._steps:
            self._shown_step, self._shown_at = step, perf_counter()
            self._print(f"step {step:,} of {self._steps:,}  {text}")

    def _move_bar(self, step: int, text: str) -> None:
        if self._task is None:
            self._task = self._bars.add_task(escape(self._label), total=self._steps, figures="")
            self._bars.start()
        self._bars.figures[self._task] = text
        # The last record comes before the final bounds, which may take longer than the training.
        last = step == self._steps
        shown = "evaluating" if last else text
        self._bars.update(self._task, completed=step, figures=shown, refresh=last)

    def _print(self, text: str) -> None:
        if self._bars.has_lines:
            print_plain(f"{self._label}: {text}")


class SweepBar(Progress):
    """One bar for a sweep, below the printed lines, on a terminal; nothing elsewhere."""

    def __init__(self, *, hidden: bool = False) -> None:
        console = get_console()
        disable = hidden or not console.is_terminal
        columns = BarColumn(bar_width=None), TextColumn("{task.description}")
        super().__init__(*columns, console=console, expand=True, transient=True, disable=disable)
        self._task = self.add_task("", total=None)

    def show(self, ended: int, total: int, text: str) -> None:
        """Move the bar to that many of all runs, with a text beside it."""
        self.update(self._task, completed=ended, total=total, description=text)


def figures(record: Record) -> str:
    """Return the mean of each metric for a progress bar, and how many replicas it is of."""
    alive = min(stopping_values(record).values(), key=lambda values: len(surviving(values)))
    if not surviving(alive):
        return NO_REPLICA_LEFT
    parts = [
        f"{metric.brief or metric.quantity} {format_metric(metric, record[key])}"
        for key, metric in METRICS.items()
        if metric.in_progress and key in record
    ]
    return "  ".join(parts) + format_survivors(alive)
