"""The checkpoint files of a run: named tensors, with a digest that tells a damaged file."""

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arms.bench.runs.files import check_regular, check_replaceable, written_through
from arms.bench.training.trainer import COUNTS, step_of

CHECKPOINTS = ("checkpoint.safetensors", "checkpoint.previous.safetensors")
"""The newest, and the one before."""


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], run: str) -> None:
    """Write the newest checkpoint, and keep the one before; `run` is the digest of its run."""
    from safetensors.torch import save

    # Copies, since one tensor may stand under two names: tied weights are written twice.
    flat = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    data = save(flat, metadata={"sha256": digest_of_tensors(flat), "run": run})
    newest, previous = (folder / name for name in CHECKPOINTS)
    check_replaceable(newest)
    with written_through(newest.with_suffix(".new"), data) as written:
        if newest.exists():
            newest.replace(previous)
        written.replace(newest)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], str | None] | None:
    """Return the tensors and the digest of their run, None if the file is missing or damaged."""
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
    """Return the step of a checkpoint without reading all of it, None if it cannot be read."""
    from safetensors import SafetensorError

    try:
        with _opened(path) as file:
            return step_of({COUNTS: file.get_tensor(COUNTS)})
    except (SafetensorError, OSError, IndexError):
        return None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a checkpoint; one that another process renames, as it saves, is not found."""
    from safetensors import safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except RuntimeError as error:  # of PyTorch, which opens it after safetensors did
        if "No such file" not in str(error):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
