"""Entries of the catalogue: how a data set is found, downloaded, read and split; the digits, and files of images."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from arms.bench.data.dataset import Dataset
from arms.bench.data.download import Source, default_cache_dir, obtain
from arms.bench.data.formats import IMAGE_SIDE, Images, read_npz
from arms.bench.data.packages import import_optional

Parts: TypeAlias = Mapping[str, Images]
"""The images as they are published: train, test, and for some sets valid."""

SHUFFLE_SEED = 0


@dataclass(frozen=True)
class Entry(ABC):
    """One data set of the catalogue."""

    name: str
    description: str

    @abstractmethod
    def find(
        self, data_dir: Path | None = None, cache_dir: Path | None = None
    ) -> tuple[str, tuple[Path, ...]] | None:
        """Return the place of the data set and its files, or None if it is not on this machine."""

    @abstractmethod
    def fetch(
        self, data_dir: Path | None = None, cache_dir: Path | None = None
    ) -> tuple[Path, ...]:
        """Check the files of the data set, download what is missing, and return their paths."""

    @abstractmethod
    def load(self, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
        """Return the data set, after `fetch`."""


@dataclass(frozen=True)
class Digits(Entry):
    """The 8x8 digits that come with scikit-learn: small, and never downloaded."""

    def find(
        self, data_dir: Path | None = None, cache_dir: Path | None = None
    ) -> tuple[str, tuple[Path, ...]] | None:
        """Return the package, without files."""
        return ("scikit-learn", ()) if find_spec("sklearn") else None

    def fetch(
        self, data_dir: Path | None = None, cache_dir: Path | None = None
    ) -> tuple[Path, ...]:
        """Check that the package is installed."""
        import_optional("sklearn.datasets")
        return ()

    def load(self, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
        """Return 1200 train, 200 valid and 397 test images."""
        images = import_optional("sklearn.datasets").load_digits().images.astype(np.uint8)
        train, valid, test = np.split(shuffled(images), [1200, 1400])
        return Dataset(
            self.name, flat(train), flat(valid), flat(test), height=8, width=8, levels=16
        )


@dataclass(frozen=True)
class Archive:
    """The npz file that a user's data folder may hold instead of the published files."""

    file: str
    counts: Mapping[str, int]
    """Number of images in the array `<part>_images`, for every part."""
    note: str = ""


@dataclass(frozen=True)
class ImageFiles(Entry):
    """28x28 images, from the archive in the user's folder if it is there, otherwise from the published files."""

    archive: Archive
    sources: tuple[Source, ...] = ()
    """The published files; none for a data set that users must provide."""
    read: Callable[[tuple[Path, ...]], Parts] | None = None
    """Reads the files of `sources`, in their order."""
    levels: int = 255
    held_out: int = 0
    """How many training images, the last ones, become the validation set; 0 if a validation set is published."""
    shuffle: bool = False
    """Whether to shuffle the training images before the split: sorted ones would make an unfair validation set."""

    def find(
        self, data_dir: Path | None = None, cache_dir: Path | None = None
    ) -> tuple[str, tuple[Path, ...]] | None:
        """Look for the archive by name and for the published files by checksum."""
        if archive := self._archive_in(data_dir):
            return str(archive), (archive,)
        folder = self._folder(cache_dir)
        if self.sources and all(source.intact(folder) for source in self.sources):
            return str(folder), tuple(folder / source.file for source in self.sources)
        return None

    def fetch(
        self, data_dir: Path | None = None, cache_dir: Path | None = None
    ) -> tuple[Path, ...]:
        """Read the archive once, or download what is missing in the cache."""
        if archive := self._archive_in(data_dir):
            self._read_archive(archive)
            return (archive,)
        return self._originals(data_dir, cache_dir)

    def load(self, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
        """Return the data set, split into training, validation and test images."""
        if archive := self._archive_in(data_dir):
            return self._split(self._read_archive(archive), self.archive.note)
        paths = self._originals(data_dir, cache_dir)
        assert self.read is not None
        return self._split(self.read(paths))

    def _archive_in(self, data_dir: Path | None) -> Path | None:
        path = data_dir and data_dir / self.archive.file
        return path if path and path.is_file() else None

    def _read_archive(self, path: Path) -> Parts:
        return read_npz(path, self.archive.counts, self.levels)

    def _folder(self, cache_dir: Path | None) -> Path:
        # One folder per data set: the files of MNIST and Fashion MNIST have the same names.
        return (cache_dir or default_cache_dir()) / self.name

    def _originals(self, data_dir: Path | None, cache_dir: Path | None) -> tuple[Path, ...]:
        folder = self._folder(cache_dir)
        if not self.sources:
            place = data_dir or "a folder, and name that folder in ARMS_DATA_DIR"
            raise ValueError(
                f"{self.name} cannot be downloaded: put {self.archive.file} into {place}"
            )
        try:
            return tuple(obtain(source, folder) for source in self.sources)
        except ValueError as error:
            place = data_dir or "the folder in ARMS_DATA_DIR"
            raise ValueError(f"{error}, or put {self.archive.file} into {place}") from None

    def _split(self, parts: Parts, note: str = "") -> Dataset:
        train = shuffled(parts["train"]) if self.shuffle else parts["train"]
        kept = len(train) - self.held_out
        valid = train[kept:] if self.held_out else parts["valid"]
        return Dataset(
            self.name,
            flat(train[:kept]),
            flat(valid),
            flat(parts["test"]),
            IMAGE_SIDE,
            IMAGE_SIDE,
            levels=self.levels,
            note=note,
        )


def shuffled(images: Images) -> Images:
    """Return the images in a random order that is the same every time."""
    return images[np.random.default_rng(SHUFFLE_SEED).permutation(len(images))]


def flat(images: Images) -> Tensor:
    """Return images `[count, height, width]` as a tensor `[count, pixels]`."""
    return torch.from_numpy(np.ascontiguousarray(images).reshape(len(images), -1))
