"""The exports of `arms.bench`: all names, loaded at first use."""

import subprocess
import sys

import pytest

from arms import bench


@pytest.mark.parametrize("name", bench.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(bench, name).__name__ == name
    assert name in dir(bench)


def test_exports_and_modules_are_the_same_names() -> None:
    assert bench.__all__ == list(bench._MODULES)
    assert "sweep" in bench.__all__
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = bench.trian  # type: ignore[attr-defined]


def test_importing_the_bench_is_light() -> None:
    script = """
import sys
import arms.bench
heavy = {"tyro", "rich", "pooch", "scipy", "sklearn", "safetensors", "tensorboard", "matplotlib", "jinja2"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert not [name for name in sys.modules if name.startswith("arms.bench.")]
"""
    subprocess.run([sys.executable, "-c", script], check=True)
