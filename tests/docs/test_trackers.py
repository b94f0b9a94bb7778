"""The page on experiment trackers: its hooks log every number. A stand-in replaces a tracker that is not installed."""

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from arms.bench.metrics import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "recipes" / "trackers.md").read_text()
BLOCKS = {
    kind: re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for kind in ("python", "py")
}


class StandIn(ModuleType):
    """Accepts and records all calls from the page."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.config: dict[str, Any] = {}
        self.ended = False

    def init(self, *, project: str, config: dict[str, Any]) -> "StandIn":
        assert project
        self.config = config
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.ended = True

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True


@pytest.mark.parametrize(("name", "block"), [("wandb", 0), ("trackio", 1)])
def test_a_tracker_gets_every_number(
    name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    stand_in = None if importlib.util.find_spec(name) else StandIn(name)
    if stand_in:
        monkeypatch.setitem(sys.modules, name, stand_in)
    names: dict[str, Any] = {}
    exec(BLOCKS["python"][0], names)
    exec(BLOCKS["py"][block], names)
    if stand_in:
        assert [step for step, _ in stand_in.logged] == [50, 100, 150, 200]
        assert stand_in.config["estimator"] == names["config"].estimator
        assert stand_in.ended
        keys = {f"{metric}/0" for metric in METRICS if not metric.startswith("test_bound")}
        for _, metrics in stand_in.logged:
            assert keys <= set(metrics)
            assert all(map(math.isfinite, metrics.values()))


def test_tensorboard_has_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS["python"][0], {})
    events = reading.EventAccumulator(str(tmp_path / "runs" / "shown"))
    events.Reload()
    assert [event.step for event in events.Scalars("train_elbo/0")] == [50, 100, 150, 200]
