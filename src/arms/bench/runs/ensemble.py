"""Ensembles: runs that are trained together in one process.

Runs that differ only in estimator, data set and learning rate can share a trainer. This saves time
on a GPU, because five replicas use only half of it. Replicas are independent. If the numbers of a
replica are not finite, only this replica stops.
"""

import math
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, TypeAlias, get_args

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.evaluation import evaluate, final_bounds
from arms.bench.metrics import METRICS, TEST_BOUND, TEST_BOUND_SAMPLES, Record, stopping_values
from arms.bench.models import DiscreteVAE
from arms.bench.output import Watcher
from arms.bench.runs.files import PREVIOUS
from arms.bench.runs.limit import OutOfTimeError, Part, TimeLimit
from arms.bench.runs.run import Run
from arms.bench.training.engine import Execution, advance_to
from arms.bench.training.optimizer import RATE_FIELDS, LearningRates
from arms.bench.training.trainer import (
    State,
    Trainer,
    finite_replicas,
    joined,
    model_of,
    of_run,
    prepared_estimator,
    step_of,
)
from arms.estimators import ESTIMATORS, Estimator, Stacked
from arms.estimators.combinators import describe_signature, evaluation_signature

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

STARTS = (*RATE_FIELDS, "encoder_scale")
"""The learning rates and the scale of initial weights. Runs of an ensemble may differ in them."""
MAY_DIFFER = ("estimator", "folded", "temperature", "dataset", *STARTS)
"""All fields in which runs of an ensemble may differ."""
CHECKPOINT_SECONDS = 15.0
MOST_SAVING = 20
"""The least time between two checkpoints, as a multiple of the time to write a checkpoint.

This limit has no effect if `checkpoint_seconds` is 0, because every record then has a checkpoint.
"""

OnRecord: TypeAlias = Callable[[Record], None]
"""A function that is called with every record. In a record, a stopped replica has None."""
Notify: TypeAlias = Callable[[str], None]
"""A function that is called with each message for the user during training."""


class DivergedError(ValueError):
    """Raised if all replicas of a run have stopped."""


class TerminatedError(KeyboardInterrupt):
    """Raised if SIGTERM has stopped the training, after a checkpoint was saved."""


def check_seconds(seconds: object, what: str) -> None:
    """Raise ValueError unless `seconds` is a valid time between two checkpoints.

    `what` is the name of the argument, which the error message shows.
    """
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"{what} must be a finite number >= 0, got {seconds!r}")


@dataclass(frozen=True)
class TrainOptions:
    """Options for training. Only the option `model` affects the results of the training."""

    device: str
    execution: Execution
    checkpoint_seconds: float
    notify: Notify
    evaluate: int | None = None
    """Number of images per split for the final bounds; None uses all."""
    model: DiscreteVAE | None = None
    limit: TimeLimit = field(default_factory=TimeLimit)

    def __post_init__(self) -> None:
        if self.execution not in (known := get_args(Execution)):
            raise ValueError(f"execution must be one of {', '.join(known)}, got {self.execution!r}")
        check_seconds(self.checkpoint_seconds, "checkpoint_seconds")
        if self.evaluate is not None:
            as_count(self.evaluate, 1, "evaluate")


