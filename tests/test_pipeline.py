"""What a user hands to `train` and its like: brought to one form, or refused before anything is written."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arms.data import Dataset, load
from arms.pipeline import choose_device, train, train_packed
from arms.training import TrainConfig

CONFIG = TrainConfig(num_samples=4, latents=10, batch_size=10, replicas=2, steps=20, report_every=10)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    whole = load("digits")
    return Dataset("digits", whole.train[:100], whole.valid[:20], whole.test[:20], 8, 8, whole.levels)


@pytest.mark.parametrize("name", ["meta", "gpu", "tpu", "mps", "cuda:", "cuda:x", "", "CPU"])
def test_devices_are_few(name: str) -> None:
    with pytest.raises(ValueError, match=f"^no device '{name}' here: choose auto, cpu, cuda or cuda:N$"):
        choose_device(name)


@pytest.mark.parametrize(
    ("built", "count", "message"),
    [
        (False, 0, "no device 'cuda:2' here, this PyTorch is built without CUDA: try auto or cpu"),
        (True, 0, "no device 'cuda:2' here, PyTorch sees no GPU: try auto or cpu"),
        (True, 2, "no device 'cuda:2' here, the GPUs are cuda:0 to cuda:1: try auto or cpu"),
        (True, 3, ""),
    ],
)
def test_why_there_is_no_gpu(built: bool, count: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: built)
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    if not message:
        assert choose_device("cuda:2") == choose_device(torch.device("cuda", 2)) == "cuda:2"
        return
    with pytest.raises(ValueError, match=message):
        choose_device("cuda:2")


def test_a_device_may_be_a_device(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path, device=torch.device("cpu"), dataset=digits)
    assert run.result() is not None


@pytest.mark.parametrize(
    ("means", "message"),
    [
        ({"device": "meta"}, "no device 'meta' here"),
        ({"drive": "fast"}, "drive must be one of auto, eager, graph, compiled, got 'fast'"),
        ({"drive": "graph"}, "drive 'graph' needs a GPU, and the run is on cpu: try eager"),
        ({"drive": "compiled"}, "drive 'compiled' needs a GPU"),
        ({"checkpoint_seconds": math.nan}, "checkpoint_seconds must be a finite number >= 0, got nan"),
        ({"checkpoint_seconds": math.inf}, "checkpoint_seconds must be a finite number >= 0, got inf"),
        ({"checkpoint_seconds": -5}, "checkpoint_seconds must be a finite number >= 0, got -5"),
        ({"checkpoint_seconds": "5"}, "checkpoint_seconds must be a finite number >= 0, got '5'"),
    ],
)
def test_means_are_checked_before_anything_is_written(
    means: dict[str, Any], message: str, tmp_path: Path, digits: Dataset
) -> None:
    given = {"device": "cpu", "dataset": digits, **means}
    with pytest.raises(ValueError, match=message):
        train(CONFIG, tmp_path / "run", **given)
    with pytest.raises(ValueError, match=message):
        train_packed(CONFIG, ["loorf", "arms-s"], [tmp_path / "a", tmp_path / "b"], **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("estimators", "directories", "message"),
    [
        ("loorf", ["a"], r"estimators must be a list, got 'loorf': write \['loorf'\]"),
        (["loorf"], "a", r"directories must be a list, got 'a': write \['a'\]"),
        (["loorf"], Path("a"), r"directories must be a list, got 'a': write \['a'\]"),
        (["loorf", "arms-s"], ["a"], "each estimator needs a directory, got 1 for 2 estimators"),
        (
            ["loorf", "arms-s"],
            ["a", Path("b/../a")],
            r"directories must be different, one for each run, got a, b/\.\./a",
        ),
        (["loorf", "loorf"], ["a", "b"], "got loorf, loorf: name each once; more seeds are `replicas`"),
        ([], [], "at least one, got none"),
    ],
)
def test_a_pack_is_estimators_with_a_directory_each(
    estimators: Any, directories: Any, message: str, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        train_packed(replace(CONFIG, replicas=1), estimators, directories, device="cpu", dataset=digits)
    assert not list(tmp_path.iterdir())
