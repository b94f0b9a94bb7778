"""Verbs that train: train, demo."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from arms.bench.cli.console import print_markup, print_plain, print_table
from arms.bench.cli.own import ModelName, find_model, naming_the_model
from arms.bench.config import (
    PRESETS,
    DecoderSamples,
    Schedule,
    TrainConfig,
    difference,
    fast_preset,
    is_longer,
    latents_in_words,
    run_name,
)
from arms.bench.data import DATASETS, Dataset, load
from arms.bench.formatting import format_mean_std, format_metric
from arms.bench.metrics import METRICS, TEST_BOUND_SAMPLES
from arms.bench.models import NETWORKS, seeded_generator
from arms.bench.pictures import write_samples
from arms.bench.progress import Bars
from arms.bench.runs import loading
from arms.bench.runs import train as pipeline
from arms.bench.runs.loop import CHECKPOINT_SECONDS
from arms.bench.runs.run import Run

DEMO_CONFIG = replace(
    fast_preset(TrainConfig()), replicas=3, steps=2000, latents=50, evaluate_every=200
)
DEMO_ESTIMATORS = ("midpoint", "arms", "arms-dirichlet", "disarm", "loorf")


def _unless_given(kind: str, default: object) -> object:
    """Describe a flag whose None stands for this default."""
    return tyro.conf.arg(metavar=kind, help_behavior_hint=f"(default: {default})")


def _choice_of(names: Iterable[str]) -> str:
    """Return the names that a flag takes as its help shows them."""
    return f"{{{','.join(names)}}}"


@dataclass(frozen=True)
class Flags(TrainConfig):
    """A configuration as it was typed. It is checked later: the parser would put a box around the error message.

    None stands for a flag that was not given, where that differs from one given with its default.
    """

    dataset: str = TrainConfig.dataset
    """Data set by name (see `arms data list`), or your own: an .npz or .npy file, or a folder of images."""
    network: Annotated[str | None, _unless_given(_choice_of(NETWORKS), TrainConfig.network)] = None  # type: ignore[assignment]
    """One affine layer each way, or two hidden layers of 200 in between; for your own see `--model`."""
    estimator: Annotated[str | None, _unless_given("STR", TrainConfig.estimator)] = None  # type: ignore[assignment]
    replicas: Annotated[int | None, _unless_given("INT", TrainConfig.replicas)] = None  # type: ignore[assignment]
    steps: Annotated[int | None, _unless_given("INT", TrainConfig.steps)] = None  # type: ignore[assignment]
    learning_rate: Annotated[float | None, _unless_given("FLOAT", TrainConfig.learning_rate)] = None  # type: ignore[assignment]
    schedule: Annotated[
        Schedule | None, _unless_given(_choice_of(get_args(Schedule)), TrainConfig.schedule)
    ] = None  # type: ignore[assignment]
    latents: Annotated[str | None, _unless_given("INT|INTxINT", TrainConfig.latents)] = None  # type: ignore[assignment]
    """Latent variables; 20x10 is 20 of 10 categories each, 20 is 20 bits."""
    categories: Annotated[int | None, tyro.conf.Suppress] = None  # type: ignore[assignment]  # typed with the latents
    structure: Annotated[str, tyro.conf.Suppress] = ""  # a model's, never typed
    decoder_samples: Annotated[
        DecoderSamples | None,
        _unless_given(_choice_of(get_args(DecoderSamples)), TrainConfig.decoder_samples),
    ] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        pass


def train(
    config: tyro.conf.OmitArgPrefixes[Flags],
    together: tuple[str, ...] = (),
    model: ModelName = None,
    preset: Literal["none", "paper", "fast"] = "none",
    device: str = "auto",
    runs: Path = Path("runs"),
    name: str | None = None,
    data_dir: Path | None = None,
    evaluate: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train a discrete VAE, or resume a stopped run; the same command again does nothing once it is finished.

    With more steps it goes on from where the run ended.

    Args:
        config: Everything that decides the numbers.
        together: Estimators to train together as one wider ensemble, one run each, instead of `--estimator`; they must
            differ and ask the same of the model; rebar, relax, rodeo and exact share an ensemble with no other. On a
            GPU that takes little longer than one of them. The noise of a run then depends on the other runs too.
        model: Your own networks: a function of yours that makes a DiscreteVAE of one replica for a data set, from a
            module in this folder or an installed one. It is called once for each replica.
        preset: Settings for whatever no flag is given. `paper` is a million steps, five replicas and the paper's
            decoder rule; `fast` the best recipe found: midpoint, n = 4, five replicas, 100,000 steps, and a rate that
            falls along half a cosine from 0.006 (linear) or 0.003.
        device: auto, cpu or cuda.
        runs: Folder of all runs.
        name: Name of the run's folder in it, followed by the estimator with `together`; made from the configuration
            unless given.
        data_dir: Folder with data files; unless given, ARMS_DATA_DIR, then the download cache.
        evaluate: How many images of each split the final bounds are over; all unless given.
        checkpoint_seconds: Time between two checkpoints, which are written after a record of metrics only: about as
            much as a killed run has to repeat.
    """
    if together and config.estimator is not None:
        raise ValueError(
            f"give --estimator {config.estimator} or --together {' '.join(together)}, not both"
        )
    if name and (name in (".", "..") or {"/", "\\"} & set(name)):
        raise ValueError(
            f"--name must be the name of one folder, got {name!r}: give its place with --runs"
        )
    if model is not None and (together or config.network is not None):
        other = "--together" if together else "--network"
        raise ValueError(
            f"give --model {model} or {other}, not both: a model of your own is trained alone"
        )
    make = find_model(model)
    sizes = read_latents(config.latents)
    given = {flag: value for flag, value in asdict(config).items() if value is not None} | sizes
    # A preset may depend on the network; a model of one's own is taken for one with hidden layers.
    start = TrainConfig(
        network=config.network or (TrainConfig.network if model is None else "nonlinear")
    )
    chosen = replace(PRESETS[preset](start) if preset in PRESETS else start, **given)
    own = None if chosen.dataset in DATASETS else load(chosen.dataset, data_dir)
    chosen = _named_as(chosen, own, make, sizes, data_dir)
    estimators = together or (chosen.estimator,)
    configs = [replace(chosen, estimator=estimator) for estimator in estimators]
    paths = [
        runs / (f"{name}-{one.label}" if together else name) if name else _place(runs, one)
        for one in configs
    ]
    how: dict[str, Any] = {
        "device": device,
        "data_dir": data_dir,
        "evaluate": evaluate,
        "checkpoint_seconds": checkpoint_seconds,
        "notify": print_plain,
    }
    with Bars() as bars, naming_the_model(model):
        how["progress"] = bars
        if make:
            finished = [pipeline.train(chosen, paths[0], model=make, dataset=own, **how)]
        else:
            datasets = [own] * len(configs) if own else None
            finished = pipeline.train_together(configs, paths, datasets=datasets, **how)
    for run in finished:
        before = "" if run.has_changed else " (finished before)"
        print_plain(f"{run.path}{before}: {_summary(run)}")


