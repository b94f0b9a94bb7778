"""An engine that trains jobs in parallel processes on this machine."""

import multiprocessing
import os
import pickle
import signal
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Self

import torch

from arms.bench.sweeps.engines import base
from arms.bench.sweeps.engines.base import Outcome, Settings, SweepEngine
from arms.bench.sweeps.jobs import Job


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    device: str
    job: Job | None = None


class Processes(SweepEngine):
    """An engine that trains in parallel processes on this machine.

    A script that uses this engine needs `if __name__ == "__main__":`, as usual in Python.

    Args:
        cpus_per_job: Cores and threads of each job.
        gpus_per_job: Share of a GPU of each job; 0 trains on CPUs. The default is 1 if there is a
            GPU.
    """

    def __init__(self, cpus_per_job: int = 1, gpus_per_job: float | None = None) -> None:
        self._cpus, self._gpus = cpus_per_job, base.check_resources(cpus_per_job, gpus_per_job)
        self.on_gpu = self._gpus > 0
        self._free: list[str] = []
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        self._free = _local_devices(self._cpus, self._gpus)
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.connection.close()
            pid = worker.process.pid
            if worker.job is not None and pid is not None and worker.process.is_alive():
                os.kill(pid, signal.SIGTERM)  # the worker saves first
        for worker in self._workers:
            worker.process.join()

    def slots(self) -> int:
        return len(self._free) + len(self._workers)

    def start(self, job: Job, settings: Settings) -> None:
        idle = [worker for worker in self._workers if worker.job is None]
        worker = idle[0] if idle else self._start_worker()
        worker.job = job
        try:
            with suppress(OSError):  # if the worker died while idle, `ended` detects this
                worker.connection.send((job, settings))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            what = f"model must be a function that other processes can import, got {error}"
            raise ValueError(f"{what}: define it in a module, or pass 'module:name'") from None

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        found = []
        for ready in wait(list(busy), seconds):
            worker = busy[ready]  # type: ignore[index]
            assert worker.job is not None
            try:
                outcome, is_sound = worker.connection.recv(), True
            except (EOFError, OSError):
                worker.process.join()
                line = f"the worker process ended with code {worker.process.exitcode}"
                outcome, is_sound = Outcome("lost", (line,)), False
            found.append((worker.job, outcome))
            worker.job = None
            if not is_sound or outcome.kind == "failed":  # GPU errors persist in a process
                self._stop_worker(worker)
        return found

    def _start_worker(self) -> _Worker:
        # Forking is not safe, because PyTorch's threads do not run in the child.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        device = self._free.pop(0)
        process = context.Process(target=_serve, args=(theirs, device, self._cpus))
        process.start()
        theirs.close()  # the connection then closes when the worker ends
        worker = _Worker(process, ours, device)
        self._workers.append(worker)
        return worker

    def _stop_worker(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.join()
        self._workers.remove(worker)
        self._free.append(worker.device)


def _local_devices(cpus_per_job: int, gpus_per_job: float) -> list[str]:
    """Return one device for each process that this machine can run at the same time.

    If jobs are trained on CPUs, the list has at least one entry.
    """
    if not gpus_per_job:
        has_affinity = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        return ["cpu"] * max(1, cores // cpus_per_job)
    if not torch.cuda.is_available():
        what = f"gpus_per_job is {gpus_per_job:g}, but PyTorch finds no GPU on this machine"
        raise ValueError(f"{what}: set it to 0")
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [gpu for gpu in gpus for _ in range(int(1 / gpus_per_job))]


def _serve(connection: Connection, device: str, threads: int) -> None:
    """Receive jobs from the sweep, train them, and send their outcomes back.

    Return when the sweep closes the connection, or when the sweep ends.
    """
    # Ctrl-C in a terminal also reaches the sweep, which stops its workers after a save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_stop_with_the_sweep, daemon=True).start()
    try:
        while True:
            job, settings = connection.recv()
            connection.send(base.run_in_worker(job, settings, device, threads))
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _stop_with_the_sweep() -> None:
    """Wait until the process of the sweep has ended. Then save and stop this worker.

    The worker must stop, because another sweep may resume the worker's run.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
