"""Load the models and data sets of runs, and choose the directories of new runs."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from arms.arguments import described
from arms.bench import models
from arms.bench.config import TrainConfig, difference, is_longer, run_name
from arms.bench.data import DATASETS, Dataset, as_dataset, load, observe
from arms.bench.data.datasets import expand_home
from arms.bench.models import NETWORKS, DiscreteVAE, evaluating, name_of, structure_of
from arms.bench.runs.archives import examine_runs
from arms.bench.runs.ensemble import Notify
from arms.bench.runs.run import Run
from arms.bench.training.engine import choose_device
from arms.bench.training.trainer import check_replicas, finite_replicas

MakeModel: TypeAlias = Callable[[Dataset], DiscreteVAE]
"""A function of a data set that makes a model with one replica. It is called for each replica."""


def load_model(
    run: Run | Path | str,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    *,
    model: DiscreteVAE | MakeModel | None = None,
    dataset: Dataset | Path | str | None = None,
) -> tuple[DiscreteVAE, Dataset]:
    """Load the model of a run's newest checkpoint, and its data set.

    Replicas that have stopped are left out.

    Args:
        run: The run, or its directory.
        device: The device of the model: `auto`, `cpu`, `cuda` or `cuda:N`.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
        model: Needed if the run has your own model: a model of the same structure with any weights,
            or the function that makes the model.
        dataset: Needed if the run has your own data set, and the data set was not read from a file,
            or the file was moved.

    Raises:
        ValueError: There is no intact checkpoint, the checkpoint belongs to another model, or no
            replica survives.
    """
    run = run if isinstance(run, Run) else Run(run)
    config, weights, stopped = run.config(), run.weights(), run.stopped()
    data = _data_of(run, config, dataset, data_dir)
    own = _blank_like(run, config, data, model)
    shapes = {name: tensor.shape for name, tensor in own.state_dict().items()}
    if shapes != {name: tensor.shape for name, tensor in weights.items()}:
        given = model is not None
        what = "the model given" if given else f"the built-in {config.network} network"
        raise ValueError(
            f"{what} has other parameter names or shapes than the checkpoint of {run.path} on "
            f"{data.name}: pass the model that was trained, with load_model(run, model=...) or "
            "--model my_module:make_model"
        )
    # Buffers are not checked, because some contain infinities, such as a mask.
    learned = {name: weights[name] for name, _ in own.named_parameters()}
    finite = enumerate(finite_replicas(learned, config.replicas))
    kept = [replica for replica, is_finite in finite if is_finite and replica not in stopped]
    if not kept:
        remedy = "train again with a smaller learning_rate"
        what = f"the checkpoint of {run.path} has no replica with finite parameters"
        raise ValueError(f"{what}: {remedy}")
    own.load_state_dict(weights)
    if len(kept) < config.replicas:
        own = models.keep_replicas(own, kept)
    return own.to(choose_device(device)), data


def own_model(
    config: TrainConfig, model: DiscreteVAE | MakeModel, dataset: Dataset
) -> tuple[TrainConfig, DiscreteVAE]:
    """Return (configuration, model) for a run that trains the user's own model.

    The returned configuration has the name, the sizes and the fingerprint of the model. If `model`
    is a function that makes a model with one replica, the returned model nevertheless has all
    replicas of the configuration. The model is tried on two images.
    """
    if isinstance(model, DiscreteVAE):
        own = model
    elif callable(model):
        own = models.replicated(lambda: _made(model, dataset), config.replicas, config.seed)
        own.name = name_of(own, model)
    else:
        raise ValueError(
            f"model must be a DiscreteVAE, or a function that makes one, got {type(model).__name__}"
        )
    check_replicas(own, config.replicas)
    _check_on_images(own, dataset)
    models.check_savable(own)
    widths = tuple(layer.event_shape[0] for layer in own.layers)
    layers = widths if len(widths) > 1 else ()
    sized = replace(config, latents=own.latents, categories=own.categories, layers=layers)
    structure = structure_of(own)
    if not own.name and config.network in NETWORKS:
        built_in = sized.build_model(dataset.pixel_mean(), dataset.levels, blank=True)
        if structure == structure_of(built_in):  # the user created a built-in network
            return sized, own
    return replace(sized, network=name_of(own), structure=structure), own


def check_start(model: DiscreteVAE, dataset: Dataset) -> None:
    """Raise ValueError if a model cannot be trained from its initial weights.

    The model must have at least one trainable parameter. All parameters must be finite, and the
    log-weights for two images must be finite.
    """
    who = f"the model {name_of(model)!r}"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{who} must have parameters to train, got none with requires_grad=True")
    models.check_finite(model)
    weights = _try_on_images(model, dataset)[2]
    if not weights.isfinite().all():
        got = "NaN" if weights.isnan().any() else "infinity"
        raise ValueError(
            f"{who} must return finite log-weights before the first training step, got {got} for "
            f"images of {dataset.name}: check its initial weights and its likelihood"
        )


def _made(make: MakeModel, dataset: Dataset) -> object:
    """Call the user's function `make` on a data set, and return the model that it makes.

    If the function raises an exception, raise a ValueError that names the function.
    """
    try:
        return make(dataset)
    except (Exception, SystemExit) as error:
        name = getattr(make, "__qualname__", type(make).__name__)
        raise ValueError(
            f"the function {name!r} must return a DiscreteVAE for {dataset.name}, but raised "
            f"{described(error)}: call it in Python to see the traceback"
        ) from error


def _check_on_images(model: DiscreteVAE, dataset: Dataset) -> None:
    """Raise ValueError if the user's own model cannot be trained on a data set."""
    width, pixels = model.pixel_mean.shape[-1], dataset.train.shape[1]
    if width != pixels:
        what = f"the model is for images of {width} pixels, but {dataset.name} has {pixels} pixels"
        raise ValueError(f"{what}: pass a model for images of this size")
    model.likelihood.check_levels(dataset.levels)
    x, logits, weights = _try_on_images(model, dataset)
    expected = [[*x.shape[:-1], *model.event_shape], [3, *x.shape[:-1]]]
    if (got := [list(logits.shape), list(weights.shape)]) != expected:
        raise ValueError(
            f"for images {list(x.shape)} and 3 samples, the model {name_of(model)!r} must return "
            f"logits of shape {expected[0]} and log-weights of shape {expected[1]}, got {got[0]} "
            f"and {got[1]}"
        )
    models.check_registered(model, (logits, weights))