def _named_as(
    config: TrainConfig,
    own: Dataset | None,
    make: Callable[..., Any] | None,
    sizes: Mapping[str, int],
    data_dir: Path | None,
) -> TrainConfig:
    """Return a configuration with the names of the user's own data set and model."""
    named = replace(config, dataset=own.name) if own else config
    if make is None:
        return named
    found, _ = loading.own_model(named, make, own or load(named.dataset, data_dir))
    if any(getattr(found, field) != size for field, size in sizes.items()):
        typed, has = latents_in_words(config), latents_in_words(found)
        raise ValueError(f"--latents {typed} contradicts the model, which has {has}: leave it out")
    return found


def read_latents(typed: str | None) -> dict[str, int]:
    """Return the fields that --latents stands for, none where it was not typed.

    >>> read_latents("20x10"), read_latents("200")
    ({'latents': 20, 'categories': 10}, {'latents': 200, 'categories': 2})
    """
    if typed is None:
        return {}
    if not (sizes := re.fullmatch(r"(\d+)(?:x(\d+))?", typed)):
        raise ValueError(
            f"--latents must be a number of bits, such as 200, or 20x10 for categories, got {typed!r}"
        )
    return {"latents": int(sizes[1]), "categories": int(sizes[2] or 2)}


def _place(runs: Path, config: TrainConfig) -> Path:
    """Return the folder of a run: the one it is in, also if it was begun with fewer steps, or a new one."""
    place = runs / run_name(config)
    if Run(place).exists():
        return place
    there = _readable_configs(runs)
    shorter = [
        (one.steps, path)
        for path, one in there
        if is_longer(config, one) or not difference(config, one)
    ]
    if shorter:
        return max(shorter)[1]
    for path, one in there:
        if set(difference(config, one)) == {"steps"} and one.steps < config.steps:
            print_plain(
                f"{path} ends at step {one.steps:,} of its cosine schedule: {config.steps:,} steps begin anew"
            )
    return place


