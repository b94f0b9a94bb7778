"""From configurations to jobs: which runs are done, unfinished or missing, and which are trained together.

Nothing here trains or writes anything. A run is recognised by the identity in its config.json, never by the name of its
folder. Precision decides digits but not the experiment: a finished run of any precision will do, since what precision
moves is far below what seeds do (benchmarks/results/precision.json).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from arms.bench.config import Precision, TrainConfig, digest_of, identity, run_name
from arms.bench.ensemble import group_for_ensembles
from arms.bench.runs.archives import find_runs
from arms.bench.runs.files import check_local
from arms.bench.runs.run import Run

State: TypeAlias = Literal["done", "unfinished", "diverged", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Task:
    """A run that is wanted, where it is or will be, and how far it has come."""

    config: TrainConfig
    """As asked for, but with the precision of the run that was found."""
    path: Path
    state: State
    step: int = 0


@dataclass(frozen=True)
class Job:
    """Runs that are trained together: one ensemble on a GPU, one run elsewhere."""

    tasks: Sequence[Task]
    on_gpu: bool

    @property
    def rest(self) -> list[Task]:
        """What is not done."""
        return [task for task in self.tasks if task.state != "done"]

    def line(self) -> str:
        """Return the job in one line: its runs by state."""
        config = self.tasks[0].config
        parts = [
            f"{_described(state, same)} {_names(same)}"
            for state in STATES
            for same in _alike([task for task in self.tasks if task.state == state])
        ]
        return (
            f"{config.network}, n = {config.num_samples}, R = {config.replicas}: {'; '.join(parts)}"
        )


def plan(
    wanted: Sequence[TrainConfig],
    output: Path | str,
    *,
    results: Iterable[Path | str] = (),
    precision: Precision | None = "highest",
    on_gpu: bool = False,
) -> list[Job]:
    """Return the jobs behind some runs, those that are done included.

    Args:
        wanted: What is asked for, at any precision.
        output: Folder of runs that are trained here: finished ones count, unfinished ones will be resumed.
        results: Further folders, or archives, in which finished runs count.
        precision: Of what is still missing, None for what each asks for; a run that was begun at another keeps its own.
        on_gpu: Whether runs are trained together where they can be.
    """
    check_local(Path(output))
    here, elsewhere = _by_experiment([output]), _by_experiment(results)
    tasks = {}
    for config in wanted:
        asked = replace(config, precision=precision) if precision else config
        key = _experiment(identity(config))
        tasks[asked] = _task(asked, Path(output), here.get(key, []), elsewhere.get(key, []))
    groups = group_for_ensembles(list(tasks)) if on_gpu else [[config] for config in tasks]
    return [Job([tasks[config] for config in together], on_gpu) for together in groups]


def totals(jobs: Sequence[Job]) -> str:
    """Return all jobs in one line."""
    tasks = [task for job in jobs for task in job.tasks]
    counts = {state: sum(task.state == state for task in tasks) for state in STATES}
    shown = ", ".join(
        f"{count} {state}" for state, count in counts.items() if count or state != "diverged"
    )
    return f"total: {len(tasks)} runs in {len(jobs)} jobs: {shown}"


def _by_experiment(folders: Iterable[Path | str]) -> Mapping[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for folder in folders:
        for run in find_runs(folder):
            found.setdefault(_experiment(run.identity()), []).append(run)
    return found


def _experiment(identity: Mapping[str, object]) -> str:
    """Return a digest of an identity without its precision."""
    return digest_of({name: value for name, value in identity.items() if name != "precision"})


def _task(config: TrainConfig, output: Path, here: Sequence[Run], elsewhere: Sequence[Run]) -> Task:
    """Return how far a run has come: the best that was found, at the precision asked for if there is a choice."""
    finished = [run for run in (*here, *elsewhere) if _holds(run.is_finished)]
    found = min(
        finished or here,
        key=lambda run: (run.config().precision != config.precision, -run.step()),
        default=None,
    )
    if found is None:
        return Task(config, output / run_name(config), "missing")
    own = replace(config, precision=found.config().precision)
    if finished:
        return Task(own, found.path, "done", config.steps)
    state: State = "diverged" if _holds(found.has_diverged) else "unfinished"
    return Task(own, found.path, state, found.step())


def _holds(question: Callable[[], bool]) -> bool:
    """Return the answer of a run, False for a damaged one: its worker reports that, and others go on."""
    with suppress(ValueError):
        return question()
    return False


def _alike(tasks: Sequence[Task]) -> list[list[Task]]:
    """Sort tasks of one state into those of the same precision and step."""
    found: dict[object, list[Task]] = {}
    for task in tasks:
        found.setdefault((task.config.precision, task.step), []).append(task)
    return list(found.values())


def _described(state: State, tasks: Sequence[Task]) -> str:
    config, step = tasks[0].config, tasks[0].step
    how = f"step {step:,} of {config.steps:,}, " if state in ("unfinished", "diverged") else ""
    return f"{len(tasks)} {state} ({how}{config.precision})"


def _names(tasks: Sequence[Task]) -> str:
    """Return the estimators of each data set."""
    of: dict[str, list[str]] = {}
    for task in tasks:
        of.setdefault(task.config.dataset, []).append(task.config.label)
    return ", ".join(f"{dataset} {' '.join(estimators)}" for dataset, estimators in of.items())
