"""A run while it trains, alone or in an ensemble: it writes its own records and result, and knows its lost replicas.

Replicas are independent of each other, so a number that is not finite stays in its replica: that one stops, and the
others continue.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from arms.bench.config import TrainConfig, is_longer
from arms.bench.metrics import METRICS, Record, stopping_values
from arms.bench.runs.directory import Run
from arms.bench.runs.tensorboard import TensorBoardEvents

OnRecord: TypeAlias = Callable[[Record], None]
"""Called with every record: step, and each metric as a list with one number per replica, None once it has stopped."""
Notify: TypeAlias = Callable[[str], None]
"""Called with a line that a user should read while training continues."""


class DivergedError(ValueError):
    """No replica of a run survives."""


@dataclass(eq=False)
class LiveRun:
    """A run, what it was asked for, and the replicas that have stopped, each with the step that showed it."""

    run: Run
    config: TrainConfig
    notify: Notify
    on_record: OnRecord | None = None
    name: str = ""
    """What tells it from the others of its ensemble."""
    images: int | None = None
    """Images of each split in the final bounds; all unless given."""
    stopped: dict[int, int] = field(default_factory=dict)
    _listeners: list[OnRecord] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or self.config.label

    @property
    def surviving(self) -> int:
        """How many replicas have not stopped."""
        return self.config.replicas - len(self.stopped)

    def is_finished(self) -> bool:
        """Whether nothing remains to be done; a directory that cannot be this run's is an error."""
        return self.run.is_finished(self.config, self.images)

    def is_lengthened(self) -> bool:
        """Whether more steps are asked for than the run was begun with."""
        return self.run.exists() and is_longer(self.config, self.run.config())

    @contextmanager
    def session(self, step: int, device: str, together: Sequence[str]) -> Iterator["LiveRun"]:
        """Start or resume at that step; whatever happens then, the provenance is written down."""
        self.run.truncate_after(step)
        self.stopped = self.run.stopped()
        events, start = TensorBoardEvents(self.run.path, step), perf_counter()
        self._listeners = [events, *([self.on_record] if self.on_record else [])]
        try:
            yield self
        finally:
            events.close()
            self.run.write_provenance(device, perf_counter() - start, together)

    def append(self, record: Record, finite: Sequence[bool]) -> Record:
        """Write a record and return it, None for every replica that has stopped; `finite` is of its parameters."""
        causes: dict[int, str] = {}
        for replica in self._running():
            lost = [
                METRICS[key]
                for key in stopping_values(record)
                if not math.isfinite(record[key][replica])
            ]
            if lost or not finite[replica]:
                causes[replica] = f"{lost[0].words} is" if lost else "parameters are"
        self._stop(record["step"], causes)
        written = {
            name: value if name == "step" else self._masked(value) for name, value in record.items()
        }
        self.run.append(written)
        return written

    def show(self, record: Record) -> None:
        """Hand a record to TensorBoard and to the user's `on_record`."""
        for listener in self._listeners:
            listener(record)

    def finish(self, result: Record) -> None:
        """Write the final bounds, None for every replica that has stopped; if none survives, write nothing."""
        bounds = result["bounds"]
        causes = {}
        for replica in self._running():
            numbers = [
                values[replica] for of_split in bounds.values() for values in of_split.values()
            ]
            if not all(map(math.isfinite, numbers)):
                causes[replica] = "final bound is"
        self._stop(self.config.steps, causes)
        if not self.surviving:
            return
        masked = {
            split: {k: self._masked(values) for k, values in of.items()}
            for split, of in bounds.items()
        }
        stopped = {str(replica): step for replica, step in sorted(self.stopped.items())}
        self.run.finish({**result, "bounds": masked, **({"stopped": stopped} if stopped else {})})

    def _running(self) -> list[int]:
        return [replica for replica in range(self.config.replicas) if replica not in self.stopped]

    def _masked(self, values: Sequence[float]) -> list[float | None]:
        return [None if replica in self.stopped else value for replica, value in enumerate(values)]

    def _stop(self, step: int, causes: Mapping[int, str]) -> None:
        """Stop some replicas, each for its cause, and notify the user with one line per cause."""
        self.stopped |= dict.fromkeys(causes, step)
        others = {0: "none survives, and the run ends", 1: "the other one continues"}
        rest = others.get(self.surviving, f"the other {self.surviving} continue")
        for cause in dict.fromkeys(causes.values()):
            replicas = [str(replica) for replica, own in causes.items() if own == cause]
            who, whose = ("replicas", "their") if len(replicas) > 1 else ("replica", "its")
            which = f"{who} {', '.join(replicas)} of {self.name}"
            self.notify(f"{which} stopped at step {step}: {whose} {cause} not finite; {rest}")


def unfinished(live_runs: Sequence[LiveRun]) -> list[LiveRun]:
    """Return the runs that are not finished, each knowing the replicas that it has lost."""
    found = [live for live in live_runs if not live.is_finished()]
    for live in found:
        live.stopped = live.run.stopped()
    return found


def check_survivors(live_runs: Sequence[LiveRun]) -> None:
    """Raise if a run has no replica that survives."""
    lost = [live for live in live_runs if not live.surviving]
    if lost:
        where = " and of ".join(
            f"{live.run.path} (step {max(live.stopped.values())})" for live in lost
        )
        rates = max(live.config.learning_rate for live in lost)
        raise DivergedError(
            f"no replica survives of {where}: their numbers are not finite; "
            f"train in another directory with a learning_rate below {rates:g}"
        )
