"""Output for users: numbers and names as text, the console, and progress bars.

Names may come from untrusted files. The console shows control characters as text, because an escape
sequence in a name could clear the screen, hide lines or set the window's title.
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
LARGEST = 1e100  # larger numbers are treated as infinite, because their squares may overflow
# All control characters except tab and line feed. Some control the terminal or reverse text.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_NAME = 255  # characters; no file system allows a longer name
LONGEST_WORD = 1000  # characters; few paths are longer
MIN_WIDTH = 40
"""The smallest width of the console, in characters. With COLUMNS=0, rich would print nothing."""
LONGEST_HIGHLIGHTED = 1000
"""The longest text in which rich highlights numbers, because this takes time quadratic in the
length."""
LINES_OF_A_RUN = 10
"""The number of log lines of a run. A slow run prints more lines (LINE_SECONDS)."""
LINE_SECONDS = 30.0
"""If a run has printed no log line for this many seconds, the run's next record prints a line."""


# ---- numbers and names as text


def is_drawable(value: float) -> bool:
    """Return whether a number is finite, and small enough to be averaged and drawn."""
    return math.isfinite(value) and abs(value) < LARGEST


def format_mean_std(values: Sequence[float | None]) -> str:
    """Return the text "mean ± standard deviation" for the values of the surviving replicas.

    A stopped replica has the value None. If a replica has stopped, the text also says how many
    survive.
    """
    numbers = surviving(values)
    if not numbers:
        return NO_REPLICA_LEFT
    # The standard deviation of very large numbers may overflow.
    has_deviation = len(numbers) > 1 and all(map(is_drawable, numbers))
    deviation = f" ±{format_number(stdev(numbers))}" if has_deviation else ""
    return f"{format_number(mean(numbers))}{deviation}{format_survivors(values)}"


def format_number(value: float) -> str:
    """Return a number as text: with two decimals, or in the form 1.23e+06 from a million on."""
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.3g}"


def format_metric(metric: Metric, values: Sequence[float | None]) -> str:
    """Return, as text, a metric's mean over the surviving replicas.

    A stopped replica has the value None.
    """
    numbers = surviving(values)
    if not numbers:
        return NO_REPLICA_LEFT
    return f"{mean(numbers):.2e}" if metric.scale == "log" else format_number(mean(numbers))


