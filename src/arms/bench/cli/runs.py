"""Subcommands for runs: runs, archive, evaluate, variance and sample."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from arms.arguments import as_count
from arms.bench import evaluation
from arms.bench.cli import ModelName, Output, RunPath, naming_the_model
from arms.bench.config import TrainConfig, identity
from arms.bench.data import Dataset, observe
from arms.bench.metrics import TEST_BOUND_SAMPLES
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.bench.output import (
    describe_result,
    format_mean_std,
    print_markup,
    print_plain,
    print_table,
    shorten,
)
from arms.bench.pictures import write_samples
from arms.bench.runs.archives import examine_runs, open_runs, run_sources, write_archive
from arms.bench.runs.files import shown
from arms.bench.runs.loading import find_model, load_model
from arms.bench.runs.run import Run

NAMED = {"schema", "dataset", "network", "structure", "estimator", "folded", "num_samples"}
NAMED |= {"replicas", "steps", "seed"}
"""Fields that `_described` does not list by name. It shows or omits these fields in another way."""


@dataclass(frozen=True)
class Checkpoint:
    """Command-line options that name a run and load the run's newest checkpoint."""

    run: RunPath  # Run directory.
    model: ModelName = None  # The function that makes your own model, if the run has one.
    dataset: str | None = None  # Path of your own images, if they were moved.
    data_dir: Path | None = None  # Folder with data files.

    def load(self, device: str = "cpu") -> tuple[Run, DiscreteVAE, Dataset]:
        """Return the run, the model with the weights of the newest checkpoint, and the data set.

        Print a line if the run is unfinished, or if replicas have stopped.
        """
        run, make = Run(self.run), find_model(self.model) if self.model else None
        model, data = load_model(run, device, self.data_dir, model=make, dataset=self.dataset)
        config = run.config()
        if run.result() is None:
            at = f"step {run.step():,} of {config.steps:,}"
            print_plain(f"{run.path} is unfinished: its newest checkpoint is from {at}")
        if model.replicas < config.replicas:
            stopped = sorted(run.stopped().items())
            when = ", ".join(f"replica {one} at step {step}" for one, step in stopped)
            left = f"{model.replicas} of {config.replicas} replicas survive"
            print_plain(f"{left}: stopped {when}" if when else left)
        return run, model, data


Source = tyro.conf.OmitArgPrefixes[Checkpoint]


def runs(folder: RunPath = Path("runs")) -> None:
    """List the runs in a folder, with their configurations, progress, and test bounds in nats.

    Args:
        folder: Folder of runs, or a file of `arms archive`.
    """
    found = list(examine_runs(folder)) if folder.exists() else []
    if not found:
        what = "contains no run" if folder.exists() else "does not exist"
        raise ValueError(f"the folder {folder} {what}: train a run, or name another folder")
    damaged = [run for _, run in found if isinstance(run, ValueError)]
    if len(damaged) == len(found):
        raise damaged[0]
    for path, run in found:
        print_markup(f"[bold]{escape(shown(path))}")
        if isinstance(run, ValueError):
            print_plain(f"    broken: {run}")
            continue
        print_plain(f"    {_described(run.config())}")
        print_plain(f"    {_progress(run)}")


def archive(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional], /, output: Output = Path("runs.json")
) -> None:
    """Write the results of runs that have ended into one small file for `arms report`.

    Args:
        runs: Run directories, archives, or folders of them.
        output: The .json file to write; it may also be one of the inputs.
    """
    if not runs:
        what = "arms archive needs a run directory, or a folder of run directories, got none"
        raise ValueError(f"{what}: for example `arms archive runs`")
    found: dict[Path, Run] = {}
    for place in runs:
        opened = [run for source in run_sources(place) for run in open_runs(source)]
        if not opened:
            raise ValueError(
                f"{place} contains no run: name run directories, or folders of run directories"
            )
        found |= {run.path.resolve(): run for run in opened}
    count = write_archive(output, list(found.values()))
    print_plain(f"wrote {output}: {count} runs, {output.stat().st_size / 1000:.0f} kB")


