"""If a number is not finite, its replica stops and is left out of every mean. Other replicas are not affected."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from arms.bench import output
from arms.bench.cli import runs as verbs
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.metrics import Record
from arms.bench.models import DiscreteVAE, build_vae
from arms.bench.output import figures
from arms.bench.report import build_report, collect, summary
from arms.bench.report.curves import training_panels
from arms.bench.report.groups import group_runs
from arms.bench.report.tables import comparison_table
from arms.bench.runs.ensemble import DivergedError, Member
from arms.bench.runs.loading import load_model
from arms.bench.runs.run import Run
from arms.bench.runs.train import train, train_together
from arms.bench.sweeps.engines import Here
from arms.bench.sweeps.sweep import run_experiment
from arms.bench.training.engine import Engine
from arms.bench.training.trainer import Trainer
from arms.estimators import ALL_ESTIMATORS

CONFIG = TrainConfig(
    num_samples=4,
    latents=10,
    batch_size=10,
    replicas=3,
    steps=40,
    report_every=10,
    evaluate_every=20,
)
NAMES = ["loorf", "arms"]


def fresh(digits: Dataset) -> DiscreteVAE:
    return build_vae(
        CONFIG.network, CONFIG.latents, digits.pixel_mean(), CONFIG.replicas, CONFIG.seed
    )


def poisoned(digits: Dataset, weight: float = math.nan) -> DiscreteVAE:
    """A model with one weight of replica 1 set to NaN, or to another value."""
    model = fresh(digits)
    with torch.no_grad():
        model.decoder[0].weight[1, 0, 0] = weight  # type: ignore[index]
    return model


def strictly(path: Path) -> list[dict[str, object]]:
    """Parse standard JSON, as one document or as lines."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} in {path}")

    text = path.read_text()
    return [
        json.loads(part, parse_constant=refuse)
        for part in (text.splitlines() if path.suffix == ".jsonl" else [text])
    ]


def without(values: list[float | None], replica: int) -> list[float | None]:
    return [None if index == replica else value for index, value in enumerate(values)]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Run:
    return train(CONFIG, tmp_path_factory.mktemp("clean") / "run", device="cpu", dataset=digits)


