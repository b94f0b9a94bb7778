"""The verb for many runs: sweep."""

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from arms.arguments import as_count
from arms.bench.cli.console import print_plain
from arms.bench.cli.parsing import Output
from arms.bench.config import Precision
from arms.bench.data.download import expand_home
from arms.bench.experiments import Scale
from arms.bench.progress import SweepBar
from arms.bench.runs.loop import CHECKPOINT_SECONDS, check_seconds
from arms.bench.sweeps.driver import Tally, run_sweep, work_of
from arms.bench.sweeps.files import wanted_runs
from arms.bench.sweeps.jobs import plan, totals
from arms.bench.sweeps.local import check_folders
from arms.bench.sweeps.on_ray import RayCluster
from arms.bench.sweeps.processes import Processes, local_devices
from arms.bench.sweeps.worker import Settings


def sweep(
    what: Annotated[str, tyro.conf.Positional],
    /,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    output: Output = Path("sweep"),
    scale: Scale = "smoke",
    results: tuple[Path, ...] = (),
    precision: Precision | None = None,
    cpus_per_job: int = 1,
    gpus_per_job: float | None = None,
    dry_run: bool = False,
    data_dir: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train a list of configurations in parallel; the same command again trains only what is missing.

    Several sweeps may share a folder: none trains what another does. `arms report` makes a page of what there is.

    Args:
        what: A TOML file (docs/distributed.md), or a name of `arms experiments list`.
        engine: local: processes on this machine. ray: a Ray cluster, for which install arms-grad[ray].
        address: Of a Ray cluster that is there, such as 10.0.0.1:6379; unless given, RAY_ADDRESS, and without that one
            is started on this machine.
        output: Folder of the runs; finished ones in it count, unfinished ones are resumed.
        scale: Of an experiment by name, see `arms experiments run`.
        results: Further folders, or files of `arms archive`, in which finished runs count.
        precision: Of what is still to be trained; unless given, what the file says.
        cpus_per_job: Cores and threads of each job. It decides the last digits, so that it is one number for all.
        gpus_per_job: Share of a GPU of each job, at most 1; 0 trains on CPUs. Unless given, 1 where this machine has a
            GPU. On GPUs, runs that differ only in estimator and data set are trained together.
        dry_run: Print a line per job: its done, unfinished and missing runs; write nothing.
        data_dir: Folder with the data sets; unless given, ARMS_DATA_DIR, the cache, or the network.
        checkpoint_seconds: Time between two checkpoints: about as much as a killed run has to repeat.
    """
    if address and engine != "ray":
        raise ValueError(f"--address {address} is for --engine ray only: add that, or leave it out")
    as_count(cpus_per_job, 1, "--cpus-per-job")
    gpus = float(torch.cuda.is_available()) if gpus_per_job is None else gpus_per_job
    if not 0 <= gpus <= 1:
        raise ValueError(
            f"--gpus-per-job must be between 0 and 1, as a run is on one GPU, got {gpus:g}"
        )
    check_seconds(checkpoint_seconds, "--checkpoint-seconds")
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output must be a folder, got the file {output}: choose another place")
    # Workers may have another current folder.
    data_folder = data_dir and expand_home(data_dir).resolve()
    wanted = wanted_runs(what, scale)
    check_folders(results)
    jobs = plan(wanted, output, results=results, precision=precision, on_gpu=gpus > 0)
    if dry_run:
        for index, job in enumerate(jobs, 1):
            print_plain(f"{index}/{len(jobs)} {job.line()}")
        print_plain(totals(jobs))
        return
    states = Counter(task.state for job in jobs for task in job.tasks)
    tally = Tally(states.total())
    tally.counts.update(done=states["done"], diverged=states["diverged"])
    settings = Settings(tuple(sys.argv), cpus_per_job, data_folder, checkpoint_seconds)
    with ExitStack() as stack:
        on: RayCluster | Processes
        if engine == "ray":
            on = stack.enter_context(
                RayCluster(settings, address=address, cpus_per_job=cpus_per_job, gpus_per_job=gpus)
            )
            if line := on.check_room():
                print_plain(line)
        else:
            on = stack.enter_context(Processes(local_devices(cpus_per_job, gpus), settings))
        bar = stack.enter_context(SweepBar())
        run_sweep(
            work_of(jobs, on.slots()),
            on,
            tally,
            print_plain,
            lambda tally: bar.show(tally.ended, tally.total, str(tally)),
        )
    print_plain(f"{tally}: {output}")
    if tally.counts["failed"]:
        raise SystemExit(1)