@dataclass(eq=False)
class Member:
    """A run of an ensemble during training."""

    run: Run
    config: TrainConfig
    notify: Notify
    on_record: OnRecord | None = None
    name: str = ""
    """The name of the run within the ensemble."""
    watcher: Watcher | None = None
    writer: "SummaryWriter | None" = None
    stopped: dict[int, int] = field(default_factory=dict)
    """{replica: step at which it stopped}, for all replicas that have stopped."""
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """{step: checkpoint}, for all checkpoints from which the run can resume."""

    def __post_init__(self) -> None:
        self.name = self.name or self.config.label

    @property
    def surviving(self) -> int:
        """The number of the run's replicas that have not stopped."""
        return self.config.replicas - len(self.stopped)

    def look(self, *, alone: bool) -> None:
        """Read the run's stopped replicas and its checkpoints from the locked run directory.

        `alone` says whether this run is trained without other runs.
        """
        self.stopped = self.run.stopped()
        if alone:
            state = self.run.checkpoint()
            self.states = {} if state is None else {step_of(state): state}
        else:  # after a crash, the newest checkpoints of the runs may be one save apart
            self.states = self.run.checkpoints()
        # After a crash during the first save, some runs have no checkpoint, and all start again.
        if not self.states or not (alone or self.run.has(PREVIOUS)):
            self.states[0] = {}

    @contextmanager
    def session(self, step: int, device: str, together: Sequence[str]) -> Iterator[None]:
        """Prepare the run, which is then trained from `step` on inside the `with` block.

        Records and checkpoints of later steps are removed first. At the end of the block, even
        after an error, provenance.json is written.
        """
        self.run.truncate_after(step)
        self.stopped = self.run.stopped()
        self.writer, start = _tensorboard(self.run.path, step), perf_counter()
        if self.watcher:
            self.watcher.start(step)
        try:
            yield
        finally:
            if self.writer:
                self.writer.close()
            self.run.write_provenance(device, perf_counter() - start, together)

    def append(self, record: Record, finite: Sequence[bool]) -> Record:
        """Write a record with None for stopped replicas. Return the written record.

        A replica stops if one of its metrics in the record is not finite. It also stops if its
        entry in `finite` is False, which means that its parameters are not finite.
        """
        causes: dict[int, str] = {}
        for replica in self._running():
            keys = stopping_values(record)
            lost = [key for key in keys if not math.isfinite(record[key][replica])]
            if lost or not finite[replica]:
                causes[replica] = f"{METRICS[lost[0]].words} is" if lost else "parameters are"
        self._stop(record["step"], causes)
        metrics = {key: self._masked(values) for key, values in record.items() if key != "step"}
        written = {"step": record["step"], **metrics}
        self.run.append(written)
        return written

    def show(self, record: Record) -> None:
        """Pass a record to TensorBoard, to the progress bar, and to the user's `on_record`."""
        for name, values in record.items():
            for replica, value in enumerate(values if name != "step" else ()):
                if self.writer and value is not None:
                    self.writer.add_scalar(f"{name}/{replica}", value, record["step"])
        if self.watcher:
            self.watcher(record)
        if self.on_record:
            self.on_record(record)

    def finish(self, result: Record) -> None:
        """Write `result`, which has the final bounds, with None for stopped replicas.

        A replica also stops if one of its final bounds is not finite. If no replica survives, write
        nothing.
        """
        bounds = result["bounds"]
        causes = {}
        for replica in self._running():
            numbers = [values[replica] for of in bounds.values() for values in of.values()]
            if not all(map(math.isfinite, numbers)):
                causes[replica] = "final bound is"
        self._stop(self.config.steps, causes)
        if not self.surviving:
            return
        masked = {split: {k: self._masked(of[k]) for k in of} for split, of in bounds.items()}
        stopped = {str(replica): step for replica, step in sorted(self.stopped.items())}
        self.run.finish(result | {"bounds": masked} | ({"stopped": stopped} if stopped else {}))

    def _running(self) -> list[int]:
        return [replica for replica in range(self.config.replicas) if replica not in self.stopped]

    def _masked(self, values: Sequence[float]) -> list[float | None]:
        return [None if replica in self.stopped else value for replica, value in enumerate(values)]

    def _stop(self, step: int, causes: Mapping[int, str]) -> None:
        """Remember that replicas stopped at `step`. Send the user one line for each cause.

        `causes` is {replica: text that says which of its numbers are not finite}.
        """
        self.stopped |= dict.fromkeys(causes, step)
        others = {0: "none survives, and the run ends", 1: "the other one continues"}
        rest = others.get(self.surviving, f"the other {self.surviving} continue")
        for cause in dict.fromkeys(causes.values()):
            replicas = [str(replica) for replica, own in causes.items() if own == cause]
            who, whose = ("replicas", "their") if len(replicas) > 1 else ("replica", "its")
            which = f"{who} {', '.join(replicas)} of {self.name}"
            self.notify(f"{which} stopped at step {step}: {whose} {cause} not finite; {rest}")


