"""Files that are there whole or as they were before, JSON that any reader takes, and a lock on a directory."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "BusyError",
    "check_local",
    "check_path",
    "locked",
    "naming",
    "replace_file",
    "shown",
    "to_json",
    "to_line",
    "written_through",
]


class BusyError(ValueError):
    """A run is being trained by another process."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from training in a directory; the lock of a process that dies is released."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems know no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"{path} is being trained by another process: wait until it has ended, or name another directory"
                ) from None
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that it is there whole, or as it was before."""
    with written_through(path.with_name(path.name + ".new"), text.encode()) as written:
        written.replace(path)


@contextmanager
def written_through(path: Path, data: bytes) -> Iterator[Path]:
    """Write data to a new file, through to the disk; whatever goes wrong, the file does not stay."""
    try:
        with naming(path), path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error that does not: a full disk, most of all."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def check_local(path: Path) -> None:
    """Raise if a path is an address such as s3://bucket/runs: it would become a folder called "s3:".

    >>> check_local(Path("runs/s3")), check_local(Path("C:/runs"))
    (None, None)
    """
    if address := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", str(path)):  # a Path drops one of the two slashes
        typed = f"{address[1]}://{str(path)[address.end() :]}"
        raise ValueError(
            f"a path must be on this machine, got the address {typed!r}: copy the files with a program "
            "such as rclone, and give the path of the copy"
        )


def check_path(path: Path) -> None:
    """Raise if a path is an address, or cannot be written as text: messages and pages could not name it."""
    check_local(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"the path {shown(path)} must be UTF-8, got other bytes in it: rename it") from None


def shown(path: Path) -> str:
    """Return a path as text that can be printed, whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "replace")


def to_json(content: Mapping[str, object]) -> str:
    return json.dumps(_strict(content), indent=1, allow_nan=False) + "\n"


def to_line(record: Mapping[str, object]) -> str:
    return json.dumps(_strict(record), allow_nan=False) + "\n"


def _strict(content: object) -> object:
    """Put null for what JSON has no number for: most readers refuse a NaN."""
    if isinstance(content, Mapping):
        return {name: _strict(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_strict(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
