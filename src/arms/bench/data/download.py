"""Files of data: downloaded and checked against their md5, or read without unpickling."""

import hashlib
import os
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from arms.arguments import described

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Source:
    """A file, its checksum, and its addresses in the order in which they are tried."""

    file: str
    md5: str
    urls: tuple[str, ...]

    def intact(self, folder: Path) -> bool:
        """Return whether the folder holds the file with this checksum."""
        path = folder / self.file
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() == self.md5

    def obtain(self, folder: Path) -> Path:
        """Return the path of the intact file; download it if need be, completely or not at all."""
        path = folder / self.file
        if self.intact(folder):
            return path
        retrieve = import_optional("pooch").retrieve
        failures = []
        for url in self.urls:
            try:
                retrieve(url, known_hash=f"md5:{self.md5}", fname=self.file, path=folder)
                return path
            except (OSError, ValueError) as error:
                reason = textwrap.shorten(f"{type(error).__name__}: {error}", 100)
                failures.append(f"{url} ({reason})")
        state = "has another checksum" if path.exists() else "is missing"
        raise ValueError(
            f"{path} {state} and cannot be downloaded from {' or '.join(failures)}: "
            f"download it elsewhere and put it into {folder} (md5 {self.md5})"
        )


def default_cache_dir() -> Path:
    """Return the folder of downloads: ARMS_CACHE_DIR, or the platform's cache folder."""
    named = os.environ.get("ARMS_CACHE_DIR")
    return expand_home(named) if named else Path(import_optional("pooch").os_cache("arms-grad"))


def expand_home(path: Path | str) -> Path:
    """Return a path with the home folder in place of ~ or ~user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        expected, remedy = "the home folder of a path must be known", "write the whole path"
        raise ValueError(f"{expected}, got {str(path)!r}: {remedy}") from None


def import_optional(module: str) -> ModuleType:
    """Return a module, or raise a `ValueError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        remedy = "pip install 'arms-grad[data]'"
        raise ValueError(f"this data set needs {module} ({error}): {remedy}") from None


def read_arrays(path: Path, names: Collection[str] = ()) -> dict[str, Array]:
    """Read the arrays of an .npz file, all or those named, or the one array of an .npy file."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".npy":
                return {"images": np.lib.format.read_array(file, allow_pickle=False)}
            with NpzFile(file, allow_pickle=False) as archive:
                # A member that is no array comes as bytes.
                return {name: np.asarray(archive[name]) for name in names or archive.files}
    except Exception as error:  # numpy raises a dozen kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read: {described(error)}") from None
