"""The training of an ensemble: steps, records, checkpoints, final bounds; Ctrl-C and SIGTERM.

Replicas are independent of each other, so a number that is not finite stays in its replica: that
one stops, and the others continue.
"""

import math
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, get_args

from torch import Tensor

from arms.arguments import as_count
from arms.bench import ensemble
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.evaluation import evaluate, final_bounds
from arms.bench.metrics import METRICS, TEST_BOUND, TEST_BOUND_SAMPLES, Record, stopping_values
from arms.bench.models import DiscreteVAE
from arms.bench.progress import Watcher
from arms.bench.runs.checkpoint import CHECKPOINTS
from arms.bench.runs.run import Run
from arms.bench.training.engine import Execution, advance_to
from arms.bench.training.trainer import Trainer, finite_replicas, of_run, step_of

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

CHECKPOINT_SECONDS = 15.0
MOST_SAVING = 20
"""A run trains this many times as long as a checkpoint takes, unless all are asked for."""

OnRecord: TypeAlias = Callable[[Record], None]
"""Called with every record; numbers of a replica that has stopped are None."""
Notify: TypeAlias = Callable[[str], None]
"""Called with a line that a user should read while training continues."""


class DivergedError(ValueError):
    """No replica of a run survives."""


class TerminatedError(KeyboardInterrupt):
    """A SIGTERM has stopped the training, after a save."""


def check_seconds(seconds: object, what: str) -> None:
    """Raise unless it is a time between two checkpoints."""
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"{what} must be a finite number >= 0, got {seconds!r}")


@dataclass(frozen=True)
class TrainOptions:
    """How to train: nothing here decides what is learnt, except a model of the user's own."""

    device: str
    execution: Execution
    checkpoint_seconds: float
    notify: Notify
    evaluate: int | None = None
    """Images of each split in the final bounds; all unless given."""
    model: DiscreteVAE | None = None

    def __post_init__(self) -> None:
        if self.execution not in (known := get_args(Execution)):
            raise ValueError(f"execution must be one of {', '.join(known)}, got {self.execution!r}")
        check_seconds(self.checkpoint_seconds, "checkpoint_seconds")
        if self.evaluate is not None:
            as_count(self.evaluate, 1, "evaluate")


@dataclass(eq=False)
class Member:
    """A run of an ensemble while it trains: what was asked for, and which replicas are left."""

    run: Run
    config: TrainConfig
    notify: Notify
    on_record: OnRecord | None = None
    name: str = ""
    """What tells it from the others of its ensemble."""
    watcher: Watcher | None = None
    writer: "SummaryWriter | None" = None
    stopped: dict[int, int] = field(default_factory=dict)
    """Replicas that have stopped, each with the step that showed it."""
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """Checkpoints by step that it can resume from, until it does."""

    def __post_init__(self) -> None:
        self.name = self.name or self.config.label

    @property
    def surviving(self) -> int:
        """How many replicas have not stopped."""
        return self.config.replicas - len(self.stopped)

    def look(self, *, alone: bool) -> None:
        """Read from the run, which is locked, where it can resume and which replicas are left."""
        self.stopped = self.run.stopped()
        if alone:
            state = self.run.checkpoint()
            self.states = {} if state is None else {step_of(state): state}
        else:  # a crash may have left runs of an ensemble a save apart
            self.states = self.run.checkpoints()
        # A crash between the first saves leaves some runs without any: all can start again.
        if not self.states or not (alone or self.run.has(CHECKPOINTS[1])):
            self.states[0] = {}

    @contextmanager
    def session(self, step: int, device: str, together: Sequence[str]) -> Iterator[None]:
        """Start or resume at that step; whatever happens then, the provenance is written down."""
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
        """Write a record and return it, None for stopped replicas; `finite` is of parameters."""
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
        """Hand a record to TensorBoard, the progress bar and the user's `on_record`."""
        listeners: list[OnRecord | None] = [self._write_event, self.watcher, self.on_record]
        for listener in filter(None, listeners):
            listener(record)

    def _write_event(self, record: Record) -> None:
        for name, values in record.items():
            for replica, value in enumerate(values if name != "step" else ()):
                if self.writer and value is not None:
                    self.writer.add_scalar(f"{name}/{replica}", value, record["step"])

    def finish(self, result: Record) -> None:
        """Write the final bounds, None for every replica that has stopped, if any survives."""
        bounds = result["bounds"]
        causes = {}
        for replica in self._running():
            numbers = [values[replica] for of in bounds.values() for values in of.values()]
            if not all(map(math.isfinite, numbers)):
                causes[replica] = "final bound is"
        self._stop(self.config.steps, causes)
        if not self.surviving:
            return
        content = dict(result)
        content["bounds"] = {
            split: {k: self._masked(values) for k, values in of.items()}
            for split, of in bounds.items()
        }
        if self.stopped:
            content["stopped"] = {str(one): self.stopped[one] for one in sorted(self.stopped)}
        self.run.finish(content)

    def _running(self) -> list[int]:
        return [replica for replica in range(self.config.replicas) if replica not in self.stopped]

    def _masked(self, values: Sequence[float]) -> list[float | None]:
        return [None if replica in self.stopped else value for replica, value in enumerate(values)]

    def _stop(self, step: int, causes: Mapping[int, str]) -> None:
        """Stop some replicas, each for its cause, and notify the user with one line per cause."""
        self.stopped |= dict.fromkeys(causes, step)
        others = {0: "none survives, and the run ends", 1: "the other one continues"}
        rest = others.get(self.surviving, f"the other {self.surviving} continue")
        for cause in dict.fromkeys(causes.values()):
            replicas = [str(replica) for replica, own in causes.items() if own == cause]
            who, whose = ("replicas", "their") if len(replicas) > 1 else ("replica", "its")
            which = f"{who} {', '.join(replicas)} of {self.name}"
            self.notify(f"{which} stopped at step {step}: {whose} {cause} not finite; {rest}")


