"""From a configuration to a finished run: train, report, save, evaluate; and go on where an earlier try ended.

One loop serves a list of runs that share the replica axis; a run alone is the list of one.
"""

import math
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TypeAlias, get_args

import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, check_same_shape_and_levels, load
from arms.bench.ensemble import (
    joined_state,
    names_of,
    pack,
    packed_trainer,
    share_of_model,
    share_of_record,
    side_by_side,
)
from arms.bench.evaluation import evaluate, final_bounds
from arms.bench.metrics import GRADIENT_VARIANCE, TEST_BOUND, TEST_BOUND_SAMPLES, TRAIN_ELBO, Record
from arms.bench.models import BinaryVAE, blank_vae
from arms.bench.runs.devices import choose_device
from arms.bench.runs.directory import Run
from arms.bench.runs.live_run import Member, Tell, Watcher, refuse_lost
from arms.bench.runs.memory import free_memory, is_out_of_memory, keep_freed_memory
from arms.bench.training.engine import BLOCK, Drive, Engine, refuse_without_gpu
from arms.bench.training.state import finite_replicas, model_of, of_replicas, of_run
from arms.bench.training.trainer import Trainer

CHECKPOINT_SECONDS = 15.0
MOST_SAVING = 20
"""How many times as long as a checkpoint takes a run trains before the next, unless all are asked for."""

PackWatcher: TypeAlias = Callable[[TrainConfig, Record], None]
"""Called with every report of every run of a pack: its configuration, and what a `Watcher` gets."""


def train(
    config: TrainConfig,
    directory: Path | str,
    *,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    model: BinaryVAE | None = None,
    drive: Drive = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watch: Watcher | None = None,
    tell: Tell = warnings.warn,
) -> Run:
    """Train to the end of `config.steps`, evaluate, and return the run; the same call again goes on, or does nothing.

    `dataset` and `model` stand in for the ones the configuration names: your own tensors, your own networks; the run's
    configuration then has your data set's name and your model's number of latents. A replica whose numbers are not
    finite stops, and the others go on; where none is left, that is a `DivergedError`. A model of your own comes back
    trained, also where the run was finished before: from its newest checkpoint.
    """
    means = _Means(str(device), drive, checkpoint_seconds, tell, model)
    if model is not None:
        config = replace(config, latents=model.latents)
    member = Member(Run(directory), _on(dataset, config), tell, watch)
    if model is not None and member.is_finished():
        weights = model_of(_newest_state(member.run))
        _refuse_other_weights(model, weights, f"the model given is not the one that {member.run.path} has trained")
        model.load_state_dict(weights)
    else:
        _train([member], means, data_dir, {dataset.name: dataset} if dataset else {})
    return member.run


def train_packed(
    configs: Sequence[TrainConfig],
    directories: Sequence[Path | str],
    *,
    device: str | torch.device = "auto",
    data_dir: Path | str | None = None,
    datasets: Sequence[Dataset] | None = None,
    drive: Drive = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watch: PackWatcher | None = None,
    tell: Tell = warnings.warn,
) -> list[Run]:
    """Train runs that differ in estimator and data set only, all at once, into one directory each; or go on with them.

    Each is a run as `train` makes it, but for its noise, which depends on its neighbours too. Finished runs are left
    alone, and runs that stand at different steps go on one after the other. A pack that does not fit into memory is
    halved. Several estimators must have one objective, and no parameters or noise of their own to remember; the data
    sets must have one form. `datasets`, one for each run, stand in for the ones the configurations name.
    """
    means = _Means(str(device), drive, checkpoint_seconds, tell)
    if isinstance(configs, TrainConfig) or not configs:
        got = "one" if isinstance(configs, TrainConfig) else "none"
        raise ValueError(f"configs must be a list with at least one configuration, got {got}: write [config]")
    own = _one_dataset_each(configs, datasets)
    wanted = [_on(dataset, config) for config, dataset in zip(configs, own, strict=True)]
    if len(wanted) > 1:
        pack(wanted)  # refuses what cannot be packed, before anything is written
    paths = _one_directory_each(wanted, directories)
    members = [
        Member(Run(path), config, tell, _watch_of(config, watch), name=name)
        for config, path, name in zip(wanted, paths, names_of(wanted), strict=True)
    ]
    _train(members, means, data_dir, {dataset.name: dataset for dataset in own if dataset})
    return [member.run for member in members]


