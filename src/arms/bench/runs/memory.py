"""Memory: what the C library does with freed pages, what to do when a device has none left."""

import ctypes
import gc
import sys

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
OUT_OF_MEMORY = (
    "allocate memory",
    "out of memory",
    "cublas_status_alloc_failed",
    "bad_alloc",
    "storage size calculation overflowed",
    "integer multiplication overflow",
)
"""What libraries say, in lower case; the last two are about sizes that no memory has."""


def keep_freed_memory() -> bool:
    """Let the C library's allocator keep freed memory, for the whole process: for commands, not for libraries.

    A training step frees and allocates the same megabytes a hundred times a second, and pages handed back to the
    system must be zeroed again: worth a seventh of a step on a CPU. glibc only; elsewhere nothing happens, and False
    is returned.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 512 << 20, M_TOP_PAD: 64 << 20}
    return all(mallopt(option, size) == 1 for option, size in wanted.items())


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this, or what it was raised upon, is about memory: a failed allocation also breaks a graph's capture."""
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        sign in str(error).lower() for sign in OUT_OF_MEMORY
    ):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


def free_memory() -> None:
    """Give back what the last ensemble took.

    Its compiled step goes with the objects it belonged to (`arms.bench.training.engine`), so `torch.compiler.reset`
    is not needed here: that would drop the user's own compiled functions too.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
