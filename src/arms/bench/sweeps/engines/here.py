"""Jobs in this process, one after the other."""

from typing import Self

from arms.bench.sweeps.engines.base import Outcome, Settings, SweepEngine, run_job
from arms.bench.sweeps.jobs import Job
from arms.bench.training.engine import choose_device, planned_device


class Here(SweepEngine):
    """An engine in this process. Ctrl-C and SIGTERM end the sweep, after a save.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    in_background = False

    def __init__(self, device: str = "auto") -> None:
        self.device = planned_device(device)
        self.on_gpu = self.device.startswith("cuda")
        self._ended: list[tuple[Job, Outcome]] = []

    def __enter__(self) -> Self:
        choose_device(self.device)  # raises if it is not here
        return self

    def start(self, job: Job, settings: Settings) -> None:
        self._ended = [(job, run_job(job, settings, self.device, settings.progress))]

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        return self._ended