def _try_on_images(model: DiscreteVAE, dataset: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """Try a model on two images of a data set, with three samples for each image.

    Return the images `[R, 2, pixels]`, their logits `[R, 2, *event]`, and the log-weights of the
    samples `[3, R, 2]`.
    """
    images = dataset.train[:2].to(model.prior.device)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), evaluating(model):
        x = observe(images, dataset.levels, bits=model.likelihood.binarizes_input)
        x = x.expand(model.replicas, -1, -1)
        try:
            logits = model.encode(x)
            samples = model.latent(logits.detach()).sample(3)
            return x, logits, model.chain_log_weights(samples, x, logits)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"the model {name_of(model)!r} must accept images {list(x.shape)} (replicas, "
                f"images, pixels) of {dataset.name}, but raised {described(error)}"
            ) from error


def _blank_like(
    run: Run, config: TrainConfig, dataset: Dataset, model: DiscreteVAE | MakeModel | None
) -> DiscreteVAE:
    """Return a model with the structure of a run's model. The run's weights are not loaded yet."""
    if model is None and config.structure:
        raise ValueError(
            f"{run.path} is a run of your own model {config.network!r}, which cannot be loaded by "
            "name: pass it with load_model(run, model=...) or --model my_module:make_model"
        )
    if model is None:
        return config.build_model(dataset.pixel_mean(), dataset.levels, blank=True)
    same, own = own_model(config, model, dataset)
    if config.structure and same.structure != config.structure:
        raise ValueError(
            f"{run.path} trained a model with the structure {config.structure} "
            f"({config.network!r}), but the model given has the structure {same.structure} "
            f"({same.network!r}): pass the model that was trained"
        )
    return own


def own_data(
    config: TrainConfig, given: Dataset | Path | str | None, data_dir: Path | str | None
) -> Dataset | None:
    """Return the user's own data set, or None if the run uses a data set of the catalog.

    If `given` is not None, it is the user's data set. Otherwise, read the data set from the path
    `config.dataset`.
    """
    if given is not None:
        return load(given, data_dir) if isinstance(given, str | Path) else as_dataset(given)
    return None if config.dataset in DATASETS else load(config.dataset, data_dir)


