"""The interface of engines, the function that trains a job, and the engine `here`."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

import torch

from arms.arguments import as_count
from arms.bench.data import Dataset
from arms.bench.runs.ensemble import CHECKPOINT_SECONDS, DivergedError, TerminatedError
from arms.bench.runs.files import BusyError
from arms.bench.runs.limit import OutOfTimeError, TimeLimit
from arms.bench.runs.loading import MakeModel, find_model, load_once
from arms.bench.runs.train import train, train_together
from arms.bench.sweeps.jobs import Job
from arms.bench.training.engine import choose_device, keep_freed_memory, planned_device

Kind: TypeAlias = Literal["done", "diverged", "busy", "failed", "lost", "stopped"]
"""The result of a job.

`diverged`: a run has no surviving replica. `busy`: another process is training the run. `lost`: the
worker died, and the job can be resumed. `stopped`: the time limit was reached, and the job can be
resumed.
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a job, with lines of text for the user."""

    kind: Kind
    lines: tuple[str, ...] = ()

    def final(self) -> "Outcome":
        """Return the final outcome of a job that will not be started again.

        If the outcome is "lost", it becomes "failed".
        """
        return replace(self, kind="failed") if self.kind == "lost" else self


@dataclass(frozen=True)
class Settings:
    """Training options that apply to all jobs of a sweep."""

    command: tuple[str, ...] = ()  # the user's command, for the provenance of the runs
    folder: str = ""  # the folder in which workers search for the module of `model`
    model: MakeModel | str | None = None
    datasets: Mapping[str, Dataset | Path] = field(default_factory=dict)  # the user's data sets
    data_dir: Path | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    progress: bool = False  # whether an engine in this process shows a bar for each run
    limit: TimeLimit = field(default_factory=TimeLimit)


class SweepEngine(Protocol):
    """The interface of engines, which train jobs. Use an engine in a `with` block."""

    on_gpu: bool  # whether jobs run on GPUs, where ensembles save time
    in_background: bool = True  # whether `start` returns before the job has ended
    queued: int = 0  # number of jobs that wait in the engine, in addition to running jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all running jobs. The workers save their runs before they stop."""
        return

    def slots(self) -> int:
        """Return the number of jobs that can run at once, at least one."""
        return 1

    def warning(self) -> str | None:
        """Return a warning to print before the sweep starts, or None."""
        return None

    def start(self, job: Job, settings: Settings) -> None:
        """Start a job. This method may return before the job has ended."""
        ...

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Return the jobs that have ended since the last call, each with its outcome.

        If no job has ended, wait at most `seconds` for a job to end.
        """
        ...


def check_resources(cpus_per_job: int, gpus_per_job: float | None) -> float:
    """Check the resources that each job should get, and return each job's share of a GPU.

    If `gpus_per_job` is None, the share is 1 if there is a GPU, and 0 otherwise.
    """
    as_count(cpus_per_job, 1, "cpus_per_job")
    gpus = float(torch.cuda.is_available()) if gpus_per_job is None else gpus_per_job
    if not 0 <= gpus <= 1:
        raise ValueError(
            f"gpus_per_job must be from 0 to 1, because a run uses at most one GPU, got {gpus:g}"
        )
    return gpus


def run_job(job: Job, settings: Settings, device: str, progress: bool = False) -> Outcome:
    """Train the runs of a job in this process. Return errors as the job's outcome."""
    if not settings.limit.allows("start", "block", "save"):
        return Outcome("stopped")
    lines: list[str] = []
    options = {"device": device, "progress": progress, "notify": lines.append}
    times = {"checkpoint_seconds": settings.checkpoint_seconds, "limit": settings.limit}
    try:
        _train(job, settings, options | times)
    except OutOfTimeError as error:
        return Outcome("stopped", (*lines, f"the time limit was reached, {error}"))
    except DivergedError as error:
        return Outcome("diverged", (*lines, str(error)))
    except BusyError as error:
        return Outcome("busy", (str(error),))
    except OSError as error:  # errors of disks and networks may not occur again
        return Outcome("lost", (*lines, f"{type(error).__name__}: {error}"))
    except Exception as error:  # a single failed run must not end the sweep
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return Outcome("failed", (*lines, " ".join(said.split())))
    return Outcome("done", tuple(lines))


def run_in_worker(job: Job, settings: Settings, device: str, threads: int) -> Outcome:
    """Train a job in a worker process.

    `settings` also gives the folder in which the sweep searches for the user's module.
    """
    keep_freed_memory()
    sys.argv = list(settings.command)
    if settings.folder not in sys.path:
        sys.path.insert(0, settings.folder)
    torch.set_num_threads(threads)  # the rounding of sums depends on the number of threads
    try:
        return run_job(job, settings, device)
    except TerminatedError as error:  # the machine is shutting down, and the run was saved
        return Outcome("lost", (f"terminated, {error}",))


def _train(job: Job, settings: Settings, options: Mapping[str, Any]) -> None:
    sources = [settings.datasets.get(t.config.dataset, t.config.dataset) for t in job.tasks]
    datasets = [load_once(source, settings.data_dir) for source in sources]
    if settings.model is None:
        configs, paths = zip(*((task.config, task.path) for task in job.tasks), strict=True)
        train_together(configs, paths, datasets=datasets, **options)
        return
    make = find_model(settings.model)
    for task, dataset in zip(job.tasks, datasets, strict=True):
        train(task.config, task.path, model=make, dataset=dataset, **options)


class Here(SweepEngine):
    """An engine that trains in this process. Ctrl-C and SIGTERM save the run and end the sweep.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    in_background = False

    def __init__(self, device: str = "auto") -> None:
        self.device = planned_device(device)
        self.on_gpu = self.device.startswith("cuda")
        self._ended: list[tuple[Job, Outcome]] = []

    def __enter__(self) -> Self:
        choose_device(self.device)  # raises if the device is not available
        return self

    def start(self, job: Job, settings: Settings) -> None:
        self._ended = [(job, run_job(job, settings, self.device, settings.progress))]

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        return self._ended
