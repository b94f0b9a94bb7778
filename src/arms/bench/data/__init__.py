"""Data sets by name, from a folder of the user, the download cache or their public origin; and the user's own."""

import os
from dataclasses import dataclass
from pathlib import Path

from arms.arguments import unknown_name
from arms.bench.data.catalogue import DATASETS
from arms.bench.data.dataset import (
    Dataset,
    TrainingImages,
    binarize,
    check_same_shape_and_levels,
    observe,
)
from arms.bench.data.download import expand_home
from arms.bench.data.own import as_dataset, is_path, read_own
from arms.bench.data.sources import Entry

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "Status",
    "TrainingImages",
    "as_dataset",
    "binarize",
    "check_same_shape_and_levels",
    "fetch",
    "load",
    "observe",
    "status",
]


@dataclass(frozen=True)
class Status:
    """Whether a data set can be used without a network."""

    name: str
    description: str
    available: bool
    where: str
    """The file, folder or package that holds it; empty if it is not available."""
    size: int
    """Bytes on disk."""


def load(name: str | Path, data_dir: Path | str | None = None) -> Dataset:
    """Return a data set by name, downloaded if need be, or your own from a file or a folder.

    Args:
        name: One of `DATASETS` (see `arms data list`), or the path of an .npz or .npy file or of a folder of images
            (see `as_dataset`).
        data_dir: Folder that is searched before the download cache and the network; ARMS_DATA_DIR unless given.

    >>> load("digits").train.shape
    torch.Size([1200, 64])
    """
    if isinstance(name, Path) or (isinstance(name, str) and name not in DATASETS and is_path(name)):
        return read_own(name)
    return _entry(name).load(_data_dir(data_dir))


def fetch(name: str, data_dir: Path | str | None = None) -> tuple[Path, ...]:
    """Check the files of a data set, download what is missing or damaged, and return their paths.

    Args:
        name: One of `DATASETS`; see `arms data list`.
        data_dir: Folder that is searched before the download cache and the network; ARMS_DATA_DIR unless given.

    Returns:
        The files; none for a data set that comes with an installed package.
    """
    return _entry(name).fetch(_data_dir(data_dir))


def status(data_dir: Path | str | None = None) -> list[Status]:
    """Return for every data set whether it is on this machine, and where.

    Args:
        data_dir: Folder that is searched before the download cache; ARMS_DATA_DIR unless given.
    """
    return [_status_of(entry, _data_dir(data_dir)) for entry in DATASETS.values()]


def _status_of(entry: Entry, data_dir: Path | None) -> Status:
    found = entry.find(data_dir)
    where, files = found or ("", ())
    size = sum(file.stat().st_size for file in files)
    return Status(entry.name, entry.description, found is not None, where, size)


def _entry(name: str) -> Entry:
    if not isinstance(name, str) or name not in DATASETS:
        raise unknown_name(
            "data set",
            name,
            DATASETS,
            or_else="the path of an .npz or .npy file or a folder of images",
        )
    return DATASETS[name]


def _data_dir(given: Path | str | None) -> Path | None:
    named = given or os.environ.get("ARMS_DATA_DIR")
    if not named:
        return None
    folder = expand_home(named)
    if not folder.is_dir():
        raise ValueError(
            f"the data folder (data_dir or ARMS_DATA_DIR) must exist, got {folder}: create or unset it"
        )
    return folder
