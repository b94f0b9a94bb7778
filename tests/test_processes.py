"""The tests' own helpers: no process outlives the test that started it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import started


def alive(processes: Sequence[int]) -> list[int]:
    """Return the running processes. Ended processes may stay in the table until their parent reads their exit code."""
    found = []
    for process in processes:
        status = Path(f"/proc/{process}/status")
        try:
            found += [process] if "\nState:\tZ" not in status.read_text() else []
        except OSError:  # it is not even in the table
            continue
    return found


def start_and_fail(children: list[int]) -> None:
    with started(["sh", "-c", "sleep 1000 & echo $!; wait"]) as process:
        assert process.stdout is not None
        children += [process.pid, int(process.stdout.readline())]
        assert alive(children) == children
        raise ZeroDivisionError


@pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="reads the table of processes as Linux shows it"
)
def test_a_failing_test_leaves_no_process_behind() -> None:
    children: list[int] = []
    with pytest.raises(ZeroDivisionError):
        start_and_fail(children)
    end = time.monotonic() + 10
    while alive(children) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(children) == 2
    assert alive(children) == []
