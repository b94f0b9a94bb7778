"""Read and write the files of runs, archives and reports safely, and lock run directories.

All writing uses `replace_file`, `written_through` or `append_line`, which do not follow links.
After an interrupted write, a file is either complete or unchanged. Only the last line of a file
with appended lines may be incomplete, and readers skip this line. All reading uses `read_bytes` or
`check_regular`, which do not wait for a pipe.
"""

import errno
import hashlib
import json
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arms.bench.training.trainer import STEP_COUNTS, step_of

LOCK = ".lock"
CHECKPOINTS = NEWEST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


class BusyError(ValueError):
    """Raised if another process is training the run."""


@contextmanager
def locked(path: Path, notify: Callable[[str], None] = warnings.warn) -> Iterator[None]:
    """Lock a run directory against other processes until the `with` block ends.

    The lock also ends if this process dies. If another process has the lock, raise BusyError.
    """
    from filelock import lock_descriptor

    check_replaceable(path / LOCK)
    descriptor = _open(path / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            is_ours = lock_descriptor(descriptor, blocking=False)
        except OSError as error:  # some file systems do not support locks
            notify(f"{path} cannot be locked ({error.strerror}): train it in one process only")
            is_ours = True
        if not is_ours:
            what = f"the run {path} is being trained by another process"
            raise BusyError(f"{what}: wait until it ends, or train in another directory")
        yield
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents. A folder that exists, or a link to a folder, is accepted."""
    check_path(path)
    path.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace the content of a file, or create the file.

    If the write is interrupted, the file still has its complete old content.
    """
    check_replaceable(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".new")
    try:
        with written_through(temporary, data) as written:
            written.replace(path)
    except OSError as error:
        # Errors name the temporary file only if its path is occupied.
        if error.filename == str(temporary) and not os.path.lexists(temporary):
            error.filename = str(path)
        raise


@contextmanager
def written_through(path: Path, data: bytes) -> Iterator[Path]:
    """Write data to the temporary file `path`, sync the file to disk, and yield `path`.

    When the `with` block ends, the file is deleted, unless the block has renamed the file. Other
    users can guess the name of the temporary file, and may have put a file or a link there. Such a
    file or link is deleted, and never opened.
    """
    path.unlink(missing_ok=True)
    own = None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with _naming(path), os.fdopen(_open(path, flags), "wb") as file:
            own = os.fstat(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not _is_at(path, own):
            what = "another process is writing this file at the same time"
            raise FileExistsError(errno.EEXIST, what, str(path))
        yield path
    finally:
        if own is not None and _is_at(path, own):
            path.unlink()


def append_line(path: Path, line: str) -> None:
    """Append a line to a file. If the file does not exist, create it."""
    check_replaceable(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with _naming(path), os.fdopen(_open(path, flags), "a", encoding="utf-8") as file:
        file.write(line)


def read_bytes(path: Path, size: int = -1) -> bytes:
    """Return the content of a regular file. If `size` is given, return only the first bytes.

    Raise OSError if the path is a pipe, a device or a folder.
    """
    with _naming(path), os.fdopen(_open(path, os.O_RDONLY, links=True), "rb") as file:
        return file.read(size)


def check_replaceable(path: Path) -> None:
    """Raise ValueError if the path exists and is not a regular file, so cannot be an output."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        got = f"a link to {os.readlink(path)!r}: remove the link, or choose another path"
        raise ValueError(f"{shown(path)} must be a regular file or a new path, got {got}")
    if not stat.S_ISREG(mode):
        got = f"{_kind_of(mode)}: choose another path"
        raise ValueError(f"{shown(path)} must be a regular file or a new path, got {got}")


def check_regular(path: Path) -> None:
    """Raise OSError if a path is a pipe, a device or a folder."""
    os.close(_open(path, os.O_RDONLY, links=True))


def _open(path: Path, flags: int, *, links: bool = False) -> int:
    """Open a regular file, and return its descriptor. Raise OSError for any other kind of file.

    If the path is a pipe, do not wait for its writer. Follow a link only if `links` is True.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | (0 if links else getattr(os, "O_NOFOLLOW", 0)), 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"this must be a regular file, got {_kind_of(mode)}", str(path))
    return descriptor


def _kind_of(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _is_at(path: Path, status: os.stat_result) -> bool:
    """Return whether `status` belongs to the file that is at this path now."""
    try:
        return os.path.samestat(os.lstat(path), status)
    except FileNotFoundError:
        return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError from the `with` block, if the error names no file.

    For example, the error of a full disk names no file.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def check_local(path: Path) -> None:
    """Raise ValueError if a path is a network address, such as s3://bucket/runs.

    Without this check, a folder with the name "s3:" would be created.
    """
    # `Path` removes one of the two slashes.
    if address := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", str(path)):
        typed = f"{address[1]}://{str(path)[address.end() :]}"
        remedy = (
            "copy the files to this machine, for example with rclone, and pass the path of the copy"
        )
        raise ValueError(f"a path must be on this machine, got the address {typed!r}: {remedy}")


def check_path(path: Path) -> None:
    """Raise ValueError if a path is a network address, or is not valid UTF-8."""
    check_local(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        what = f"a path must be valid UTF-8, got {shown(path)}"
        raise ValueError(f"{what}: rename the file or folder") from None


def shown(path: Path) -> str:
    """Return a path as printable text, even if it contains invalid bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def check_json(content: object) -> None:
    """Raise ValueError if JSON data contain NaN, infinity or invalid Unicode text."""
    try:
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it contains text that is not valid Unicode (a lone surrogate)") from None
    except ValueError:
        raise ValueError("it contains NaN or infinity, which are not valid in JSON") from None


def to_json(content: Mapping[str, object], indent: int | None = None) -> str:
    """Return data as JSON on one line, or on several lines if `indent` is given.

    NaN and infinity become null.
    """
    return json.dumps(_strict(content), indent=indent, allow_nan=False) + "\n"


def _strict(content: object) -> object:
    """Return a copy of JSON data, with None in place of NaN and infinity.

    Most JSON readers reject NaN and infinity.
    """
    if isinstance(content, Mapping):
        return {name: _strict(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_strict(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], run: str) -> None:
    """Write tensors as the newest checkpoint in a run directory.

    The file that was the newest checkpoint becomes the previous checkpoint. `run` is a digest that
    identifies the run.
    """
    from safetensors.torch import save

    # Copy tensors, because safetensors rejects shared memory. Tied weights are written twice.
    flat = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    data = save(flat, metadata={"sha256": digest_of_tensors(flat), "run": run})
    newest = folder / NEWEST
    check_replaceable(newest)
    with written_through(newest.with_suffix(".new"), data) as written:
        if newest.exists():
            newest.replace(folder / PREVIOUS)
        written.replace(newest)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], str | None] | None:
    """Return the tensors of a checkpoint file, and the digest of the run that wrote the file.

    Return None if the file is missing or damaged.
    """
    from safetensors import SafetensorError

    try:
        with _opened(path) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (SafetensorError, FileNotFoundError):
        return None
    is_intact = digest_of_tensors(tensors) == metadata.get("sha256")
    return (tensors, metadata.get("run")) if is_intact else None


def step_in(path: Path) -> int | None:
    """Return the training step that a checkpoint file contains. Do not read the whole file.

    Return None if the file is missing or damaged.
    """
    from safetensors import SafetensorError

    try:
        with _opened(path) as file:
            return step_of({STEP_COUNTS: file.get_tensor(STEP_COUNTS)})
    except (SafetensorError, OSError, IndexError):
        return None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a checkpoint file for reading in the `with` block.

    Raise FileNotFoundError if the file is missing, or if another process renames it meanwhile.
    """
    from safetensors import safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except RuntimeError as error:  # PyTorch opens the file again after safetensors
        if "No such file" not in str(error):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
