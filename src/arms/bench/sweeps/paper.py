"""Find the numbers of the paper's tables for which we have no finished run, and train such runs.

A number is missing if neither the archives nor the output folder contain a finished run with the
same setting and estimator. The runs are those of `arms experiments`, but only for estimators that
the paper has.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from arms.bench.config import TrainConfig
from arms.bench.experiments import CHANGES, Scale, configs
from arms.bench.report.groups import setting_of
from arms.bench.report.paper import Printed, all_printed
from arms.bench.report.tables import Cell
from arms.bench.runs.archives import find_runs, open_runs, write_archive
from arms.bench.runs.files import make_folder, replace_file
from arms.bench.runs.run import Run
from arms.bench.sweeps.jobs import experiment_of, plan
from arms.bench.sweeps.reproduced import committed, page_of
from arms.bench.sweeps.sweep import SweepError, sweep


class Wanted(NamedTuple):
    """A number of the paper, with the configuration of the run that reproduces this number."""

    config: TrainConfig
    split: str
    number: Printed

    def __str__(self) -> str:
        config, stat = self.config, Cell(self.number.mean, self.number.plus_minus)
        setting = f"{config.dataset}, {config.network}, n = {config.num_samples}"
        return f"table {self.number.table}: {setting}, {config.label}, {self.split}: {stat}"


def wanted_numbers(scale: Scale = "paper") -> list[Wanted]:
    """Return all numbers of the paper in order, each with the run that reproduces it.

    The configurations of the runs are those at the given scale.
    """
    runs = {
        (*setting_of(config)[:3], config.label): replace(config, **CHANGES[scale])
        for table in ("table1", "table2")
        for config in configs(table, "paper")
    }
    return [
        Wanted(runs[dataset, network, n, estimator], split, number)
        for (dataset, network, n, split, estimator), number in all_printed().items()
    ]


def missing_numbers(
    wanted: Sequence[Wanted], output: Path, results: Sequence[Path]
) -> list[Wanted]:
    """Return the wanted numbers for which neither `output` nor `results` have a finished run."""
    jobs = plan([one.config for one in wanted], output, results=results)
    tasks = [task for job in jobs for task in job.tasks]
    done = {experiment_of(task.config) for task in tasks if task.state == "done"}
    return [one for one in wanted if experiment_of(one.config) not in done]


def missing_lines(scale: Scale, output: Path, results: Path) -> list[str]:
    """Return one line for each missing number of the paper, and a last line with their count."""
    wanted = wanted_numbers(scale)
    missing = missing_numbers(wanted, output, [results])
    runs = len({experiment_of(one.config) for one in missing})
    last = f"total: {len(missing)} of {len(wanted)} numbers are missing, which are {runs} runs"
    return [*map(str, missing), last]


def finish_paper(
    scale: Scale, output: Path, results: Path, page: Path, **options: Any
) -> list[Path]:
    """Train the missing runs of the paper's tables, archive them, and write the page.

    Return the paths of all written files. If some runs fail, or if Ctrl-C stops the training, the
    finished runs are archived nevertheless.

    Args:
        scale: Scale of the runs.
        output: Folder of the run directories. Unfinished runs in it are resumed.
        results: Folder of the archives, one for each data set and network. The runs are added to
            these archives.
        page: The page that compares the paper's numbers with ours. It is written only at the scale
            of the paper.
        options: Further arguments of `sweep`.
    """
    wanted = [one.config for one in wanted_numbers(scale)]
    try:
        sweep(wanted, output, results=[results], **options)
    except (SweepError, KeyboardInterrupt):
        _keep(scale, wanted, output, results, page)
        raise
    return _keep(scale, wanted, output, results, page)


def _keep(
    scale: Scale, wanted: Sequence[TrainConfig], output: Path, results: Path, page: Path
) -> list[Path]:
    written = add_to_archives(wanted, output, results)
    if scale == "paper":
        make_folder(page.parent)
        replace_file(page, page_of(committed(results)))
        written.append(page)
    return written


def add_to_archives(wanted: Iterable[TrainConfig], output: Path, results: Path) -> list[Path]:
    """Copy all finished runs of the `wanted` configurations from `output` to archives in `results`.

    Runs that are already archived are not added again. Return the paths of the changed archives.
    """
    archived = {experiment_of(run) for run in find_runs(results)}
    lacking = {experiment_of(config) for config in wanted} - archived
    new: Mapping[Path, dict[str, Run]] = defaultdict(dict)
    for run in find_runs(output):
        if (found := experiment_of(run)) in lacking and run.is_finished():
            config = run.config()
            file = results / f"{config.dataset}-{config.network}.json"
            new[file].setdefault(found, run)
    for file, runs in new.items():
        write_archive(file, [*(open_runs(file) if file.exists() else []), *runs.values()])
    return list(new)
