"""What a worker does, wherever it is: train the runs it is given, and say in a few words what came of it."""

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.runs.files import BusyError
from arms.bench.runs.loop import CHECKPOINT_SECONDS, DivergedError, Notify, TerminatedError
from arms.bench.runs.train import train_together

Kind: TypeAlias = Literal["done", "diverged", "busy", "failed", "lost"]


@dataclass(frozen=True)
class Work:
    """Runs to be trained together, and their directories."""

    configs: tuple[TrainConfig, ...]
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        first, *others = (path.name for path in self.paths)
        return f"{first} and {len(others)} more" if others else first


@dataclass(frozen=True)
class Settings:
    """How all work of a sweep is carried out."""

    command: tuple[str, ...]
    """The user's, which the provenance of the runs names in place of the worker's."""
    threads: int = 1
    """As many in every worker: sums over more threads are rounded otherwise."""
    data_dir: Path | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Outcome:
    """What came of some work: the runs are finished, diverged, another process's, failed for good, or their worker is
    gone, and they are to be resumed."""

    kind: Kind
    lines: tuple[str, ...] = ()
    """What a user should read."""


def carry_out(work: Work, settings: Settings, device: str) -> Outcome:
    """Train in this process, which is a worker's own: its number of threads and its `sys.argv` are set.

    Args:
        work: What to train.
        settings: How.
        device: `cpu`, `cuda` or `cuda:N`.
    """
    sys.argv = list(settings.command)
    torch.set_num_threads(settings.threads)
    lines: list[str] = []
    try:
        _train(work, settings, device, lines.append)
    except DivergedError as error:
        return Outcome("diverged", (*lines, str(error)))
    except BusyError as error:
        return Outcome("busy", (str(error),))
    except TerminatedError as error:  # the machine is taken away, and the run saved
        return Outcome("lost", (f"terminated, {error}",))
    except OSError as error:  # a disk, a network: it may be better later, or elsewhere
        return Outcome("lost", (*lines, f"{type(error).__name__}: {error}"))
    except Exception as error:  # one bad run must not end a sweep of a thousand
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return Outcome("failed", (*lines, " ".join(said.split())))
    return Outcome("done", tuple(lines))


def _train(work: Work, settings: Settings, device: str, notify: Notify) -> None:
    train_together(
        work.configs,
        work.paths,
        device=device,
        datasets=[_dataset(config.dataset, settings.data_dir) for config in work.configs],
        checkpoint_seconds=settings.checkpoint_seconds,
        progress=False,
        notify=notify,
    )


@lru_cache(maxsize=4)  # a worker trains many runs on few data sets
def _dataset(name: str, data_dir: Path | None) -> Dataset:
    return load(name, data_dir)
