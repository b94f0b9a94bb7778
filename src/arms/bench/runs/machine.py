"""The machine that a run is trained on: its devices, its memory, and what is noted of it."""

import ctypes
import gc
import hashlib
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

import arms
from arms.bench.metrics import Record

PACKAGE = Path(arms.__file__).parent
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
OUT_OF_MEMORY = re.compile(
    "allocate memory|out of memory|cublas_status_alloc_failed|bad_alloc"
    # About sizes that no memory has.
    "|storage size calculation overflowed|integer multiplication overflow",
    re.IGNORECASE,
)


def choose_device(device: str | torch.device) -> str:
    """Return the device's name, which must be here; `auto` is the GPU where there is one."""
    name = planned_device(device)
    if name != "cpu" and (why := _why_not(name)):
        raise ValueError(f"no device {name!r} here, {why}: try auto or cpu")
    return name


def planned_device(device: str | torch.device) -> str:
    """Return the device's name, also of one that is not here."""
    name = str(device)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"no device {name!r} here: choose auto, cpu, cuda or cuda:N")
    return name


def _why_not(name: str) -> str:
    """Return why there is no such GPU, nothing if there is."""
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
    return "" if index < count else f"the GPUs are cuda:0 to cuda:{count - 1}"


def keep_freed_memory() -> bool:
    """Let the C library's allocator keep freed memory, for the whole process: for commands only.

    A training step frees and allocates the same megabytes a hundred times a second, and pages
    handed back to the system must be zeroed again: worth a seventh of a step on a CPU. This is
    for glibc. Elsewhere nothing happens, and False is returned.
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
    """Whether an error, or its cause, is about memory: it also breaks the capture of a graph."""
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(str(error)):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


def free_memory() -> None:
    """Give back what the last ensemble took.

    Its compiled step goes with the objects it belonged to (`arms.bench.training.engine`), so
    `torch.compiler.reset` is not needed: that would drop the user's own compiled functions too.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def provenance_of(
    device: str, seconds: float, together: Sequence[str], earlier: Mapping[str, object]
) -> Record:
    """Return the provenance of a run after a session, given the one before it."""
    on_gpu = device.startswith("cuda")
    before = earlier.get("wall_seconds")
    if not isinstance(before, int | float) or not math.isfinite(before):
        before = 0.0  # a damaged note must not end a training
    record: Record = {
        "version": arms.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
        "wall_seconds": round(before + seconds, 3),
    }
    if shared := list(together) if len(together) > 1 else earlier.get("together"):
        record["together"] = shared
    return record


def commit() -> str:
    """Return the commit of the package, not that of a project it is merely installed in.

    ARMS_COMMIT comes first: a copy of a checkout may have a git that knows it only as dirty.
    Without either it is a digest of the package's source, equal for equal code.
    """
    said = os.environ.get("ARMS_COMMIT", "").strip()
    return said or _git_commit(PACKAGE) or f"source-{_source_digest()}"


@cache  # it is asked of every run, and a process has the code that it was started with
def _git_commit(package: Path) -> str:
    git = ["git", "-C", str(package)]
    is_ours = [*git, "ls-files", "--error-unmatch", "__init__.py"]
    state = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.check_output(is_ours, stderr=subprocess.DEVNULL, timeout=10)  # noqa: S603
        said = subprocess.check_output(state, stderr=subprocess.DEVNULL, timeout=10)  # noqa: S603
        return said.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix().encode()
        digest.update(name + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
