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
from arms.bench.cli.parsing import Output, Source
from arms.bench.config import Precision
from arms.bench.experiments import Scale
from arms.bench.progress import SweepBar
from arms.bench.runs.copies import check_apart, copied_names, is_url, local_copies
from arms.bench.runs.loop import CHECKPOINT_SECONDS, check_seconds
from arms.bench.runs.packs import find_runs
from arms.bench.sweeps.driver import Tally, run_sweep, tasks_to_copy, work_of, work_to_copy
from arms.bench.sweeps.files import wanted_runs
from arms.bench.sweeps.jobs import plan, totals
from arms.bench.sweeps.local import check_folders
from arms.bench.sweeps.on_ray import RayCluster
from arms.bench.sweeps.processes import Processes, local_devices
from arms.bench.sweeps.worker import Settings

__all__ = ["sweep"]

COUNTED = ("config.json", "result.json")
"""The files by which a finished run is recognised at an address."""


def sweep(
    what: Annotated[str, tyro.conf.Positional],
    /,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    output: Output = Path("sweep"),
    scale: Scale = "smoke",
    results: tuple[Source, ...] = (),
    copy_to: str | None = None,
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
        results: Further folders, files of `arms pack`, or addresses such as s3://bucket/runs: finished runs count.
        copy_to: Address of a folder, such as s3://bucket/runs, into which each run is copied when it has ended; those
            that are there count.
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
        raise ValueError(f"--gpus-per-job must be between 0 and 1, as a run is on one GPU, got {gpus:g}")
    check_seconds(checkpoint_seconds, "--checkpoint-seconds")
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output must be a folder, got the file {output}: choose another place")
    if copy_to:
        check_apart(output, copy_to)
    wanted = wanted_runs(what, scale)
    are_copies = copy_to is not None and bool(copied_names(copy_to))
    places = [*results, *([copy_to] if copy_to and are_copies else [])]
    with local_copies(places, COUNTED) as folders:
        check_folders(folders)
        jobs = plan(wanted, output, results=folders, precision=precision, on_gpu=gpus > 0)
        copies = {run.path.name: run for run in find_runs(folders[-1])} if are_copies else {}
        # What was found at an address is here for a while only.
        fetched = [folder for folder, place in zip(folders, places, strict=True) if is_url(place)]
        to_copy = [
            task
            for task in (tasks_to_copy(jobs, copies) if copy_to else [])
            if not any(task.path.is_relative_to(folder) for folder in fetched)
        ]
    if dry_run:
        for index, job in enumerate(jobs, 1):
            print_plain(f"{index}/{len(jobs)} {job.line()}")
        print_plain(totals(jobs))
        return
    states = Counter(task.state for job in jobs for task in job.tasks)
    tally = Tally(states.total())
    states.subtract(task.state for task in to_copy)  # these are still to come
    tally.counts.update(done=states["done"], diverged=states["diverged"])
    settings = Settings(tuple(sys.argv), cpus_per_job, data_dir and data_dir.resolve(), checkpoint_seconds, copy_to)
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
            [*work_to_copy(to_copy), *work_of(jobs, on.slots())],
            on,
            tally,
            print_plain,
            lambda tally: bar.show(tally.ended, tally.total, str(tally)),
        )
    print_plain(f"{tally}: {output}")
    if tally.counts["failed"]:
        raise SystemExit(1)
