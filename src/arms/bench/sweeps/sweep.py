"""Train many runs on an engine: start jobs, retry lost jobs, and count results."""

import math
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from torch import nn

from arms.bench.config import Precision, TrainConfig
from arms.bench.data import Dataset
from arms.bench.data.datasets import expand_home
from arms.bench.experiments import Scale, Sweep, find_source
from arms.bench.output import SweepBar
from arms.bench.runs.archives import open_runs
from arms.bench.runs.ensemble import CHECKPOINT_SECONDS, Notify, check_seconds
from arms.bench.runs.limit import TimeLimit
from arms.bench.runs.loading import MakeModel, find_model, name_inputs
from arms.bench.runs.run import Run
from arms.bench.sweeps.engines import SweepEngine, make_engine
from arms.bench.sweeps.engines.base import Kind, Outcome, Settings
from arms.bench.sweeps.jobs import Job, experiment_of, plan, plan_lines, split_jobs

ATTEMPTS = 4  # times that a job is started; its workers may die because of the job
PAUSE = 1.0  # seconds between two checks of runs that another process trains


class SweepError(ValueError):
    """Raised if some runs of a sweep could not be trained."""


def sweep(
    configs: Sequence[TrainConfig],
    output: Path | str = "sweep",
    *,
    engine: str | SweepEngine = "here",
    results: Sequence[Path | str] = (),
    precision: Precision | None = None,
    dataset: Dataset | Path | str | None = None,
    model: MakeModel | str | None = None,
    data_dir: Path | str | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float = math.inf,
    dry_run: bool = False,
    progress: bool = True,
    notify: Notify = print,
) -> list[Run]:
    """Train many runs, and return them. Call the function again to train missing runs.

    Interrupted runs are resumed. On GPUs, runs that differ only in estimator and data set are
    trained together, and the noise of each run then depends on the other runs. On CPUs, each run is
    trained alone. Several sweeps may share a folder. A run without surviving replicas is reported
    as diverged, and is also returned.

    Args:
        configs: The configurations. The `dataset` of a configuration may be the path of your own
            images.
        output: Folder of new runs. Finished runs in it are kept, and unfinished runs are resumed.
        engine: `here` (this process), `processes`, `ray`, or an engine from
            `arms.bench.sweeps.engines` that you configured, such as `Here("cpu")`.
        results: Further folders or archives. Finished runs in them are not trained again.
        precision: Precision of the runs to train; by default, that of each configuration.
        dataset: Your own images in place of the data sets that the configurations name.
        model: Your own networks: a function that makes a model of one replica for a data set, or
            its name, `module:name`. Other processes import the function.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
        checkpoint_seconds: Time between two checkpoints.
        minutes: Time limit. Training stops after a save. A run is started only if the durations of
            earlier runs show that the time suffices. Runs that were not started are not returned.
        dry_run: Only report the state of the runs, with one line per job, and return no runs.
        progress: Whether to show a progress bar on a terminal.
        notify: A function that is called with one line of text when a job ends, and with each
            warning for the user.

    Raises:
        SweepError: Some runs failed. The other runs are trained to their end first.
        ValueError: An argument is invalid.
    """
    engine = make_engine(engine) if isinstance(engine, str) else engine
    limit = TimeLimit(minutes)
    check_seconds(checkpoint_seconds, "checkpoint_seconds")
    if Path(output).exists() and not Path(output).is_dir():
        raise ValueError(f"output must be a folder, got the file {output}: choose another path")
    folder = None if data_dir is None else expand_home(data_dir).resolve()
    if precision is not None:
        configs = [replace(config, precision=precision) for config in configs]
    if isinstance(model, nn.Module):
        what = "the model argument must be a function that makes a model for each run, got a model"
        raise ValueError(f"{what}: write a function that returns such a model")
    make = None if model is None else find_model(model)
    wanted, datasets = name_inputs(configs, dataset, make, folder)
    jobs = plan(wanted, output, results=results, on_gpu=engine.on_gpu)
    if dry_run:
        for line in plan_lines(jobs):
            notify(line)
        return []
    tally = Tally(jobs)
    where = (tuple(sys.argv), os.getcwd())
    settings = Settings(*where, model, datasets, folder, checkpoint_seconds, progress, limit)
    if split_jobs(jobs):
        with engine, SweepBar(hidden=not (progress and engine.in_background)) as bar:
            if warning := engine.warning():
                notify(warning)

            def show(tally: Tally) -> None:
                bar.show(tally.ended, tally.total, str(tally))

            run_jobs(split_jobs(jobs, engine.slots()), engine, settings, tally, notify, show)
    late = "; the time limit was reached: repeat the call to train the rest"
    notify(f"{tally}: {output}{late if tally.ended < tally.total else ''}")
    if failed := tally.counts["failed"]:
        raise SweepError(
            f"{failed} of {tally.total} runs failed, the last one with: {tally.failure}"
        )
    paths = {experiment_of(task.config): task.path for job in jobs for task in job.tasks}
    found = [paths[experiment_of(config)] for config in wanted]
    begun = [path for path in found if path.exists() or path.parent.is_file()]
    return [run for path in begun for run in open_runs(path)]