def _tensorboard(path: Path, steps_done: int) -> "SummaryWriter | None":
    """Return a writer of TensorBoard's events, None where it is not installed."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    # The rest of the file's name can be guessed, and TensorBoard would follow a link there.
    token = f".{secrets.token_hex(8)}"
    return SummaryWriter(str(path), purge_step=steps_done + 1, filename_suffix=token)


def train_ensemble(
    members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]
) -> None:
    """Train runs from the step that all of them can resume from to their end, and evaluate them."""
    for member in members:
        if not member.states:  # they were used by a larger ensemble, which did not fit into memory
            member.look(alone=len(members) == 1)
    trainer = _resumed(members, options, data)
    step, names = trainer.steps_done, [member.name for member in members]
    with ExitStack() as sessions:
        for member in members:
            sessions.enter_context(member.session(step, options.device, names))
        _advance(trainer, members, options, data)
        for index, member in enumerate(members):
            if member.surviving:
                model = ensemble.share_of_model(trainer, member.config, index, len(members))
                dataset = data[member.config.dataset]
                member.finish(final_bounds(model, dataset, member.config, options.evaluate))


def _resumed(
    members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]
) -> Trainer:
    """Return the trainer of runs, at the step that all of them can resume from."""
    configs, device = [member.config for member in members], options.device
    datasets = [data[config.dataset] for config in configs]
    trainer = ensemble.ensemble_trainer(configs, datasets, device, options.model)
    ((step, _),) = ensemble.group_by_step([set(member.states) for member in members])
    if step:
        states = [member.states[step] for member in members]
        trainer.load_state(ensemble.joined_state(states, configs[0].seed, device))
    for member in members:
        member.states = {}
    return trainer


def _advance(
    trainer: Trainer, members: Sequence[Member], options: TrainOptions, data: Mapping[str, Dataset]
) -> None:
    """Do all steps that are left, with records and checkpoints on the way."""
    config = members[0].config
    due = -math.inf  # the first record saves
    with _interruptible() as interrupted:
        blocks = advance_to(trainer, config.steps, config.report_every, options.execution)
        for step, is_record in blocks:
            stop = interrupted()
            records = _record(trainer, members, data) if is_record else []
            if stop or step == config.steps or (is_record and perf_counter() >= due):
                start = perf_counter()
                _save(trainer, members)
                end = perf_counter()
                least = MOST_SAVING * (end - start) if options.checkpoint_seconds else 0
                due = end + max(options.checkpoint_seconds, least)
            # After the save: whatever a user's function raises, the step is kept.
            for member, record in records:
                member.show(record)
            if stop:
                kind = TerminatedError if stop == signal.SIGTERM else KeyboardInterrupt
                raise kind(f"saved at step {step}")
            if not any(member.surviving for member in members):
                return


def _save(trainer: Trainer, members: Sequence[Member]) -> None:
    """Save every run, also one without replicas: the noise of the others depends on it."""
    state = trainer.state()
    for index, member in enumerate(members):
        member.run.save(of_run(state, index, len(members)))


def _record(
    trainer: Trainer, members: Sequence[Member], data: Mapping[str, Dataset]
) -> list[tuple[Member, Record]]:
    """Write a record of every run that has surviving replicas."""
    whole = trainer.record()
    finite = finite_replicas(dict(trainer.model.named_parameters()), trainer.config.replicas)
    written = []
    for index, member in enumerate(members):
        if not member.surviving:
            continue
        config, dataset = member.config, data[member.config.dataset]
        record = ensemble.share_of_record(whole, index, config.replicas)
        if config.evaluate_every and trainer.steps_done % config.evaluate_every == 0:
            model = ensemble.share_of_model(trainer, config, index, len(members))
            counts, images = [TEST_BOUND_SAMPLES], config.evaluate_images
            found = evaluate(model, dataset, "test", counts, config.seed, images)
            record[TEST_BOUND.key] = found[TEST_BOUND_SAMPLES]
        # The ensemble's replica axis holds run after run, each with its replicas.
        own = finite[index * config.replicas : (index + 1) * config.replicas]
        written.append((member, member.append(record, own)))
    return written


@contextmanager
def _interruptible() -> Iterator[Callable[[], int]]:
    """Turn Ctrl-C and SIGTERM into a question that is asked between steps, where a run can resume.

    The answer is the number of the signal, 0 without one. A second Ctrl-C interrupts at once. A
    second SIGTERM changes nothing: whole groups of processes get it, and their parents pass it on.
    A process that ignores Ctrl-C goes on to ignore it: it is in the background, or a sweep's.
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
    except ValueError:  # only the main thread may
        yield lambda: 0
        return
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
