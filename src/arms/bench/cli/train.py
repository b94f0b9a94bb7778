"""Subcommands that train: train and demo."""

from collections.abc import Sequence
from dataclasses import Field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import tyro
from rich.box import SIMPLE
from rich.table import Table

from arms.bench.cli import ModelName, naming_the_model
from arms.bench.config import TrainConfig
from arms.bench.metrics import GRADIENT_VARIANCE, TEST_BOUND_SAMPLES
from arms.bench.models import NETWORKS, seeded_generator
from arms.bench.output import (
    Bars,
    describe_result,
    format_mean_std,
    format_metric,
    print_plain,
    print_table,
)
from arms.bench.pictures import write_samples
from arms.bench.presets import apply_preset
from arms.bench.runs import train as pipeline
from arms.bench.runs.ensemble import CHECKPOINT_SECONDS
from arms.bench.runs.loading import choose_directory, find_model, load_model, load_once, name_inputs
from arms.bench.runs.run import Run
from arms.bench.sweeps.engines import Here
from arms.bench.sweeps.sweep import sweep

DEMO_CONFIG = TrainConfig(
    num_samples=4,
    replicas=3,
    steps=2000,
    latents=50,
    evaluate_every=200,
    schedule="cosine",
    learning_rate=0.012,  # close to the best learning rate of every estimator
)
DEMO_ESTIMATORS = ("flips", "midpoint", "arms", "arms-dirichlet", "disarm", "loorf")
SHAPE = ("network", "latents", "categories", "layers")
"""Fields of the configuration that your own model determines, if you pass one."""


def _flag(field: "Field[Any]") -> tuple[str, Any, None]:
    """Return (name, type, default) of the command-line option for a field of the configuration.

    The default is None, which means that the option was not given.
    """
    hint = get_type_hints(TrainConfig)[field.name]
    metavar = f"{{{','.join(NETWORKS)}}}" if field.name == "network" else None
    about = tyro.conf.arg(help_behavior_hint=f"(default: {field.default})", metavar=metavar)
    hidden = (tyro.conf.Suppress,) if field.name == "structure" else ()  # computed from the model
    return field.name, Annotated[(hint | None, about, *hidden)], None


if TYPE_CHECKING:
    Flags = TrainConfig
else:  # the flags as they were given, which `TrainConfig` checks later
    unchecked = {"__post_init__": lambda self: None}
    flags = map(_flag, fields(TrainConfig))
    Flags = make_dataclass("Flags", flags, bases=(TrainConfig,), namespace=unchecked, frozen=True)


