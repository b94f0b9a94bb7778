"""The runs for the figures and tables of the ARMS paper, and runs from TOML files.

In a TOML file, a list of values means one run for each value. For example,

    steps = 2000
    estimator = ["arms", "loorf"]
    seed = [0, 1, 2]

defines six runs. A file may also have several tables `[[runs]]`. Each table then defines runs of
its own in this way. Values above the first table apply to the runs of all tables.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from arms.arguments import unknown_name
from arms.bench import toy
from arms.bench.config import TrainConfig
from arms.bench.presets import REINMAX_SHAPES, Fields, apply_preset

Scale: TypeAlias = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

DATASETS = ("dynamic-mnist", "fashion-mnist", "omniglot")
NETWORKS = ("linear", "nonlinear")
BUDGETS = (4, 6, 8, 10)
ELBO_ESTIMATORS = ("arms-dirichlet", "arms-gaussian", "arms", "loorf", "disarm", "relax")
BOUND_ESTIMATORS = ("arms-ms-d-paper", "arms-ms-s-paper", "disarm-ms-paper", "vimco")
"""Estimators of the bound, not folded, as in the papers that introduced them."""
FIELDS = tuple(one.name for one in fields(TrainConfig) if one.name != "structure")


_SHORT = {"replicas": 2, "learning_rate": 1e-3}  # ten times the paper's learning rate
CHANGES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": _SHORT
    | {"dataset": "digits", "steps": 40, "latents": 20, "batch_size": 20}
    | {"report_every": 5, "evaluate_every": 20, "evaluate_images": 50},
    "laptop": _SHORT
    | {"steps": 5000, "report_every": 50, "evaluate_every": 500, "evaluate_images": 200},
    "paper": {"report_every": 10_000, "evaluate_every": 100_000, "evaluate_images": 1000},
}
"""{scale: changes to the runs of the ARMS paper}."""


def combinations(choices: Mapping[str, Sequence[Any]], base: TrainConfig) -> list[TrainConfig]:
    """Return one changed copy of `base` for every combination of the values in `choices`.

    >>> choices = {"estimator": ["arms", "loorf"], "seed": [0, 1]}
    >>> [config.seed for config in combinations(choices, TrainConfig())]
    [0, 1, 0, 1]
    """
    return [replace(base, **given) for given in products(choices)]


def products(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values in `choices`, each as {field: value}.

    A key with commas names several fields. The values of such a key are tuples with one entry per
    field.

    >>> products({"seed": [0, 1], "estimator,num_samples": [("loorf", 3)]})[1]
    {'seed': 1, 'estimator': 'loorf', 'num_samples': 3}
    """
    found = []
    for values in product(*choices.values()):
        given: dict[str, Any] = {}
        for names, value in zip(choices, values, strict=True):
            given |= zip(names.split(","), value, strict=True) if "," in names else {names: value}
        found.append(given)
    return found


@dataclass(frozen=True)
class Sweep:
    """The runs of a table or figure: one for every combination of the values in `choices`."""

    choices: Mapping[str, Sequence[Any]]
    small: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values that replace the values in `choices`, at all scales except `paper`."""
    preset: str = "paper"
    changes: Mapping[Scale, Fields] = field(default_factory=lambda: CHANGES)

    def configs(self, scale: Scale) -> list[TrainConfig]:
        """Return the configurations of this sweep's runs at a scale, without duplicates."""
        choices = {**self.choices, **(self.small if scale != "paper" else {})}
        changed = self.changes[scale]
        found = [apply_preset(self.preset, {**given, **changed}) for given in products(choices)]
        return list(dict.fromkeys(found))

    def only(self, **choices: Sequence[Any]) -> "Sweep":
        """Return a smaller sweep: each field in `choices` takes only the values given there."""
        return replace(self, choices={**self.choices, **choices})


Drawing: TypeAlias = Callable[[Scale, Path], list[Path]]
"""A function that draws a figure without training, and returns the paths of the files."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the ARMS paper, or runs that follow the protocol of another paper."""

    description: str
    source: Sweep | Drawing


