"""One file from its public origin into a folder: checked against its md5, whole or not there at all."""

import hashlib
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

from arms.bench.data.packages import require


@dataclass(frozen=True)
class Source:
    """A file, its checksum, and where it can be had."""

    file: str
    md5: str
    urls: tuple[str, ...]
    """Mirrors, tried in this order."""

    def intact(self, folder: Path) -> bool:
        """Whether the folder holds the file, byte for byte."""
        path = folder / self.file
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() == self.md5


def default_cache_dir() -> Path:
    """Return the folder of downloads: ARMS_CACHE_DIR, or else the platform's cache folder."""
    named = os.environ.get("ARMS_CACHE_DIR")
    return Path(named).expanduser() if named else Path(require("pooch").os_cache("arms-grad"))


def obtain(source: Source, folder: Path) -> Path:
    """Return the path of the intact file in `folder`; where it is missing or damaged, download it."""
    path = folder / source.file
    if source.intact(folder):
        return path
    retrieve = require("pooch").retrieve
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
