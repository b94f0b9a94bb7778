"""Verbs around runs: train, evaluate, variance, sample, data list, data get, demo."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Literal

import rich
import tyro
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from arms.arguments import as_count
from arms.bench import data as datasets
from arms.bench import evaluation
from arms.bench.cli.console import say, tell
from arms.bench.config import DecoderSamples, TrainConfig, paper_preset, run_name
from arms.bench.data import binarize
from arms.bench.formatting import fewer, number, spread
from arms.bench.metrics import Record, surviving
from arms.bench.models import BinaryVAE, seeded_generator
from arms.bench.pictures import write_samples
from arms.bench.reports import build_report
from arms.bench.runs import pipeline
from arms.bench.runs.directory import Run
from arms.bench.runs.live_run import OnRecord
from arms.bench.training.state import step_of

RunPath = Annotated[Path, tyro.conf.Positional]
DEMO = TrainConfig(replicas=3, steps=5000, num_samples=4, latents=50, learning_rate=1e-3, evaluate_every=500)
DEMO_ESTIMATORS = ("loorf", "disarm", "arms-d", "arms-n", "arms-s")


def _unless_typed(kind: str, default: object) -> object:
    """Describe a flag whose None stands for this default."""
    return tyro.conf.arg(metavar=kind, help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True)
class Flags(TrainConfig):
    """A configuration as typed, before it is checked: the parser would frame what is wrong with it in a box.

    None stands for a flag that was not typed, where that is not the same as one typed with its default.
    """

    estimator: Annotated[str | None, _unless_typed("STR", TrainConfig.estimator)] = None  # type: ignore[assignment]
    replicas: Annotated[int | None, _unless_typed("INT", TrainConfig.replicas)] = None  # type: ignore[assignment]
    steps: Annotated[int | None, _unless_typed("INT", TrainConfig.steps)] = None  # type: ignore[assignment]
    decoder_samples: Annotated[DecoderSamples | None, _unless_typed("{all,extra}", TrainConfig.decoder_samples)] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        pass


def train(
    config: tyro.conf.OmitArgPrefixes[Flags],
    together: tuple[str, ...] = (),
    preset: Literal["none", "paper"] = "none",
    device: str = "auto",
    runs: Path = Path("runs"),
    name: str | None = None,
    data_dir: Path | None = None,
    checkpoint_seconds: float = pipeline.CHECKPOINT_SECONDS,
) -> None:
    """Train a discrete VAE, or go on with a stopped one; the same command again does nothing once it is finished.

    Args:
        config: What decides the numbers.
        together: Estimators to train at once as one wider ensemble, a run each, in place of `--estimator`; they must
            differ, share an objective, and need no more than their samples: not arm, rebar, relax or exact. On a GPU
            that takes little longer than one of them. A run's noise then depends on its neighbours too.
        preset: `paper` takes a million steps, five replicas and the paper's decoder rule, where no flag says otherwise.
        device: auto, cpu or cuda.
        runs: Folder of all runs.
        name: Name of the run's folder in it, with `together` followed by the estimator; by default made from the
            configuration.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
        checkpoint_seconds: Time between two checkpoints, written at reports only: about what a killed run has to do
            again.
    """
    if together and config.estimator is not None:
        raise ValueError(f"give --estimator {config.estimator} or --together {' '.join(together)}, not both")
    if name and (name in (".", "..") or {"/", "\\"} & set(name)):
        raise ValueError(f"--name must be the name of one folder, got {name!r}: --runs says where it is")
    typed = {flag: value for flag, value in asdict(config).items() if value is not None}
    chosen = replace(paper_preset(TrainConfig()) if preset == "paper" else TrainConfig(), **typed)
    estimators = together or (chosen.estimator,)
    configs = [replace(chosen, estimator=estimator) for estimator in estimators]
    folders = [f"{name}-{one.estimator}" if name and together else name or run_name(one) for one in configs]
    paths = [runs / folder for folder in folders]
    before = [path for path in paths if Run(path).result()]
    with _bars() as bars:
        watchers = {one: _watcher(bars, one) for one in configs}
        finished = pipeline.train_together(
            configs,
            paths,
            device=device,
            data_dir=data_dir,
            checkpoint_seconds=checkpoint_seconds,
            on_record=lambda one, record: watchers[one](record),
            notify=tell,
        )
    for run in finished:
        tell(f"{run.path}{' (finished before)' if run.path in before else ''}: {_summary(run)}")


def evaluate(
    run: RunPath,
    samples: tuple[int, ...] = (1, 100),
    split: Literal["train", "valid", "test"] = "test",
    images: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Print K-sample bounds of a run's newest checkpoint, in nats, mean and standard deviation over replicas.

    Args:
        run: Run directory.
        samples: Every K to report; 1 is the ELBO.
        split: Which images.
        images: How many of them; all by default.
        device: auto, cpu or cuda.
        data_dir: Folder with data files.
    """
    if images is not None:
        as_count(images, 1, "--images")
    source = Run(run)
    model, dataset = pipeline.load_model(source, device, data_dir)
    found = evaluation.evaluate(model, dataset, split, list(samples), source.config().seed, images)
    table = Table("K", f"{split} bound", caption=dataset.note or None)
    for count, bound in found.items():
        table.add_row(count, spread(bound))
    rich.print(table)
    _say_how_far(source)
    _say_who_is_left(source, model)


