"""Lists of configurations: of every figure and table of the ARMS paper, and of TOML files.

In a file, a list of values stands for one run of each:

    steps = 2000
    estimator = ["arms", "loorf"]
    seed = [0, 1, 2]

are six runs. Tables `[[runs]]` are further combinations each, on top of what stands before them.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch

from arms.arguments import unknown_name
from arms.bench import toy
from arms.bench.config import TrainConfig, paper_preset

Scale: TypeAlias = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

DATASETS = ("dynamic-mnist", "fashion-mnist", "omniglot")
NETWORKS = ("linear", "nonlinear")
BUDGETS = (4, 6, 8, 10)
ELBO_ESTIMATORS = ("arms-dirichlet", "arms-gaussian", "arms", "loorf", "disarm", "relax")
BOUND_ESTIMATORS = ("arms-ms-d-paper", "arms-ms-s-paper", "disarm-ms-paper", "vimco")
"""Names for the forms of the papers, without folding."""
FIELDS = tuple(one.name for one in fields(TrainConfig) if one.name != "structure")


def _observed(report_every: int, evaluate_every: int, evaluate_images: int) -> dict[str, Any]:
    names = ("report_every", "evaluate_every", "evaluate_images")
    return dict(zip(names, (report_every, evaluate_every, evaluate_images), strict=True))


_SHORT = {"replicas": 2, "learning_rate": 1e-3}  # a short run learns ten times as fast
_TINY = {"dataset": "digits", "steps": 40, "latents": 20, "batch_size": 20}
CHANGES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": _SHORT | _TINY | _observed(5, 20, 50),
    "laptop": _SHORT | {"steps": 5000} | _observed(50, 500, 200),
    "paper": _observed(10_000, 100_000, 1000),
}
"""What each scale changes of the paper's runs."""


def combinations(
    choices: Mapping[str, Sequence[object]], base: TrainConfig | None = None
) -> list[TrainConfig]:
    """Return a configuration for every combination of values of some fields.

    Args:
        choices: The values of each field.
        base: The other fields; the defaults unless given.

    >>> [config.seed for config in combinations({"estimator": ["arms", "loorf"], "seed": [0, 1]})]
    [0, 1, 0, 1]
    """
    found = []
    for values in product(*choices.values()):
        changes: Any = dict(zip(choices, values, strict=True))
        found.append(replace(base or TrainConfig(), **changes))
    return found


