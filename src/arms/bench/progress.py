"""Progress of runs: a bar for each, or lines in a log; and a bar for a sweep."""

from time import perf_counter
from typing import TYPE_CHECKING, Self

from arms.bench.formatting import NO_REPLICA_LEFT, format_metric, format_survivors
from arms.bench.metrics import METRICS, Record, stopping_values, surviving

if TYPE_CHECKING:
    from rich.progress import TaskID

LINES_OF_A_RUN = 10
"""How many lines a run has in a log, if it is not slow."""
LINE_SECONDS = 30.0
"""How long a log waits for the next line of a slow run, which comes with its next record."""


class Bars:
    """Bars that appear with the first record, so that a mistake of the user is a single line.

    They fit into 80 columns. Where the output is no terminal and no notebook, lines take their
    place. Without the package rich nothing is shown.

    Args:
        on_stderr: Whether to write to stderr, and no lines there.
    """

    def __init__(self, *, on_stderr: bool = False) -> None:
        self.bars = self.console = None
        try:
            from rich import progress
            from rich.console import Console

            from arms.bench.terminal import get_console
        except ImportError:
            return
        console = Console(stderr=True) if on_stderr else get_console()
        if not console.is_terminal and not console.is_jupyter:
            self.console = None if on_stderr else console
            return
        self.bars = progress.Progress(
            progress.TextColumn("{task.description:<10}"),
            progress.BarColumn(bar_width=None),  # whatever the others leave
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[figures]}"),
            console=console,
            expand=True,
        )
        self.figures: dict[TaskID, str] = {}

    def watcher(self, label: str, steps: int) -> "Watcher":
        """Return a function of records that moves a bar of its own.

        Args:
            label: What stands before the bar.
            steps: How many there are in all.
        """
        return Watcher(self, label, steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None and self.bars.live.is_started:
            for task, text in self.figures.items():
                self.bars.update(task, figures=text)
            self.bars.stop()


class Watcher:
    """Shows the records of one run that it is called with; made by `Bars.watcher`."""

    def __init__(self, bars: Bars, label: str, steps: int) -> None:
        self._bars, self._label, self._steps = bars, label, steps
        self._task: TaskID | None = None
        self._shown_step, self._shown_at = 0, perf_counter()

    def start(self, step: int) -> None:
        """Say where a run resumes, in a log: a bar shows it."""
        self._shown_step = step
        if step:
            self._print(f"resumes at step {step:,} of {self._steps:,}")

    def __call__(self, record: Record) -> None:
        step = record["step"]
        if self._bars.bars is not None:
            self._move_bar(step, figures(record))
            return
        is_due = perf_counter() - self._shown_at >= LINE_SECONDS
        share = LINES_OF_A_RUN * step // self._steps
        if is_due or share > LINES_OF_A_RUN * self._shown_step // self._steps:
            self._shown_step, self._shown_at = step, perf_counter()
            self._print(f"step {step:,} of {self._steps:,}  {figures(record)}")

    def _move_bar(self, step: int, text: str) -> None:
        bars = self._bars.bars
        assert bars is not None
        if self._task is None:
            label = self._label.replace("[", r"\[")
            self._task = bars.add_task(label, total=self._steps, figures="")
            bars.start()
        self._bars.figures[self._task] = text
        # The last record comes before the final bounds, which may take longer than the training.
        last = step == self._steps
        shown = "evaluating" if last else text
        bars.update(self._task, completed=step, figures=shown, refresh=last)

    def _print(self, text: str) -> None:
        if self._bars.console is not None:
            line = f"{self._label}: {text}".replace("\n", "\\n")
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


class SweepBar:
    """One bar about a sweep, below the lines that are printed, on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        from arms.bench.terminal import get_console

        console = get_console()
        columns = BarColumn(bar_width=None), TextColumn("{task.description}")
        hidden = not console.is_terminal
        self._bar = Progress(*columns, console=console, expand=True, transient=True, disable=hidden)
        self._task = self._bar.add_task("", total=None)

    def show(self, ended: int, total: int, text: str) -> None:
        """Move the bar to that many of all runs, with a text beside it."""
        self._bar.update(self._task, completed=ended, total=total, description=text)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def figures(record: Record) -> str:
    """Return the mean of each metric for a progress bar, and how many replicas it is of."""
    alive = min(stopping_values(record).values(), key=lambda values: len(surviving(values)))
    if not surviving(alive):
        return NO_REPLICA_LEFT
    shown = [metric for key, metric in METRICS.items() if metric.in_progress and key in record]
    parts = [
        f"{metric.brief or metric.quantity} {format_metric(metric, record[metric.key])}"
        for metric in shown
    ]
    return "  ".join(parts) + format_survivors(alive)
