"""Where numbers come from: versions, commit, device, command and time. None of it is ever merely "unknown"."""

import hashlib
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

import arms
from arms.bench.metrics import Record

PACKAGE = Path(arms.__file__).parent


def provenance_of(
    device: str, seconds: float, together: Sequence[str], earlier: Mapping[str, object]
) -> Record:
    """Return the provenance of a run after a session.

    Args:
        device: Device that was trained on.
        seconds: Wall time of the session.
        together: Names of the runs of its ensemble, itself among them.
        earlier: The provenance before the session, empty before the first.
    """
    record: Record = {
        "version": arms.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else platform.machine(),
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
        "wall_seconds": round(_seconds(earlier.get("wall_seconds")) + seconds, 3),
    }
    if shared := list(together) if len(together) > 1 else earlier.get("together"):
        record["together"] = shared
    return record


def commit() -> str:
    """Return the commit of the package, not that of a project it is merely installed in.

    Where ARMS_COMMIT says it, that is it: a copy of a checkout may have a git that knows it only as dirty. Without
    either it is a digest of the package's source: two runs with the same one were made by the same code.
    """
    return (
        os.environ.get("ARMS_COMMIT", "").strip()
        or _git_commit(PACKAGE)
        or f"source-{_source_digest()}"
    )


@cache  # it is asked of every run, and a process has the code that it was started with
def _git_commit(package: Path) -> str:
    git = ["git", "-C", str(package)]
    is_ours = [*git, "ls-files", "--error-unmatch", "__init__.py"]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (is_ours, describe):
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(
            path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:16]


def _seconds(earlier: object) -> float:
    """Return the wall time written down earlier, 0 if it is not a number: a damaged note must not end a training."""
    return float(earlier) if isinstance(earlier, int | float) and math.isfinite(earlier) else 0.0
