"""Data sets by name, from a data folder, the download cache or the network; and your own."""

import os
from pathlib import Path
from typing import NamedTuple

from arms.arguments import unknown_name
from arms.bench.data.catalogue import DATASETS, Entry
from arms.bench.data.dataset import Dataset, TrainingImages, check_same_shape_and_levels, observe
from arms.bench.data.download import expand_home
from arms.bench.data.user_data import as_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "TrainingImages",
    "as_dataset",
    "check_same_shape_and_levels",
    "observe",
]


class Status(NamedTuple):
    """Whether a data set can be used without a network, and the place that holds it."""

    name: str
    description: str
    available: bool
    where: str


def load(name: str | Path, data_dir: Path | str | None = None) -> Dataset:
    """Return a data set by name, downloaded if need be, or your own from a file or a folder.

    Args:
        name: One of `DATASETS` (see `arms data list`), or the path of an .npz or .npy file or of a
            folder of images (see `as_dataset`).
        data_dir: Folder that is searched before the download cache and the network;
            ARMS_DATA_DIR unless given.

    >>> load("digits").train.shape
    torch.Size([1200, 64])
    """
    if isinstance(name, Path) or (isinstance(name, str) and _is_path(name)):
        return as_dataset(name)
    return _entry(name).load(_data_dir(data_dir))


def fetch(name: str, data_dir: Path | str | None = None) -> tuple[Path, ...]:
    """Return the files of a data set, checked, after a download of what is missing or damaged."""
    return _entry(name).fetch(_data_dir(data_dir))


def status(data_dir: Path | str | None = None) -> list[Status]:
    """Return for every data set whether it is on this machine, and where."""
    places = [(entry, entry.find(_data_dir(data_dir))) for entry in DATASETS.values()]
    return [Status(entry.name, entry.description, bool(at), at) for entry, at in places]


def _is_path(name: str) -> bool:
    like_one = name.endswith((".npz", ".npy")) or "/" in name or "\\" in name
    return name not in DATASETS and (like_one or Path(name).exists())


def _entry(name: str) -> Entry:
    if not isinstance(name, str) or name not in DATASETS:
        or_else = "the path of an .npz or .npy file or a folder of images"
        raise unknown_name("data set", name, DATASETS, or_else=or_else)
    return DATASETS[name]


def _data_dir(given: Path | str | None) -> Path | None:
    named = given or os.environ.get("ARMS_DATA_DIR")
    folder = expand_home(named) if named else None
    if folder and not folder.is_dir():
        what = "the data folder (data_dir or ARMS_DATA_DIR)"
        raise ValueError(f"{what} must exist, got {folder}: create or unset it")
    return folder
