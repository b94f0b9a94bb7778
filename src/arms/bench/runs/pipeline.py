"""From a configuration to a finished run: train, record, save, evaluate; and resume where an earlier session ended.

One loop serves a list of runs that share the replica axis; a run alone is the list of one.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, check_same_shape_and_levels, load
from arms.bench.ensemble import (
    group_by_step,
    names_of,
    stack,
)
from arms.bench.metrics import Record
from arms.bench.models import BinaryVAE, blank_vae
from arms.bench.runs.devices import choose_device
from arms.bench.runs.directory import Run
from arms.bench.runs.live_run import LiveRun, Notify, OnRecord, check_survivors
from arms.bench.runs.loop import CHECKPOINT_SECONDS, TrainOptions, train_ensemble
from arms.bench.runs.memory import free_memory, is_out_of_memory
from arms.bench.training.engine import Execution
from arms.bench.training.state import finite_replicas, model_of, of_replicas

OnRunRecord: TypeAlias = Callable[[TrainConfig, Record], None]
"""Called with every record of every run of an ensemble: its configuration, and what an `OnRecord` is given."""


def train(
    config: TrainConfig,
    directory: Path | str,
    *,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    model: BinaryVAE | None = None,
    execution: Execution = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    on_record: OnRecord | None = None,
    notify: Notify = warnings.warn,
) -> Run:
    """Train to the end of `config.steps`, evaluate, and return the run; called again it resumes, or does nothing.

    A replica whose numbers are not finite stops, and the others continue.

    Process-wide while it trains, and put back afterwards: the handler of SIGINT, so that Ctrl-C saves first, and
    PyTorch's precision of matrix products on a GPU or its number of threads on a CPU, and the state of a GPU's default
    generator, which a step borrows. PyTorch's cache of freed GPU memory is emptied at the end. Nothing else is touched:
    functions that you have compiled stay compiled.

    Args:
        config: What to train; its identity decides every number.
        directory: The run's directory, made unless it exists.
        device: `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the GPU where there is one.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        dataset: Your own images in place of the data set that `config` names; the run then has your data set's name.
        model: Your own networks in place of those that `config` names; the run then has your model's number of
            latents. The model comes back trained, also where the run was finished before: from its checkpoint.
        execution: How steps are executed, see `Engine`.
        checkpoint_seconds: Time between two checkpoints, which are written at records only; 0 saves at every record.
        on_record: Called with every record.
        notify: Called with lines that a user should read.

    Raises:
        DivergedError: No replica survives.
        ValueError: An argument cannot be used, or the directory holds another run.
    """
    options = TrainOptions(str(device), execution, checkpoint_seconds, notify, model)
    if model is not None:
        config = replace(config, latents=model.latents)
    live = LiveRun(Run(directory), _on(dataset, config), notify, on_record)
    if model is not None and live.is_finished():
        weights = model_of(_newest_state(live.run))
        _check_weights(
            model, weights, f"the model given is not the one that {live.run.path} has trained: give that one, or none"
        )
        model.load_state_dict(weights)
    else:
        _train([live], options, data_dir, {dataset.name: dataset} if dataset else {})
    return live.run


def train_together(
    configs: Sequence[TrainConfig],
    directories: Sequence[Path | str],
    *,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    datasets: Sequence[Dataset] | None = None,
    execution: Execution = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
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
        execution: How steps are executed, see `Engine`.
        checkpoint_seconds: Time between two checkpoints, which are written at records only; 0 saves at every record.
        on_record: Called with every record of every run, and its configuration.
        notify: Called with lines that a user should read.

    Raises:
        DivergedError: A run has no replica that survives; the others are trained to their end first.
        ValueError: An argument cannot be used, or a directory holds another run.
    """
    options = TrainOptions(str(device), execution, checkpoint_seconds, notify)
    if isinstance(configs, TrainConfig) or not configs:
        got = "one" if isinstance(configs, TrainConfig) else "none"
        raise ValueError(f"configs must be a list with at least one configuration, got {got}: write [config]")
    own = _one_dataset_each(configs, datasets)
    wanted = [_on(dataset, config) for config, dataset in zip(configs, own, strict=True)]
    if len(wanted) > 1:
        stack(wanted)  # raises if they cannot share an ensemble, before anything is written
    paths = _one_directory_each(wanted, directories)
    live_runs = [
        LiveRun(Run(path), config, notify, _listener(config, on_record), name=name)
        for config, path, name in zip(wanted, paths, names_of(wanted), strict=True)
    ]
    _train(live_runs, options, data_dir, {dataset.name: dataset for dataset in own if dataset})
    return [live.run for live in live_runs]


def load_model(
    run: Run, device: str | torch.device = "auto", data_dir: Path | str | None = None
) -> tuple[BinaryVAE, Dataset]:
    """Return the model of a run's newest checkpoint, without the replicas that have stopped, and its data set.

    Args:
        run: The run, of a built-in network and data set.
        device: `auto`, `cpu`, `cuda` or `cuda:N`, where the model shall be.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.

    Raises:
        ValueError: There is no intact checkpoint, its model is not a built-in one, or no replica survives.
    """
    config, state, stopped = run.config(), _newest_state(run), run.stopped()
    weights = model_of(state)
    dataset = load(config.dataset, data_dir)
    model = _blank(config, dataset, config.replicas)
    _check_weights(
        model,
        weights,
        f"the model of {run.path} is not the built-in {config.network} network of its configuration for "
        f"{config.dataset}: build it again in Python and load the weights of Run(path).load() there",
    )
    finite = finite_replicas(weights, config.replicas)
    kept = [replica for replica in range(config.replicas) if finite[replica] and replica not in stopped]
    if not kept:
        raise ValueError(f"no replica of {run.path} survives: train again with a smaller learning_rate")
    if len(kept) < config.replicas:
        model = _blank(config, dataset, len(kept))
    model.load_state_dict(model_of(of_replicas(state, kept)))
    return model.to(choose_device(device)), dataset


def _newest_state(run: Run) -> dict[str, Tensor]:
    """Return the newest checkpoint."""
    state = run.load()
    if state is None:
        done = "its checkpoints were not kept" if run.result() else "train it first"
        raise ValueError(f"{run.path} holds no intact checkpoint: {done}")
    return state


def _check_weights(model: BinaryVAE, weights: Mapping[str, Tensor], message: str) -> None:
    """Raise if these are not a model's tensors, before it takes some of them."""
    if {name: t.shape for name, t in model.state_dict().items()} != {name: t.shape for name, t in weights.items()}:
        raise ValueError(message)


def _blank(config: TrainConfig, dataset: Dataset, replicas: int) -> BinaryVAE:
    return blank_vae(config.network, config.layers or config.latents, dataset.pixel_mean(), replicas)


def _one_directory_each(configs: Sequence[TrainConfig], directories: Sequence[Path | str]) -> list[Path]:
    """Return the directories, one for each run."""
    if isinstance(directories, str | Path):
        raise ValueError(f"directories must be a list, got {str(directories)!r}: write [{str(directories)!r}]")
    if len(directories) != len(configs):
        raise ValueError(f"each run needs a directory, got {len(directories)} for {len(configs)} runs")
    paths = [Path(directory) for directory in directories]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"directories must be different, one for each run, got {', '.join(map(str, paths))}")
    return paths


def _one_dataset_each(configs: Sequence[TrainConfig], datasets: Sequence[Dataset] | None) -> Sequence[Dataset | None]:
    """Return a data set for every configuration, None for the one that it names."""
    if datasets is None:
        return [None] * len(configs)
    if isinstance(datasets, Dataset) or len(datasets) != len(configs) or None in datasets:
        got = "one" if isinstance(datasets, Dataset) else sum(dataset is not None for dataset in datasets)
        raise ValueError(f"datasets must be a list with one for each run, got {got} for {len(configs)} runs")
    different = [dataset.name for dataset in dict.fromkeys(datasets)]
    if len(set(different)) < len(different):
        raise ValueError(f"different data sets need different names, got {', '.join(different)}")
    return datasets


def _on(dataset: Dataset | None, config: TrainConfig) -> TrainConfig:
    return replace(config, dataset=dataset.name) if dataset else config


def _listener(config: TrainConfig, on_record: OnRunRecord | None) -> OnRecord | None:
    return (lambda record: on_record(config, record)) if on_record else None


def _train(
    live_runs: Sequence[LiveRun], options: TrainOptions, data_dir: Path | str | None, given: Mapping[str, Dataset]
) -> None:
    rest = [live for live in live_runs if not live.is_finished()]
    for live in rest:
        live.stopped = live.run.stopped()
    if not any(live.surviving for live in rest):
        check_survivors(rest)
        return
    options = options.resolved()
    if options.device == "cpu" and (precision := live_runs[0].config.precision) != "highest":
        options.notify(f"precision {precision!r} has an effect on a GPU only: a CPU computes in float32")
    names = dict.fromkeys(live.config.dataset for live in rest)
    data = {name: given.get(name) or load(name, data_dir) for name in names}
    check_same_shape_and_levels([*data.values()])
    for name, dataset in data.items():
        if options.model is not None and (width := options.model.pixel_mean.shape[-1]) != dataset.train.shape[1]:
            raise ValueError(
                f"the model is for images of {width} pixels, and {name} has {dataset.train.shape[1]}: "
                "give a model for these images"
            )
    for live in rest:
        Run.create(live.run.path, live.config)  # only now: a wrong device or data set leaves nothing behind
    groups = group_by_step([set(live.run.resumable()) for live in rest])
    if len(rest) < len(live_runs) or len(groups) > 1:
        options.notify(_who_resumes(live_runs, rest, groups))
    for _, indices in groups:
        together = [rest[index] for index in indices]
        if any(live.surviving for live in together):
            _train_what_fits(together, options, data)
    check_survivors(rest)


def _who_resumes(live_runs: Sequence[LiveRun], rest: Sequence[LiveRun], groups: Sequence[tuple[int, list[int]]]) -> str:
    parts = [f"{', '.join(rest[index].name for index in indices)} from step {step}" for step, indices in groups]
    done = [live.name for live in live_runs if live not in rest]
    parts += [f"{', '.join(done)} finished before"] if done else []
    return f"these runs are not all trained together: {'; '.join(parts)}"


def _train_what_fits(live_runs: Sequence[LiveRun], options: TrainOptions, data: Mapping[str, Dataset]) -> None:
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
            f"batch_size ({config.batch_size}) or num_samples ({config.num_samples})"
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
