"""Experiments: configurations are valid and unique, figures are drawn, and subcommands list and run experiments."""

from pathlib import Path

import pytest
import torch

import arms
from arms.bench import experiments, toy
from arms.bench.cli import sweep as verbs
from arms.bench.cli.train import DEMO_ESTIMATORS
from arms.bench.config import run_name
from arms.bench.data import DATASETS
from arms.bench.experiments import EXPERIMENTS, SCALES, Scale, Sweep, configs
from arms.bench.report.groups import setting_of
from arms.bench.report.paper import printed
from arms.bench.sweeps.sweep import run_experiment
from arms.estimators import BIASED_ESTIMATORS, num_samples_of


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_configurations_are_valid_and_unique(name: str, scale: Scale) -> None:
    found = configs(name, scale)
    assert len({run_name(config) for config in found}) == len(found)
    assert bool(found) == isinstance(EXPERIMENTS[name].source, Sweep)
    for config in found:
        assert config.dataset in DATASETS
        assert num_samples_of(config.make_estimator()) == config.num_samples
        assert (config.dataset == "digits") == (scale == "smoke")
        assert config.estimator not in BIASED_ESTIMATORS or name.startswith("reinmax")


def test_no_default_comparison_contains_a_biased_estimator() -> None:
    compared = {
        row.estimator for row in arms.variance(lambda b: b.sum(-1), torch.zeros(3), repeats=2).rows
    }
    assert not {*compared, *toy.ESTIMATORS, *DEMO_ESTIMATORS} & set(BIASED_ESTIMATORS)


@pytest.mark.parametrize(
    ("name", "split", "count"),
    [
        ("table1", "train", 120),
        ("table2", "train", 72),
        ("table3", "test", 120),
        ("table4", "test", 72),
    ],
)
def test_paper_tables_are_covered(name: str, split: str, count: int) -> None:
    """Every number of the paper has a comparable run. Only arms and arms-ms are not in the paper."""
    found = [printed(setting_of(config), config.label, split) for config in configs(name, "paper")]
    numbers = [number for number in found if number is not None]
    assert len(numbers) == count
    assert {number.table for number in numbers} == {int(name[-1])}


def test_paper_scale_is_the_papers_protocol() -> None:
    for config in configs("table1", "paper"):
        assert (config.steps, config.replicas, config.batch_size, config.latents) == (
            1_000_000,
            5,
            50,
            200,
        )
        assert (config.learning_rate, config.prior_learning_rate, config.decoder_samples) == (
            1e-4,
            1e-2,
            "extra",
        )
    assert {config.num_samples for config in configs("figure3", "paper")} == {4, 6, 8, 10}


@pytest.mark.parametrize(("name", "evaluations"), [("rodeo-2", 2), ("rodeo-3", 3)])
def test_rodeos_estimators_evaluate_the_model_equally_often(name: str, evaluations: int) -> None:
    for config in configs(name, "paper"):
        assert config.make_estimator().design.needs.evaluations == evaluations
        assert printed(setting_of(config), config.label, "train") is None


def test_mistakes_help() -> None:
    with pytest.raises(
        ValueError,
        match=r"there is no experiment named 'table9': did you mean table4 or table3\? Otherwise choose",
    ):
        configs("table9", "smoke")
    with pytest.raises(ValueError, match="scale must be one of smoke"):
        configs("table1", "huge")  # type: ignore[arg-type]


def test_drawings_need_no_runs(tmp_path: Path) -> None:
    for name in ("figure1", "figure2"):
        assert not isinstance(EXPERIMENTS[name].source, Sweep)
        written = run_experiment(name, "smoke", tmp_path)
        assert written
        assert all(path.stat().st_size > 0 and path.parent == tmp_path / name for path in written)
    assert experiments.configs("figure1", "paper") == []


def test_verbs_list_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verbs.experiments_list()
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    verbs.experiments_run("figure1", verbs.Options(), output=tmp_path)
    assert "correlations.csv" in "".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="there is no experiment named"):
        verbs.experiments_run("figure99", verbs.Options(), output=tmp_path)
