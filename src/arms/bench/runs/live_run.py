"""A run while it trains, alone or in a pack: it reports and finishes on its own, and knows which replicas it has lost.

Replicas are independent of each other, so a number that is not finite stays in its replica: that one stops, and the
others go on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from arms.bench.config import TrainConfig
from arms.bench.metrics import METRICS, Record, stopping_values
from arms.bench.runs.directory import Events, Run, held

Watcher: TypeAlias = Callable[[Record], None]
"""Called with every report: step, and each metric as a list with one number a replica, None once it has stopped."""
Tell: TypeAlias = Callable[[str], None]
"""Called with a line that a user should read while training goes on."""


class DivergedError(ValueError):
    """No replica of a run is left."""


@dataclass(eq=False)
class Member:
    """A run, what it was asked for, and the replicas that have stopped, each with the step at which that was found."""

    run: Run
    config: TrainConfig
    tell: Tell
    watch: Watcher | None = None
    name: str = ""
    """What tells it from the others of its pack."""
    stopped: dict[int, int] = field(default_factory=dict)
    _watchers: list[Watcher] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or self.config.estimator

    @property
    def left(self) -> int:
        """How many replicas have not stopped."""
        return self.config.replicas - len(self.stopped)

    def is_finished(self) -> bool:
        """Whether there is nothing left to do; another run in its directory is refused."""
        return self.run.exists() and Run.create(self.run.path, self.config).result() is not None

    @contextmanager
    def going_on(self, step: int, device: str, together: Sequence[str]) -> Iterator["Member"]:
        """Go on from that step; whatever happens then, the provenance is written down."""
        with held(self.run.path):
            self.run.forget_after(step)
            self.stopped = self.run.stopped()
            events, start = Events(self.run.path, step), perf_counter()
            self._watchers = [events, *([self.watch] if self.watch else [])]
            try:
                yield self
            finally:
                events.close()
                self.run.describe(device, perf_counter() - start, together)

    def report(self, record: Record, finite: Sequence[bool]) -> Record:
        """Write a report and return it, None for every replica that has stopped; `finite` speaks of its parameters."""
        causes: dict[int, str] = {}
        for replica in self._going():
            lost = [METRICS[key] for key in stopping_values(record) if not math.isfinite(record[key][replica])]
            if lost or not finite[replica]:
                causes[replica] = f"{lost[0].words} is" if lost else "parameters are"
        self._stop(record["step"], causes)
        written = {name: value if name == "step" else self._masked(value) for name, value in record.items()}
        self.run.report(written)
        return written

    def show(self, record: Record) -> None:
        """Hand a report to TensorBoard and to whoever watches."""
        for watch in self._watchers:
            watch(record)

    def finish(self, result: Record) -> None:
        """Write the final bounds, None for every replica that has stopped; without any left, write nothing."""
        bounds = result["bounds"]
        causes = {}
        for replica in self._going():
            numbers = [values[replica] for of_split in bounds.values() for values in of_split.values()]
            if not all(map(math.isfinite, numbers)):
                causes[replica] = "final bound is"
        self._stop(self.config.steps, causes)
        if not self.left:
            return
        masked = {split: {k: self._masked(values) for k, values in of.items()} for split, of in bounds.items()}
        stopped = {str(replica): step for replica, step in sorted(self.stopped.items())}
        self.run.finish({**result, "bounds": masked, **({"stopped": stopped} if stopped else {})})

    def _going(self) -> list[int]:
        return [replica for replica in range(self.config.replicas) if replica not in self.stopped]

    def _masked(self, values: Sequence[float]) -> list[float | None]:
        return [None if replica in self.stopped else value for replica, value in enumerate(values)]

    def _stop(self, step: int, causes: Mapping[int, str]) -> None:
        """Stop some replicas, each for its cause, and say it in one line a cause."""
        self.stopped |= dict.fromkeys(causes, step)
        others = {0: "none is left, and the run ends", 1: "the other one goes on"}
        rest = others.get(self.left, f"the other {self.left} go on")
        for cause in dict.fromkeys(causes.values()):
            replicas = [str(replica) for replica, own in causes.items() if own == cause]
            who, whose = ("replicas", "their") if len(replicas) > 1 else ("replica", "its")
            which = f"{who} {', '.join(replicas)} of {self.name}"
            self.tell(f"{which} stopped at step {step}: {whose} {cause} not finite; {rest}")


def refuse_lost(members: Sequence[Member]) -> None:
    """Raise if a member has no replica left."""
    lost = [member for member in members if not member.left]
    if lost:
        where = " and of ".join(f"{member.run.path} (step {max(member.stopped.values())})" for member in lost)
        rates = max(member.config.learning_rate for member in lost)
        raise DivergedError(
            f"no replica is left of {where}: their numbers are not finite; "
            f"train anew with a learning_rate smaller than {rates:g}"
        )
