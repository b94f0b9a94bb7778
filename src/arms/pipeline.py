"""From a configuration to a finished run: train, report, save, evaluate; and go on where an earlier try ended."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from arms.data import Dataset, load
from arms.evaluation import bounds
from arms.memory import keep_freed_memory
from arms.models import BinaryVAE, build_vae, seeded_generator
from arms.runs import Record, Run
from arms.training import TrainConfig, Trainer

TEST_SAMPLES = 100


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever watches it."""

    step: int
    elbo: Tensor
    """`[R]`, mean over the training batches since the last report."""
    variance: Tensor
    """`[R]`, the gradient variance as in the paper's figures."""


Watcher = Callable[[Progress], None]


def train(
    config: TrainConfig,
    directory: Path | str,
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    model: BinaryVAE | None = None,
    checkpoint_seconds: float = 60.0,
    watch: Watcher | None = None,
) -> Run:
    """Train to the end of `config.steps`, evaluate, and return the run; the same call again goes on, or does nothing.

    `dataset` and `model` stand in for the ones the configuration names: your own tensors, your own networks.
    """
    run = Run.create(directory, config)
    if run.result() is not None:
        return run
    keep_freed_memory()
    device = choose_device(device)
    dataset = dataset or load(config.dataset, data_dir)
    trainer = Trainer(config, dataset, device, model)
    if (state := run.load()) is not None:
        trainer.load_state(state)
    run.forget_after(trainer.steps_done)
    start = perf_counter()
    try:
        _advance(trainer, run, dataset, checkpoint_seconds, watch)
        run.finish(final_bounds(trainer.model, dataset, config))
    finally:
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
    model.load_state_dict({name.removeprefix("model."): t for name, t in state.items() if name.startswith("model.")})
    return model.to(choose_device(device)), dataset


def choose_device(name: str) -> str:
    """Return the device of that name; `auto` is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"no device {name!r} here ({str(error).splitlines()[0]}): try auto or cpu") from None
    return name


def _advance(trainer: Trainer, run: Run, dataset: Dataset, checkpoint_seconds: float, watch: Watcher | None) -> None:
    config = trainer.config
    saved = perf_counter()
    try:
        while trainer.steps_done < config.steps:
            trainer.step()
            step, last = trainer.steps_done, trainer.steps_done == config.steps
            if step % config.report_every == 0 or last:
                progress = Progress(step, trainer.recent_elbo().cpu(), trainer.gradient_variance().cpu())
                run.report(_record(trainer, dataset, progress))
                if watch:
                    watch(progress)
                if last or perf_counter() - saved >= checkpoint_seconds:
                    run.save(trainer.state())
                    saved = perf_counter()
    except KeyboardInterrupt:
        run.save(trainer.state())
        raise


def _record(trainer: Trainer, dataset: Dataset, progress: Progress) -> Record:
    record: Record = {
        "step": progress.step,
        "train_elbo": progress.elbo.tolist(),
        "gradient_variance": progress.variance.tolist(),
    }
    config = trainer.config
    if config.evaluate_every and progress.step % config.evaluate_every == 0:
        found = evaluate(trainer.model, dataset, "test", [TEST_SAMPLES], config.seed, config.evaluate_images)
        record["test_bound_100"] = found[str(TEST_SAMPLES)]
    return record
