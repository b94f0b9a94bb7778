"""Download one file: checked against its md5, and written completely or not at all."""

import hashlib
import os
import textwrap
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType


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
        """Return the path of the intact file in `folder`; download it if need be."""
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
    """Return a path with the home folder in place of ~ or ~user.

    >>> expand_home("~nouser/faces.npz")
    Traceback (most recent call last):
    ValueError: the home folder of a path must be known, got '~nouser/faces.npz': write it out
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        known = "the home folder of a path must be known"
        raise ValueError(f"{known}, got {str(path)!r}: write it out") from None


def import_optional(module: str) -> ModuleType:
    """Return a module, or raise a `ValueError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        remedy = "pip install 'arms-grad[data]'"
        raise ValueError(f"this data set needs {module} ({error}): {remedy}") from None
