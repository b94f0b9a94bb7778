"""Sweeps: jobs find finished runs in all given places, and train only the others."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from commands import Say

from arms.bench.cli import main
from arms.bench.config import Precision, TrainConfig, identity, run_name
from arms.bench.experiments import configs
from arms.bench.runs.archives import find_runs
from arms.bench.runs.ensemble import check_same_config, group_for_ensembles
from arms.bench.runs.run import Run
from arms.bench.runs.train import train
from arms.bench.sweeps.engines import Here
from arms.bench.sweeps.jobs import Job, plan, plan_lines
from arms.bench.sweeps.sweep import run_experiment, sweep

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
SMALL = TrainConfig(latents=10, batch_size=10, replicas=2, steps=20, report_every=10)


def states(jobs: Sequence[Job]) -> dict[str, str]:
    return {task.config.estimator: task.state for job in jobs for task in job.tasks}


def interrupt(config: TrainConfig, path: Path, step: int) -> None:
    def stop(record: dict[str, object]) -> None:
        if record["step"] == step:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(config, path, device="cpu", checkpoint_seconds=0, on_record=stop, notify=print)


# ---- one definition of the paper's sweep


def test_every_committed_full_run_is_recognized() -> None:
    committed = list(find_runs(RESULTS))
    assert len(committed) == 115
    jobs = plan(configs("table1", "paper"), "nowhere", results=[RESULTS], on_gpu=True)
    bounds = plan(configs("table2", "paper"), "nowhere", results=[RESULTS], on_gpu=True)
    done = [task for job in [*jobs, *bounds] for task in job.tasks if task.state == "done"]
    assert {task.path for task in done} == {run.path for run in committed}
    assert {task.config.precision for task in done} == {"highest", "high", "medium"}
    line = jobs[4].line()
    start = "nonlinear, n = 4, R = 5; 13 done: dynamic-mnist arms-dirichlet (highest), "
    assert line.startswith(start)
    assert "fashion-mnist arms-dirichlet (medium), " in line
    assert line.endswith("; 2 missing: fashion-mnist arms (highest), omniglot arms (highest)")
    assert plan_lines(jobs)[-1] == "total: 144 runs in 16 jobs: 70 done, 74 missing"


def test_committed_runs_were_looked_at_as_often_as_the_catalogue_says() -> None:
    config = configs("table1", "paper")[0]
    for run in find_runs(RESULTS):
        found = run.config()
        assert (found.report_every, found.evaluate_every) == (
            config.report_every,
            config.evaluate_every,
        )
        assert found.evaluate_images == config.evaluate_images


def test_dry_run_prints_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "arms",
        "experiments",
        "run",
        "table1",
        "--scale",
        "paper",
        "--results",
        str(RESULTS),
        "--dry-run",
    ]
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cuda", "--precision", "medium"])
    main()
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 16
    assert lines[4].startswith(
        "5/16 nonlinear, n = 4, R = 5; 13 done: dynamic-mnist arms-dirichlet"
    )
    assert lines[4].endswith("2 missing: fashion-mnist arms (medium), omniglot arms (medium)")
    assert last.endswith("70 done, 74 missing")
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cpu"])
    main()
    assert len(capsys.readouterr().out.splitlines()) == 144 + 1
    assert not list(tmp_path.iterdir())


def test_all_experiments_share_their_runs(say: Say) -> None:
    words = ("--scale", "paper", "--dry-run", "--device", "cuda")
    code, said, _ = say("experiments", "run", "all", *words)
    assert code == 0
    assert said.startswith("figure1: no training runs\n")
    assert said.splitlines()[-1].startswith("total: 354 runs in 66 jobs")
    code, _, error = say("experiments", "run", "table1", *words, "--results", "nowhere")
    assert (code, error.count("\n")) == (2, 1)
    assert "results must name existing folders or archives, got nowhere" in error


# ---- what is done, unfinished, missing


def test_runs_are_found_by_what_they_are_not_by_what_they_are_called(tmp_path: Path) -> None:
    wanted = [
        replace(SMALL, estimator=name)
        for name in ("loorf", "arms", "disarm", "arms-dirichlet", "arms-gaussian")
    ]
    train(
        replace(wanted[0], report_every=5, precision="high"),
        tmp_path / "out" / "a",
        device="cpu",
        notify=print,
    )
    train(wanted[1], tmp_path / "more" / "deep" / "b", device="cpu")
    interrupt(wanted[2], tmp_path / "out" / "c", 10)
    interrupt(wanted[3], tmp_path / "more" / "d", 10)  # not ours to resume
    jobs = plan(wanted, tmp_path / "out", results=[tmp_path / "more"], on_gpu=True)
    (job,) = jobs
    assert states(jobs) == {
        "loorf": "done",
        "arms": "done",
        "disarm": "unfinished",
        "arms-dirichlet": "missing",
        "arms-gaussian": "missing",
    }
    assert job.line() == (
        "linear, n = 4, R = 2; 2 done: digits loorf (high), digits arms (highest); "
        "1 unfinished: digits disarm (highest, step 10 of 20); "
        "2 missing: digits arms-dirichlet (highest), digits arms-gaussian (highest)"
    )
    left = [task.path.name for task in job.tasks if task.state != "done"]
    assert left == ["c", run_name(wanted[3]), run_name(wanted[4])]
    assert plan_lines(jobs)[-1] == "total: 5 runs in 1 jobs: 2 done, 1 unfinished, 2 missing"


def test_of_two_runs_the_one_of_the_precision_asked_for_is_taken(tmp_path: Path) -> None:
    for precision in get_args(Precision)[:2]:
        train(replace(SMALL, precision=precision), tmp_path / precision, device="cpu", notify=print)
    for precision in get_args(Precision):
        (job,) = plan([replace(SMALL, precision=precision)], tmp_path)
        (task,) = job.tasks
        assert task.state == "done"
        assert task.path.name == (precision if precision != "medium" else "high")


def test_a_run_of_a_later_schema_is_another(tmp_path: Path) -> None:
    run = train(SMALL, tmp_path / "run", device="cpu")
    config = json.loads((run.path / "config.json").read_text())
    assert config["schema"] == identity(SMALL)["schema"]
    (run.path / "config.json").write_text(json.dumps(config | {"schema": 99}))
    assert states(plan([SMALL], tmp_path)) == {"arms": "missing"}


# ---- training the rest


def test_smoke_runs_end_to_end_and_not_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    output = tmp_path / "out"
    engine = Here("cpu")
    (page,) = run_experiment("figure3", "smoke", output, engine=engine, notify=told.append)
    wanted = configs("figure3", "smoke")
    assert len(told) - 1 == len(wanted) == 6
    text = page.read_text()
    for config in wanted:
        run = Run(output / run_name(config))
        assert run.result() is not None
        assert run.path.name in text
    assert "every run is finished and complete" in text

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("arms.bench.runs.ensemble.Trainer", fail)
    assert run_experiment("figure3", "smoke", output, engine=engine) == [page]
    # The page also includes runs in other folders with other names.
    for index, config in enumerate(wanted):
        (output / run_name(config)).rename(tmp_path / f"kept-{index}")
    shutil.rmtree(output)
    told.clear()
    options = {"results": [tmp_path], "engine": engine, "notify": told.append}
    (page,) = run_experiment("figure3", "smoke", output, **options)
    assert told == [f"6/6 done, 0 running, 0 failed: {output}"]
    assert "every run is finished and complete" in page.read_text()
    assert not list(output.rglob("config.json"))


def test_on_a_gpu_runs_are_trained_together(tmp_path: Path) -> None:
    engine = Here("cpu")
    engine.on_gpu = True  # only what is trained together
    wanted = {config.estimator: config for config in configs("figure3", "smoke")}
    interrupt(replace(wanted["loorf"], precision="high"), tmp_path / "begun", 10)
    told: list[str] = []
    found = sweep(configs("figure3", "smoke"), tmp_path, engine=engine, notify=told.append)
    assert [run.config().estimator for run in found] == list(wanted)
    assert [line.split()[0] for line in told if "/6" in line] == ["4/6", "5/6", "6/6", "6/6"]
    runs = {run.config().estimator: run for run in find_runs(tmp_path)}
    assert all(run.result() for run in runs.values())
    assert runs["loorf"].path.name == "begun", "resumed at its own precision, and so alone"
    assert "together" not in runs["loorf"].provenance()
    assert runs["disarm"].provenance()["together"] == [
        "arms-dirichlet",
        "arms-gaussian",
        "arms",
        "disarm",
    ]
    assert "together" not in runs["relax"].provenance()


def test_ensembles_of_the_papers_tables() -> None:
    sizes = [len(together) for together in group_for_ensembles(configs("table1", "paper"))]
    assert sorted(sizes) == [3] * 8 + [15] * 8, "three data sets together; relax with itself alone"
    bounds = group_for_ensembles(configs("table2", "paper"))
    assert sorted(len(together) for together in bounds) == [3] * 8 + [9] * 8
    assert all(len(together) == 9 or together[0].estimator == "vimco" for together in bounds), (
        "another bound"
    )
    estimators = [config.estimator for config in bounds[0]]
    assert estimators == sorted(estimators, key=estimators.index), (
        "those that can draw at once stand together"
    )
    for together in bounds:
        check_same_config(together)  # what is grouped is never refused
    for one, other in pairwise(bounds):
        with pytest.raises(ValueError, match="train"):
            check_same_config([one[0], other[0]])
