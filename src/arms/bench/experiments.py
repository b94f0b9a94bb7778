"""Every figure and table of the ARMS paper by name, each a pure function from a scale to the runs behind it.

A catalogue: what is wanted, not how it is trained (`arms.bench.sweeps`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias, get_args

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


@dataclass(frozen=True)
class Sweep:
    """The runs behind one table or figure: every combination."""

    estimators: Sequence[str]
    datasets: Sequence[str] = DATASETS
    networks: Sequence[str] = NETWORKS
    small_budget: int = 4
    """The one budget of the scales below the paper's."""

    def configs(self, scale: Scale) -> list[TrainConfig]:
        """Return the configurations at that scale, each once."""
        budgets = BUDGETS if scale == "paper" else (self.small_budget,)
        combinations = product(self.datasets, self.networks, budgets, self.estimators)
        return list(
            dict.fromkeys(
                _scaled(self._config(*combination), scale) for combination in combinations
            )
        )

    def _config(self, dataset: str, network: str, num_samples: int, estimator: str) -> TrainConfig:
        return paper_preset(
            TrainConfig(
                dataset=dataset, network=network, estimator=estimator, num_samples=num_samples
            )
        )


@dataclass(frozen=True)
class Drawing:
    """A figure that needs no training."""

    draw: Callable[[Scale, Path], list[Path]]

    def configs(self, scale: Scale) -> list[TrainConfig]:
        """Return no runs."""
        return []


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper."""

    description: str
    source: Sweep | Drawing


def draw_correlations(scale: Scale, folder: Path) -> list[Path]:
    """Draw the correlation of every coupling against p, as exact at any scale."""
    from arms.bench.report.correlations import correlation_curves, write_correlations

    return write_correlations(correlation_curves(), folder)


def draw_toy(scale: Scale, folder: Path) -> list[Path]:
    """Measure and draw the toy problem."""
    from arms.bench.report.toy import write_toy

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


ELBO = Sweep(ELBO_ESTIMATORS)
BOUND = Sweep(
    BOUND_ESTIMATORS, small_budget=8
)  # at 4 only two samples are coupled, and all couplings are one

EXPERIMENTS: Mapping[str, Experiment] = {
    "figure1": Experiment(
        "correlation of every coupling against p, n = 5", Drawing(draw_correlations)
    ),
    "figure2": Experiment(
        "toy problem: gradient variance against p, and ascents", Drawing(draw_toy)
    ),
    "figure3": Experiment(
        "training curves, ELBO, nonlinear, Fashion MNIST",
        replace(ELBO, datasets=("fashion-mnist",), networks=("nonlinear",)),
    ),
    "figure4": Experiment(
        "training curves, multi-sample bound, linear, Dynamic MNIST",
        replace(BOUND, datasets=("dynamic-mnist",), networks=("linear",)),
    ),
    "figure5": Experiment(
        "training curves, ELBO, linear, all data sets", replace(ELBO, networks=("linear",))
    ),
    "figure6": Experiment(
        "training curves, ELBO, nonlinear, all data sets", replace(ELBO, networks=("nonlinear",))
    ),
    "figure7": Experiment(
        "training curves, bound, linear, all data sets", replace(BOUND, networks=("linear",))
    ),
    "figure8": Experiment(
        "training curves, bound, nonlinear, all data sets", replace(BOUND, networks=("nonlinear",))
    ),
    "table1": Experiment("final train ELBO", ELBO),
    "table2": Experiment("final train multi-sample bound", BOUND),
    "table3": Experiment(
        "test log-likelihood after training on the ELBO (the runs of table1)", ELBO
    ),
    "table4": Experiment(
        "test log-likelihood after training on the bound (the runs of table2)", BOUND
    ),
}


def configs(name: str, scale: Scale) -> list[TrainConfig]:
    """Return the runs behind a figure or table; none for one that is computed without training.

    >>> [config.label for config in configs("figure4", "smoke")]
    ['arms-ms-dirichlet (unfolded)', 'arms-ms (unfolded)', 'disarm-ms (unfolded)', 'vimco']
    """
    return _experiment(name).source.configs(_checked(scale))


def draw(name: str, scale: Scale, output: Path | str) -> list[Path]:
    """Draw a figure that needs no training into a folder of its name, and return the files; none for any other."""
    source = _experiment(name).source
    return source.draw(_checked(scale), Path(output) / name) if isinstance(source, Drawing) else []


def _scaled(config: TrainConfig, scale: Scale) -> TrainConfig:
    """Make the paper's run as small as the scale asks; a short run learns ten times as fast."""
    if scale == "paper":
        return replace(config, report_every=10_000, evaluate_every=100_000, evaluate_images=1000)
    if scale == "laptop":
        return replace(
            config,
            steps=5000,
            replicas=2,
            learning_rate=1e-3,
            report_every=50,
            evaluate_every=500,
            evaluate_images=200,
        )
    return replace(
        config,
        dataset="digits",
        steps=40,
        replicas=2,
        latents=20,
        batch_size=20,
        learning_rate=1e-3,
        report_every=5,
        evaluate_every=20,
        evaluate_images=50,
    )


def _experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def _checked(scale: Scale) -> Scale:
    if scale not in SCALES:
        raise ValueError(f"no scale is called {scale!r}: choose one of {', '.join(SCALES)}")
    return scale
