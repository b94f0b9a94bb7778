"""A sweep on any engine: hand out work while there is room, give it again where a worker was lost, and count."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Protocol

from arms.bench.ensemble import group_for_ensembles
from arms.bench.runs.loop import Notify
from arms.bench.sweeps.jobs import Job
from arms.bench.sweeps.worker import Kind, Outcome, Work

ATTEMPTS = 4
"""How often work is begun whose worker is lost each time: it may itself be what kills them."""
PAUSE = 1.0
"""Seconds between two looks at runs that another process trains."""


class Engine(Protocol):
    """Where work is carried out."""

    def slots(self) -> int:
        """How many works can be carried out at once, at least one."""
        ...

    def has_room(self) -> bool:
        """Whether one more work can be started now."""
        ...

    def start(self, work: Work) -> None:
        """Have work carried out; it returns at once."""
        ...

    def running(self) -> int:
        """How many works were started and not returned by `ended`."""
        ...

    def ended(self, seconds: float) -> list[tuple[Work, Outcome]]:
        """Return works that have ended, or nothing when that many seconds have passed."""
        ...


@dataclass
class Tally:
    """Runs of a sweep by what came of them."""

    total: int
    counts: Counter[Kind] = field(default_factory=Counter)
    running: int = 0
    trained: int = 0
    """Ended in this session: what time left is reckoned by."""
    began: float = field(default_factory=perf_counter)

    @property
    def ended(self) -> int:
        """Runs of which nothing more is to come."""
        return self.counts.total()

    def __str__(self) -> str:
        parts = [
            f"{self.counts['done']}/{self.total} done",
            f"{self.running} running",
            f"{self.counts['failed']} failed",
        ]
        parts += [f"{self.counts['diverged']} diverged"] if self.counts["diverged"] else []
        rest = self.total - self.ended
        if rest and self.trained:
            parts.append(f"{_in_words((perf_counter() - self.began) / self.trained * rest)} left")
        return ", ".join(parts)


def work_of(jobs: Iterable[Job], slots: int = 1) -> list[Work]:
    """Return what is left to train: an ensemble each on GPUs, a run each elsewhere; diverged runs stay as they are.

    Args:
        jobs: What `plan` returned.
        slots: How many works can be carried out at once: large ensembles are divided until none is idle.
    """
    found = []
    for job in jobs:
        of = {task.config: task for task in job.rest if task.state != "diverged"}
        # Runs that were begun at several precisions are one job, but not one ensemble.
        groups = group_for_ensembles(list(of)) if job.on_gpu else [[config] for config in of]
        found += [
            Work(tuple(group), tuple(of[config].path.resolve() for config in group))
            for group in groups
        ]
    return share_out(found, slots)


def share_out(works: Sequence[Work], slots: int) -> list[Work]:
    """Halve the largest ensembles until there are as many as slots, or only runs alone."""
    shares = list(works)
    while 0 < len(shares) < slots:
        largest = max(range(len(shares)), key=lambda index: len(shares[index].configs))
        work = shares[largest]
        if len(work.configs) == 1:
            break
        half = (len(work.configs) + 1) // 2
        shares[largest : largest + 1] = [
            Work(work.configs[:half], work.paths[:half]),
            Work(work.configs[half:], work.paths[half:]),
        ]
    return shares


def run_sweep(
    works: Sequence[Work],
    engine: Engine,
    tally: Tally,
    notify: Notify,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> None:
    """Carry out all work; whatever happens to workers, each run ends as done, diverged or failed in the tally.

    Args:
        works: What `work_of` returned.
        engine: Where to.
        tally: Counts of the whole sweep, in which this one's are entered.
        notify: Called with a line whenever work has ended.
        watch: Called with the tally at least once a second.
    """
    waiting, held, begun = deque(works), list[Work](), Counter[tuple[Path, ...]]()
    started: list[Work] = []
    told = False

    def count_running() -> int:
        # An engine may take more than it has room for, to have it at hand: the first that came are those that run.
        return sum(len(work.paths) for work in started[: engine.slots()])

    while waiting or held or engine.running():
        while waiting and engine.has_room():
            work = waiting.popleft()
            begun[work.paths] += 1
            started.append(work)
            engine.start(work)
        tally.running = count_running()
        watch(tally)
        if (
            not engine.running()
        ):  # all that is left is another process's: it will end it, or die and leave it to us
            if not told:
                notify(
                    f"waiting for {sum(len(work.paths) for work in held)} runs that another process trains"
                )
            told = True
            sleep(PAUSE)
            waiting.extend(held)
            held.clear()
            continue
        for work, outcome in engine.ended(PAUSE):
            started.remove(work)
            for line in outcome.lines:
                notify(f"{work}: {line}")
            if outcome.kind == "busy":
                begun[work.paths] -= 1
                held.append(work)
            elif outcome.kind == "lost" and begun[work.paths] < ATTEMPTS:
                waiting.append(work)
            else:
                kind: Kind = "failed" if outcome.kind == "lost" else outcome.kind
                tally.counts[kind] += len(work.paths)
                tally.trained += len(work.paths)
                tally.running = count_running()
                notify(f"{tally}: {work} {kind}")
    tally.running = 0
    watch(tally)


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
