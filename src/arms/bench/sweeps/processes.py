"""Work on this machine: as many processes as there is room for, which serve until there is no more."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from types import TracebackType
from typing import Self

import torch

from arms.bench.runs.machine import keep_freed_memory
from arms.bench.sweeps.worker import Outcome, Settings, Work, carry_out


def local_devices(cpus_per_job: int, gpus_per_job: float) -> list[str]:
    """Return the device of every process that this machine has room for, at least one.

    Args:
        cpus_per_job: Cores of each.
        gpus_per_job: The share of a GPU of each; 0 trains on the CPU.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if not gpus_per_job:
        return ["cpu"] * max(1, cores // cpus_per_job)
    if not torch.cuda.is_available():
        raise ValueError(
            f"--gpus-per-job is {gpus_per_job:g}, and PyTorch sees no GPU here: give 0, or leave it out"
        )
    return [
        f"cuda:{index}"
        for index in range(torch.cuda.device_count())
        for _ in range(int(1 / gpus_per_job))
    ]


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    device: str
    work: Work | None = None


class Processes:
    """An engine of processes, one for each device named.

    Args:
        devices: What `local_devices` returned.
        settings: How work is carried out.
    """

    def __init__(self, devices: Sequence[str], settings: Settings) -> None:
        self._free, self._settings = list(devices), settings
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.connection.close()
            if (
                worker.work is not None
                and worker.process.pid is not None
                and worker.process.is_alive()
            ):
                os.kill(worker.process.pid, signal.SIGTERM)  # it saves first
        for worker in self._workers:
            worker.process.join()

    def slots(self) -> int:
        """How many processes there can be."""
        return len(self._free) + len(self._workers)

    def has_room(self) -> bool:
        """Whether a process is idle, or could be started."""
        return bool(self._free) or any(worker.work is None for worker in self._workers)

    def start(self, work: Work) -> None:
        """Have an idle process carry out work, or a new one."""
        worker = (
            next((worker for worker in self._workers if worker.work is None), None) or self._hire()
        )
        worker.work = work
        with suppress(OSError):  # it died while it was idle: `ended` will find out
            worker.connection.send(work)

    def running(self) -> int:
        """How many works are being carried out."""
        return sum(worker.work is not None for worker in self._workers)

    def ended(self, seconds: float) -> list[tuple[Work, Outcome]]:
        """Return what has ended, also by the death of its process."""
        busy = {worker.connection: worker for worker in self._workers if worker.work is not None}
        found = []
        for ready in wait(list(busy), seconds):
            worker = busy[ready]  # type: ignore[index]
            assert worker.work is not None
            try:
                outcome, is_sound = worker.connection.recv(), True
            except (EOFError, OSError):
                worker.process.join()
                outcome, is_sound = (
                    Outcome("lost", (f"its process ended with code {worker.process.exitcode}",)),
                    False,
                )
            found.append((worker.work, outcome))
            worker.work = None
            if not is_sound or outcome.kind == "failed":  # an error of a GPU stays with its process
                self._dismiss(worker)
        return found

    def _dismiss(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.join()
        self._workers.remove(worker)
        self._free.append(worker.device)

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context(
            "spawn"
        )  # a fork would inherit threads of PyTorch that no longer run
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._settings, self._free[0]))
        process.start()
        theirs.close()  # so that its end is the end of the connection
        worker = _Worker(process, ours, self._free.pop(0))
        self._workers.append(worker)
        return worker


def _serve(connection: Connection, settings: Settings, device: str) -> None:
    """Carry out work until the driver closes the connection, or is gone."""
    keep_freed_memory()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's Ctrl-C comes to the driver too, which has us save
    Thread(target=_stop_with_the_driver, daemon=True).start()
    try:
        while True:
            connection.send(carry_out(connection.recv(), settings, device))
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _stop_with_the_driver() -> None:
    """Save and end once the driver has died: another sweep may resume the run then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
