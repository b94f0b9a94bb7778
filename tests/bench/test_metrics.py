"""The table of metrics: one entry suffices for messages, progress bars and curves."""

import math
from pathlib import Path

import pytest
from run_directories import make_run

from arms.bench.config import TrainConfig
from arms.bench.metrics import METRICS, Metric, stopped_replicas
from arms.bench.output import figures
from arms.bench.report import build_report, collect
from arms.bench.report.curves import training_panels
from arms.bench.report.groups import group_runs
from arms.bench.runs.ensemble import Member
from arms.bench.runs.run import Run

ENTROPY = Metric(
    "entropy",
    "entropy",
    "Entropy of q(b|x)",
    "entropy",
    "entropy",
    unit="bits",
    stops_replica=False,
)


@pytest.fixture
def entropy(monkeypatch: pytest.MonkeyPatch) -> Metric:
    monkeypatch.setitem(METRICS, ENTROPY.key, ENTROPY)
    return ENTROPY


def test_a_new_metric_is_drawn_and_shown(entropy: Metric, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", TrainConfig(replicas=2), records=2)
    run.append(
        {
            "step": 3,
            "train_elbo": [-97.0, -96.0],
            "gradient_variance": [0.1, 0.1],
            "entropy": [7.0, 8.0],
        }
    )
    (group,) = group_runs(collect([tmp_path / "runs"]).runs)
    panel = training_panels(group)[entropy.key]
    assert panel.curves[0].y == [7.5]
    build_report([tmp_path / "runs"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert ">Entropy of q(b|x)</text>" in page
    assert ">entropy (bits)</text>" in page
    assert figures(run.metrics()[-1]) == "ELBO -96.50  var/weight 1.00e-01  entropy 7.50"


def test_only_what_may_stop_a_replica_stops_it(entropy: Metric, tmp_path: Path) -> None:
    told: list[str] = []
    config = TrainConfig(replicas=2)
    member = Member(Run(tmp_path).begin(config), config, told.append)
    member.append(
        {"step": 10, "train_elbo": [-1.0, -1.0], "entropy": [math.nan, 1.0]}, [True, True]
    )
    assert told == []
    assert member.run.metrics() == [
        {"step": 10, "train_elbo": [-1.0, -1.0], "entropy": [None, 1.0]}
    ]
    assert member.run.stopped() == {}
    member.append({"step": 20, "gradient_variance": [1.0, math.inf]}, [True, True])
    assert told == [
        "replica 1 of arms stopped at step 20: its gradient variance is not finite; the other one continues"
    ]
    assert member.run.stopped() == {1: 20}


def test_every_key_is_in_the_table_once() -> None:
    assert all(key == metric.key for key, metric in METRICS.items())
    assert stopped_replicas([{"step": 1, "gradient_variance": [None, 0.1]}]) == {0: 1}