def load_model(
    run: Run, device: str | torch.device = "auto", data_dir: Path | str | None = None
) -> tuple[BinaryVAE, Dataset]:
    """Return the model of a run's newest checkpoint, without the replicas that have stopped, and its data set."""
    config, state, stopped = run.config(), _newest_state(run), run.stopped()
    weights = model_of(state)
    dataset = load(config.dataset, data_dir)
    model = _blank(config, dataset, config.replicas)
    _refuse_other_weights(
        model,
        weights,
        f"the model of {run.path} is not the built-in {config.network} network of its configuration for "
        f"{config.dataset}: build it anew in Python and load the weights of Run(path).load() there",
    )
    finite = finite_replicas(weights, config.replicas)
    kept = [replica for replica in range(config.replicas) if finite[replica] and replica not in stopped]
    if not kept:
        raise ValueError(f"no replica of {run.path} is left: train anew with a smaller learning_rate")
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


def _refuse_other_weights(model: BinaryVAE, weights: Mapping[str, Tensor], message: str) -> None:
    """Raise if these are not a model's tensors, before it takes some of them."""
    if {name: t.shape for name, t in model.state_dict().items()} != {name: t.shape for name, t in weights.items()}:
        raise ValueError(message)


def _blank(config: TrainConfig, dataset: Dataset, replicas: int) -> BinaryVAE:
    return blank_vae(config.network, config.latents, dataset.pixel_mean(), replicas)


def block_of(config: TrainConfig) -> int:
    """Return the longest block of steps that ends on every report."""
    return math.gcd(config.report_every, config.steps, BLOCK)


@dataclass(frozen=True)
class _Means:
    """By what means to train: nothing here decides what is learnt but the model, where it is the user's own."""

    device: str
    drive: Drive
    checkpoint_seconds: float
    tell: Tell
    model: BinaryVAE | None = None

    def __post_init__(self) -> None:
        if self.drive not in get_args(Drive):
            raise ValueError(f"drive must be one of {', '.join(get_args(Drive))}, got {self.drive!r}")
        seconds = self.checkpoint_seconds
        if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
            raise ValueError(f"checkpoint_seconds must be a finite number >= 0, got {seconds!r}")

    def on_a_device_here(self) -> "_Means":
        """Return the same with the device chosen; one that is not here, or cannot be driven like that, is refused."""
        name = choose_device(self.device)
        refuse_without_gpu(self.drive, name)
        return replace(self, device=name)


def _one_directory_each(configs: Sequence[TrainConfig], directories: Sequence[Path | str]) -> list[Path]:
    """Return the directories; whatever is not one for each run is refused."""
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


def _watch_of(config: TrainConfig, watch: PackWatcher | None) -> Watcher | None:
    return (lambda record: watch(config, record)) if watch else None


def _train(members: Sequence[Member], means: _Means, data_dir: Path | str | None, given: Mapping[str, Dataset]) -> None:
    rest = [member for member in members if not member.is_finished()]
    for member in rest:
        member.stopped = member.run.stopped()
    if not any(member.left for member in rest):
        refuse_lost(rest)
        return
    means = means.on_a_device_here()
    if means.device == "cpu" and (precision := members[0].config.precision) != "highest":
        means.tell(f"a CPU computes in float32 all the same: precision {precision!r} says something on a GPU only")
    names = dict.fromkeys(member.config.dataset for member in rest)
    data = {name: given.get(name) or load(name, data_dir) for name in names}
    check_same_shape_and_levels([*data.values()])
    for name, dataset in data.items():
        if means.model is not None and (width := means.model.pixel_mean.shape[-1]) != dataset.train.shape[1]:
            raise ValueError(f"the model is for images of {width} pixels, and {name} has {dataset.train.shape[1]}")
    for member in rest:
        Run.create(member.run.path, member.config)  # only now: a wrong device or data set leaves nothing behind
    keep_freed_memory()
    groups = side_by_side([set(member.run.resumable()) for member in rest])
    if len(rest) < len(members) or len(groups) > 1:
        means.tell(_who_goes_on(members, rest, groups))
    for _, indices in groups:
        together = [rest[index] for index in indices]
        if any(member.left for member in together):
            _train_what_fits(together, means, data)
    refuse_lost(rest)


def _who_goes_on(members: Sequence[Member], rest: Sequence[Member], groups: Sequence[tuple[int, list[int]]]) -> str:
    parts = [f"{', '.join(rest[index].name for index in indices)} from step {step}" for step, indices in groups]
    done = [member.name for member in members if member not in rest]
    parts += [f"{', '.join(done)} finished before"] if done else []
    return f"these runs do not all go on together: {'; '.join(parts)}"


