"""Memory of the C library: a training step frees and takes back the same megabytes a hundred times a second."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Let the allocator keep what was freed instead of handing it to the system, where every page must be made anew.

    Worth a seventh of a step on a CPU. glibc only; elsewhere nothing happens, and False is returned.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 512 << 20, M_TOP_PAD: 64 << 20}
    return all(mallopt(option, size) == 1 for option, size in wanted.items())