def run_experiment(name: str, scale: Scale, output: Path | str, **options: Any) -> list[Path]:
    """Train the missing runs of an experiment, and write a report about them.

    If the experiment has no runs, draw its figures instead. Return the paths of the written files.
    Experiments in the same folder share their runs. `options` are further arguments of `sweep`.
    """
    source = find_source(name, scale)
    if not isinstance(source, Sweep):
        return source(scale, Path(output) / name)
    from arms.bench.report import build_report  # imports matplotlib, which is slow

    page = Path(output) / f"{name}.html"
    runs = sweep(source.configs(scale), output, **options)
    build_report([run.path for run in runs], page)
    return [page]


class Tally:
    """Counts of a sweep's runs: how many are done, diverged, failed, and so on."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        states = Counter(task.state for job in jobs for task in job.tasks)
        self.total, self.running, self.failure = states.total(), 0, ""
        self.counts = Counter[Kind](done=states["done"], diverged=states["diverged"])
        self._trained, self._began = 0, perf_counter()

    def add(self, job: Job, outcome: Outcome) -> None:
        """Count the runs of a job that has ended with the given outcome."""
        self.counts[outcome.kind] += len(job.tasks)
        self._trained += len(job.tasks)
        if outcome.kind == "failed":
            self.failure = f"{job}: {' '.join(outcome.lines[-1:])}"

    @property
    def ended(self) -> int:
        """The number of runs that are done, diverged or failed."""
        return self.counts.total()

    def __str__(self) -> str:
        done, failed, diverged = (self.counts[kind] for kind in ("done", "failed", "diverged"))
        parts = [f"{done}/{self.total} done", f"{self.running} running", f"{failed} failed"]
        parts += [f"{diverged} diverged"] if diverged else []
        rest = self.total - self.ended
        if rest and self._trained:
            seconds = (perf_counter() - self._began) / self._trained * rest
            parts.append(f"about {timedelta(seconds=round(seconds))} left")
        return ", ".join(parts)


def run_jobs(
    jobs: Sequence[Job],
    engine: SweepEngine,
    settings: Settings,
    tally: Tally,
    notify: Notify,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> None:
    """Run jobs on an engine until each run is done, diverged or failed.

    If the worker of a job dies, the job is started again. Each job is started at most ATTEMPTS
    times. When the time limit is reached, the remaining runs stay unchanged. `watch` is called at
    least once a second.
    """
    waiting, held, attempts = deque(jobs), list[Job](), Counter[Job]()
    started: list[Job] = []
    is_told = False

    def count() -> None:
        # Jobs that wait in the engine are not running yet.
        tally.running = sum(len(job.tasks) for job in started[: engine.slots()])

    while waiting or held or started:
        while waiting and len(started) < engine.slots() + engine.queued:
            job = waiting.popleft()
            attempts[job] += 1
            started.append(job)
            engine.start(job, settings)
        count()
        watch(tally)
        if not started:  # another process trains the rest; if it dies, this sweep continues
            if not is_told:
                runs = sum(len(job.tasks) for job in held)
                notify(f"waiting for {runs} runs that another process trains")
            is_told = True
            sleep(PAUSE)
            waiting.extend(held)
            held.clear()
            continue
        for job, outcome in engine.ended(PAUSE):
            started.remove(job)
            _tell(job, outcome, notify)
            if outcome.kind == "busy":
                attempts[job] -= 1
                held.append(job)
            elif outcome.kind == "lost" and attempts[job] < ATTEMPTS:
                waiting.append(job)
            elif outcome.kind != "stopped":
                final = outcome.final()
                tally.add(job, final)
                count()
                notify(f"{tally}: {job} {final.kind}")
    count()


def _tell(job: Job, outcome: Outcome, notify: Notify) -> None:
    for line in outcome.lines:
        notify(f"{job}: {line}")