def _tensorboard(path: Path, steps_done: int) -> "SummaryWriter | None":
    """Return a writer for TensorBoard, or None if TensorBoard is not installed.

    Steps after `steps_done` will be trained again, so TensorBoard hides their earlier events.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    # The file needs a random name, because TensorBoard would follow a link with a guessed name.
    token = f".{secrets.token_hex(8)}"
    return SummaryWriter(str(path), purge_step=steps_done + 1, filename_suffix=token)


def train_ensemble(
    members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]
) -> None:
    """Train runs together to their last step, and write their final bounds.

    Training starts at the latest step for which every run has a checkpoint. `data` is
    {name: data set}.
    """
    began = time()
    for member in members:
        if not member.states:  # used up in a larger ensemble, which did not fit into memory
            member.look(alone=len(members) == 1)
    trainer = _resumed(members, options, data)
    step, names = trainer.steps_done, [member.name for member in members]
    with ExitStack() as sessions:
        for member in members:
            sessions.enter_context(member.session(step, options.device, names))
        _advance(trainer, members, options, data, began)
        for index, member in enumerate(members):
            if member.surviving:
                if not options.limit.allows("bounds"):
                    raise OutOfTimeError(
                        f"saved at step {member.config.steps}, before its final bounds"
                    )
                began = time()
                model = share_of_model(trainer, member.config, index, len(members))
                dataset = data[member.config.dataset]
                member.finish(final_bounds(model, dataset, member.config, options.evaluate))
                options.limit.add("bounds", began)


def _resumed(
    members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]
) -> Trainer:
    """Return a trainer that continues at the latest step from which all runs can resume."""
    configs, device = [member.config for member in members], options.device
    datasets = [data[config.dataset] for config in configs]
    trainer = ensemble_trainer(configs, datasets, device, options.model)
    ((step, _),) = group_by_step([set(member.states) for member in members])
    if step:
        states = [member.states[step] for member in members]
        trainer.load_state(joined(states, configs[0].seed, device))
    for member in members:
        member.states = {}
    return trainer


def _advance(
    trainer: Trainer,
    members: Sequence[Member],
    options: TrainOptions,
    data: Mapping[str, Dataset],
    began: float,
) -> None:
    """Train to the last step, and write records and checkpoints.

    Return earlier if no replica survives. Raise an exception if the user or the time limit stops
    the training. `began` is the time at which the first part of the training began.
    """
    config, limit = members[0].config, options.limit
    part: Part = "start"
    due = -math.inf  # save at the first record
    with _interruptible() as interrupted:
        blocks = advance_to(trainer, config.steps, config.report_every, options.execution)
        for step, is_record in blocks:
            stop = interrupted()
            records = _record(trainer, members, data) if is_record else []
            limit.add(part, began)
            part = "block"
            late = step < config.steps and not limit.allows("block", "save")
            if stop or late or step == config.steps or (is_record and perf_counter() >= due):
                start, began = perf_counter(), time()
                _save(trainer, members)
                limit.add("save", began)
                end = perf_counter()
                least = MOST_SAVING * (end - start) if options.checkpoint_seconds else 0
                due = end + max(options.checkpoint_seconds, least)
            # Call the user's function after the save, so that its errors do not lose the step.
            for member, record in records:
                member.show(record)
            if stop:
                kind = TerminatedError if stop == signal.SIGTERM else KeyboardInterrupt
                raise kind(f"saved at step {step}")
            if late:
                raise OutOfTimeError(f"saved at step {step} of {config.steps}")
            began = time()
            if not any(member.surviving for member in members):
                return


def _save(trainer: Trainer, members: Sequence[Member]) -> None:
    """Save a checkpoint of every run.

    Runs without surviving replicas are also saved, because the noise of the other runs depends on
    them.
    """
    state = trainer.state()
    for index, member in enumerate(members):
        member.run.save_checkpoint(of_run(state, index, len(members)))


def _record(
    trainer: Trainer, members: Sequence[Member], data: Mapping[str, Dataset]
) -> list[tuple[Member, Record]]:
    """Write a record for every run that has surviving replicas.

    Return a list of (member, record) for these runs.
    """
    whole = trainer.record()
    finite = finite_replicas(dict(trainer.model.named_parameters()), trainer.config.replicas)
    written = []
    for index, member in enumerate(members):
        if not member.surviving:
            continue
        config, dataset = member.config, data[member.config.dataset]
        # The replica axis of the ensemble concatenates the replicas of all runs.
        own = slice(index * config.replicas, (index + 1) * config.replicas)
        record = {key: value if key == "step" else value[own] for key, value in whole.items()}
        if config.evaluate_every and trainer.steps_done % config.evaluate_every == 0:
            model = share_of_model(trainer, config, index, len(members))
            k, images = TEST_BOUND_SAMPLES, config.evaluate_images
            found = evaluate(model, dataset, "test", [k], config.seed, images)
            record[TEST_BOUND.key] = found[k]
        written.append((member, member.append(record, finite[own])))
    return written


@contextmanager
def _interruptible() -> Iterator[Callable[[], int]]:
    """Delay Ctrl-C and SIGTERM in the `with` block, so that the run can be saved between two steps.

    The block gets a function that returns the number of the first signal, or 0 if none arrived. A
    second Ctrl-C interrupts at once. A second SIGTERM has no effect, because a parent process may
    forward the same signal again. If the process ignored Ctrl-C before, it still ignores Ctrl-C.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    both = (signal.SIGINT, signal.SIGTERM)
    heard = [number for number in both if signal.getsignal(number) != signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, ask) for number in heard}
    except ValueError:  # only the main thread can handle signals
        yield lambda: 0
        return
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def names_of(configs: Sequence[TrainConfig]) -> list[str]:
    """Return one name for each run of an ensemble. The names distinguish the runs."""
    differing = [name for name in MAY_DIFFER if len({getattr(one, name) for one in configs}) > 1]
    names = []
    for config in configs:
        name = f"{config.label} on {config.dataset}" if "dataset" in differing else config.label
        numbers = [f"{field} {getattr(config, field)}" for field in STARTS if field in differing]
        names.append(", ".join([name, *numbers]))
    return names