def draw_correlations(scale: Scale, folder: Path) -> list[Path]:
    """Draw the exact correlation of every coupling against p. Return the paths of the files."""
    from arms.bench.report.paper_figures import correlation_curves, write_correlations

    return write_correlations(correlation_curves(), folder)


def draw_toy(scale: Scale, folder: Path) -> list[Path]:
    """Measure gradient variances on the toy problem, and draw figures of them.

    Return the paths of the files.
    """
    from arms.bench.report.paper_figures import write_toy

    budgets, replicas = ((2, 4), 100) if scale == "smoke" else (toy.BUDGETS, 1000)
    return write_toy(*toy.measure(budgets, replicas), folder)


_GRID = {"dataset": DATASETS, "network": NETWORKS, "num_samples": BUDGETS}
ELBO = Sweep({**_GRID, "estimator": ELBO_ESTIMATORS}, {"num_samples": [4]})
# With n = 4, estimators of the bound couple only two samples, for which all couplings are equal.
# Smaller scales therefore use n = 8.
BOUND = Sweep({**_GRID, "estimator": BOUND_ESTIMATORS}, {"num_samples": [8]})
LINEAR, NONLINEAR = ELBO.only(network=["linear"]), ELBO.only(network=["nonlinear"])
BOUND_LINEAR, BOUND_NONLINEAR = BOUND.only(network=["linear"]), BOUND.only(network=["nonlinear"])
_FIGURE3 = NONLINEAR.only(dataset=["fashion-mnist"])
_FIGURE4 = BOUND_LINEAR.only(dataset=["dynamic-mnist"])

RODEO_ESTIMATORS = {
    "2": (("loorf", 2), ("disarm", 2), ("double-cv", 2), ("rodeo", 2), ("flips", 1)),
    "3": (
        *(("loorf", 3), ("arms-dirichlet", 3), ("arms", 3), ("double-cv", 3), ("rodeo", 3)),
        *(("relax", 2), ("midpoint", 2), ("flips", 2)),
    ),
}
"""{evaluations of the model per image and step: pairs (estimator, n)}."""
RODEO_LAYERED = ("loorf", "disarm", "arms", "midpoint")
"""Estimators of RODEO_ESTIMATORS that can train several layers."""
REINMAX_ESTIMATORS = ("st", "st-gumbel", "reinmax", "flips")
_LAPTOP = {"replicas": 2, "steps": 5000, "report_every": 50, "evaluate_images": 200}
_SMOKE = {**CHANGES["smoke"], "warmup_steps": 0}
PROTOCOL_CHANGES: Mapping[Scale, Fields] = {
    "smoke": {name: value for name, value in _SMOKE.items() if name != "latents"},
    "laptop": {**_LAPTOP, "evaluate_every": 500},
    "paper": CHANGES["paper"],
}
"""{scale: changes to the runs that follow protocols of other papers}."""
_PAIR, _PIXELS = "estimator,num_samples", ("bernoulli", "scaled-gaussian")
RODEO_SWEEPS = {
    f"rodeo-{evaluations}": Sweep(
        {"dataset": DATASETS, "likelihood": _PIXELS, _PAIR: pairs},
        {"dataset": DATASETS[:1]},
        "rodeo",
        PROTOCOL_CHANGES,
    )
    for evaluations, pairs in RODEO_ESTIMATORS.items()
}
RODEO_SWEEPS["rodeo-layers"] = Sweep(
    {"dataset": DATASETS, "layers": [(200, 200, 200)], "estimator": RODEO_LAYERED},
    {"dataset": DATASETS[:1], "layers": [(20, 20, 20)]},
    "rodeo",
    PROTOCOL_CHANGES,
)
REINMAX_SWEEPS = {
    f"reinmax-{k}x{d}": Sweep(
        {"categories,latents": [(k, d)], "estimator": REINMAX_ESTIMATORS},
        preset="reinmax",
        changes=PROTOCOL_CHANGES,
    )
    for k, d in REINMAX_SHAPES
}