@pytest.fixture(scope="module")
def lost_one(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> tuple[Run, list[str]]:
    told: list[str] = []
    path = tmp_path_factory.mktemp("lost") / "run"
    run = train(
        CONFIG, path, device="cpu", dataset=digits, model=poisoned(digits, 3e38), notify=told.append
    )
    return run, told


@pytest.mark.parametrize("name", [name for name in ALL_ESTIMATORS if name != "exact"])
def test_replicas_never_mix(name: str, digits: Dataset) -> None:
    config = replace(CONFIG, estimator=name)
    sound, sick = (
        Trainer(config, digits, model=fresh(digits)),
        Trainer(config, digits, model=poisoned(digits)),
    )
    for _ in range(4):
        sound.step()
        sick.step()
    others = [0, 2]
    for key, tensor in sound.state().items():
        shared = tensor.ndim == 0 or key in ("generator", "counts")
        same = (
            (tensor, sick.state()[key]) if shared else (tensor[others], sick.state()[key][others])
        )
        assert torch.equal(*same), key
    assert sick.take_elbo().isfinite().tolist() == [True, False, True]


def test_the_others_go_on_to_the_same_numbers(clean: Run, lost_one: tuple[Run, list[str]]) -> None:
    run, told = lost_one
    assert told == [
        "replica 1 of arms stopped at step 10: its ELBO is not finite; the other 2 continue"
    ]
    for ours, theirs in zip(strictly(run.path / "metrics.jsonl"), clean.metrics(), strict=True):
        assert ours == {
            name: value if name == "step" else without(value, 1) for name, value in theirs.items()
        }
    (result,) = strictly(run.path / "result.json")
    expected = clean.result()
    assert expected is not None
    assert result["stopped"] == {"1": 10}
    assert "stopped" not in expected
    assert result["bounds"] == {
        split: {count: without(values, 1) for count, values in of_split.items()}
        for split, of_split in expected["bounds"].items()
    }


def damage(run: Run, replicas: list[int]) -> None:
    """Write an infinity into the newest checkpoint, and keep its checksum valid."""
    state = run.checkpoint()
    assert state is not None
    state["model.prior"][replicas] = math.inf
    run.save_checkpoint(state)


def interrupted(path: Path, digits: Dataset, step: int, told: list[str]) -> None:
    def stop(record: dict[str, object]) -> None:
        if record["step"] == step:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(
            CONFIG,
            path,
            device="cpu",
            dataset=digits,
            checkpoint_seconds=0,
            on_record=stop,
            notify=told.append,
        )


def test_stopped_is_stopped_also_after_going_on(
    tmp_path: Path, digits: Dataset, clean: Run
) -> None:
    told: list[str] = []
    interrupted(tmp_path, digits, 10, told)
    damage(Run(tmp_path), [2])
    interrupted(tmp_path, digits, 20, told)
    assert told == [
        "replica 2 of arms stopped at step 20: its ELBO is not finite; the other 2 continue"
    ]
    run = train(CONFIG, tmp_path, device="cpu", dataset=digits, notify=told.append)
    assert len(told) == 1, "known already"
    expected = [record["train_elbo"] for record in clean.metrics()]
    assert [record["train_elbo"] for record in run.metrics()] == [
        expected[0],
        *(without(row, 2) for row in expected[1:]),
    ]
    result = run.result()
    assert result is not None
    assert result["stopped"] == {"2": 20}


def test_when_none_is_left_the_run_ends(tmp_path: Path, digits: Dataset) -> None:
    """Real divergence, with a learning rate that overflows floats."""
    told: list[str] = []
    config = replace(CONFIG, learning_rate=1e38)
    for _ in range(2):
        with pytest.raises(DivergedError, match=r"^all replicas of .*below 1e\+38"):
            train(config, tmp_path, device="cpu", dataset=digits, notify=told.append)
    assert told == [
        "replicas 0, 1, 2 of arms stopped at step 10: their ELBO is not finite; none survives, and the run ends"
    ]
    assert Run(tmp_path).result() is None
    assert strictly(tmp_path / "metrics.jsonl")[-1]["train_elbo"] == [None] * 3
    with pytest.raises(
        ValueError, match=r"the checkpoint of .* has no replica with finite parameters"
    ):
        load_model(Run(tmp_path))


def test_a_parameter_is_enough(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the last update causes NaN, only the parameters show it."""
    advance = Engine.advance_block

    def spoil(engine: Engine) -> None:
        advance(engine)
        if engine.trainer.steps_done == CONFIG.steps:
            engine.trainer.model.prior.data[0] = math.inf

    monkeypatch.setattr(Engine, "advance_block", spoil)
    told: list[str] = []
    config = replace(CONFIG, evaluate_every=0)
    result = train(config, tmp_path, device="cpu", dataset=digits, notify=told.append).result()
    assert told == [
        "replica 0 of arms stopped at step 40: its parameters are not finite; the other 2 continue"
    ]
    assert result is not None
    assert result["stopped"] == {"0": 40}


def test_one_line_a_report_and_cause(tmp_path: Path) -> None:
    told: list[str] = []
    config = replace(CONFIG, replicas=5)
    live = Member(Run(tmp_path).begin(config), config, told.append)
    elbo = [math.nan, -1.0, math.inf, -1.0, -1.0]
    live.append({"step": 10, "train_elbo": elbo}, [True, True, False, True, False])
    assert told == [
        "replicas 0, 2 of arms stopped at step 10: their ELBO is not finite; the other 2 continue",
        "replica 4 of arms stopped at step 10: its parameters are not finite; the other 2 continue",
    ]
    live.finish({"bounds": {"test": {"1": [-1.0, math.nan, -1.0, -1.0, -1.0]}}})
    assert told[2:] == [
        "replica 1 of arms stopped at step 40: its final bound is not finite; the other one continues"
    ]


# ---- in an ensemble


def ensemble_of(folder: Path, digits: Dataset, told: list[str], stop_at: int = 0) -> list[Run]:
    def stop(_: TrainConfig, record: Record) -> None:
        if record["step"] == stop_at:
            raise InterruptedError

    return train_together(
        [replace(CONFIG, estimator=name) for name in NAMES],
        [folder / name for name in NAMES],
        device="cpu",
        datasets=[digits] * len(NAMES),
        checkpoint_seconds=0,
        on_record=stop,
        notify=told.append,
    )


def test_a_run_without_replicas_leaves_the_ensemble_and_the_others_continue(
    tmp_path: Path, digits: Dataset
) -> None:
    told: list[str] = []
    sound = ensemble_of(tmp_path / "sound", digits, told)
    for folder in (tmp_path / "once", tmp_path / "twice"):
        with pytest.raises(InterruptedError):
            ensemble_of(folder, digits, told, stop_at=10)
        damage(Run(folder / "loorf"), [0, 1, 2])
        if folder.name == "twice":
            with pytest.raises(InterruptedError):
                ensemble_of(folder, digits, told, stop_at=30)
        for _ in range(2):
            with pytest.raises(DivergedError, match="all replicas of"):
                ensemble_of(folder, digits, told)
        lost, left = Run(folder / "loorf"), Run(folder / "arms")
        assert lost.result() is None
        assert [record["step"] for record in lost.metrics()] == [10, 20]
        assert left.metrics() == sound[1].metrics()
        assert left.result() == sound[1].result()
    assert (
        sum(line.startswith("replicas 0, 1, 2 of loorf stopped at step 20") for line in told) == 2
    )


# ---- those who read it


def test_reports_take_the_mean_over_those_left(
    tmp_path: Path, lost_one: tuple[Run, list[str]]
) -> None:
    run, _ = lost_one
    result = run.result()
    assert result is not None
    found = collect([run.path])
    (group,) = group_runs(found.runs)
    table = comparison_table(group, "name")
    assert table is not None
    ((label, cells),) = table.rows
    assert label == "arms, R=2 of 3"
    numbers = [value for value in result["bounds"]["train"]["1"] if value is not None]
    assert cells[0] is not None
    assert cells[0].replicas == 2
    assert cells[0].mean == pytest.approx(sum(numbers) / 2)
    for panel in training_panels(group).values():
        (curve,) = panel.curves
        assert (curve.name, curve.x[-1]) == ("arms, R=2 of 3", 40)
    assert summary(found).endswith("3 replicas · data: digits · 1 stopped")
    (problem,) = found.problems
    assert (
        problem.what
        == "numbers not finite: stopped replica 1 at step 10; means are over the other 2 of 3"
    )
    build_report([run.path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "arms, R=2 of 3" in page
    assert "stopped replica 1 at step 10" in page


def test_a_run_without_replicas_is_reported_as_diverged(tmp_path: Path, digits: Dataset) -> None:
    with pytest.raises(DivergedError):
        train(
            replace(CONFIG, learning_rate=1e38),
            tmp_path,
            device="cpu",
            dataset=digits,
            notify=lambda line: None,
        )
    found = collect([tmp_path])
    (problem,) = found.problems
    assert problem.what == "diverged at step 10: numbers not finite, and no replica is left"
    assert summary(found) == "1 run · 3 replicas · data: digits · 3 stopped · 1 diverged"


def test_verbs_say_how_many_are_left(
    lost_one: tuple[Run, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = lost_one
    source = verbs.Checkpoint(run.path)
    verbs.evaluate(source, samples=(1,), images=20, device="cpu")
    verbs.variance(source, repeats=5, estimators=("loorf",), device="cpu")
    verbs.sample(source, count=2)
    said = capsys.readouterr().out
    assert said.count("2 of 3 replicas survive: stopped replica 1 at step 10") == 3
    assert "nan" not in said
    assert "(2 of 3 replicas)" in output.describe_result(run.result() or {})
    assert figures(run.metrics()[-1]).endswith("(2 of 3 replicas)")
    assert figures({"train_elbo": [None], "gradient_variance": [None]}) == "no replica left"
    assert output.format_mean_std([None]) == "no replica left"


def test_numbers_of_absurd_size_stay_readable() -> None:
    assert output.format_mean_std([-1.5e31, -2.5e31]) == "-2e+31 ±7.07e+30"
    assert (
        figures({"train_elbo": [-1e31], "gradient_variance": [1.0]})
        == "ELBO -1e+31  var/weight 1.00e+00"
    )


def test_events_leave_out_what_is_no_number(lost_one: tuple[Run, list[str]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(lost_one[0].path))
    events.Reload()
    assert "train_elbo/1" not in events.Tags()["scalars"]
    assert len(events.Scalars("train_elbo/2")) == 4


def test_an_experiment_goes_on_without_the_run_that_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [replace(CONFIG, learning_rate=rate, evaluate_every=0) for rate in (1e38, 1e-3)]
    monkeypatch.setattr("arms.bench.experiments.Sweep.configs", lambda self, scale: wanted)
    told: list[str] = []
    options = {"engine": Here("cpu"), "notify": told.append}
    (page,) = run_experiment("figure3", "smoke", tmp_path, **options)
    assert any("all replicas of" in line for line in told)
    assert "diverged at step 10: numbers not finite, and no replica is left" in page.read_text()
    assert len(list(tmp_path.glob("*/result.json"))) == 1
