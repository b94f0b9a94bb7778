"""Jobs on this machine: trained one after the other, then the page about their runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter

from arms.bench.config import Precision
from arms.bench.ensemble import group_for_ensembles
from arms.bench.experiments import Scale, configs, draw
from arms.bench.runs.loop import CHECKPOINT_SECONDS, DivergedError, Notify
from arms.bench.runs.machine import choose_device, planned_device
from arms.bench.runs.train import train_together
from arms.bench.sweeps.jobs import Job, plan, totals


def run_experiment(
    name: str,
    scale: Scale,
    output: Path | str,
    *,
    results: Sequence[Path | str] = (),
    precision: Precision = "highest",
    device: str = "auto",
    data_dir: Path | str | None = None,
    notify: Notify = lambda line: None,
) -> list[Path]:
    """Train what is missing of a figure or table, write its page or drawing, and return the paths of what was written.

    The same call again resumes where an earlier one ended; experiments in one folder share their runs. On a GPU runs
    that differ only in estimator and data set are trained together; on a CPU one by one, so that the numbers of none
    depend on what else is trained. A run of which no replica survives is notified, and is on the page as diverged.

    Args:
        name: The figure or table, see `arms.bench.experiments.EXPERIMENTS`.
        scale: How long to train: `smoke`, `laptop` or `paper`.
        output: Folder for new runs and the page; finished and unfinished runs in it are recognised.
        results: Further folders, or archives, whose finished runs count.
        precision: Of what is still to be trained, see `TrainConfig`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        notify: Called with a line per job, and with what a user should read in between.
    """
    wanted = configs(name, scale)
    if not wanted:
        return draw(name, scale, output)
    check_folders(results)
    on_gpu = choose_device(device).startswith("cuda")
    jobs = plan(wanted, output, results=results, precision=precision, on_gpu=on_gpu)
    run_jobs(jobs, name, device=device, data_dir=data_dir, notify=notify)
    from arms.bench.report import build_report

    page = Path(output) / f"{name}.html"
    build_report([task.path for job in jobs for task in job.tasks], page)
    return [page]


def preview(
    names: Iterable[str],
    scale: Scale,
    output: Path | str,
    *,
    results: Sequence[Path | str] = (),
    precision: Precision = "highest",
    device: str = "auto",
) -> list[str]:
    """Return what `run_experiment` would do for some figures and tables, a line per job and a last one for all.

    Nothing is written, and a GPU need not be there to be planned for.

    Args:
        names: The figures and tables; a run that several of them need is counted once.
        scale: How long to train: `smoke`, `laptop` or `paper`.
        output: Folder for new runs.
        results: Further folders, or archives, whose finished runs count.
        precision: Of what is still to be trained.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """
    check_folders(results)
    by_name = {name: configs(name, scale) for name in names}
    wanted = list(dict.fromkeys(config for found in by_name.values() for config in found))
    on_gpu = planned_device(device).startswith("cuda")
    jobs = plan(wanted, output, results=results, precision=precision, on_gpu=on_gpu)
    drawn = [f"{name}: is drawn without training" for name, found in by_name.items() if not found]
    return [
        *drawn,
        *(f"{index}/{len(jobs)} {job.line()}" for index, job in enumerate(jobs, 1)),
        totals(jobs),
    ]


def run_jobs(
    jobs: Sequence[Job],
    title: str,
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: bool = True,
    notify: Notify = lambda line: None,
) -> None:
    """Train what is not done, job by job.

    Args:
        jobs: What `plan` returned.
        title: Begins the line about each job.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        checkpoint_seconds: Time between two checkpoints.
        progress: Whether to show bars, on a terminal or in a notebook.
        notify: Called with a line per job, and with what a user should read in between.
    """
    total, count = sum(len(job.tasks) for job in jobs), 0
    for job in jobs:
        count += len(job.tasks)
        if not job.rest:
            notify(f"{title} {count}/{total} {job.line()}")
            continue
        start = perf_counter()
        # Runs that were begun at several precisions are one job, but not one ensemble.
        of = {task.config: task for task in job.rest}
        for together in group_for_ensembles(list(of)):
            try:
                train_together(
                    together,
                    [of[config].path for config in together],
                    device=device,
                    data_dir=data_dir,
                    checkpoint_seconds=checkpoint_seconds,
                    progress=progress,
                    notify=notify,
                )
            except DivergedError as error:
                notify(str(error))
        names = ", ".join(task.path.name for task in job.rest)
        notify(f"{title} {count}/{total} {names}: {perf_counter() - start:.1f} s")


def check_folders(results: Sequence[Path | str]) -> None:
    """Raise if a folder of results, or an archive, is not there."""
    for folder in results:
        if not Path(folder).exists():
            raise ValueError(
                f"there is no folder {folder} to look for finished runs in: name one that is there"
            )
