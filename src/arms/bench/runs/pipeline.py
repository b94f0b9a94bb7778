"""From a configuration to a finished run: train, record, save, evaluate; and resume where an earlier session ended.

One loop serves a list of runs that share the replica axis; a run alone is the list of one.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch

from arms.bench.config import TrainConfig, latents_in_words
from arms.bench.data import Dataset, check_same_shape_and_levels, load
from arms.bench.ensemble import group_by_step, names_of, stack
from arms.bench.metrics import Record
from arms.bench.models import DiscreteVAE
from arms.bench.progress import Bars
from arms.bench.runs.directory import Run
from arms.bench.runs.files import locked, make_folder
from arms.bench.runs.live_run import LiveRun, Notify, OnRecord, check_survivors, unfinished
from arms.bench.runs.loading import MakeModel, check_start, own_data, own_model
from arms.bench.runs.loop import CHECKPOINT_SECONDS, TrainOptions, train_ensemble
from arms.bench.runs.memory import free_memory, is_out_of_memory
from arms.bench.training.engine import Execution

OnRunRecord: TypeAlias = Callable[[TrainConfig, Record], None]
"""Called with every record of every run of an ensemble: its configuration, and what an `OnRecord` is given."""


def train(
    config: TrainConfig,
    directory: Path | str,
    *,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | Path | str | None = None,
    model: DiscreteVAE | MakeModel | None = None,
    evaluate: int | None = None,
    execution: Execution = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: bool = True,
    on_record: OnRecord | None = None,
    notify: Notify = warnings.warn,
) -> Run:
    """Train to the end of `config.steps`, evaluate, and return the run; called again it resumes, or does nothing.

    Called with more steps it goes on from where the run ended, unless its schedule is a cosine, which has its end at
    the last step. A replica whose numbers are not finite stops, and the others continue. Nothing is written before all
    arguments are checked, and the model was tried on two images.

    Process-wide while it trains, and put back afterwards: the handlers of SIGINT and SIGTERM, so that Ctrl-C and the
    end of a job save first, PyTorch's precision of matrix products on a GPU or its number of threads on a CPU, and the
    state of a GPU's default generator, which a step borrows. PyTorch's cache of freed GPU memory is emptied at the end.
    Nothing else is touched: functions that you have compiled stay compiled.

    Args:
        config: What to train; its identity decides every number.
        directory: The run's directory, made unless it exists.
        device: `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the GPU where there is one.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        dataset: Your own images in place of the data set that `config` names, see `as_dataset`; the run then has your
            data set's name.
        model: Your own networks in place of those that `config` names, or a function that makes a model of one replica
            for a data set. The run then has your model's name, number of latents, and a fingerprint of its structure. A
            model comes back trained, also where the run was finished before: from its checkpoint.
        evaluate: How many images of each split the final bounds are over; all unless given.
        execution: How steps are executed, see `Engine`.
        checkpoint_seconds: Time between two checkpoints, which are written at records only; 0 saves at every record.
        progress: Whether to show a bar, on a terminal or in a notebook.
        on_record: Called with every record.
        notify: Called with lines that a user should read.

    Raises:
        DivergedError: No replica survives.
        ValueError: An argument cannot be used, or the directory holds another run.
    """
    options = TrainOptions(str(device), execution, checkpoint_seconds, notify, evaluate=evaluate)
    data = own_data(config, dataset, data_dir)
    if model is not None:
        data = data or load(config.dataset, data_dir)
        config, own = own_model(config, model, data)
        if not Run(directory).step():  # otherwise the weights come from a checkpoint
            check_start(own, data)
        options = replace(options, model=own)
    with Bars(on_stderr=True) as bars:
        config = _on(data, config)
        watch = bars.watcher(config.label, config.steps) if progress else None
        live = LiveRun(Run(directory), config, notify, _both(watch, on_record), images=evaluate)
        if options.model is not None and live.is_finished():
            options.model.load_state_dict(live.run.load())
        else:
            _train([live], options, data_dir, {data.name: data} if data else {})
    return live.run


def train_together(
    configs: Sequence[TrainConfig],
    directories: Sequence[Path | str],
    *,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    datasets: Sequence[Dataset] | None = None,
    evaluate: int | None = None,
    execution: Execution = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: bool = True,
    on_record: OnRunRecord | None = None,
    notify: Notify = warnings.warn,
) -> list[Run]:
    """Train runs that differ in estimator and data set only as one ensemble, into one directory each; or resume them.

    Each is a run as `train` makes it, but for its noise, which depends on the other runs too. Finished runs are left
    alone, and runs at different steps are resumed one after the other. An ensemble that does not fit into memory is
    halved. `train` says what is process-wide.

    Args:
        configs: What to train. Several estimators must share their objective, and have no parameters or noise of their
            own to remember (`arms.bench.ensemble.group_for_ensembles` sorts runs accordingly).
        directories: A directory for each run.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        datasets: A data set for each run, in place of those that the configurations name; all with images of the
            same size and number of levels.
        evaluate: How many images of each split the final bounds are over; all unless given.
        execution: How steps are executed, see `Engine`.
        checkpoint_seconds: Time between two checkpoints, which are written at records only; 0 saves at every record.
        progress: Whether to show a bar for each, on a terminal or in a notebook.
        on_record: Called with every record of every run, and its configuration.
        notify: Called with lines that a user should read.

    Raises:
        DivergedError: A run has no replica that survives; the others are trained to their end first.
        ValueError: An argument cannot be used, or a directory holds another run.
    """
    options = TrainOptions(str(device), execution, checkpoint_seconds, notify, evaluate=evaluate)
    if isinstance(configs, TrainConfig) or not configs:
        got = "one" if isinstance(configs, TrainConfig) else "none"
        raise ValueError(
            f"configs must be a list with at least one configuration, got {got}: write [config]"
        )
    given = _one_dataset_each(configs, datasets)
    own = [
        own_data(config, dataset, data_dir) for config, dataset in zip(configs, given, strict=True)
    ]
    wanted = [_on(dataset, config) for config, dataset in zip(configs, own, strict=True)]
    if alone := [config.network for config in wanted if config.structure]:
        raise ValueError(
            f"a model of your own is trained alone, got {alone[0]!r}: call train for each of its runs"
        )
    if len(wanted) > 1:
        stack(wanted)  # raises if they cannot share an ensemble, before anything is written
    paths = _one_directory_each(wanted, directories)
    with Bars(on_stderr=True) as bars:
        live_runs = []
        for config, path, name in zip(wanted, paths, names_of(wanted), strict=True):
            watch = bars.watcher(name, config.steps) if progress else None
            listener = _both(watch, _listener(config, on_record))
            live_runs.append(
                LiveRun(Run(path), config, notify, listener, name=name, images=evaluate)
            )
        _train(live_runs, options, data_dir, {dataset.name: dataset for dataset in own if dataset})
    return [live.run for live in live_runs]


def _one_directory_each(
    configs: Sequence[TrainConfig], directories: Sequence[Path | str]
) -> list[Path]:
    """Return the directories, one for each run."""
    if isinstance(directories, str | Path):
        raise ValueError(
            f"directories must be a list, got {str(directories)!r}: write [{str(directories)!r}]"
        )
    if len(directories) != len(configs):
        raise ValueError(
            f"each run needs a directory, got {len(directories)} for {len(configs)} runs"
        )
    paths = [Path(directory) for directory in directories]
    try:
        different = {path.resolve() for path in paths}
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ValueError(f"the directories cannot be used: {error}") from None
    if len(different) < len(paths):
        raise ValueError(
            f"directories must be different, one for each run, got {', '.join(map(str, paths))}"
        )
    return paths


def _one_dataset_each(
    configs: Sequence[TrainConfig], datasets: Sequence[Dataset] | None
) -> Sequence[Dataset | None]:
    """Return a data set for every configuration, None for the one that it names."""
    if datasets is None:
        return [None] * len(configs)
    if isinstance(datasets, Dataset) or len(datasets) != len(configs) or None in datasets:
        got = (
            "one"
            if isinstance(datasets, Dataset)
            else sum(dataset is not None for dataset in datasets)
        )
        raise ValueError(
            f"datasets must be a list with one for each run, got {got} for {len(configs)} runs"
        )
    different = [dataset.name for dataset in dict.fromkeys(datasets)]
    if len(set(different)) < len(different):
        raise ValueError(f"different data sets need different names, got {', '.join(different)}")
    return datasets


def _on(dataset: Dataset | None, config: TrainConfig) -> TrainConfig:
    return replace(config, dataset=dataset.name) if dataset else config


def _listener(config: TrainConfig, on_record: OnRunRecord | None) -> OnRecord | None:
    return (lambda record: on_record(config, record)) if on_record else None


def _both(one: OnRecord | None, other: OnRecord | None) -> OnRecord | None:
    """Return a function that calls both, where there are two."""

    def call(record: Record) -> None:
        for listener in filter(None, (one, other)):
            listener(record)

    return call if one or other else None


def _train(
    live_runs: Sequence[LiveRun],
    options: TrainOptions,
    data_dir: Path | str | None,
    given: Mapping[str, Dataset],
) -> None:
    rest = unfinished(live_runs)
    if lacking := [live for live in rest if live.config.structure and options.model is None]:
        raise ValueError(
            f"{lacking[0].config.network!r} is a model of your own: give it, as model="
        )
    if not any(live.surviving for live in rest):
        check_survivors(rest)
        return
    options = options.resolved()
    if options.device == "cpu" and (precision := live_runs[0].config.precision) != "highest":
        options.notify(
            f"precision {precision!r} has an effect on a GPU only: a CPU computes in float32"
        )
    names = dict.fromkeys(live.config.dataset for live in rest)
    data = {name: given.get(name) or load(name, data_dir) for name in names}
    check_same_shape_and_levels([*data.values()])
    for live in rest:
        _check_goes_on(live, options)
    with ExitStack() as locks:
        for live in rest:  # only now: a wrong device, data set or model leaves nothing behind
            make_folder(live.run.path)
            locks.enter_context(locked(live.run.path))
            Run.create(live.run.path, live.config, data[live.config.dataset].path)
        _train_locked(live_runs, rest, options, data)
    check_survivors(rest)


def _train_locked(
    live_runs: Sequence[LiveRun],
    open_runs: Sequence[LiveRun],
    options: TrainOptions,
    data: Mapping[str, Dataset],
) -> None:
    # Another process may have trained some of them since we looked: what counts is what is there under the lock.
    rest = unfinished(open_runs)
    groups = group_by_step([set(live.run.resumable()) for live in rest])
    if len(rest) < len(live_runs) or len(groups) > 1:
        options.notify(_who_resumes(live_runs, rest, groups))
    for _, indices in groups:
        together = [rest[index] for index in indices]
        if any(live.surviving for live in together):
            _train_what_fits(together, options, data)


def _check_goes_on(live: LiveRun, options: TrainOptions) -> None:
    """Say that a finished run goes on, or raise if nothing was kept that it could go on from."""
    if not live.run.exists() or live.run.result() is None:
        return
    if not (steps := live.run.checkpoints()):
        raise ValueError(
            f"{live.run.path} holds no intact checkpoint to go on from: its checkpoints were not kept; train it again "
            "in another directory"
        )
    if live.is_lengthened():
        options.notify(f"{live.run.path} goes on from step {max(steps):,} to {live.config.steps:,}")


def _who_resumes(
    live_runs: Sequence[LiveRun], rest: Sequence[LiveRun], groups: Sequence[tuple[int, list[int]]]
) -> str:
    parts = [
        f"{', '.join(rest[index].name for index in indices)} from step {step}"
        for step, indices in groups
    ]
    done = [live.name for live in live_runs if live not in rest]
    parts += [f"{', '.join(done)} finished before"] if done else []
    return f"these runs are not all trained together: {'; '.join(parts)}"


def _train_what_fits(
    live_runs: Sequence[LiveRun], options: TrainOptions, data: Mapping[str, Dataset]
) -> None:
    """Train runs together, or one half after the other where memory does not suffice."""
    fits = _fits(live_runs, options, data)
    if not fits or options.device.startswith("cuda"):
        free_memory()
    if fits:
        return
    names, config = ", ".join(live.name for live in live_runs), live_runs[0].config
    if len(live_runs) == 1:
        raise ValueError(
            f"{names} does not fit into the memory of {options.device}: lower replicas ({config.replicas}), "
            f"batch_size ({config.batch_size}), num_samples ({config.num_samples}) or latents "
            f"({latents_in_words(config)})"
        )
    half = (len(live_runs) + 1) // 2
    options.notify(
        f"{names} do not fit into the memory of {options.device} together: trained as {half} + {len(live_runs) - half}"
    )
    _train_what_fits(live_runs[:half], options, data)
    _train_what_fits(live_runs[half:], options, data)


def _fits(live_runs: Sequence[LiveRun], options: TrainOptions, data: Mapping[str, Dataset]) -> bool:
    """Train runs together, and return whether memory sufficed.

    A function of its own, so that on return no local variable and no traceback keeps trainer and engine alive.
    """
    try:
        train_ensemble(live_runs, options, data)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