@dataclass(frozen=True)
class Sweep:
    """The runs behind one table or figure: every combination of values of some fields."""

    choices: Mapping[str, Sequence[object]]
    small: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """The values of some of these fields at the scales below the paper's."""
    base: TrainConfig = field(default_factory=lambda: paper_preset(TrainConfig()))
    """All other fields."""

    def configs(self, scale: Scale) -> list[TrainConfig]:
        """Return the configurations at that scale, each once."""
        choices = {**self.choices, **(self.small if scale != "paper" else {})}
        changes: Any = CHANGES[scale]
        found = combinations(choices, self.base)
        return list(dict.fromkeys(replace(config, **changes) for config in found))

    def only(self, **choices: Sequence[object]) -> "Sweep":
        """Return a part of these runs: those with some values of some fields."""
        return replace(self, choices={**self.choices, **choices})


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper: its runs, or a function that draws it without training."""

    description: str
    source: Sweep | Callable[[Scale, Path], list[Path]]


def draw_correlations(scale: Scale, folder: Path) -> list[Path]:
    """Draw the correlation of every coupling against p, as exact at any scale."""
    from arms.bench.report.paper_figures import correlation_curves, write_correlations

    return write_correlations(correlation_curves(), folder)


def draw_toy(scale: Scale, folder: Path) -> list[Path]:
    """Measure and draw the toy problem."""
    from arms.bench.report.paper_figures import write_toy

    budgets, replicas = ((2, 4), 100) if scale == "smoke" else (toy.BUDGETS, 1000)
    generator = torch.Generator().manual_seed(0)
    curves = [
        curve
        for n in budgets
        for curve in toy.variance_curves(n, replicas=replicas, generator=generator)
    ]
    return write_toy(
        curves, toy.ascents(budgets[-1], replicas=replicas, generator=generator), folder
    )


_GRID = {"dataset": DATASETS, "network": NETWORKS, "num_samples": BUDGETS}
ELBO = Sweep({**_GRID, "estimator": ELBO_ESTIMATORS}, {"num_samples": [4]})
# With 4 samples the bound couples only two, and all couplings are one.
BOUND = Sweep({**_GRID, "estimator": BOUND_ESTIMATORS}, {"num_samples": [8]})
_LINEAR, _NONLINEAR = {"network": ["linear"]}, {"network": ["nonlinear"]}
_FIGURE3 = ELBO.only(dataset=["fashion-mnist"], **_NONLINEAR)
_FIGURE4 = BOUND.only(dataset=["dynamic-mnist"], **_LINEAR)

EXPERIMENTS: Mapping[str, Experiment] = {
    name: Experiment(description, source)
    for name, description, source in (
        ("figure1", "correlation of every coupling against p, n = 5", draw_correlations),
        ("figure2", "toy problem: gradient variance against p, and ascents", draw_toy),
        ("figure3", "training curves, ELBO, nonlinear, Fashion MNIST", _FIGURE3),
        ("figure4", "training curves, multi-sample bound, linear, Dynamic MNIST", _FIGURE4),
        ("figure5", "training curves, ELBO, linear, all data sets", ELBO.only(**_LINEAR)),
        ("figure6", "training curves, ELBO, nonlinear, all data sets", ELBO.only(**_NONLINEAR)),
        ("figure7", "training curves, bound, linear, all data sets", BOUND.only(**_LINEAR)),
        ("figure8", "training curves, bound, nonlinear, all data sets", BOUND.only(**_NONLINEAR)),
        ("table1", "final train ELBO", ELBO),
        ("table2", "final train multi-sample bound", BOUND),
        ("table3", "test log-likelihood after training on the ELBO (the runs of table1)", ELBO),
        ("table4", "test log-likelihood after training on the bound (the runs of table2)", BOUND),
    )
}


def configs(name: str, scale: Scale) -> list[TrainConfig]:
    """Return the runs behind a figure or table; none for one that is drawn without training.

    >>> [config.label for config in configs("figure4", "smoke")]
    ['arms-ms-dirichlet (unfolded)', 'arms-ms (unfolded)', 'disarm-ms (unfolded)', 'vimco']
    """
    source = _source(name, scale)
    return source.configs(scale) if isinstance(source, Sweep) else []


def draw(name: str, scale: Scale, output: Path | str) -> list[Path]:
    """Draw a figure that needs no training into a folder of its name, and return the files."""
    source = _source(name, scale)
    return [] if isinstance(source, Sweep) else source(scale, Path(output) / name)


def _source(name: str, scale: Scale) -> Sweep | Callable[[Scale, Path], list[Path]]:
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if scale not in SCALES:
        raise ValueError(f"no scale is called {scale!r}: choose one of {', '.join(SCALES)}")
    return EXPERIMENTS[name].source


def find_configs(what: str, scale: Scale) -> list[TrainConfig]:
    """Return the runs of an experiment by name, at some scale, or of a file."""
    if what in EXPERIMENTS:
        if found := configs(what, scale):
            return found
        raise ValueError(f"{what} is drawn without training: arms experiments run {what}")
    if not Path(what).is_file():
        raise ValueError(f"there is no experiment and no file {what!r}: see arms experiments list")
    return read_sweep(what)


def read_sweep(path: Path | str) -> list[TrainConfig]:
    """Return the runs that a TOML file asks for. Any error names the file."""
    try:
        return list(_configs(tomllib.loads(Path(path).read_text(encoding="utf-8"))))
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _configs(content: Mapping[str, object]) -> Iterator[TrainConfig]:
    common = {name: value for name, value in content.items() if name != "runs"}
    tables = content.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("runs must be tables, each under a line [[runs]]")
    for table in tables:
        given = common | table
        if unknown := [name for name in given if name not in FIELDS]:
            raise unknown_name("field", unknown[0], FIELDS)
        yield from combinations({name: _choices(name, given[name]) for name in given})


def _choices(name: str, value: object) -> list[object]:
    if not isinstance(value, list):
        return [value]
    if not value:
        raise ValueError(f"{name} must be a value or a list of values, got an empty list")
    if name == "precision":  # runs are recognised at any precision: one would stand for the other
        raise ValueError("precision must be one value, as a run at any precision counts for all")
    if name == "layers" and not isinstance(value[0], list):
        return [value]
    return value
