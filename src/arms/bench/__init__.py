"""The benchmark suite: discrete VAEs, training runs that can be resumed, sweeps, and reports.

Requires arms-grad[bench]. The most useful names can be imported from here. Each name is loaded when
it is first used, so `import arms.bench` itself needs only torch and numpy.
"""

import ast
import inspect
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the list of exports, for type checkers and for `_MODULES`
    from arms.bench.config import TrainConfig as TrainConfig
    from arms.bench.data import Dataset as Dataset
    from arms.bench.data import as_dataset as as_dataset
    from arms.bench.data import load as load
    from arms.bench.evaluation import evaluate as evaluate
    from arms.bench.models import DiscreteVAE as DiscreteVAE
    from arms.bench.models import PlainNetwork as PlainNetwork
    from arms.bench.models import build_vae as build_vae
    from arms.bench.models.networks import CategoricalPixels as CategoricalPixels
    from arms.bench.models.networks import GaussianPixels as GaussianPixels
    from arms.bench.models.networks import PixelLikelihood as PixelLikelihood
    from arms.bench.report import build_report as build_report
    from arms.bench.runs.loading import load_model as load_model
    from arms.bench.runs.run import Run as Run
    from arms.bench.runs.train import train as train
    from arms.bench.runs.train import train_together as train_together
    from arms.bench.sweeps.sweep import sweep as sweep
    from arms.bench.training.trainer import Trainer as Trainer

_SOURCE = ast.walk(ast.parse(inspect.getsource(sys.modules[__name__])))
_IMPORTS = [node for node in _SOURCE if isinstance(node, ast.ImportFrom)]
_NAMES = [(name.asname, str(node.module)) for node in _IMPORTS for name in node.names]
_MODULES = {name: module for name, module in sorted(_NAMES, key=str) if name}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
