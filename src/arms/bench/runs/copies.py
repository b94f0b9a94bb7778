"""Copies of finished runs on any file system that fsspec knows, such as s3://bucket/folder, and reading them there.

A run is trained in a directory, with locks and renames, so that nothing is trained twice or half-written: stores of
objects have neither. It is copied once it has ended, file by file, config.json last: a folder without it is no run.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from arms.bench.config import run_name
from arms.bench.runs.checkpoints import CHECKPOINTS
from arms.bench.runs.directory import Run
from arms.bench.runs.packs import RUN_FILES

__all__ = ["check_apart", "copied_names", "copy_run", "is_url", "local_copies"]

MARKER = "config.json"
LEFT_OUT = (CHECKPOINTS[1],)
"""What only a run that is to be resumed needs."""


def is_url(place: Path | str) -> bool:
    """Whether a place is an address such as s3://bucket/folder, not a path.

    >>> is_url("s3://bucket/runs"), is_url("runs/s3"), is_url(r"C:\\runs")
    (True, False, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]+:/", str(place)) is not None


def check_apart(folder: Path, url: str) -> None:
    """Raise if copies would come to lie among the runs of a folder, or over them."""
    with _naming(url):
        files, there = _opened(url)
    _check_apart(folder, files, there, url)


def _check_apart(folder: Path, files: Any, there: str, url: str) -> None:
    if "file" not in files.protocol:
        return
    own, other = folder.resolve(), Path(there).resolve()
    if own == other or own in other.parents or other in own.parents:
        raise ValueError(f"copies must be apart from the runs in {folder}, got {url}: choose another folder for them")


def copy_run(path: Path, url: str) -> None:
    """Copy a run that has ended into a folder of runs, under the name that its configuration gives it.

    Whatever the run's own folder is called: two runs do not overwrite each other, and a run that was given more steps
    does not pass for what was copied before.

    Args:
        path: Its directory.
        url: The folder.

    Raises:
        OSError: It cannot be written; a reader takes what was copied for no run until all of it is there.
        ValueError: The copy would be the run itself.
    """
    with _naming(url):
        files, folder = _opened(url)
    own = f"{folder}/{run_name(Run(path).config())}"
    _check_apart(path, files, own, url)
    with _naming(url):
        files.makedirs(own, exist_ok=True)
        if files.exists(f"{own}/{MARKER}"):
            files.rm_file(f"{own}/{MARKER}")
        names = sorted(file.name for file in path.iterdir() if file.is_file() and file.name not in LEFT_OUT)
        for name in sorted(names, key=lambda name: name == MARKER):
            files.put_file(str(path / name), f"{own}/{name}")


def copied_names(url: str) -> set[str]:
    """Return the names of the runs that a folder holds whole; none if there is no such folder."""
    with _naming(url):
        files, folder = _opened(url)
        found = [path for path in _all_files(files, folder) if posixpath.basename(path) == MARKER]
    return {posixpath.basename(posixpath.dirname(path)) for path in found}


@contextmanager
def local_copies(places: Sequence[Path | str], only: Sequence[str] | None = None) -> Iterator[list[Path]]:
    """Return paths in place of addresses: of copies that are there for a while, with all that a page is made of.

    Args:
        places: Paths, which are returned as they are, and addresses of runs, packs, or folders of them.
        only: The files of a run that are needed, by name; unless given, all but checkpoints and events.

    Raises:
        ValueError: An address cannot be read.
    """
    with TemporaryDirectory(prefix="arms-") as temporary:
        found = []
        for index, place in enumerate(places):
            target = Path(temporary, str(index))
            found.append(_fetched(str(place), target, only) if is_url(place) else Path(place))
        yield found


def _fetched(url: str, target: Path, only: Sequence[str] | None) -> Path:
    try:
        with _naming(url):
            files, folder = _opened(url)
            remote = [path for path in _all_files(files, folder) if _is_wanted(posixpath.basename(path), only)]
            # A file by its own address is a pack; it keeps its name, as files in folders do.
            top = posixpath.dirname(folder) if remote == [folder] else folder
            local = [target / posixpath.basename(top) / posixpath.relpath(path, top) for path in remote]
            for file in local:
                file.parent.mkdir(parents=True, exist_ok=True)
            if remote:
                files.get(remote, list(map(str, local)))
    except OSError as error:
        raise ValueError(str(error)) from None
    if not remote:
        raise ValueError(f"there is no run at {url}: give the address of a run, or of a folder of them")
    return local[0] if remote == [folder] else target


def _is_wanted(name: str, only: Sequence[str] | None) -> bool:
    if only is None:
        return name.endswith((".json", ".jsonl", ".png"))
    return name in only if name in RUN_FILES else name.endswith(".json")  # a pack, perhaps


def _opened(url: str) -> tuple[Any, str]:
    import fsspec  # a dependency of PyTorch

    files, folder = fsspec.core.url_to_fs(url)
    return files, folder.rstrip("/")


def _all_files(files: Any, folder: str) -> list[str]:
    """Return every file at or under a path, none if it is not there."""
    files.invalidate_cache()  # other processes write there too
    try:
        return sorted(files.find(folder))
    except FileNotFoundError:
        return []


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Turn whatever goes wrong into one kind of error that names the address: every file system has its own."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"{url}: {said}") from error
