"""Data sets by name: from a folder of the user's, from the cache, or from their public origin."""

import os
from dataclasses import dataclass
from pathlib import Path

from arms.bench.data.catalogue import DATASETS
from arms.bench.data.dataset import Dataset, TrainingImages, binarize, check_same_form
from arms.bench.data.sources import Entry

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "Status",
    "TrainingImages",
    "binarize",
    "check_same_form",
    "fetch",
    "load",
    "status",
]


@dataclass(frozen=True)
class Status:
    """Whether a data set can be used without a network."""

    name: str
    description: str
    available: bool
    where: str
    """The file, folder or package that holds it; empty when nothing does."""
    size: int
    """Bytes on disk."""


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Return a data set; `data_dir`, or else ARMS_DATA_DIR, is searched before the cache and the network.

    >>> load("digits").train.shape
    torch.Size([1200, 64])
    """
    return _entry(name).load(_data_dir(data_dir))


def fetch(name: str, data_dir: Path | str | None = None) -> tuple[Path, ...]:
    """Make sure the files of a data set are on this machine and intact, and return their paths."""
    return _entry(name).fetch(_data_dir(data_dir))


def status(data_dir: Path | str | None = None) -> list[Status]:
    """Say of every data set whether it is on this machine, and where."""
    return [_status_of(entry, _data_dir(data_dir)) for entry in DATASETS.values()]


def _status_of(entry: Entry, data_dir: Path | None) -> Status:
    found = entry.find(data_dir)
    where, files = found or ("", ())
    size = sum(file.stat().st_size for file in files)
    return Status(entry.name, entry.description, found is not None, where, size)


def _entry(name: str) -> Entry:
    if name not in DATASETS:
        raise ValueError(f"no data set is called {name!r}: choose one of {', '.join(DATASETS)}")
    return DATASETS[name]


def _data_dir(given: Path | str | None) -> Path | None:
    named = given or os.environ.get("ARMS_DATA_DIR")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise ValueError(f"the data folder (data_dir or ARMS_DATA_DIR) must exist, got {folder}: create or unset it")
    return folder