def _train_what_fits(members: Sequence[Member], means: _Means, data: Mapping[str, Dataset]) -> None:
    """Train runs together, or half of them after the other half where memory does not suffice."""
    fits = _fits(members, means, data)
    if not fits or means.device.startswith("cuda"):
        free_memory()
    if fits:
        return
    names, config = ", ".join(member.name for member in members), members[0].config
    if len(members) == 1:
        raise ValueError(
            f"{names} does not fit into the memory of {means.device}: lower replicas ({config.replicas}), "
            f"batch_size ({config.batch_size}) or num_samples ({config.num_samples})"
        )
    half = (len(members) + 1) // 2
    means.tell(
        f"{names} do not fit into the memory of {means.device} together: trained as {half} + {len(members) - half}"
    )
    _train_what_fits(members[:half], means, data)
    _train_what_fits(members[half:], means, data)


def _fits(members: Sequence[Member], means: _Means, data: Mapping[str, Dataset]) -> bool:
    """Train runs together, and return whether memory sufficed; once back here, nothing holds on to it."""
    try:
        _train_together(members, means, data)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def _train_together(members: Sequence[Member], means: _Means, data: Mapping[str, Dataset]) -> None:
    trainer = _begin(members, means, data)
    engine = Engine(trainer, means.drive, block_of(members[0].config))
    step, names = trainer.steps_done, [member.name for member in members]
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(member.going_on(step, means.device, names))
        _advance(engine, members, data, means.checkpoint_seconds)
        for index, member in enumerate(members):
            if member.left:
                own = share_of_model(trainer, member.config, index, len(members))
                member.finish(final_bounds(own, data[member.config.dataset], member.config))


def _begin(members: Sequence[Member], means: _Means, data: Mapping[str, Dataset]) -> Trainer:
    """Return the trainer of runs, at the step that they can go on from together."""
    configs = [member.config for member in members]
    found = [member.run.resumable() for member in members]
    ((step, _),) = side_by_side([set(states) for states in found])
    trainer = packed_trainer(configs, [data[config.dataset] for config in configs], means.device, means.model)
    if step:
        trainer.load_state(joined_state([states[step] for states in found], configs[0].seed, means.device))
    return trainer


def _advance(engine: Engine, members: Sequence[Member], data: Mapping[str, Dataset], checkpoint_seconds: float) -> None:
    trainer, config = engine.trainer, members[0].config
    due = -math.inf  # the first report saves
    with _interruptible() as interrupted:
        while trainer.steps_done < config.steps and any(member.left for member in members):
            engine.advance_block()
            step, last, stop = trainer.steps_done, trainer.steps_done == config.steps, interrupted()
            reports = last or step % config.report_every == 0
            records = _report(trainer, members, data) if reports else []
            if stop or last or (reports and perf_counter() >= due):
                start = perf_counter()
                _save(trainer, members)
                took = perf_counter() - start
                due = start + took + max(checkpoint_seconds, MOST_SAVING * took if checkpoint_seconds else 0)
            for member, record in records:
                member.show(record)
            if stop:
                raise KeyboardInterrupt(f"saved at step {step}")


def _save(trainer: Trainer, members: Sequence[Member]) -> None:
    """Save every run, also one without replicas left: the noise of the others depends on its being there."""
    state = trainer.state()
    for index, member in enumerate(members):
        member.run.save(of_run(state, index, len(members)))


def _report(trainer: Trainer, members: Sequence[Member], data: Mapping[str, Dataset]) -> list[tuple[Member, Record]]:
    """Let every run that has replicas left report where it stands."""
    whole: Record = {
        "step": trainer.steps_done,
        TRAIN_ELBO.key: trainer.recent_elbo().tolist(),
        GRADIENT_VARIANCE.key: trainer.gradient_variance().tolist(),
    }
    finite = finite_replicas(dict(trainer.model.named_parameters()), trainer.config.replicas)
    written = []
    for index, member in enumerate(members):
        if not member.left:
            continue
        config = member.config
        record = share_of_record(whole, index, config.replicas)
        if config.evaluate_every and trainer.steps_done % config.evaluate_every == 0:
            own = share_of_model(trainer, config, index, len(members))
            dataset = data[config.dataset]
            found = evaluate(own, dataset, "test", [TEST_BOUND_SAMPLES], config.seed, config.evaluate_images)
            record[TEST_BOUND.key] = found[str(TEST_BOUND_SAMPLES)]
        first = index * config.replicas
        written.append((member, member.report(record, finite[first : first + config.replicas])))
    return written


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into a question that is asked between steps: half a step could not be gone on with.

    Who asks twice does not want to wait: the second one interrupts at once.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # only the main thread may
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
