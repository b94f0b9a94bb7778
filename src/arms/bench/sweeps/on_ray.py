"""Work on a Ray cluster: one that is there, or one that is started on this machine for the sweep."""

import logging
import os
import signal
import socket
from types import TracebackType
from typing import Any, Self

from arms.bench.runs.machine import keep_freed_memory
from arms.bench.sweeps.worker import Outcome, Settings, Work, carry_out

SAVING_SECONDS = 60.0
"""How long work that is cancelled may take to save."""


class RayCluster:
    """An engine of Ray tasks, as many at once as the cluster has room for.

    The run directories must be on a file system that all nodes share, and know locks.

    Args:
        settings: How work is carried out.
        address: Of a cluster that is there, as Ray writes it; unless given, RAY_ADDRESS, and without that a cluster of
            this machine is started.
        cpus_per_job: Cores of each job.
        gpus_per_job: The share of a GPU of each job; 0 trains on CPUs.

    Raises:
        ValueError: Ray is not installed, or there is no such cluster.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        address: str | None = None,
        cpus_per_job: int = 1,
        gpus_per_job: float = 0,
    ) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError(
                "the engine ray needs Ray: pip install 'arms-grad[ray]' ('.[ray]' in its folder)"
            ) from None
        self._ray: Any = ray
        self._settings, self._cpus, self._gpus = settings, cpus_per_job, gpus_per_job
        self._device = "cuda" if gpus_per_job else "cpu"
        self._running: dict[Any, Work] = {}
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local")
        # Ray's own retries are off: a sweep counts its attempts itself, on any engine.
        self._task = ray.remote(num_cpus=cpus_per_job, num_gpus=gpus_per_job, max_retries=0)(
            _carry_out
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._running:
            self._ray.cancel(task)  # interrupts it, and it saves
        if self._running:  # a cluster that is left takes its workers away at once
            self._ray.wait(
                list(self._running), num_returns=len(self._running), timeout=SAVING_SECONDS
            )
        if self._ours:
            self._ray.shutdown()

    def slots(self) -> int:
        """How many works the cluster has room for, as large as it is now; one where it has none and might grow."""
        return max(1, sum(map(self._fit, self._nodes())))

    def check_room(self) -> str | None:
        """Return a line that a user should read if no node is large enough for a job, as it would wait for one."""
        if any(map(self._fit, self._nodes())):
            return None
        asked = f"{self._cpus} CPUs" + (f" and {self._gpus:g} of a GPU" if self._gpus else "")
        largest = ", ".join(
            f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in self._nodes()
        )
        return f"no node of the Ray cluster has {asked} for a job (there is: {largest}): waiting until it grows"

    def has_room(self) -> bool:
        """Whether fewer are started than fit; and one more, which tells a cluster that can grow that it should."""
        return len(self._running) <= self.slots()

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _fit(self, node: dict[str, float]) -> int:
        """Return how many jobs fit on a node; none is on two GPUs."""
        by_cpu = int(node.get("CPU", 0)) // self._cpus
        return min(by_cpu, int(node.get("GPU", 0)) * int(1 / self._gpus)) if self._gpus else by_cpu

    def start(self, work: Work) -> None:
        """Have the cluster carry out work, once it has room."""
        task = self._task.remote(work, self._settings, self._device)
        self._running[task] = work

    def running(self) -> int:
        """How many works are carried out, or wait for room."""
        return len(self._running)

    def ended(self, seconds: float) -> list[tuple[Work, Outcome]]:
        """Return what has ended, also by the death of its worker or node."""
        ready, _ = self._ray.wait(list(self._running), timeout=seconds)
        return [(self._running.pop(task), self._outcome(task)) for task in ready]

    def _outcome(self, task: Any) -> Outcome:
        try:
            outcome = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return Outcome("lost", (f"{type(error).__name__}: {str(error).splitlines()[0]}",))
        assert isinstance(outcome, Outcome)
        return outcome


def _carry_out(work: Work, settings: Settings, device: str) -> Outcome:
    keep_freed_memory()
    # Ray cancels by this signal, and a cluster that was started in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return carry_out(work, settings, device)


def _connect(ray: Any, address: str) -> None:
    # A cluster of our own is for this sweep alone: no page about it, and no reports to its makers.
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _check_answers(address)
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **own)
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"no Ray cluster at {address!r}: {first}: give --address HOST:PORT, or leave it out"
        ) from None


def _check_answers(address: str) -> None:
    """Raise if nothing listens at an address: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()
