"""The experiment bench: discrete VAEs, runs that survive a crash, sweeps, reports. Needs arms-grad[bench].

What most scripts need can be imported from here. Each name is loaded when it is first used: `import arms.bench` itself
needs torch and numpy only.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arms.bench.config import TrainConfig
    from arms.bench.data import Dataset, as_dataset, load
    from arms.bench.evaluation import evaluate
    from arms.bench.models import DiscreteVAE, PlainNetwork, build_vae
    from arms.bench.models.pixels import CategoricalPixels, GaussianPixels, PixelLikelihood
    from arms.bench.report import build_report
    from arms.bench.runs.loading import load_model
    from arms.bench.runs.run import Run
    from arms.bench.runs.train import train, train_together
    from arms.bench.training.trainer import Trainer

__all__ = [
    "CategoricalPixels",
    "Dataset",
    "DiscreteVAE",
    "GaussianPixels",
    "PixelLikelihood",
    "PlainNetwork",
    "Run",
    "TrainConfig",
    "Trainer",
    "as_dataset",
    "build_report",
    "build_vae",
    "evaluate",
    "load",
    "load_model",
    "train",
    "train_together",
]

_MODULES = {
    "DiscreteVAE": "arms.bench.models",
    "CategoricalPixels": "arms.bench.models.pixels",
    "Dataset": "arms.bench.data",
    "GaussianPixels": "arms.bench.models.pixels",
    "PixelLikelihood": "arms.bench.models.pixels",
    "PlainNetwork": "arms.bench.models",
    "Run": "arms.bench.runs.run",
    "TrainConfig": "arms.bench.config",
    "Trainer": "arms.bench.training.trainer",
    "as_dataset": "arms.bench.data",
    "build_report": "arms.bench.report",
    "build_vae": "arms.bench.models",
    "evaluate": "arms.bench.evaluation",
    "load": "arms.bench.data",
    "load_model": "arms.bench.runs.loading",
    "train": "arms.bench.runs.train",
    "train_together": "arms.bench.runs.train",
}


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
