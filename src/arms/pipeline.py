"""From a configuration to a finished run: train, report, save, evaluate; and go on where an earlier try ended."""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import torch
from torch import Tensor

from arms.data import Dataset, load
from arms.engine import BLOCK, Drive, Engine
from arms.evaluation import bounds
from arms.memory import keep_freed_memory
from arms.models import BinaryVAE, build_vae, seeded_generator
from arms.runs import Events, Record, Run
from arms.training import TrainConfig, Trainer, part_of_state

TEST_SAMPLES = 100
CHECKPOINT_SECONDS = 15.0

Watcher: TypeAlias = Callable[[Record], None]
"""Called with every report: step, and each metric as a list with one number a replica."""


def train(
    config: TrainConfig,
    directory: Path | str,
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    model: BinaryVAE | None = None,
    drive: Drive = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watch: Watcher | None = None,
) -> Run:
    """Train to the end of `config.steps`, evaluate, and return the run; the same call again goes on, or does nothing.

    `dataset` and `model` stand in for the ones the configuration names: your own tensors, your own networks.
    """
    if (run := Run(directory)).exists() and Run.create(directory, config).result() is not None:
        return run
    device = choose_device(device)
    dataset = dataset or load(config.dataset, data_dir)
    run = Run.create(directory, config)  # only now: a wrong device or data set leaves nothing behind
    keep_freed_memory()
    trainer = Trainer(config, dataset, device, model)
    if (state := run.load()) is not None:
        trainer.load_state(state)
    run.forget_after(trainer.steps_done)
    engine = Engine(trainer, drive, block_of(config))
    events = Events(run.path, trainer.steps_done)
    start = perf_counter()
    try:
        _advance(engine, run, dataset, checkpoint_seconds, [events, *([watch] if watch else [])])
        run.finish(final_bounds(trainer.model, dataset, config))
    finally:
        events.close()
        run.describe(device, perf_counter() - start)
    return run


def final_bounds(model: BinaryVAE, dataset: Dataset, config: TrainConfig) -> Record:
    """Return the bounds that papers report, per replica: K = 1, n/2 and n on all three splits, and K = 100 on test."""
    counts = sorted({1, max(1, config.num_samples // 2), config.num_samples})
    return {
        "steps": config.steps,
        "note": dataset.note,
        "bounds": {
            split: evaluate(model, dataset, split, [*counts, TEST_SAMPLES] if split == "test" else counts, config.seed)
            for split in ("train", "valid", "test")
        },
    }


def evaluate(
    model: BinaryVAE, dataset: Dataset, split: str, sample_counts: list[int], seed: int, images: int | None = None
) -> dict[str, list[float]]:
    """Return {K: bound of each replica} on a split; the same seed draws the same bits and samples."""
    device = model.prior.device
    rows: Tensor = getattr(dataset, split)[:images].to(device)
    generator = seeded_generator(seed, f"evaluate {split}", device=str(device))
    found = bounds(model, rows, dataset.levels, sample_counts, generator)
    return {str(count): bound.tolist() for count, bound in found.items()}


def load_model(run: Run, device: str = "auto", data_dir: Path | str | None = None) -> tuple[BinaryVAE, Dataset]:
    """Return the model of a run's newest checkpoint, and its data set."""
    config, state = run.config(), run.load()
    if state is None:
        raise ValueError(f"{run.path} holds no intact checkpoint: train it first")
    dataset = load(config.dataset, data_dir)
    model = build_vae(config.network, config.latents, dataset.pixel_mean(), config.replicas, config.seed)
    model.load_state_dict(part_of_state(state, "model."))
    return model.to(choose_device(device)), dataset


def block_of(config: TrainConfig) -> int:
    """Return the longest block of steps that ends on every report."""
    return math.gcd(config.report_every, config.steps, BLOCK)


def choose_device(name: str) -> str:
    """Return the device of that name; `auto` is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"no device {name!r} here ({str(error).splitlines()[0]}): try auto or cpu") from None
    return name


def _advance(engine: Engine, run: Run, dataset: Dataset, checkpoint_seconds: float, watchers: list[Watcher]) -> None:
    trainer = engine.trainer
    config, saved = trainer.config, -math.inf  # the first report saves
    with _interruptible() as interrupted:
        while trainer.steps_done < config.steps:
            engine.replay()
            step, last = trainer.steps_done, trainer.steps_done == config.steps
            if interrupted():
                run.save(trainer.state())
                raise KeyboardInterrupt
            if step % config.report_every and not last:
                continue
            record = report_record(trainer, dataset)
            run.report(record)
            if last or perf_counter() - saved >= checkpoint_seconds:
                run.save(trainer.state())
                saved = perf_counter()
            for watch in watchers:
                watch(record)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into a question that is asked between steps: half a step could not be gone on with."""
    asked: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    except ValueError:  # only the main thread may
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def report_record(trainer: Trainer, dataset: Dataset) -> Record:
    """Return the report of where the trainer stands."""
    config, step = trainer.config, trainer.steps_done
    record: Record = {
        "step": step,
        "train_elbo": trainer.recent_elbo().tolist(),
        "gradient_variance": trainer.gradient_variance().tolist(),
    }
    if config.evaluate_every and step % config.evaluate_every == 0:
        found = evaluate(trainer.model, dataset, "test", [TEST_SAMPLES], config.seed, config.evaluate_images)
        record["test_bound_100"] = found[str(TEST_SAMPLES)]
    return record