def variance(
    run: RunPath,
    num_samples: int | None = None,
    estimators: tuple[str, ...] = (),
    repeats: int = 200,
    batch_size: int = 20,
    device: str = "auto",
    data_dir: Path | None = None,
) -> None:
    """Compare estimators at a run's checkpoint: variance of the logits' gradient over draws, on one fixed minibatch.

    Args:
        run: Run directory.
        num_samples: Budget n; by default the run's.
        estimators: Which ones; by default all that take a black box and this budget.
        repeats: Draws.
        batch_size: Images in the minibatch.
        device: auto, cpu or cuda.
        data_dir: Folder with data files.
    """
    as_count(batch_size, 1, "--batch-size")
    source = Run(run)
    config = source.config()
    budget = config.num_samples if num_samples is None else as_count(num_samples, 1, "--num-samples")
    model, dataset = pipeline.load_model(source, device, data_dir)
    where = str(model.prior.device)
    generator = seeded_generator(config.seed, "variance", device=where)
    images = dataset.test[:batch_size].to(where)
    x = binarize(images, dataset.levels, generator).expand(model.replicas, -1, -1)
    rich.print(escape(str(evaluation.gradient_variances(model, x, budget, estimators or None, repeats, generator))))
    _say_who_is_left(source, model)


def sample(run: RunPath, output: Path | None = None, count: int = 10, data_dir: Path | None = None) -> None:
    """Draw a PNG: test images, their reconstructions, and samples from the prior, one row of each a replica.

    Args:
        run: Run directory.
        output: File to write; by default samples.png in the run directory.
        count: Images a row.
        data_dir: Folder with data files.
    """
    as_count(count, 1, "--count")
    source = Run(run)
    model, dataset = pipeline.load_model(source, "cpu", data_dir)
    target = output or run / "samples.png"
    write_samples(target, model, dataset, count, seeded_generator(source.config().seed, "sample"))
    say(f"wrote {escape(str(target))}")
    _say_who_is_left(source, model)


def data_list(data_dir: Path | None = None) -> None:
    """List the data sets and say which are on this machine.

    Args:
        data_dir: Folder with data files; by default ARMS_DATA_DIR.
    """
    table = Table("name", "what", "here", "where")
    for status in datasets.status(data_dir):
        table.add_row(status.name, status.description, "yes" if status.available else "no", escape(status.where))
    rich.print(table)