def _data_of(
    run: Run, config: TrainConfig, given: Dataset | Path | str | None, data_dir: Path | str | None
) -> Dataset:
    """Return the data set of a run.

    If `given` is None, this is a data set of the catalog, or the user's file at the path that the
    run recorded.
    """
    if given is None and config.dataset in DATASETS:
        return load(config.dataset, data_dir)
    path = run.data_path()
    if given is None and (path is None or not Path(path).exists()):
        moved = f", which is no longer at {path}" if path else ""
        raise ValueError(
            f"{run.path} was trained on your own data set {config.dataset!r}{moved}: pass it with "
            "load_model(run, dataset=...) or --dataset PATH"
        )
    data = own_data(config, path if given is None else given, data_dir)
    assert data is not None
    if data.name != config.dataset:
        got = f"{data.path or 'the data set given'} is {data.name!r}"
        what = f"{run.path} was trained on the data set {config.dataset!r}, but {got}"
        raise ValueError(f"{what}: pass the images that the run was trained on")
    return data


def load_once(source: Dataset | Path | str, data_dir: Path | None) -> Dataset:
    """Return a data set. Load it only on the first call, and again if its files have changed."""
    if isinstance(source, Dataset):
        return source
    return _load_once(source, data_dir, () if source in DATASETS else _state_of(Path(source)))


@lru_cache(maxsize=4)  # many runs are trained on few data sets
def _load_once(source: Path | str, data_dir: Path | None, _state: object) -> Dataset:
    return load(source, data_dir)


def _state_of(path: Path) -> tuple[object, ...]:
    """Return a key for a cache. The key changes when the file or folder at `path` changes.

    If the path is relative, the key also depends on the current directory.
    """
    place = Path(os.path.realpath(expand_home(path)))
    states = []
    for file in [place, *sorted(place.glob("*")), *sorted(place.glob("*/*"))]:
        with suppress(OSError):
            found = file.stat()
            states.append((file, found.st_mtime_ns, found.st_size))
    return tuple(states)


def name_inputs(
    configs: Sequence[TrainConfig],
    dataset: Dataset | Path | str | None,
    make: MakeModel | None,
    data_dir: Path | None,
) -> tuple[list[TrainConfig], dict[str, Dataset | Path]]:
    """Return the configurations with the names of the user's model and data sets filled in.

    Also return {name: data set} for the user's data sets. For a data set from a file, the value is
    the file's path, so that other processes can read the file.
    """
    named, own = [], dict[str, Dataset | Path]()
    for config in configs:
        source = config.dataset if dataset is None else dataset
        if source in DATASETS and make is None:  # no need to load the data set here
            named.append(replace(config, dataset=str(source)))
            continue
        data = load_once(source, data_dir)
        found = replace(config, dataset=data.name)
        named.append(found if make is None else own_model(found, make, data)[0])
        if source not in DATASETS:
            own[data.name] = data if source is data else Path(data.path).resolve()
    return named, own


def choose_directory(folder: Path, config: TrainConfig, notify: Notify) -> Path:
    """Return the directory, inside `folder`, in which to train the run of a configuration.

    If the folder contains this run, return the run's directory. If it contains the same run with
    fewer steps, and that run can be continued, return the directory of that run. Otherwise, return
    a new directory. Only runs with a cosine schedule, which ends with the run, cannot be continued.
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


def find_attribute(subject: str) -> Any:
    """Return the object named by `subject`, which has the form module:attribute.

    The current folder is also searched for modules.
    """
    module, _, attribute = subject.partition(":")
    if not module or not attribute:
        what = f"expected a name in a module, such as my_module:make_model, got {subject!r}"
        raise ValueError(f"{what}: write module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise ValueError(f"cannot find {subject!r}: {error}") from None
    except (Exception, SystemExit) as error:  # importing runs arbitrary code
        path = Path(module)
        if path.suffix == ".py" or len(path.parts) > 1:
            place = f" in the folder {path.parent}" if len(path.parts) > 1 else ""
            name = f"{path.name.removesuffix('.py')}:{attribute}"
            what = f"expected a module, got the path {subject!r}"
            raise ValueError(f"{what}: did you mean {name}{place}?") from None
        why = f"importing {module} raised {described(error)}"
        raise ValueError(f"cannot find {subject!r}: {why}") from None


def find_model(model: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function that makes a model. `model` is the function or its name `module:name`."""
    found = find_attribute(model) if isinstance(model, str) else model
    if not callable(found):
        got = type(found).__name__
        wanted = "a function that makes a model for a data set"
        raise ValueError(f"{model!r} must be {wanted}, got {got}")
    return found
