"""Progress bars: one for each run, with its newest numbers, or one for a whole sweep; they fit into 80 columns."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from arms.bench.formatting import NO_REPLICA_LEFT, format_metric, format_survivors
from arms.bench.metrics import METRICS, Record, stopping_values, surviving

if TYPE_CHECKING:
    from rich.progress import TaskID

Watcher: TypeAlias = Callable[[Record], None]


class Bars:
    """Bars that appear with the first record: a mistake of the user is a single line before them.

    Args:
        on_stderr: Whether to write to stderr, and nothing at all unless that is a terminal or a notebook: what a script
            prints stays its own. Without the package rich there are none.
    """

    def __init__(self, *, on_stderr: bool = False) -> None:
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            from arms.bench.terminal import get_console
        except ImportError:
            self._bars = None
            return
        console = Console(stderr=True) if on_stderr else get_console()
        shows = not on_stderr or console.is_terminal or console.is_jupyter
        self._bars = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),  # whatever the others leave
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=console,
            expand=True,
            disable=not shows,
        )
        self._figures: dict[TaskID, str] = {}

    def watcher(self, label: str, steps: int) -> Watcher:
        """Return a function of records that moves a bar of its own.

        Args:
            label: What stands before the bar.
            steps: How many there are in all.
        """
        tasks: list[TaskID] = []
        bars = self._bars

        def watch(record: Record) -> None:
            if bars is None:
                return
            if not tasks:
                tasks.append(bars.add_task(label.replace("[", r"\["), total=steps, figures=""))
                bars.start()
            self._figures[tasks[0]] = figures(record)
            # The last record comes before the final bounds, which may take longer than the training.
            last = record["step"] == steps
            shown = "evaluating" if last else self._figures[tasks[0]]
            bars.update(tasks[0], completed=record["step"], figures=shown, refresh=last)

        return watch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None and self._bars.live.is_started:
            for task, text in self._figures.items():
                self._bars.update(task, figures=text)
            self._bars.stop()


class SweepBar:
    """One bar about a sweep, below the lines that are printed, on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        from arms.bench.terminal import get_console

        console = get_console()
        self._bar = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            console=console,
            expand=True,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def show(self, ended: int, total: int, text: str) -> None:
        """Move the bar.

        Args:
            ended: How many runs have.
            total: Out of how many.
            text: What stands beside the bar.
        """
        self._bar.update(self._task, completed=ended, total=total, description=text)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()


def figures(record: Record) -> str:
    """Return what a progress bar shows beside the step: the mean of each metric, and how many replicas it is of."""
    alive = min(stopping_values(record).values(), key=lambda values: len(surviving(values)))
    if not surviving(alive):
        return NO_REPLICA_LEFT
    shown = [metric for key, metric in METRICS.items() if metric.in_progress and key in record]
    parts = [
        f"{metric.brief or metric.quantity} {format_metric(metric, record[metric.key])}"
        for metric in shown
    ]
    return "  ".join(parts) + format_survivors(alive)
