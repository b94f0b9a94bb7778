"""What `arms.bench` exports: every name, each loaded when it is first used."""

import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import arms
from arms import bench


@pytest.mark.parametrize("name", bench.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(bench, name).__name__ == name
    assert name in dir(bench)


def test_exports_and_modules_are_the_same_names() -> None:
    assert bench.__all__ == sorted(bench._MODULES)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = bench.trian  # type: ignore[attr-defined]


def test_importing_the_bench_is_light() -> None:
    script = """
import sys
import arms.bench
heavy = {"tyro", "rich", "pooch", "scipy", "sklearn", "safetensors", "tensorboard", "matplotlib", "plotly", "jinja2"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert not [name for name in sys.modules if name.startswith("arms.bench.")]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(arms.__path__, "arms.")
    # The packages export what their modules offer; others are private.
    if not re.search(r"^arms\.(checks|designs|estimators|latents)\.|\._|kernels$|__main__$", name)
]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_module_says_what_it_offers(name: str) -> None:
    module = import_module(name)
    if (
        not module.__file__ or Path(module.__file__).read_text().count("\n") <= 1
    ):  # a package of modules, no more
        return
    assert all(hasattr(module, offered) for offered in module.__all__)
    assert not {"Path", "dataclass", "torch", "Tensor"} & set(module.__all__)
