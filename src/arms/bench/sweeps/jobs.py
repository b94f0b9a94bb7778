"""Convert configurations to jobs: find the finished runs, and group the other runs.

This module neither trains runs nor writes files. A run is recognized by the identity in its
config.json, not by the name of its folder. A finished run counts at any precision, because the
precision affects the results far less than the seed (benchmarks/results/precision.json).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from arms.bench.config import TrainConfig, digest_of, identity, run_name
from arms.bench.runs.archives import find_runs
from arms.bench.runs.ensemble import group_for_ensembles
from arms.bench.runs.files import check_local
from arms.bench.runs.run import Run

State: TypeAlias = Literal["done", "unfinished", "diverged", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Task:
    """A requested run, with its directory and its progress.

    `config` is the requested configuration, except that it has the precision of the existing run if
    the run exists.
    """

    config: TrainConfig
    path: Path
    state: State
    step: int = 0

    def __str__(self) -> str:
        is_begun = self.state in ("unfinished", "diverged")
        step = f", step {self.step:,} of {self.config.steps:,}" if is_begun else ""
        return f"{self.config.dataset} {self.config.label} ({self.config.precision}{step})"


@dataclass(frozen=True)
class Job:
    """Runs that one worker trains together: an ensemble on a GPU, or a single run on a CPU."""

    tasks: tuple[Task, ...]

    def __str__(self) -> str:
        others = f" and {len(self.tasks) - 1} more" if len(self.tasks) > 1 else ""
        return f"{self.tasks[0].path.name}{others}"

    def line(self) -> str:
        """Return one line of text that lists the job's runs, grouped by their state."""
        config, by_state = self.tasks[0].config, dict[State, list[str]]()
        for task in sorted(self.tasks, key=lambda task: STATES.index(task.state)):
            by_state.setdefault(task.state, []).append(str(task))
        about = f"{config.network}, n = {config.num_samples}, R = {config.replicas}"
        parts = [f"{len(names)} {state}: {', '.join(names)}" for state, names in by_state.items()]
        return "; ".join([about, *parts])


def plan(
    wanted: Sequence[TrainConfig],
    output: Path | str,
    *,
    results: Sequence[Path | str] = (),
    on_gpu: bool = False,
) -> list[Job]:
    """Return jobs that contain all wanted runs, including the finished runs.

    Finished runs in `output` and in `results` will not be trained again. Unfinished runs in
    `output` will be resumed with their old precision. If `on_gpu` is true, runs that can be trained
    together are in one job.
    """
    check_local(Path(output))
    for folder in results:
        if not Path(folder).exists():
            what = f"results must name existing folders or archives, got {folder}"
            raise ValueError(f"{what}: check the path")
    here, elsewhere = _by_experiment([output]), _by_experiment(results)
    once = {experiment_of(config): config for config in reversed(wanted)}
    tasks = {
        config: _task(config, Path(output), here.get(key, []), elsewhere.get(key, []))
        for key, config in reversed(once.items())
    }
    # Each run of a user's own model is trained alone.
    together = on_gpu and not any(config.structure for config in tasks)
    groups = group_for_ensembles(list(tasks)) if together else [[config] for config in tasks]
    return [Job(tuple(tasks[config] for config in group)) for group in groups]


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """Return one line of text for each job. Append a line with the total numbers of runs."""
    lines = [f"{index}/{len(jobs)} {job.line()}" for index, job in enumerate(jobs, 1)]
    counts = Counter(task.state for job in jobs for task in job.tasks)
    shown = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    return [*lines, f"total: {counts.total()} runs in {len(jobs)} jobs: {', '.join(shown)}"]


def split_jobs(jobs: Iterable[Job], slots: int = 1) -> list[Job]:
    """Return jobs that contain only the unfinished runs of the given jobs.

    `slots` is the number of jobs that can run at once. While there are fewer jobs than slots, halve
    the largest job, unless every job has a single run.
    """
    left: list[Job] = []
    for job in jobs:
        rest = {task.config: task for task in job.tasks if task.state in ("unfinished", "missing")}
        # Runs with different precisions can be in one job, but not in one ensemble.
        groups = group_for_ensembles(list(rest))
        left += [Job(tuple(rest[config] for config in group)) for group in groups]
    while 0 < len(left) < slots:
        largest = max(left, key=lambda job: len(job.tasks))
        if len(largest.tasks) == 1:
            break
        index, half = left.index(largest), (len(largest.tasks) + 1) // 2
        left[index : index + 1] = [Job(largest.tasks[:half]), Job(largest.tasks[half:])]
    return left


def experiment_of(run: TrainConfig | Run) -> str:
    """Return a digest of a run's identity, leaving out the precision.

    Two runs that differ only in precision have the same digest.
    """
    found = run.identity() if isinstance(run, Run) else identity(run)
    return digest_of({name: value for name, value in found.items() if name != "precision"})


def _by_experiment(folders: Iterable[Path | str]) -> Mapping[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in (run for folder in folders for run in find_runs(folder)):
        found.setdefault(experiment_of(run), []).append(run)
    return found


def _task(config: TrainConfig, output: Path, here: Sequence[Run], elsewhere: Sequence[Run]) -> Task:
    """Return the task for a configuration, given the runs of this configuration that exist.

    `here` has the runs in the output folder, and `elsewhere` has those in other folders and
    archives. These runs may have another precision. If several runs exist, prefer a finished run,
    and then a run with the requested precision.
    """
    finished = [run for run in (*here, *elsewhere) if _holds(run.is_finished)]
    if not finished and not here:
        return Task(config, (output / run_name(config)).resolve(), "missing")

    def rank(run: Run) -> tuple[bool, int]:
        return run.config().precision != config.precision, -run.step()

    found = min(finished or here, key=rank)
    begun = replace(config, precision=found.config().precision)
    if finished:
        return Task(begun, found.path, "done", config.steps)
    state: State = "diverged" if _holds(found.has_diverged) else "unfinished"
    return Task(begun, found.path.resolve(), state, found.step())


def _holds(question: Callable[[], bool]) -> bool:
    """Return what the function `question` returns, or False if the run is damaged.

    The damage is not reported here, but by the worker that trains the run.
    """
    with suppress(ValueError):
        return question()
    return False
