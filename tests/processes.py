"""Child processes of tests: each has a separate session, uses UTF-8, and ends with the test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

ARMS = [
    sys.executable,
    "-c",
    "import sys; from arms_command import main; sys.argv[0] = 'arms'; main()",
]
"""The command `arms`, to which a test adds arguments."""
KILLED_AFTER_SAVES = """
import os, signal, sys
import arms.bench.runs.ensemble as ensemble
from arms.bench.cli import main

save, left = ensemble._save, [None] * int(sys.argv.pop(1))

def save_and_die(*args):
    save(*args)
    left.pop()
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

ensemble._save = save_and_die
main()
"""
"""The command `arms`, killed after a number of saves that is its first argument."""
IN_BACKGROUND = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
"""A prefix that makes a command ignore Ctrl-C, as in the background of a script."""


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Start a process; at the end kill it and the processes it has started, and close its pipes.

    Args:
        command: What to run.
        options: Arguments of `subprocess.Popen`; both outputs are pipes unless said otherwise.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", **options}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with suppress(OSError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL)


def completed(
    command: Sequence[str], timeout: float = 120, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a process to its end.

    Args:
        command: What to run.
        timeout: How many seconds it may take.
        options: Arguments of `subprocess.Popen`.
    """
    with started(command, **options) as process:
        out, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