def format_survivors(values: Sequence[float | None]) -> str:
    """Return a text such as " (3 of 5 replicas)", or "" if all replicas survive.

    A stopped replica has the value None.
    """
    count = len(surviving(values))
    return "" if count == len(values) else f" ({count} of {len(values)} replicas)"


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal only shows them."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shorten(name: str) -> str:
    """Return a name. If it has more than LONGEST_NAME characters, cut it and append its length."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}... ({len(name)} characters)"


def shorten_words(line: str, words: Iterable[str]) -> str:
    """Return a line with its long words cut.

    A word that is listed in `words` is cut after LONGEST_NAME characters. Any other word is cut if
    it has LONGEST_WORD characters or more.
    """
    for word in words:
        for form in (word, repr(word)[1:-1]):
            if len(form) > LONGEST_NAME:
                line = line.replace(form, shorten(form))
    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda found: shorten(found[0]), line)


def describe_result(result: Record) -> str:
    """Describe the bounds on test images in one line. `result` is the content of result.json."""
    bounds = result["bounds"].get("test", {})
    shown = [str(count) for count in (1, TEST_BOUND_SAMPLES) if str(count) in bounds]
    parts = [f"K={count} {format_mean_std(bounds[count])}" for count in shown]
    over = f" over {result['images']:,} images of each split" if "images" in result else ""
    note = f", {result['note']}" if result["note"] else ""
    return f"test bound {', '.join(parts) or 'missing'}{over}{note}"


# ---- the console


class SafeConsole(Console):
    """A console that shows control characters as text, and survives a closed pipe.

    If the program that reads the output ends early, as `head` does, the console prints nothing
    more, and training continues. The exit code then says that output was lost.
    """

    reader_left = False
    """Whether the program that reads the output has closed the pipe."""

    def on_broken_pipe(self) -> None:
        """Stop printing, because the pipe's reader has closed it. (Rich would end the process.)"""
        self.quiet = True
        self.reader_left = True
        # Otherwise, Python would try to write the remaining output at exit, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a string to a `Text` of rich. Control characters become visible text.

        Rich calls this method for every string that it prints.
        """
        if len(text) > LONGEST_HIGHLIGHTED:
            options["highlight"] = False
        return super().render_str(printable(text), **options)


@cache
def get_console() -> SafeConsole:
    """Return the console for stdout. All callers get the same object.

    Because lines and progress bars use the same console, printed lines appear above the bars.
    """
    console = SafeConsole(emoji=False)  # ":car:" in a name stays text
    if console.width < MIN_WIDTH:
        console.width = MIN_WIDTH
    return console


def print_markup(line: str) -> None:
    """Print a line that contains rich's markup. The line is not wrapped, so paths can be copied.

    A line break inside `line` is shown as text, so that the name of a run cannot add lines.
    """
    get_console().print(line.replace("\n", "\\n"), soft_wrap=True)


def print_plain(line: str) -> None:
    """Print a line exactly as given. Markup of rich is not interpreted."""
    print_markup(escape(line))


def print_table(table: Table) -> None:
    """Print a table. On a narrow terminal, long words continue on the next line of their cell."""
    for column in table.columns:
        column.overflow = "fold"  # by default, rich cuts long words
    get_console().print(table)


def print_paths(paths: Sequence[Path]) -> None:
    """Print each path on a line of its own."""
    for path in paths:
        print_markup(f"[bold]{escape(str(path))}")


# ---- progress


class Bars(Progress):
    """Progress bars for runs. Outside a terminal or notebook, runs print log lines instead.

    The bars appear with the first record, so an earlier error leaves no bar above its message. The
    bars fit into 80 columns. If `on_stderr` is true, no log lines are printed.
    """

    def __init__(self, *, on_stderr: bool = False) -> None:
        console = Console(stderr=True) if on_stderr else get_console()
        has_bars = console.is_terminal or console.is_jupyter
        super().__init__(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),  # takes the remaining width
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
        return self  # the first record starts the bars

    def __exit__(self, *_: object) -> None:
        if self.figures:
            for task, text in self.figures.items():
                self.update(task, figures=text)
            self.stop()


class Watcher:
    """Shows the records of one run, as a progress bar or as log lines."""

    def __init__(self, bars: Bars, label: str, steps: int) -> None:
        self._bars, self._label, self._steps = bars, label, steps
        self._task: TaskID | None = None
        self._shown_step, self._shown_at = 0, perf_counter()

    def start(self, step: int) -> None:
        """Print a log line with the step from which the run resumes, unless `step` is 0.

        If a progress bar is shown, print nothing, because the bar shows the step.
        """
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
        # After the last record, the final bounds are computed, which may take longer than training.
        last = step == self._steps
        shown = "evaluating" if last else text
        self._bars.update(self._task, completed=step, figures=shown, refresh=last)

    def _print(self, text: str) -> None:
        if self._bars.has_lines:
            print_plain(f"{self._label}: {text}")


class SweepBar(Progress):
    """A progress bar for a sweep. The bar is below the printed lines, and only on a terminal."""

    def __init__(self, *, hidden: bool = False) -> None:
        console = get_console()
        disable = hidden or not console.is_terminal
        columns = BarColumn(bar_width=None), TextColumn("{task.description}")
        super().__init__(*columns, console=console, expand=True, transient=True, disable=disable)
        self._task = self.add_task("", total=None)

    def show(self, ended: int, total: int, text: str) -> None:
        """Set the bar to `ended` of `total` runs, and show `text` beside it."""
        self.update(self._task, completed=ended, total=total, description=text)


def figures(record: Record) -> str:
    """Return the text beside a progress bar: each metric's mean over the surviving replicas.

    If a replica has stopped, the text also says how many survive.
    """
    alive = min(stopping_values(record).values(), key=lambda values: len(surviving(values)))
    if not surviving(alive):
        return NO_REPLICA_LEFT
    parts = [
        f"{metric.brief or metric.quantity} {format_metric(metric, record[key])}"
        for key, metric in METRICS.items()
        if metric.in_progress and key in record
    ]
    return "  ".join(parts) + format_survivors(alive)
