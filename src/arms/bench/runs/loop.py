"""The training loop of an ensemble: steps, records, checkpoints, final bounds; Ctrl-C and SIGTERM between steps."""

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import get_args

from arms.arguments import as_count
from arms.bench.data import Dataset
from arms.bench.ensemble import (
    ensemble_trainer,
    group_by_step,
    joined_state,
    share_of_model,
    share_of_record,
)
from arms.bench.evaluation import evaluate, final_bounds
from arms.bench.metrics import TEST_BOUND, TEST_BOUND_SAMPLES, Record
from arms.bench.models import DiscreteVAE
from arms.bench.runs.devices import choose_device
from arms.bench.runs.live_run import LiveRun, Notify
from arms.bench.training.engine import Engine, Execution, block_of, check_execution
from arms.bench.training.state import finite_replicas, of_run
from arms.bench.training.trainer import Trainer

CHECKPOINT_SECONDS = 15.0
MOST_SAVING = 20
"""How many times as long as a checkpoint takes a run trains before the next, unless all are asked for."""


def check_seconds(seconds: object, what: str) -> None:
    """Raise unless it is a time between two checkpoints."""
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"{what} must be a finite number >= 0, got {seconds!r}")


class TerminatedError(KeyboardInterrupt):
    """A SIGTERM has stopped the training, after a save: a machine is taken away, or a job's time is over."""


@dataclass(frozen=True)
class TrainOptions:
    """How to train: nothing here decides what is learnt but the model, where it is the user's own."""

    device: str
    execution: Execution
    checkpoint_seconds: float
    notify: Notify
    model: DiscreteVAE | None = None
    evaluate: int | None = None
    """Images of each split in the final bounds; all unless given."""

    def __post_init__(self) -> None:
        if self.execution not in get_args(Execution):
            raise ValueError(
                f"execution must be one of {', '.join(get_args(Execution))}, got {self.execution!r}"
            )
        check_seconds(self.checkpoint_seconds, "checkpoint_seconds")
        if self.evaluate is not None:
            as_count(self.evaluate, 1, "evaluate")

    def resolved(self) -> "TrainOptions":
        """Return the same with the device chosen; one that is not here, or cannot execute like that, is an error."""
        name = choose_device(self.device)
        check_execution(self.execution, name)
        return replace(self, device=name)


def train_ensemble(
    live_runs: Sequence[LiveRun], options: TrainOptions, data: Mapping[str, Dataset]
) -> None:
    trainer = _begin(live_runs, options, data)
    step, names, config = trainer.steps_done, [live.name for live in live_runs], live_runs[0].config
    engine = Engine(trainer, options.execution, block_of(config.report_every, config.steps, step))
    with ExitStack() as sessions:
        for live in live_runs:
            sessions.enter_context(live.session(step, options.device, names))
        _advance(engine, live_runs, data, options.checkpoint_seconds)
        for index, live in enumerate(live_runs):
            if live.surviving:
                own = share_of_model(trainer, live.config, index, len(live_runs))
                live.finish(
                    final_bounds(own, data[live.config.dataset], live.config, options.evaluate)
                )


def _begin(
    live_runs: Sequence[LiveRun], options: TrainOptions, data: Mapping[str, Dataset]
) -> Trainer:
    """Return the trainer of runs, at the step that all of them can resume from."""
    configs = [live.config for live in live_runs]
    found = [live.run.resumable() for live in live_runs]
    ((step, _),) = group_by_step([set(states) for states in found])
    trainer = ensemble_trainer(
        configs, [data[config.dataset] for config in configs], options.device, options.model
    )
    if step:
        trainer.load_state(
            joined_state([states[step] for states in found], configs[0].seed, options.device)
        )
    return trainer


def _advance(
    engine: Engine,
    live_runs: Sequence[LiveRun],
    data: Mapping[str, Dataset],
    checkpoint_seconds: float,
) -> None:
    trainer, config = engine.trainer, live_runs[0].config
    due = -math.inf  # the first record saves
    with _interruptible() as interrupted:
        while trainer.steps_done < config.steps and any(live.surviving for live in live_runs):
            engine.advance_block()
            step, last, stop = trainer.steps_done, trainer.steps_done == config.steps, interrupted()
            is_record = last or step % config.report_every == 0
            records = _record(trainer, live_runs, data) if is_record else []
            if stop or last or (is_record and perf_counter() >= due):
                start = perf_counter()
                _save(trainer, live_runs)
                took = perf_counter() - start
                due = (
                    start
                    + took
                    + max(checkpoint_seconds, MOST_SAVING * took if checkpoint_seconds else 0)
                )
            for (
                live,
                record,
            ) in records:  # after the save: whatever a user's function raises, the step is kept
                live.show(record)
            if stop:
                raise (TerminatedError if stop == signal.SIGTERM else KeyboardInterrupt)(
                    f"saved at step {step}"
                )


def _save(trainer: Trainer, live_runs: Sequence[LiveRun]) -> None:
    """Save every run, also one of which no replica survives: the noise of the others depends on its being there."""
    state = trainer.state()
    for index, live in enumerate(live_runs):
        live.run.save(of_run(state, index, len(live_runs)))


def _record(
    trainer: Trainer, live_runs: Sequence[LiveRun], data: Mapping[str, Dataset]
) -> list[tuple[LiveRun, Record]]:
    """Write a record of every run that has surviving replicas."""
    whole = trainer.record()
    finite = finite_replicas(dict(trainer.model.named_parameters()), trainer.config.replicas)
    written = []
    for index, live in enumerate(live_runs):
        if not live.surviving:
            continue
        config = live.config
        record = share_of_record(whole, index, config.replicas)
        if config.evaluate_every and trainer.steps_done % config.evaluate_every == 0:
            own = share_of_model(trainer, config, index, len(live_runs))
            dataset = data[config.dataset]
            found = evaluate(
                own, dataset, "test", [TEST_BOUND_SAMPLES], config.seed, config.evaluate_images
            )
            record[TEST_BOUND.key] = found[TEST_BOUND_SAMPLES]
        first = (
            index * config.replicas
        )  # the ensemble's replica axis holds run after run, each with its replicas
        written.append((live, live.append(record, finite[first : first + config.replicas])))
    return written


@contextmanager
def _interruptible() -> Iterator[Callable[[], int]]:
    """Turn Ctrl-C and SIGTERM into a question that is asked between steps: nobody could resume from half a step.

    The answer is the number of the signal, 0 without one. A second Ctrl-C does not wait, and interrupts at once; a
    second SIGTERM changes nothing, as whole groups of processes get it, and their parents pass it on. A process that
    ignores Ctrl-C goes on to: it is in the background, or a sweep's, which is told by its driver.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    heard = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
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
