"""Train runs from their configurations: check arguments, lock directories, train or resume.

Internally, every training trains a list of runs that share the replica axis. A single run is a list
of length one.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from arms.bench.config import TrainConfig, is_longer, latents_in_words
from arms.bench.data import Dataset, check_same_shape_and_levels, load
from arms.bench.metrics import Record
from arms.bench.models import DiscreteVAE
from arms.bench.output import Bars, Watcher
from arms.bench.runs.ensemble import (
    CHECKPOINT_SECONDS,
    DivergedError,
    Member,
    Notify,
    OnRecord,
    TrainOptions,
    group_by_step,
    names_of,
    stack,
    train_ensemble,
)
from arms.bench.runs.files import locked, make_folder
from arms.bench.runs.limit import TimeLimit
from arms.bench.runs.loading import MakeModel, check_start, own_data, own_model
from arms.bench.runs.run import Run
from arms.bench.training.engine import (
    Execution,
    check_execution,
    choose_device,
    free_memory,
    is_out_of_memory,
)

OnRunRecord: TypeAlias = Callable[[TrainConfig, Record], None]
"""A function that is called for every record of every run, with the run's configuration and the
record."""


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
    limit: TimeLimit | None = None,
    progress: bool | Bars = True,
    on_record: OnRecord | None = None,
    notify: Notify = warnings.warn,
) -> Run:
    """Train a run for `config.steps` steps, evaluate it, and return it. Call again to resume.

    A finished run is not changed, unless `config` has more steps. In this case, the run continues
    from its end. A run with a cosine schedule cannot continue, because the schedule has ended. If
    the numbers of a replica are not finite, this replica is stopped, and the other replicas
    continue. Nothing is written before all arguments are checked and the model is tried on two
    images.

    Training changes some settings of the process, and restores them at the end: the handlers of
    SIGINT and SIGTERM, so that the run is saved before the process ends; PyTorch's precision of
    matrix products on a GPU, or its number of threads on a CPU; and the state of the default
    generator of a GPU. PyTorch's cache of freed GPU memory is emptied at the end. Your own compiled
    functions stay compiled.

    Args:
        config: The configuration. Only the fields of its identity affect the numbers.
        directory: The run's directory, created if necessary.
        device: `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the GPU if there is one.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
        dataset: Your own images, instead of those that `config` names; see `as_dataset`.
        model: Your own model, instead of the model that `config` names, or a function of the data
            set that returns a model with one replica. The configuration of the run then has your
            model's name, its number of latents, and a fingerprint of its structure. The model is
            trained in place. If the run was already finished, the run's weights are loaded into
            your model.
        evaluate: The number of images per split for the final bounds; all by default.
        execution: How steps are executed; see `Engine`.
        checkpoint_seconds: Time between two checkpoints, which are written after records. With 0,
            there is a checkpoint for every record.
        limit: A time limit. When it is reached, training saves and stops. By default, there is no
            limit.
        progress: Whether to show a progress bar on a terminal or in a notebook. To add the bar to
            existing progress bars, pass these `Bars`.
        on_record: A function that is called with every record.
        notify: A function that is called with messages for the user.

    Raises:
        DivergedError: No replica survives.
        OutOfTimeError: The limit was reached. Call the function again to resume.
        ValueError: An argument is invalid, or the directory contains another run.
    """
    limit = limit or TimeLimit()
    options = TrainOptions(
        str(device), execution, checkpoint_seconds, notify, evaluate, limit=limit
    )
    run, data = Run(directory), own_data(config, dataset, data_dir)
    if model is not None:
        data = data or load(config.dataset, data_dir)
        config, own = own_model(config, model, data)
        if not run.step():  # otherwise the weights come from a checkpoint
            check_start(own, data)
        options = replace(options, model=own)
    config = _on(data, config)
    if options.model is not None and run.is_finished(config, evaluate):
        options.model.load_state_dict(run.weights())
        return run
    member = Member(run, config, notify, on_record)
    _train([member], options, data_dir, {data.name: data} if data else {}, progress)
    return run


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
    limit: TimeLimit | None = None,
    progress: bool | Bars = True,
    on_record: OnRunRecord | None = None,
    notify: Notify = warnings.warn,
) -> list[Run]:
    """Train an ensemble of runs that differ only in estimator and data set, or resume it.

    Each run has its own directory, as with `train`, but its noise also depends on the other runs.
    Finished runs are not changed. Runs at different steps are resumed one after the other. If the
    ensemble does not fit into memory, it is split into two halves.

    Args:
        configs: The configurations. `arms.bench.runs.ensemble.group_for_ensembles` groups runs that
            can share an ensemble.
        directories: A directory for each run.
        device: As for `train`.
        data_dir: As for `train`.
        datasets: A data set for each run, instead of the data sets that `configs` name. All images
            must have the same shape.
        evaluate: As for `train`.
        execution: As for `train`.
        checkpoint_seconds: As for `train`.
        progress: As for `train`.
        on_record: A function that is called for every record of every run, with the run's
            configuration and the record.
        notify: As for `train`.
        limit: As for `train`.

    Raises:
        DivergedError: A run has no surviving replica. The other runs are trained to their end.
        OutOfTimeError: The limit was reached. Call the function again to resume.
        ValueError: An argument is invalid, or a directory contains another run.
    """
    limit = limit or TimeLimit()
    options = TrainOptions(
        str(device), execution, checkpoint_seconds, notify, evaluate, limit=limit
    )
    if isinstance(configs, TrainConfig) or not configs:
        got = "a single configuration" if configs else "an empty list"
        expected = "configs must be a list of at least one configuration"
        raise ValueError(f"{expected}, got {got}: write [config]")
    _check_one_each("directories", directories, len(configs))
    if datasets is not None:
        _check_one_each("datasets", datasets, len(configs))
    paths = [Path(directory) for directory in directories]
    given: Sequence[Dataset | None] = datasets or [None] * len(configs)
    own = [own_data(config, one, data_dir) for config, one in zip(configs, given, strict=True)]
    wanted = [_on(dataset, config) for config, dataset in zip(configs, own, strict=True)]
    if alone := [config.network for config in wanted if config.structure]:
        what = f"train_together accepts built-in models only, got your own model {alone[0]!r}"
        raise ValueError(f"{what}: call train for each of its runs")
    if len(wanted) > 1:
        stack(wanted)  # raises if they cannot share an ensemble, before anything is written
    _check_different(paths, datasets or [])
    members = []
    for config, path, name in zip(wanted, paths, names_of(wanted), strict=True):
        listener = partial(on_record, config) if on_record else None
        members.append(Member(Run(path), config, notify, listener, name))
    _train(members, options, data_dir, {one.name: one for one in own if one}, progress)
    return [member.run for member in members]


def _check_one_each(what: str, given: object, runs: int) -> None:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    got = len(given) if is_list else type(given).__name__  # type: ignore[arg-type]
    if got != runs:
        raise ValueError(f"{what} must list one entry for each of the {runs} runs, got {got}")


def _check_different(paths: Sequence[Path], datasets: Sequence[Dataset]) -> None:
    """Raise ValueError if two runs share a directory, or if two data sets share a name."""
    try:
        different = {path.resolve() for path in paths}
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ValueError(f"the directories cannot be used: {error}") from None
    if len(different) < len(paths):
        got = ", ".join(map(str, paths))
        raise ValueError(f"each run must have its own directory, got {got}")
    names = [dataset.name for dataset in dict.fromkeys(datasets)]
    if len(set(names)) < len(names):
        raise ValueError(f"different data sets must have different names, got {', '.join(names)}")


def _on(dataset: Dataset | None, config: TrainConfig) -> TrainConfig:
    return replace(config, dataset=dataset.name) if dataset else config


def _train(
    members: Sequence[Member],
    options: TrainOptions,
    data_dir: Path | str | None,
    given: Mapping[str, Dataset],
    progress: bool | Bars,
) -> None:
    """Train the runs that are not finished. Lock their directories during training."""
    rest = _unfinished(members, options)
    if not rest:
        return
    if (config := rest[0].config).structure and options.model is None:
        raise ValueError(f"{config.network!r} is your own model: pass it as the model argument")
    options = replace(options, device=choose_device(options.device))
    check_execution(options.execution, options.device)
    if options.device == "cpu" and config.precision != "highest":
        effect = "has no effect on a CPU, which computes in float32"
        options.notify(f"precision {config.precision!r} {effect}")
    names = dict.fromkeys(member.config.dataset for member in rest)
    data = {name: given.get(name) or load(name, data_dir) for name in names}
    check_same_shape_and_levels([*data.values()])
    with ExitStack() as contexts:
        bars = progress if isinstance(progress, Bars) else None
        if progress is True:
            bars = contexts.enter_context(Bars(on_stderr=True))
        for member in rest:  # created after all checks, so that errors leave no directories
            if bars is not None:
                member.watcher = Watcher(bars, member.name, member.config.steps)
            make_folder(member.run.path)
            contexts.enter_context(locked(member.run.path, options.notify))
            member.run.refresh()
        # Another process may have trained some runs meanwhile, so read them again under the lock.
        rest = _unfinished(rest, options)
        for member in rest:
            member.look(alone=len(rest) == 1)
            _check_goes_on(member)
        for member in rest:
            member.run.begin(member.config, data[member.config.dataset].path)
        _train_locked(members, rest, options, data)
    if lost := [member for member in rest if not member.surviving]:
        paths = [f"{one.run.path} (step {max(one.stopped.values())})" for one in lost]
        rate = max(member.config.learning_rate for member in lost)
        raise DivergedError(
            f"all replicas of {' and of '.join(paths)} stopped because their numbers are not "
            f"finite: train in another directory with a learning_rate below {rate:g}"
        )


def _unfinished(members: Sequence[Member], options: TrainOptions) -> list[Member]:
    """Return those members of an ensemble whose runs are not finished.

    Raise ValueError if the directory of a member contains another run.
    """
    return [one for one in members if not one.run.is_finished(one.config, options.evaluate)]


def _check_goes_on(member: Member) -> None:
    """Notify the user if a run that has ended continues, because more steps were requested.

    Raise ValueError if such a run has no checkpoint from which it can continue.
    """
    run, step, end = member.run, max(member.states), member.config.steps
    if not run.exists():
        return
    if not step and run.result() is not None:
        what = f"{run.path} is finished, but has no intact checkpoint to continue from"
        raise ValueError(f"{what}: start a new run in another directory")
    if step and is_longer(member.config, run.config()):
        member.notify(f"{run.path} continues from step {step:,} to {end:,}")


def _train_locked(
    members: Sequence[Member],
    rest: Sequence[Member],
    options: TrainOptions,
    data: Mapping[str, Dataset],
) -> None:
    """Train the unfinished runs `rest` in groups. `members` has all runs.

    All runs of a group resume from the same step.
    """
    groups = [
        (step, [rest[index] for index in indices])
        for step, indices in group_by_step([set(member.states) for member in rest])
    ]
    if len(rest) < len(members) or len(groups) > 1:
        done = [member for member in members if member not in rest]
        parts = [f"{_names(together)} from step {step}" for step, together in groups]
        parts += [f"{_names(done)} finished before"] if done else []
        options.notify(f"these runs are not all trained together: {'; '.join(parts)}")
    for _, together in groups:
        if any(member.surviving for member in together):
            _train_what_fits(together, options, data)


def _names(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)


def _train_what_fits(
    members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]
) -> None:
    """Train runs together. If the runs do not fit into memory, train each half by itself."""
    fits = _fits(members, options, data)
    if not fits or options.device.startswith("cuda"):
        free_memory()
    if fits:
        return
    place, config = f"the memory of {options.device}", members[0].config
    if len(members) == 1:
        raise ValueError(
            f"{_names(members)} does not fit into {place}: reduce replicas (now "
            f"{config.replicas}), batch_size ({config.batch_size}), num_samples "
            f"({config.num_samples}) or latents ({latents_in_words(config)})"
        )
    half = (len(members) + 1) // 2
    halves = f"trained as {half} + {len(members) - half}"
    options.notify(f"{_names(members)} do not fit into {place} together: {halves}")
    _train_what_fits(members[:half], options, data)
    _train_what_fits(members[half:], options, data)


def _fits(members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]) -> bool:
    """Train runs together, and return whether they fitted into memory.

    This is a separate function so that no local variable or traceback keeps the trainer alive.
    """
    try:
        train_ensemble(members, options, data)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
