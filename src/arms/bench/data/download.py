"""Download of one file from its public origin: checked against its md5, and written completely or not at all."""

import hashlib
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

from arms.bench.data.packages import import_optional


@dataclass(frozen=True)
class Source:
    """A file, its checksum, and where it can be downloaded."""

    file: str
    md5: str
    urls: tuple[str, ...]
    """Mirrors, tried in this order."""

    def intact(self, folder: Path) -> bool:
        """Return whether the folder holds the file with this checksum."""
        path = folder / self.file
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() == self.md5


def default_cache_dir() -> Path:
    """Return the folder of downloads: ARMS_CACHE_DIR, or the platform's cache folder if that is not set."""
    named = os.environ.get("ARMS_CACHE_DIR")
    return expand_home(named) if named else Path(import_optional("pooch").os_cache("arms-grad"))


def expand_home(path: Path | str) -> Path:
    """Return a path with the home folder in place of ~ or ~user.

    >>> expand_home("~nouser/faces.npz")
    Traceback (most recent call last):
    ValueError: the home folder of a path must be known, got '~nouser/faces.npz': write the whole path
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(
            f"the home folder of a path must be known, got {str(path)!r}: write the whole path"
        ) from None


def obtain(source: Source, folder: Path) -> Path:
    """Return the path of the intact file in `folder`; if it is missing or damaged, download it."""
    path = folder / source.file
    if source.intact(folder):
        return path
    retrieve = import_optional("pooch").retrieve
    failures = []
    for url in source.urls:
        try:
            retrieve(url, known_hash=f"md5:{source.md5}", fname=source.file, path=folder)
            return path
        except (OSError, ValueError) as error:
            failures.append(f"{url} ({textwrap.shorten(f'{type(error).__name__}: {error}', 100)})")
    state = "has another checksum" if path.exists() else "is missing"
    raise ValueError(
        f"{path} {state} and cannot be downloaded from {' or '.join(failures)}: "
        f"download it elsewhere and put it into {folder} (md5 {source.md5})"
    )
