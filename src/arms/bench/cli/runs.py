"""Verbs for runs: what there is, many as one file, and of the newest checkpoint: evaluate, variance, sample."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from arms.arguments import as_count
from arms.bench import evaluation
from arms.bench.cli.console import print_markup, print_plain, print_table
from arms.bench.cli.own import ModelName, OwnData, find_model, naming_the_model
from arms.bench.cli.parsing import Output, RunPath
from arms.bench.config import TrainConfig, identity
from arms.bench.data import observe
from arms.bench.formatting import format_mean_std, shorten
from arms.bench.metrics import TEST_BOUND_SAMPLES
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.bench.pictures import write_samples
from arms.bench.runs import loading
from arms.bench.runs.archives import examine_runs, open_runs, run_sources, write_archive
from arms.bench.runs.files import shown
from arms.bench.runs.run import Run


def runs(folder: RunPath = Path("runs")) -> None:
    """List the runs in a folder: what each is, how far it has come, and its bounds on the test set, in nats.

    Args:
        folder: Folder of runs, or a file of `arms archive`.
    """
    if not folder.exists():
        raise ValueError(f"there is no folder {folder}: train a run first, or give another folder")
    found = list(examine_runs(folder))
    if not found:
        raise ValueError(f"there is no run in {folder}: train one first, or give another folder")
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
    """Write finished runs into one small file that `arms report` reads: all bounds, thinned curves, provenance.

    Args:
        runs: Run directories, files of `arms archive`, or folders of them.
        output: The .json file to write; it may be one of those that are read.
    """
    sources = [(place, list(run_sources(place))) for place in runs]
    if empty := [place for place, found in sources if not found]:
        raise ValueError(f"there is no run in {empty[0]}: give run directories, or folders of them")
    opened = [run for _, found in sources for source in found for run in open_runs(source)]
    once = list({run.path.resolve(): run for run in opened}.values())
    if not once:
        raise ValueError(
            "give at least one run directory, or a folder of them: arms archive runs -o runs.json"
        )
    count = write_archive(output, once)
    print_plain(f"wrote {output}: {count} runs, {output.stat().st_size / 1000:.0f} kB")


def _described(config: TrainConfig) -> str:
    """Return what a run is: what every run has, and whatever else differs from the defaults."""
    parts = [
        config.dataset,
        config.network,
        f"{config.label} n={config.num_samples}",
        f"R={config.replicas}",
    ]
    shown = {
        "schema",
        "dataset",
        "network",
        "structure",
        "estimator",
        "folded",
        "num_samples",
        "replicas",
    }
    parts += [
        f"{name} {value}"
        for name, value in identity(config).items()
        if name not in {*shown, "steps", "seed"}
    ]
    return ", ".join(shorten(part) for part in [*parts, f"seed {config.seed}"])


def _progress(run: Run) -> str:
    """Return how far a run has come, and its bounds on the test set."""
    config = run.config()
    try:
        result, stopped = run.result(), run.stopped()
    except ValueError as error:
        return f"broken: {error}"
    if result is None:
        state = "diverged" if len(stopped) == config.replicas else "unfinished"
        return f"{state}: step {run.step():,} of {config.steps:,}"
    bounds = result["bounds"].get("test", {})
    tested = [
        f"K={count} {format_mean_std(bounds[str(count)])}"
        for count in (1, TEST_BOUND_SAMPLES)
        if str(count) in bounds
    ]
    over = f" over {result['images']:,} images only" if "images" in result else ""
    return f"finished: {config.steps:,} steps; test bound {', '.join(tested) or 'missing'}{over}"


def evaluate(
    run: RunPath,
    samples: tuple[int, ...] = (1, TEST_BOUND_SAMPLES),
    split: Literal["train", "valid", "test"] = "test",
    images: int | None = None,
    model: ModelName = None,
    dataset: OwnData = None,
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Print K-sample bounds of a run's newest checkpoint, in nats, mean and standard deviation over replicas.

    Args:
        run: Run directory.
        samples: Every K to evaluate; 1 is the ELBO.
        split: Which images.
        images: How many of them; all unless given.
        model: The function that makes your own model, if the run is of one.
        dataset: Your own images, if they are not where the run has found them.
        device: auto, cpu or cuda.
        data_dir: Folder with data files.
    """
    if images is not None:
        as_count(images, 1, "--images")
    source = Run(run)
    own, data = loading.load_model(
        source, device, data_dir, model=find_model(model), dataset=dataset
    )
    with naming_the_model(model):
        bounds = evaluation.evaluate(own, data, split, list(samples), source.config().seed, images)
    table = Table("K", f"{split} bound", caption=escape(data.note) or None)
    for count, bound in bounds.items():
        table.add_row(str(count), format_mean_std(bound))
    print_table(table)
    _print_step_if_unfinished(source)
    _print_survivors_if_fewer(source, own)


def variance(
    run: RunPath,
    estimators: tuple[str, ...] = (),
    num_samples: int | None = None,
    evaluations: int | None = None,
    repeats: int = 200,
    batch_size: int = 20,
    model: ModelName = None,
    dataset: OwnData = None,
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
        model: The function that makes your own model, if the run is of one.
        dataset: Your own images, if they are not where the run has found them.
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
    own, data = loading.load_model(
        source, device, data_dir, model=find_model(model), dataset=dataset
    )
    where = str(own.prior.device)
    generator = seeded_generator(config.seed, "variance", device=where)
    images = data.test[:batch_size].to(where)
    x = observe(images, data.levels, generator, bits=own.likelihood.binarizes_input).expand(
        own.replicas, -1, -1
    )
    with naming_the_model(model):
        table = evaluation.gradient_variances(
            own,
            x,
            estimators or None,
            num_samples,
            generator,
            evaluations=evaluations,
            repeats=repeats,
        )
    for line in str(table).splitlines():
        print_plain(line)
    _print_survivors_if_fewer(source, own)


def sample(
    run: RunPath,
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")] = None,
    count: int = 10,
    model: ModelName = None,
    dataset: OwnData = None,
    data_dir: Path | None = None,
) -> None:
    """Draw a PNG: one row of test images, then per replica one row of reconstructions and one of prior samples.

    Args:
        run: Run directory.
        output: File to write; samples.png in the run directory unless given.
        count: Images per row.
        model: The function that makes your own model, if the run is of one.
        dataset: Your own images, if they are not where the run has found them.
        data_dir: Folder with data files.
    """
    as_count(count, 1, "--count")
    source = Run(run)
    own, data = loading.load_model(
        source, "cpu", data_dir, model=find_model(model), dataset=dataset
    )
    target = output or run / "samples.png"
    with naming_the_model(model):
        write_samples(target, own, data, count, seeded_generator(source.config().seed, "sample"))
    print_markup(f"wrote {escape(str(target))}")
    _print_survivors_if_fewer(source, own)


def _print_step_if_unfinished(run: Run) -> None:
    if run.result() is None:
        done, steps = run.step(), run.config().steps
        print_plain(
            f"{run.path} is unfinished: its newest checkpoint is from step {done:,} of {steps:,}"
        )


def _print_survivors_if_fewer(run: Run, model: DiscreteVAE) -> None:
    """Print over how many replicas a mean was taken, where some have stopped."""
    total, stopped = run.config().replicas, run.stopped()
    if model.replicas < total:
        when = ", ".join(
            f"replica {replica} at step {step}" for replica, step in sorted(stopped.items())
        )
        print_plain(
            f"{model.replicas} of {total} replicas are left" + (f": stopped {when}" if when else "")
        )
