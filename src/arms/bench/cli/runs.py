"""Verbs for the newest checkpoint of a run: evaluate, variance, sample."""

from pathlib import Path
from typing import Literal

import rich
from rich.markup import escape
from rich.table import Table

from arms.arguments import as_count
from arms.bench import evaluation
from arms.bench.cli.console import print_markup, print_plain
from arms.bench.cli.parsing import RunPath
from arms.bench.data import binarize
from arms.bench.formatting import format_mean_std
from arms.bench.metrics import TEST_BOUND_SAMPLES
from arms.bench.models import BinaryVAE, seeded_generator
from arms.bench.pictures import write_samples
from arms.bench.runs import pipeline
from arms.bench.runs.directory import Run
from arms.bench.training.state import step_of


def evaluate(
    run: RunPath,
    samples: tuple[int, ...] = (1, TEST_BOUND_SAMPLES),
    split: Literal["train", "valid", "test"] = "test",
    images: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Print K-sample bounds of a run's newest checkpoint, in nats, mean and standard deviation over replicas.

    Args:
        run: Run directory.
        samples: Every K to evaluate; 1 is the ELBO.
        split: Which images.
        images: How many of them; all unless given.
        device: auto, cpu or cuda.
        data_dir: Folder with data files.
    """
    if images is not None:
        as_count(images, 1, "--images")
    source = Run(run)
    model, dataset = pipeline.load_model(source, device, data_dir)
    bounds = evaluation.evaluate(model, dataset, split, list(samples), source.config().seed, images)
    table = Table("K", f"{split} bound", caption=dataset.note or None)
    for count, bound in bounds.items():
        table.add_row(count, format_mean_std(bound))
    rich.print(table)
    _print_step_if_unfinished(source)
    _print_survivors_if_fewer(source, model)


def variance(
    run: RunPath,
    estimators: tuple[str, ...] = (),
    num_samples: int | None = None,
    evaluations: int | None = None,
    repeats: int = 200,
    batch_size: int = 20,
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Compare estimators at a run's checkpoint: variance of the logits' gradient over draws, on one fixed minibatch.

    The table counts the evaluations and derivatives of the decoder, and times one estimate. Biased estimators come
    last; those with parameters of their own, if named, have fresh ones and are marked as untrained.

    Args:
        run: Run directory.
        estimators: Which ones; unless given, all that fit this budget, but for enumeration and those with parameters.
        num_samples: Budget n; the run's unless given.
        evaluations: Instead of n, the most evaluations of the decoder for one estimate: each gets the largest n for it.
        repeats: How many draws.
        batch_size: Images in the minibatch.
        device: auto, cpu or cuda.
        data_dir: Folder with data files.
    """
    as_count(batch_size, 1, "--batch-size")
    source = Run(run)
    config = source.config()
    if num_samples is not None:
        as_count(num_samples, 1, "--num-samples")
        if evaluations is not None:
            raise ValueError("--num-samples and --evaluations exclude each other: give one of them")
    if evaluations is not None:
        as_count(evaluations, 1, "--evaluations")
    elif num_samples is None:
        num_samples = config.num_samples
    model, dataset = pipeline.load_model(source, device, data_dir)
    where = str(model.prior.device)
    generator = seeded_generator(config.seed, "variance", device=where)
    images = dataset.test[:batch_size].to(where)
    x = binarize(images, dataset.levels, generator).expand(model.replicas, -1, -1)
    table = evaluation.gradient_variances(
        model, x, estimators or None, num_samples, generator, evaluations=evaluations, repeats=repeats
    )
    print_plain(str(table))
    _print_survivors_if_fewer(source, model)


def sample(run: RunPath, output: Path | None = None, count: int = 10, data_dir: Path | None = None) -> None:
    """Draw a PNG: one row of test images, then per replica one row of reconstructions and one of prior samples.

    Args:
        run: Run directory.
        output: File to write; samples.png in the run directory unless given.
        count: Images per row.
        data_dir: Folder with data files.
    """
    as_count(count, 1, "--count")
    source = Run(run)
    model, dataset = pipeline.load_model(source, "cpu", data_dir)
    target = output or run / "samples.png"
    write_samples(target, model, dataset, count, seeded_generator(source.config().seed, "sample"))
    print_markup(f"wrote {escape(str(target))}")
    _print_survivors_if_fewer(source, model)


def _print_step_if_unfinished(run: Run) -> None:
    state = run.load()
    if state is not None and run.result() is None:
        done, steps = step_of(state), run.config().steps
        print_plain(f"{run.path} is unfinished: its newest checkpoint is from step {done:,} of {steps:,}")


def _print_survivors_if_fewer(run: Run, model: BinaryVAE) -> None:
    """Print over how many replicas a mean was taken, where some have stopped."""
    total, stopped = run.config().replicas, run.stopped()
    if model.replicas < total:
        when = ", ".join(f"replica {replica} at step {step}" for replica, step in sorted(stopped.items()))
        print_plain(f"{model.replicas} of {total} replicas are left" + (f": stopped {when}" if when else ""))
