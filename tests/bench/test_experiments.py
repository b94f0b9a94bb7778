"""Experiments: every configuration is valid and named once, and the smallest one runs end to end and resumes."""

from pathlib import Path

import pytest

from arms.bench import experiments
from arms.bench.cli import experiments as verbs
from arms.bench.config import run_name
from arms.bench.data import DATASETS
from arms.bench.experiments import EXPERIMENTS, SCALES, Drawing, Scale, Sweep, configs, packs, run_experiment
from arms.bench.reports.groups import setting_of
from arms.bench.reports.paper import printed
from arms.bench.runs.directory import Run
from arms.estimators import estimator


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_configurations_are_valid_and_unique(name: str, scale: Scale) -> None:
    found = configs(name, scale)
    assert len({run_name(config) for config in found}) == len(found)
    assert bool(found) == isinstance(EXPERIMENTS[name].source, Sweep)
    for config in found:
        assert config.dataset in DATASETS
        assert estimator(config.estimator, config.num_samples).num_samples == config.num_samples
        assert (config.dataset == "digits") == (scale == "smoke")


@pytest.mark.parametrize(
    ("name", "split", "count"),
    [("table1", "train", 120), ("table2", "train", 72), ("table3", "test", 120), ("table4", "test", 72)],
)
def test_paper_tables_are_covered(name: str, split: str, count: int) -> None:
    """Every printed number has a run that may stand beside it; arms-s and arms-ms-s are ours alone."""
    found = [printed(setting_of(config), config.estimator, split) for config in configs(name, "paper")]
    numbers = [number for number in found if number is not None]
    assert len(numbers) == count
    assert {number.table for number in numbers} == {int(name[-1])}


def test_paper_scale_is_the_papers_protocol() -> None:
    for config in configs("table1", "paper"):
        assert (config.steps, config.replicas, config.batch_size, config.latents) == (1_000_000, 5, 50, 200)
        assert (config.learning_rate, config.prior_learning_rate, config.decoder_samples) == (1e-4, 1e-2, "extra")
    assert {config.num_samples for config in configs("figure3", "paper")} == {4, 6, 8, 10}


def test_mistakes_help() -> None:
    with pytest.raises(ValueError, match="no experiment is called 'table9': choose one of figure1"):
        configs("table9", "smoke")
    with pytest.raises(ValueError, match="no scale is called 'huge': choose one of smoke"):
        configs("table1", "huge")  # type: ignore[arg-type]


def test_smoke_runs_end_to_end_and_not_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    (page,) = run_experiment("figure3", "smoke", tmp_path, device="cpu", tell=told.append)
    wanted = configs("figure3", "smoke")
    assert len(told) == len(wanted) == 6
    text = page.read_text()
    for config in wanted:
        run = Run(tmp_path / run_name(config))
        assert run.result() is not None
        assert run.path.name in text
    assert "every run that was asked for is finished and whole" in text

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("arms.bench.runs.pipeline.Trainer", refuse)
    assert run_experiment("figure3", "smoke", tmp_path, device="cpu") == [page]


def test_on_a_gpu_runs_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arms.bench.experiments.choose_device", lambda name: "cuda")  # only the choice
    told: list[str] = []
    run_experiment("figure3", "smoke", tmp_path, device="cpu", tell=told.append)
    assert [line.split()[1] for line in told] == ["5/6", "6/6"]
    runs = {config.estimator: Run(tmp_path / run_name(config)) for config in configs("figure3", "smoke")}
    assert all(run.result() for run in runs.values())
    assert runs["loorf"].provenance()["together"] == ["arms-d", "arms-n", "arms-s", "loorf", "disarm"]
    assert "together" not in runs["relax"].provenance()
    sizes = [len(together) for together in packs(configs("table1", "paper"))]
    assert sorted(sizes) == [3] * 8 + [15] * 8, "three data sets together; relax with itself alone"
    bounds = packs(configs("table2", "paper"))
    assert sorted(len(together) for together in bounds) == [3] * 8 + [9] * 8
    assert all(len(together) == 9 or together[0].estimator == "vimco" for together in bounds), (
        "its bound has more samples"
    )
    estimators = [config.estimator for config in bounds[0]]
    assert estimators == sorted(estimators, key=estimators.index), "those that can draw at once stand together"


def test_drawings_need_no_runs(tmp_path: Path) -> None:
    for name in ("figure1", "figure2"):
        assert isinstance(EXPERIMENTS[name].source, Drawing)
        written = run_experiment(name, "smoke", tmp_path)
        assert all(path.stat().st_size > 0 and path.parent == tmp_path / name for path in written)
    assert experiments.configs("figure1", "paper") == []


def test_verbs_list_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verbs.experiments_list()
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    verbs.experiments_run("figure1", output=tmp_path)
    assert "correlations.csv" in "".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="no experiment is called"):
        verbs.experiments_run("figure99", output=tmp_path)