def ensemble_key(config: TrainConfig) -> tuple[object, ...]:
    """Return a key for a run. Runs with equal keys can share an ensemble.

    Estimators that make the same evaluations of the model can share an ensemble. The key of a run
    with any other estimator contains the estimator's name.
    """
    shared = [value for name, value in asdict(config).items() if name not in MAY_DIFFER]
    return (*shared, evaluation_signature(config.make_estimator()) or config.label)


def group_for_ensembles(configs: Sequence[TrainConfig]) -> list[list[TrainConfig]]:
    """Group runs into ensembles. Within an ensemble, runs with the same estimator are adjacent.

    >>> runs = [TrainConfig(estimator=name) for name in ("loorf", "relax", "arms", "vimco")]
    >>> [[config.estimator for config in together] for together in group_for_ensembles(runs)]
    [['loorf', 'arms'], ['relax'], ['vimco']]
    """
    found: dict[object, list[TrainConfig]] = {}
    order = [config.label for config in configs]
    for config in sorted(configs, key=lambda config: order.index(config.label)):
        found.setdefault(ensemble_key(config), []).append(config)
    return list(found.values())


def check_same_config(configs: Sequence[TrainConfig]) -> None:
    """Raise ValueError if runs cannot share an ensemble. The message gives the reason."""
    if len(set(map(ensemble_key, configs))) > 1:
        raise ValueError(_why_not_together(configs))
    if len(set(names := names_of(configs))) < len(names):
        what = "estimator, data set, learning rate or encoder_scale"
        expected = f"runs trained together must differ in {what}"
        got = f"{', '.join(names)}: list each once, and set replicas for more seeds"
        raise ValueError(f"{expected}, got {got}")


def stack(configs: Sequence[TrainConfig]) -> Estimator:
    """Return one estimator that combines the estimators of all runs in an ensemble.

    If adjacent runs have the same estimator, their samples are drawn together.
    """
    check_same_config(configs)
    groups = [list(same) for _, same in groupby(configs, key=lambda config: config.label)]
    members = [same[0].make_estimator() for same in groups]
    if len(members) == 1:
        return members[0]
    return Stacked(members, [len(same) * configs[0].replicas for same in groups])


