"""Verbs that train: train, demo; and the progress bars they show."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import rich
import tyro
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from arms.bench.cli.console import print_markup, print_plain
from arms.bench.config import PRESETS, DecoderSamples, Schedule, TrainConfig, fast_preset, run_name
from arms.bench.formatting import NO_REPLICA_LEFT, format_mean_std, format_metric, format_survivors
from arms.bench.metrics import METRICS, TEST_BOUND_SAMPLES, Record, stopping_values, surviving
from arms.bench.models import seeded_generator
from arms.bench.pictures import write_samples
from arms.bench.reports import build_report
from arms.bench.runs import pipeline
from arms.bench.runs.directory import Run
from arms.bench.runs.live_run import OnRecord
from arms.bench.runs.loop import CHECKPOINT_SECONDS
from arms.estimators import as_estimator

DEMO_CONFIG = replace(fast_preset(TrainConfig()), replicas=3, steps=2000, latents=50, evaluate_every=200)
DEMO_ESTIMATORS = ("midpoint", "arms-s", "arms-d", "disarm", "loorf")


def _unless_given(kind: str, default: object) -> object:
    """Describe a flag whose None stands for this default."""
    return tyro.conf.arg(metavar=kind, help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True)
class Flags(TrainConfig):
    """A configuration as it was typed. It is checked later: the parser would put a box around the error message.

    None stands for a flag that was not given, where that differs from one given with its default.
    """

    estimator: Annotated[str | None, _unless_given("STR", TrainConfig.estimator)] = None  # type: ignore[assignment]
    replicas: Annotated[int | None, _unless_given("INT", TrainConfig.replicas)] = None  # type: ignore[assignment]
    steps: Annotated[int | None, _unless_given("INT", TrainConfig.steps)] = None  # type: ignore[assignment]
    learning_rate: Annotated[float | None, _unless_given("FLOAT", TrainConfig.learning_rate)] = None  # type: ignore[assignment]
    schedule: Annotated[Schedule | None, _unless_given("{constant,cosine,step}", TrainConfig.schedule)] = None  # type: ignore[assignment]
    decoder_samples: Annotated[DecoderSamples | None, _unless_given("{all,extra}", TrainConfig.decoder_samples)] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        pass


def train(
    config: tyro.conf.OmitArgPrefixes[Flags],
    together: tuple[str, ...] = (),
    preset: Literal["none", "paper", "fast"] = "none",
    device: str = "auto",
    runs: Path = Path("runs"),
    name: str | None = None,
    data_dir: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train a discrete VAE, or resume a stopped run; the same command again does nothing once it is finished.

    Args:
        config: Everything that decides the numbers.
        together: Estimators to train together as one wider ensemble, one run each, instead of `--estimator`; they must
            differ and ask the same of the model; rebar, relax, rodeo and exact share an ensemble with no other. On a
            GPU that takes little longer than one of them. The noise of a run then depends on the other runs too.
        preset: Settings for whatever no flag is given. `paper` is a million steps, five replicas and the paper's
            decoder rule; `fast` the best recipe found: midpoint, n = 4, five replicas, 100,000 steps, and a rate that
            falls along half a cosine from 0.006 (linear) or 0.003.
        device: auto, cpu or cuda.
        runs: Folder of all runs.
        name: Name of the run's folder in it, followed by the estimator with `together`; made from the configuration
            unless given.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        checkpoint_seconds: Time between two checkpoints, which are written after a record of metrics only: about as
            much as a killed run has to repeat.
    """
    if together and config.estimator is not None:
        raise ValueError(f"give --estimator {config.estimator} or --together {' '.join(together)}, not both")
    if name and (name in (".", "..") or {"/", "\\"} & set(name)):
        raise ValueError(f"--name must be the name of one folder, got {name!r}: give its place with --runs")
    given = {flag: value for flag, value in asdict(config).items() if value is not None}
    start = TrainConfig(network=config.network)  # on which a preset may depend
    chosen = replace(PRESETS[preset](start) if preset in PRESETS else start, **given)
    estimators = together or (chosen.estimator,)
    configs = [replace(chosen, estimator=estimator) for estimator in estimators]
    folders = [f"{name}-{one.estimator}" if name and together else name or run_name(one) for one in configs]
    paths = [runs / folder for folder in folders]
    done_before = [path for path in paths if Run(path).result()]
    with _bars() as bars:
        watchers = {one: _watcher(bars, one) for one in configs}
        finished = pipeline.train_together(
            configs,
            paths,
            device=device,
            data_dir=data_dir,
            checkpoint_seconds=checkpoint_seconds,
            on_record=lambda one, record: watchers[one](record),
            notify=print_plain,
        )
    for run in finished:
        print_plain(f"{run.path}{' (finished before)' if run.path in done_before else ''}: {_summary(run)}")


