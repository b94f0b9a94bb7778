"""The checkpoint files of a run: named tensors, with a digest that tells a damaged file."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from arms.bench.training.state import COUNTS, step_of

__all__ = ["CHECKPOINTS", "DamagedError", "digest_of_tensors", "read_checkpoint", "step_in"]

CHECKPOINTS = ("checkpoint.safetensors", "checkpoint.previous.safetensors")
"""The newest, and the one before."""


class DamagedError(Exception):
    """A checkpoint cannot be read, or is not what was written."""


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors, and the digest of the run that they belong to where the file names it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise DamagedError from error
    if digest_of_tensors(tensors) != metadata.get("sha256"):
        raise DamagedError
    return tensors, metadata.get("run")


def step_in(path: Path) -> int | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return step_of({COUNTS: file.get_tensor(COUNTS)})
    except (SafetensorError, OSError, IndexError):
        return None


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