EXPERIMENTS: Mapping[str, Experiment] = {
    "figure1": Experiment("correlation of every coupling against p, n = 5", draw_correlations),
    "figure2": Experiment("toy problem: gradient variance against p, and ascents", draw_toy),
    "figure3": Experiment("training curves, ELBO, nonlinear, Fashion MNIST", _FIGURE3),
    "figure4": Experiment("training curves, multi-sample bound, linear, Dynamic MNIST", _FIGURE4),
    "figure5": Experiment("training curves, ELBO, linear, all data sets", LINEAR),
    "figure6": Experiment("training curves, ELBO, nonlinear, all data sets", NONLINEAR),
    "figure7": Experiment("training curves, bound, linear, all data sets", BOUND_LINEAR),
    "figure8": Experiment("training curves, bound, nonlinear, all data sets", BOUND_NONLINEAR),
    "table1": Experiment("final train ELBO", ELBO),
    "table2": Experiment("final train multi-sample bound", BOUND),
    "table3": Experiment(
        "test log-likelihood after training on the ELBO (the runs of table1)", ELBO
    ),
    "table4": Experiment(
        "test log-likelihood after training on the bound (the runs of table2)", BOUND
    ),
    "rodeo-2": Experiment("RODEO's protocol, 2 evaluations", RODEO_SWEEPS["rodeo-2"]),
    "rodeo-3": Experiment("RODEO's protocol, 3 evaluations", RODEO_SWEEPS["rodeo-3"]),
    "rodeo-layers": Experiment("RODEO's protocol, several layers", RODEO_SWEEPS["rodeo-layers"]),
    **{
        name: Experiment(f"ReinMax's protocol, {name.removeprefix('reinmax-')} latents", sweep)
        for name, sweep in REINMAX_SWEEPS.items()
    },
}


def find_source(name: str, scale: Scale) -> Sweep | Drawing:
    """Return the sweep of the experiment `name`.

    If the experiment needs no training, return the function that draws it instead.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    return EXPERIMENTS[name].source


def configs(name: str, scale: Scale) -> list[TrainConfig]:
    """Return the configurations of an experiment's runs, or [] if it needs no training.

    >>> [config.label for config in configs("figure4", "smoke")]
    ['arms-ms-dirichlet (unfolded)', 'arms-ms (unfolded)', 'disarm-ms (unfolded)', 'vimco']
    """
    source = find_source(name, scale)
    return source.configs(scale) if isinstance(source, Sweep) else []


def find_configs(what: str, scale: Scale) -> list[TrainConfig]:
    """Return the configurations of all runs in an experiment or in a TOML file.

    `what` is the name of an experiment, or the path of a TOML file. A file does not use `scale`.
    """
    if what in EXPERIMENTS:
        if found := configs(what, scale):
            return found
        remedy = f"draw it with `arms experiments run {what}`"
        raise ValueError(f"the experiment {what} needs no training: {remedy}")
    if not Path(what).is_file():
        known = "see `arms experiments list` for all experiments"
        raise ValueError(f"{what!r} is neither an experiment nor a file: {known}")
    return read_sweep(what)


def read_sweep(path: Path | str) -> list[TrainConfig]:
    """Return the configurations of the runs that a TOML file defines. Errors name the file."""
    try:
        return list(_configs(tomllib.loads(Path(path).read_text(encoding="utf-8"))))
    except RecursionError:
        raise ValueError(f"{path}: tables and lists are nested too deeply: flatten them") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _configs(content: Mapping[str, object]) -> Iterator[TrainConfig]:
    common = {name: value for name, value in content.items() if name != "runs"}
    tables = content.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(
            f"runs must be a list of tables, got {tables!r}: write [[runs]] above each table"
        )
    for table in tables:
        given = common | table
        if unknown := [name for name in given if name not in FIELDS]:
            raise unknown_name("field", unknown[0], FIELDS)
        choices = {name: _choices(name, value) for name, value in given.items()}
        yield from combinations(choices, TrainConfig())


def _choices(name: str, value: object) -> list[object]:
    if not isinstance(value, list):
        return [value]
    if not value:
        raise ValueError(f"{name} must be a value or a list of values, got an empty list")
    if name == "precision":  # finished runs are recognized at any precision
        raise ValueError(
            "precision must be a single value, got a list: a finished run of one precision also "
            "counts for the others"
        )
    if name == "layers" and not isinstance(value[0], list):
        return [value]
    return value