def demo(output: Path = Path("demo"), steps: int = DEMO_CONFIG.steps, replicas: int = DEMO_CONFIG.replicas) -> None:
    """Train a small VAE on the embedded digits with five estimators, print a comparison and write a report.

    Args:
        output: Folder for the runs and the report.
        steps: Optimisation steps per estimator.
        replicas: Seeds per estimator, trained together.
    """
    configs = [replace(DEMO_CONFIG, estimator=name, steps=steps, replicas=replicas) for name in DEMO_ESTIMATORS]
    finished = []
    with _bars() as bars:
        for config in configs:
            path, watch = output / run_name(config), _watcher(bars, config)
            finished.append(pipeline.train(config, path, device="cpu", on_record=watch, notify=print_plain))
    for run in finished:
        model, dataset = pipeline.load_model(run, "cpu")
        write_samples(run.path / "samples.png", model, dataset, 10, seeded_generator(0, "sample"))
    rich.print(_comparison(finished))
    build_report([run.path for run in finished], output / "report.html")
    print_markup(f"report: {escape(str((output / 'report.html').resolve()))}")


@contextmanager
def _bars() -> Iterator[Progress]:
    """Provide progress bars that appear with the first record: a mistake of the user is a single line before them."""
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
    """Return a function of records that moves a bar of its own."""
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
    """Return what a progress bar shows beside the step: the mean of each metric, and how many replicas it is of."""
    alive = min(stopping_values(record).values(), key=lambda values: len(surviving(values)))
    if not surviving(alive):
        return NO_REPLICA_LEFT
    shown = [metric for key, metric in METRICS.items() if metric.in_progress and key in record]
    parts = [f"{metric.quantity} {format_metric(metric, record[metric.key])}" for metric in shown]
    return "  ".join(parts) + format_survivors(alive)


def _summary(run: Run) -> str:
    result = run.result()
    assert result is not None
    bounds = result["bounds"]["test"]
    parts = [f"test bound K = {count}: {format_mean_std(bounds[str(count)])}" for count in (1, TEST_BOUND_SAMPLES)]
    return ", ".join([*parts, *([result["note"]] if result["note"] else [])])


def _comparison(finished: list[Run]) -> Table:
    """Return the final bounds of runs, and the last values of the metrics that are no bounds."""
    columns = [("train", 1), ("test", 1), ("test", TEST_BOUND_SAMPLES)]
    metrics = [metric for metric in METRICS.values() if not metric.in_result]
    table = Table(title="digits, linear, n = 4: bounds in nats, higher is better", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("estimator", no_wrap=True)
    asked = [as_estimator(run.config().estimator, run.config().num_samples) for run in finished]
    bounds_of = [f"{split} K={count}" for split, count in columns]
    for heading in ["work", *bounds_of, *(metric.quantity for metric in metrics)]:
        table.add_column(heading, justify="right", no_wrap=True)
    for run, one in zip(finished, asked, strict=True):
        result, last = run.result(), run.metrics()[-1]
        assert result is not None
        bounds = [format_mean_std(result["bounds"][split][str(count)]) for split, count in columns]
        values = [format_metric(metric, last[metric.key]) if metric.key in last else "" for metric in metrics]
        table.add_row(run.config().estimator, f"{one.evaluations} + {one.derivatives}", *bounds, *values)
    table.caption = "work: evaluations + derivatives of the decoder, per image and step"
    return table
