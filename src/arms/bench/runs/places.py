"""Where a run belongs: its name with the user's own data and model, and its directory."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from arms.bench.config import TrainConfig, difference, is_longer, run_name
from arms.bench.data import DATASETS, Dataset, load
from arms.bench.runs.archives import examine_runs
from arms.bench.runs.loading import MakeModel, own_model
from arms.bench.runs.loop import Notify
from arms.bench.runs.run import Run


@lru_cache(maxsize=4)  # many runs are trained on few data sets
def load_once(source: Dataset | Path | str, data_dir: Path | None) -> Dataset:
    """Return a data set, by name or path, and keep it in memory."""
    return source if isinstance(source, Dataset) else load(source, data_dir)


def name_inputs(
    configs: Sequence[TrainConfig],
    dataset: Dataset | Path | str | None,
    make: MakeModel | None,
    data_dir: Path | None,
) -> tuple[list[TrainConfig], dict[str, Dataset | Path]]:
    """Return configurations with the names of the user's own model and data sets, and the latter.

    A data set that was read from a file is returned as its path: another process can read it, too.
    """
    named, own = [], dict[str, Dataset | Path]()
    for config in configs:
        source = config.dataset if dataset is None else dataset
        if source in DATASETS and make is None:  # it need not be loaded here
            named.append(replace(config, dataset=str(source)))
            continue
        data = load_once(source, data_dir)
        found = replace(config, dataset=data.name)
        named.append(found if make is None else own_model(found, make, data)[0])
        if source not in DATASETS:
            own[data.name] = data if source is data else Path(data.path).resolve()
    return named, own


def choose_directory(folder: Path, config: TrainConfig, notify: Notify) -> Path:
    """Return the directory of a run in a folder: its own, that of a shorter run, or a new one.

    A run with fewer steps is continued, unless its schedule is a cosine, which ends with it.
    """
    place = folder / run_name(config)
    if Run(place).exists():
        return place
    shorter: list[tuple[int, Path]] = []
    for path, run in examine_runs(folder):
        if isinstance(run, ValueError) or not path.is_dir():  # damaged, or in an archive
            continue
        begun = run.config()
        if is_longer(config, begun) or not difference(config, begun):
            shorter.append((begun.steps, path))
        elif set(difference(config, begun)) == {"steps"} and begun.steps < config.steps:
            end = f"{path} ends at step {begun.steps:,} of its cosine schedule"
            notify(f"{end}: starting a new run of {config.steps:,} steps")
    return max(shorter)[1] if shorter else place