def evaluate(
    source: Source,
    samples: tuple[int, ...] = (1, TEST_BOUND_SAMPLES),
    split: Literal["train", "valid", "test"] = "test",
    images: int | None = None,
    device: str = "auto",
) -> None:
    """Print K-sample bounds of a run's newest checkpoint in nats: mean and std over replicas.

    Args:
        source: The run.
        samples: The values of K; K = 1 is the ELBO.
        split: The split of the data set.
        images: The number of images; all by default.
        device: auto, cpu or cuda.
    """
    if images is not None:
        as_count(images, 1, "--images")
    run, model, data = source.load(device)
    with naming_the_model(source.model):
        seed = run.config().seed
        bounds = evaluation.evaluate(model, data, split, list(samples), seed, images)
    table = Table("K", f"{split} bound", caption=escape(data.note) or None)
    for count, bound in bounds.items():
        table.add_row(str(count), format_mean_std(bound))
    print_table(table)


def variance(
    source: Source,
    estimators: tuple[str, ...] = (),
    num_samples: int | None = None,
    evaluations: int | None = None,
    repeats: int = 200,
    batch_size: int = 20,
    device: str = "auto",
) -> None:
    """Compare the gradient variances of estimators at a run's checkpoint, on one minibatch.

    The table also shows the evaluations and derivatives of the decoder, and the time, of one
    estimate. Biased estimators come last. Estimators with parameters are compared only if you name
    them, and their parameters then have their initial values.

    Args:
        source: The run.
        estimators: Names of estimators. The default is all estimators that fit the budget, except
            enumeration and estimators with parameters.
        num_samples: The number of samples n for one estimate; by default the run's n.
        evaluations: The largest number of evaluations of the decoder for one estimate. Pass either
            this number or num_samples.
        repeats: The number of estimates of each estimator.
        batch_size: The number of images in the minibatch.
        device: auto, cpu or cuda.
    """
    counts = {"batch-size": batch_size, "num-samples": num_samples, "evaluations": evaluations}
    for flag, count in counts.items():
        if count is not None:
            as_count(count, 1, f"--{flag}")
    if num_samples is not None and evaluations is not None:
        raise ValueError("got both --num-samples and --evaluations: pass only one of them")
    run, model, data = source.load(device)
    config, where = run.config(), str(model.prior.device)
    budget = config.num_samples if num_samples is None and evaluations is None else num_samples
    generator = seeded_generator(config.seed, "variance", device=where)
    images = data.test[:batch_size].to(where)
    bits = model.likelihood.binarizes_input
    x = observe(images, data.levels, generator, bits=bits).expand(model.replicas, -1, -1)
    compare = partial(evaluation.logit_gradient_variances, evaluations=evaluations, repeats=repeats)
    with naming_the_model(source.model):
        table = compare(model, x, estimators or None, budget, generator)
    for line in str(table).splitlines():
        print_plain(line)


def sample(
    source: Source,
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")] = None,
    count: int = 10,
) -> None:
    """Draw a PNG file with test images, and each replica's reconstructions and samples.

    Args:
        source: The run.
        output: The file to write; by default samples.png in the run directory.
        count: The number of images per row.
    """
    as_count(count, 1, "--count")
    run, model, data = source.load()
    target = output or run.path / "samples.png"
    with naming_the_model(source.model):
        generator = seeded_generator(run.config().seed, "sample")
        write_samples(target, model, data, count, generator)
    print_plain(f"wrote {target}")


def _described(config: TrainConfig) -> str:
    """Return a run's main fields as text, with all other fields that differ from their defaults."""
    parts = [config.dataset, config.network, f"{config.label} n={config.num_samples}"]
    parts += [f"R={config.replicas}"]
    parts += [f"{name} {value}" for name, value in identity(config).items() if name not in NAMED]
    return ", ".join(shorten(part) for part in [*parts, f"seed {config.seed}"])


def _progress(run: Run) -> str:
    """Return the progress of a run as text. If the run has ended, add the test bounds."""
    steps = run.config().steps
    try:
        result, has_diverged = run.result(), run.has_diverged()
    except ValueError as error:
        return f"broken: {error}"
    if result is not None:
        state = "finished" if run.is_finished() else "ended"  # ended: bounds over some images only
        return f"{state}: {steps:,} steps; {describe_result(result)}"
    return f"{'diverged' if has_diverged else 'unfinished'}: step {run.step():,} of {steps:,}"