def ensemble_trainer(
    configs: Sequence[TrainConfig],
    datasets: Sequence[Dataset],
    device: str,
    model: DiscreteVAE | None = None,
) -> Trainer:
    """Return the trainer of an ensemble.

    Each run has the same data and initial weights as if it were trained alone.
    """
    config = configs[0]
    if len(configs) == 1:
        return Trainer(config, datasets[0], device, model)
    wide = replace(config, replicas=config.replicas * len(configs))
    starts = list(zip(datasets, [one.encoder_scale for one in configs], strict=True))
    alone = {
        (dataset, scale): replace(config, encoder_scale=scale).build_model(
            dataset.pixel_mean(), dataset.levels
        )
        for dataset, scale in dict.fromkeys(starts)
    }
    of_runs = [alone[start].state_dict() for start in starts]
    weights = {name: torch.cat([own[name] for own in of_runs]) for name in of_runs[0]}
    together, rates = _filled(wide, weights, datasets[0].levels), LearningRates(configs, device)
    trainer = Trainer(wide, datasets, device, together, stack(configs), rates)
    # Each run gets a separate copy of the estimator's parameters, with the same initial values.
    own = prepared_estimator(config, together.event_shape, trainer.data.images.shape[1], device)
    with torch.no_grad():
        for of_all, of_one in zip(trainer.estimator_parameters, own.parameters(), strict=True):
            of_all.copy_(torch.cat([of_one] * len(configs)))
    return trainer


def share_of_model(trainer: Trainer, config: TrainConfig, index: int, runs: int) -> DiscreteVAE:
    """Return the model of run number `index` in an ensemble of `runs` runs.

    If the ensemble has several runs, the model is a copy.
    """
    if runs == 1:
        return trainer.model
    return _filled(config, model_of(of_run(trainer.state(), index, runs)), trainer.data.levels)


def group_by_step(resumable: Sequence[set[int]]) -> list[tuple[int, list[int]]]:
    """Group runs so that all runs of a group can resume from the same step.

    `resumable` has one set for each run: the steps from which the run can resume. Return one pair
    for each group: the step, and the indices of the runs. Steps that more runs share are preferred,
    and among these the latest step.

    >>> group_by_step([{120, 110}, {110, 100}, {500, 490}])
    [(110, [0, 1]), (500, [2])]
    """
    rest = dict(enumerate(resumable))
    groups = []
    while rest:
        counts = Counter(step for steps in rest.values() for step in steps)
        shared = max(counts, key=lambda step: (counts[step], step))
        groups.append((shared, [index for index, steps in rest.items() if shared in steps]))
        rest = {index: steps for index, steps in rest.items() if shared not in steps}
    return groups


def _filled(config: TrainConfig, weights: State, levels: int) -> DiscreteVAE:
    """Return a built-in model that has a copy of these weights, on the same device."""
    mean = weights["pixel_mean"]
    model = config.build_model(mean, levels, str(mean.device), blank=True)
    model.load_state_dict(weights)
    return model


def _why_not_together(configs: Sequence[TrainConfig]) -> str:
    """Return a text that explains why these runs cannot share an ensemble."""
    remedy = "train them separately"
    for name, first in asdict(configs[0]).items():
        values = [getattr(config, name) for config in configs]
        if name not in MAY_DIFFER and (other := [value for value in values if value != first]):
            what = f"runs that are trained together may differ only in {', '.join(MAY_DIFFER)}"
            return f"{what}, got {first!r} and {other[0]!r} for {name}: {remedy}"
    estimators = {config.label: config.make_estimator() for config in configs}
    if alone := [name for name, one in estimators.items() if evaluation_signature(one) is None]:
        fitting = [name for name, make in ESTIMATORS.items() if evaluation_signature(make(4))]
        what = f"{alone[0]} cannot share an ensemble with other estimators"
        return f"{what}: train it separately, or choose among {', '.join(fitting)}"
    what = ", ".join(f"{name} ({describe_signature(one)})" for name, one in estimators.items())
    expected = "runs that are trained together must make the same evaluations of the model"
    return f"{expected}, got {what}: {remedy}"
