"""Run the docstring examples of an installed `arms`, without pytest.

`python installed.py` runs those of the library, which needs torch and numpy. `python installed.py
bench` adds those of the benchmark suite, which needs the extra of that name.
"""

import doctest
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType

import torch

import arms

OPTIONAL = {"arms.bench": "bench", "arms.sklearn": "sklearn"}
"""Parts that need an extra, with the name of the extra."""
SKIPPED = ("arms.__main__", "arms.bench.models.kernels", "arms.bench.sweeps.engines.ray")
"""Modules that run the command line, or need Triton or Ray, which none of these extras installs."""


def modules(extras: list[str]) -> Iterator[ModuleType]:
    """Yield every module of the library, and those of the extras."""
    yield arms
    left_out = tuple(part for part, extra in OPTIONAL.items() if extra not in extras)
    for found in pkgutil.walk_packages(arms.__path__, "arms.", onerror=lambda name: None):
        if not found.name.startswith((*left_out, *SKIPPED)):
            yield importlib.import_module(found.name)


def main() -> None:
    torch.set_num_threads(1)
    results = {module.__name__: doctest.testmod(module) for module in modules(sys.argv[1:])}
    tried = sum(one.attempted for one in results.values())
    failed = [name for name, one in results.items() if one.failed]
    print(f"arms {arms.__version__} from {arms.__file__}")
    print(f"{len(results)} modules, {tried} examples, failures in {failed}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