def data_get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download a data set, or check the files that are there.

    Args:
        name: Data set.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
    """
    paths = datasets.fetch(name, data_dir)
    rich.print("\n".join(f"intact: {escape(str(path))}" for path in paths) or f"{name} comes with an installed package")


def demo(output: Path = Path("demo"), steps: int = DEMO.steps, replicas: int = DEMO.replicas) -> None:
    """Train a small VAE on the embedded digits with five estimators, print the comparison and write a report.

    Args:
        output: Folder of the runs and the report.
        steps: Optimisation steps of each.
        replicas: Seeds of each, trained at once.
    """
    configs = [replace(DEMO, estimator=name, steps=steps, replicas=replicas) for name in DEMO_ESTIMATORS]
    finished = []
    with _bars() as bars:
        for config in configs:
            watch = _watcher(bars, config)
            finished.append(
                pipeline.train(config, output / run_name(config), device="cpu", on_record=watch, notify=tell)
            )
    for run in finished:
        model, dataset = pipeline.load_model(run, "cpu")
        write_samples(run.path / "samples.png", model, dataset, 10, seeded_generator(0, "sample"))
    rich.print(_comparison(finished))
    build_report([run.path for run in finished], output / "report.html")
    say(f"report: {escape(str((output / 'report.html').resolve()))}")


@contextmanager
def _bars() -> Iterator[Progress]:
    """Progress that is first shown with the first report: what the user got wrong comes before, as a line alone."""
    bars = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    try:
        yield bars
    finally:
        if bars.live.is_started:
            bars.stop()


def _watcher(bars: Progress, config: TrainConfig) -> OnRecord:
    tasks: list[TaskID] = []

    def watch(record: Record) -> None:
        if not tasks:
            tasks.append(bars.add_task(escape(config.estimator), total=config.steps, rate="", figures=""))
            bars.start()
        speed = bars.tasks[tasks[0]].speed
        rate = f"{speed:.0f} steps/s" if speed else ""
        bars.update(tasks[0], completed=record["step"], figures=_figures(record), rate=rate)

    return watch


def _figures(record: Record) -> str:
    elbo, noise = surviving(record["train_elbo"]), surviving(record["gradient_variance"])
    if not elbo:
        return "no replica left"
    return f"ELBO {number(mean(elbo))}  variance {mean(noise):.2e}{fewer(record['train_elbo'])}"


def _say_how_far(run: Run) -> None:
    """Say at which step an unfinished run stands."""
    state = run.load()
    if state is not None and run.result() is None:
        tell(f"{run.path} is unfinished: its newest checkpoint is of step {step_of(state):,} of {run.config().steps:,}")


def _say_who_is_left(run: Run, model: BinaryVAE) -> None:
    """Say over how many replicas a mean was taken, where some have stopped."""
    total, stopped = run.config().replicas, run.stopped()
    if model.replicas < total:
        when = ", ".join(f"replica {replica} at step {step}" for replica, step in sorted(stopped.items()))
        tell(f"{model.replicas} of {total} replicas are left" + (f": stopped {when}" if when else ""))


def _summary(run: Run) -> str:
    result = run.result()
    assert result is not None
    found = result["bounds"]["test"]
    parts = [f"test bound K = {count}: {spread(found[count])}" for count in ("1", "100")]
    return ", ".join([*parts, *([result["note"]] if result["note"] else [])])


def _comparison(finished: list[Run]) -> Table:
    table = Table(title="digits, linear, n = 4: bounds in nats, higher is better", box=SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("estimator", "train K=1", "test K=1", "test K=4", "test K=100", "variance"):
        table.add_column(heading, justify="left" if heading == "estimator" else "right", no_wrap=True)
    for run in finished:
        result = run.result()
        assert result is not None
        found = result["bounds"]
        bounds = [found["train"]["1"], found["test"]["1"], found["test"]["4"], found["test"]["100"]]
        noise = mean(surviving(run.metrics()[-1]["gradient_variance"]))
        table.add_row(run.config().estimator, *map(spread, bounds), f"{noise:.2e}")
    return table