def train(
    config: tyro.conf.OmitArgPrefixes[Flags],
    together: tuple[str, ...] = (),
    model: ModelName = None,
    preset: Literal["none", "paper", "fast", "rodeo", "reinmax"] = "none",
    device: str = "auto",
    runs: Path = Path("runs"),
    name: str | None = None,
    data_dir: Path | None = None,
    evaluate: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train a discrete VAE, or resume a stopped run.

    If the run is finished, the same command does nothing. If `--steps` is larger than before,
    training continues from the end of the run.

    Args:
        config: All settings that affect the numbers.
        together: Estimators to train as one ensemble, one run each, instead of `--estimator`. They
            must be different, and make the same evaluations of the model. On a GPU, this takes
            little longer than a single run. The noise of a run then depends on the other runs.
        model: Your own model: a function of the data set that returns a DiscreteVAE of one replica.
        preset: Defaults for options that are not given. paper: the paper's protocol (a million
            steps, five replicas, its decoder rule). fast: the best recipe found (flips, 100,000
            steps, a cosine schedule, and a learning rate and initial weights that depend on network
            and steps). rodeo and reinmax: the protocols of these papers (docs/rodeo.md,
            docs/reinmax.md).
        device: auto, cpu or cuda.
        runs: Folder of all runs.
        name: Name of the run's folder; `together` appends the estimator.
        data_dir: Folder with data files; by default ARMS_DATA_DIR, then the download cache.
        evaluate: The number of images per split for the final bounds; all by default.
        checkpoint_seconds: Time between two checkpoints. They are written only after records.
    """
    given = {flag: value for flag, value in vars(config).items() if value is not None}
    _check_exclusive(given, together, model)
    if name and (name in (".", "..") or {"/", "\\"} & set(name)):
        place = "set the parent folder with --runs"
        raise ValueError(f"--name must be a folder name without a path, got {name!r}: {place}")
    if model:  # presets treat your model as nonlinear, and do not scale its initial weights
        given = {"network": "nonlinear", "encoder_scale": 1.0} | given
    each = [given | {"estimator": one} for one in together] or [given]
    asked = [TrainConfig(**one) if preset == "none" else apply_preset(preset, one) for one in each]
    make = find_model(model) if model else None
    configs, own = name_inputs(asked, None, make, data_dir)
    data = load_once(own[configs[0].dataset], data_dir) if own else None
    if name:
        paths = [runs / (f"{name}-{one.label}" if together else name) for one in configs]
    else:
        paths = [choose_directory(runs, one, print_plain) for one in configs]
    options: dict[str, Any] = {"device": device, "data_dir": data_dir, "evaluate": evaluate}
    options |= {"checkpoint_seconds": checkpoint_seconds, "notify": print_plain}
    with Bars() as bars, naming_the_model(model):
        options["progress"] = bars
        if make:
            found = [pipeline.train(configs[0], paths[0], model=make, dataset=data, **options)]
        else:
            datasets = [data] * len(configs) if data else None
            found = pipeline.train_together(configs, paths, datasets=datasets, **options)
    for run in found:
        result = run.result()
        assert result is not None
        before = "" if run.trained_here else " (finished before)"
        print_plain(f"{run.path}{before}: {describe_result(result)}")


def _check_exclusive(given: dict[str, Any], together: Sequence[str], model: str | None) -> None:
    """Raise ValueError if options that exclude each other were given."""
    if together and "estimator" in given:
        one, several = given["estimator"], " ".join(together)
        what = f"got both --estimator {one} and --together {several}"
        raise ValueError(f"{what}: pass only one of them")
    other = [f"--{field}" for field in SHAPE if field in given] + ["--together"] * bool(together)
    if model is not None and other:
        what = f"got both --model {model} and {other[0]}, which only affects built-in networks"
        raise ValueError(f"{what}: remove {other[0]}")


def demo(
    output: Path = Path("demo"),
    steps: int = DEMO_CONFIG.steps,
    replicas: int = DEMO_CONFIG.replicas,
) -> None:
    """Train a small VAE on 8x8 digits with six estimators, and compare them in a report.

    Args:
        output: Folder for the runs and the report.
        steps: Optimization steps per estimator.
        replicas: The number of replicas per estimator. All of them are trained together.
    """
    from arms.bench.report import build_report  # imports matplotlib, which is slow

    base = replace(DEMO_CONFIG, steps=steps, replicas=replicas)
    configs = [replace(base, estimator=each) for each in DEMO_ESTIMATORS]
    runs = sweep(configs, output, engine=Here("cpu"), notify=print_plain)
    for run in runs:
        generator = seeded_generator(0, "sample")
        write_samples(run.path / "samples.png", *load_model(run, "cpu"), 10, generator)
    print_table(_comparison(runs))
    build_report([run.path for run in runs], output / "report.html")
    print_plain(f"report: {(output / 'report.html').resolve()}")


def _comparison(runs: Sequence[Run]) -> Table:
    """Return a table with the final bounds and the last gradient variance of each run."""
    bounds = [("train", 1), ("test", 1), ("test", TEST_BOUND_SAMPLES)]
    headings = ["work", *(f"{split} K={count}" for split, count in bounds), GRADIENT_VARIANCE.brief]
    table = Table(title="digits, linear, n = 4: bounds in nats, higher is better", box=SIMPLE)
    table.padding, table.caption = (0, 1, 0, 0), "work: evaluations + derivatives of the decoder"
    table.add_column("estimator", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        config, result = run.config(), run.result()
        assert result is not None
        needs = config.make_estimator().design.needs
        work = f"{needs.evaluations} + {needs.derivatives}"
        cells = [format_mean_std(result["bounds"][split][str(count)]) for split, count in bounds]
        variance = format_metric(GRADIENT_VARIANCE, run.metrics()[-1][GRADIENT_VARIANCE.key])
        table.add_row(config.label, work, *cells, variance)
    return table
