"""An engine that trains jobs on a Ray cluster."""

import logging
import os
import signal
import socket
from typing import Any, Self

from arms.bench.sweeps.engines import base
from arms.bench.sweeps.engines.base import Outcome, Settings, SweepEngine
from arms.bench.sweeps.jobs import Job

SAVING_SECONDS = 60.0
"""The number of seconds that a canceled job has to save its run."""


class RayCluster(SweepEngine):
    """An engine that trains jobs on a Ray cluster. It trains as many jobs at once as fit there.

    The run directories must be on a file system that all nodes share and that supports locks.

    Args:
        cpus_per_job: Cores and threads of each job.
        gpus_per_job: Share of a GPU of each job; 0 trains on CPUs. The default is 1 if this machine
            has a GPU.
        address: Address of an existing cluster. The default is RAY_ADDRESS. If it is not set, a
            cluster is started on this machine.
    """

    queued = 1  # a waiting job makes an autoscaling cluster grow

    def __init__(
        self, cpus_per_job: int = 1, gpus_per_job: float | None = None, address: str | None = None
    ) -> None:
        self._cpus, self._gpus = cpus_per_job, base.check_resources(cpus_per_job, gpus_per_job)
        self._address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.on_gpu = self._gpus > 0
        self._device = "cuda" if self.on_gpu else "cpu"
        self._running: dict[Any, Job] = {}

    def __enter__(self) -> Self:
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError(
                "the engine 'ray' needs the package Ray: run pip install 'arms-grad[ray]', or "
                "pip install '.[ray]' in a clone of the repository"
            ) from None
        self._ray: Any = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            _connect(ray, self._address)
        # Ray's retries are disabled, because the sweep itself counts attempts.
        remote = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0)
        self._task = remote(_run_job)
        return self

    def __exit__(self, *error: object) -> None:
        for task in self._running:
            self._ray.cancel(task)  # interrupts the task, which then saves
        if running := list(self._running):  # wait, because disconnecting would kill the workers
            self._ray.wait(running, num_returns=len(running), timeout=SAVING_SECONDS)
        if self._is_ours:
            self._ray.shutdown()

    def slots(self) -> int:
        return max(1, sum(map(self._fit, self._nodes())))  # the cluster may still grow from zero

    def warning(self) -> str | None:
        if any(map(self._fit, self._nodes())):
            return None
        asked = f"{self._cpus} CPUs and {self._gpus:g} GPUs"
        return f"no node of the Ray cluster has {asked} for a job: waiting until it grows"

    def start(self, job: Job, settings: Settings) -> None:
        self._running[self._task.remote(job, settings, self._device, self._cpus)] = job

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        ready, _ = self._ray.wait(list(self._running), timeout=seconds)
        return [(self._running.pop(task), self._outcome(task)) for task in ready]

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _fit(self, node: dict[str, float]) -> int:
        """Return the number of jobs that fit on a node. A job uses at most one GPU."""
        by_cpu = int(node.get("CPU", 0)) // self._cpus
        return min(by_cpu, int(node.get("GPU", 0)) * int(1 / self._gpus)) if self._gpus else by_cpu

    def _outcome(self, task: Any) -> Outcome:
        try:
            outcome = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return Outcome("lost", (f"{type(error).__name__}: {str(error).splitlines()[0]}",))
        assert isinstance(outcome, Outcome)
        return outcome


def _run_job(job: Job, settings: Settings, device: str, threads: int) -> Outcome:
    # Ray cancels a task by SIGINT. A cluster that was started in the background ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return base.run_in_worker(job, settings, device, threads)


def _connect(ray: Any, address: str) -> None:
    # A cluster that is started here needs no dashboard and no usage statistics.
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _check_answers(address)
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **own)
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"no Ray cluster answers at {address!r} ({first}): check --address HOST:PORT, or "
            "remove it to start a cluster on this machine"
        ) from None


def _check_answers(address: str) -> None:
    """Raise OSError if nothing answers at the address of a Ray cluster.

    Without this check, Ray would try again for many minutes.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()