def _readable_configs(runs: Path) -> list[tuple[Path, TrainConfig]]:
    """Return the run directories in a folder, and their configurations, without damaged ones."""
    found = []
    for path in sorted(runs.iterdir()) if runs.is_dir() else []:
        with suppress(ValueError, OSError):
            run = Run(path)
            if run.exists():
                found.append((path, run.config()))
    return found


def demo(
    output: Path = Path("demo"),
    steps: int = DEMO_CONFIG.steps,
    replicas: int = DEMO_CONFIG.replicas,
) -> None:
    """Train a small VAE on the embedded digits with five estimators, print a comparison and write a report.

    Args:
        output: Folder for the runs and the report.
        steps: Optimisation steps per estimator.
        replicas: Seeds per estimator, trained together.
    """
    from arms.bench.report import (
        build_report,
    )  # matplotlib: no other verb of this file should wait for it

    configs = [
        replace(DEMO_CONFIG, estimator=name, steps=steps, replicas=replicas)
        for name in DEMO_ESTIMATORS
    ]
    finished = []
    with Bars() as bars:
        for config in configs:
            path = output / run_name(config)
            run = pipeline.train(config, path, device="cpu", progress=bars, notify=print_plain)
            finished.append(run)
    for run in finished:
        model, dataset = loading.load_model(run, "cpu")
        write_samples(run.path / "samples.png", model, dataset, 10, seeded_generator(0, "sample"))
    print_table(_comparison(finished))
    build_report([run.path for run in finished], output / "report.html")
    print_markup(f"report: {escape(str((output / 'report.html').resolve()))}")


def _summary(run: Run) -> str:
    result = run.result()
    assert result is not None
    bounds = result["bounds"].get("test", {})
    parts = [
        f"test bound K = {count}: {format_mean_std(bounds[str(count)])}"
        for count in (1, TEST_BOUND_SAMPLES)
        if str(count) in bounds
    ]
    part = [f"over {result['images']} images of each split"] if "images" in result else []
    return ", ".join([*parts, *part, *([result["note"]] if result["note"] else [])])


def _comparison(finished: list[Run]) -> Table:
    """Return the final bounds of runs, and the last values of the metrics that are no bounds."""
    columns = [("train", 1), ("test", 1), ("test", TEST_BOUND_SAMPLES)]
    metrics = [metric for metric in METRICS.values() if not metric.in_result]
    table = Table(
        title="digits, linear, n = 4: bounds in nats, higher is better",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("estimator", no_wrap=True)
    asked = [run.config().make_estimator().design.needs for run in finished]
    bounds_of = [f"{split} K={count}" for split, count in columns]
    for heading in ["work", *bounds_of, *(metric.brief or metric.quantity for metric in metrics)]:
        table.add_column(heading, justify="right", no_wrap=True)
    for run, one in zip(finished, asked, strict=True):
        result, last = run.result(), run.metrics()[-1]
        assert result is not None
        bounds = [format_mean_std(result["bounds"][split][str(count)]) for split, count in columns]
        values = [
            format_metric(metric, last[metric.key]) if metric.key in last else ""
            for metric in metrics
        ]
        table.add_row(
            run.config().label, f"{one.evaluations} + {one.derivatives}", *bounds, *values
        )
    table.caption = "work: evaluations + derivatives of the decoder, per image and step"
    return table
