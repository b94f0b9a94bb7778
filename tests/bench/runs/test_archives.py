"""Archives: they give the same data as run directories, except for thinned curves."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_directories import bounds_of, make_run

from arms.bench.cli import main
from arms.bench.config import TrainConfig
from arms.bench.report import build_report, collect
from arms.bench.runs.archives import (
    CURVE_POINTS,
    find_runs,
    is_archive,
    read_archive,
    write_archive,
)
from arms.bench.runs.run import Run
from arms.bench.sweeps.jobs import plan
from arms.bench.sweeps.sweep import sweep

ROOT = Path(__file__).parents[3]
CONFIG = TrainConfig(dataset="dynamic-mnist", estimator="loorf", replicas=3, steps=120)


def make_runs(folder: Path) -> list[Run]:
    runs = []
    for n in (4, 10):
        for level, estimator in ((-100.0, "loorf"), (-101.3, "disarm"), (-99.7, "arms")):
            config = replace(CONFIG, estimator=estimator, num_samples=n)
            run = make_run(
                folder / f"{estimator}-{n}",
                config,
                bounds_of(config, level),
                records=120,
                note="a note",
            )
            run.write_provenance("cpu", 2.5, ["a", "b"])
            runs.append(run)
    return runs


def say(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["arms", *words])
    main()


def test_a_report_of_the_archive_has_the_cells_of_that_of_the_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_runs(Path("runs"))
    say(monkeypatch, "archive", "runs", "-o", "archives/all.json")
    assert capsys.readouterr().out.startswith("wrote archives/all.json: 6 runs, ")
    say(monkeypatch, "report", "runs", "-o", "directories.html")
    say(monkeypatch, "report", "archives/all.json", "-o", "archived.html")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == said[2] == "6 runs · 18 replicas · data: dynamic-mnist"
    tables = sorted(Path("directories_files").glob("*.csv"))
    assert len(tables) >= 7  # two comparisons, each beside the paper at two K, and the overview
    for table in tables:
        assert table.read_text() == (Path("archived_files") / table.name).read_text()


def test_what_was_written_is_read_word_for_word(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs")
    write_archive(tmp_path / "archive.json", runs)
    archived = {run.path.name: run for run in read_archive(tmp_path / "archive.json")}
    assert len(archived) == len(runs)
    for run in runs:
        again = archived[run.path.name]
        for name in ("config.json", "result.json", "provenance.json"):
            assert again.read(name) == run.read(name)
        assert (again.config(), again.identity(), again.result()) == (
            run.config(),
            run.identity(),
            run.result(),
        )
        assert again.exists()
        with pytest.raises(ValueError, match=r"cannot be read|no intact checkpoint"):
            again.weights()


def test_curves_are_thinned_to_means_under_the_last_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=120)
    write_archive(tmp_path / "archive.json", [run])
    (archived,) = read_archive(tmp_path / "archive.json")
    records = archived.metrics()
    assert len(records) == 40 <= CURVE_POINTS
    assert records[0] == {
        "step": 3,
        "train_elbo": [-98.0, -97.0, -96.0],
        "gradient_variance": [0.037] * 3,
    }
    assert records[-1]["step"] == 120
    assert records[-1]["train_elbo"][0] == 19.0
    write_archive(tmp_path / "again.json", [archived])
    assert (tmp_path / "again.json").read_text() == (tmp_path / "archive.json").read_text()


def test_a_curve_that_few_records_have_keeps_its_points(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=119)
    run.append({"step": 120, "train_elbo": [1.0] * 3, "test_bound_100": [-90.123456789] * 3})
    write_archive(tmp_path / "archive.json", [run])
    (archived,) = read_archive(tmp_path / "archive.json")
    assert archived.metrics()[-1]["test_bound_100"] == [-90.1235] * 3


def test_a_replica_that_stopped_stays_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=118)
    for step in (119, 120):
        run.append(
            {"step": step, "train_elbo": [1.0, None, 1.0], "gradient_variance": [1.0, None, 1.0]}
        )
    write_archive(tmp_path / "archive.json", [run])
    (archived,) = read_archive(tmp_path / "archive.json")
    assert archived.stopped() == {1: 120}
    assert archived.metrics()[-2]["train_elbo"][1] is not None


def test_a_run_that_diverged_is_archived_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=3, finish=False)
    with pytest.raises(ValueError, match="only runs that have ended can be archived, got"):
        write_archive(tmp_path / "archive.json", [run])
    assert not list(tmp_path.glob("*.json*"))
    run.append({"step": 4, "train_elbo": [None] * 3})
    write_archive(tmp_path / "archive.json", [run])
    (problem,) = collect([tmp_path / "archive.json"]).problems
    assert problem.what.startswith("diverged at step 4")


def test_an_archive_is_found_in_folders_and_counts_as_finished_runs(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs")
    write_archive(tmp_path / "results" / "deep" / "archive.json", runs)
    (tmp_path / "results" / "other.json").write_text('{"a": 1}')
    shutil.rmtree(tmp_path / "runs")
    assert len(list(find_runs(tmp_path / "results"))) == len(runs)
    for results in (tmp_path / "results", tmp_path / "results" / "deep" / "archive.json"):
        (job,) = plan([CONFIG], tmp_path / "out", results=[results])
        assert job.tasks[0].state == "done"
        (again,) = sweep([CONFIG], tmp_path / "out", results=[results], notify=print)
        assert again.result() == runs[0].result()
        # The page of a sweep is made of the paths of its tasks.
        found = build_report([task.path for task in job.tasks], tmp_path / "page.html", files=False)
        assert [run.config for run in found.runs] == [CONFIG]
        assert not found.problems


def test_archives_can_be_joined_and_names_are_unique(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a/run"), CONFIG)
    make_run(Path("b/other"), replace(CONFIG, seed=1))
    make_run(Path("c/run"), replace(CONFIG, seed=2))
    say(monkeypatch, "archive", "a", "-o", "archive.json")
    say(monkeypatch, "archive", "archive.json", "b", "-o", "archive.json")
    assert [run.path.name for run in read_archive("archive.json")] == ["other", "run"]
    with pytest.raises(
        ValueError,
        match="runs in an archive must have different names, got two named run: leave one of them",
    ):
        write_archive("archive.json", [*read_archive("archive.json"), Run("c/run")])
    assert len(read_archive("archive.json")) == 2
    say(monkeypatch, "archive", "archive.json", "a", "b", "-o", "archive.json")
    assert len(read_archive("archive.json")) == 2, "what is there twice in the same words is one"


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive.json"
    write_archive(archive, [make_run(tmp_path / "run", CONFIG)])
    content = json.loads(archive.read_text())
    archive.write_text(json.dumps({**content, "runs": content["runs"] * 2}))
    with pytest.raises(
        ValueError, match="must contain each run once, got 2 runs with 1 different names:"
    ):
        read_archive(archive)


def test_what_a_damaged_archive_held_is_not_trained_again(tmp_path: Path) -> None:
    archive = tmp_path / "archives" / "archive.json"
    write_archive(archive, [make_run(tmp_path / "run", CONFIG)])
    whole = archive.read_text()
    archive.write_text("\ufeff" + whole)  # as some editors write it
    assert plan([CONFIG], tmp_path / "out", results=[archive.parent])[0].tasks[0].state == "done"
    archive.write_text(whole.replace('"estimator": "loorf"', '"estimator": null'))
    with pytest.raises(ValueError, match="configuration: estimator must be a string, got None"):
        plan([CONFIG], tmp_path / "out", results=[archive.parent])


def test_links_to_runs_are_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "disk" / "run", CONFIG)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "disk" / "run")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs")
    make_run(tmp_path / "runs" / "newest", replace(CONFIG, seed=1))
    (tmp_path / "runs" / "latest").symlink_to("newest")
    assert [run.path.name for run in find_runs(tmp_path / "runs")] == ["newest", "link"], (
        "each once, by its own name"
    )


DAMAGED = {
    "no JSON": "{",
    "other JSON": '{"a": 1}',
    "a list": "[]",
    "a later version": '{"archived_runs": 2, "runs": []}',
    "no runs": '{"archived_runs": 1}',
    "no name": '{"archived_runs": 1, "runs": [{"config": {}, "curves": {}}]}',
    "a path": '{"archived_runs": 1, "runs": [{"name": "../x", "config": {}, "curves": {}}]}',
    "no configuration": '{"archived_runs": 1, "runs": [{"name": "x", "curves": {}}]}',
    "no object": '{"archived_runs": 1, "runs": [{"name": "x", "config": {}, "result": 3, "curves": {}}]}',
    "no curves": '{"archived_runs": 1, "runs": [{"name": "x", "config": {}}]}',
    "odd curves": '{"archived_runs": 1, "runs": [{"name": "x", "config": {}, "curves": {"a": {"step": [1]}}}]}',
    "short curves": '{"archived_runs": 1, "runs": [{"name": "x", "config": {}, "curves": {"a": {"step": [1], '
    '"values": []}}}]}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_bad_file_is_one_line(
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text(content)
    for verb in ("report", "archive", "runs"):
        with pytest.raises(SystemExit) as stop:
            say(monkeypatch, verb, "bad.json")
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("arms: bad.json")
        assert error.count("\n") == 1
    # In a folder, a damaged archive is listed on the page, and other JSON files are ignored.
    make_run(Path("run"), CONFIG)
    problems = collect(["."]).problems
    assert [problem.where for problem in problems] == (
        ["bad.json"] if is_archive("bad.json") else []
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["archive", "run", "nowhere"],
            "nowhere contains no run: name run directories, or folders of run directories",
        ),
        (
            ["archive"],
            (
                "arms archive needs a run directory, or a folder of run directories, got none: "
                "for example `arms archive runs`"
            ),
        ),
        (
            ["archive", "run", "broken"],
            "broken has no config.json, so it is not a run directory, or the run is unfinished",
        ),
        (
            ["archive", "run", "-o", "page.html"],
            "an archive must be a .json file, got page.html: try page.json",
        ),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), CONFIG)
    Path("broken").mkdir()
    Path("broken", "result.json").write_text("{}")
    with pytest.raises(SystemExit):
        say(monkeypatch, *words)
    assert not list(tmp_path.glob("*.json"))
    assert capsys.readouterr().err == f"arms: {message}\n"


def test_a_broken_run_leaves_the_others_of_its_archive(tmp_path: Path) -> None:
    archive = tmp_path / "archive.json"
    write_archive(archive, make_runs(tmp_path / "runs"))
    content = json.loads(archive.read_text())
    content["runs"][0]["result"]["bounds"]["test"]["1"] = [1.0]
    archive.write_text(json.dumps(content))
    found = collect([archive])
    assert len(found.runs) == 5
    assert "must contain 3 numbers" in found.problems[0].what


@pytest.mark.parametrize(
    "bounds", [5, ["x", "y", "z"], [10**400, 1, 2]], ids=["a number", "words", "too large"]
)
def test_bounds_that_are_no_numbers_are_said_to_be_broken(
    bounds: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = tmp_path / "archive.json"
    write_archive(archive, [make_run(tmp_path / "run", CONFIG)])
    content = json.loads(archive.read_text())
    content["runs"][0]["result"]["bounds"]["test"]["1"] = bounds
    archive.write_text(json.dumps(content))
    say(monkeypatch, "runs", str(archive))
    assert "broken: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        say(monkeypatch, "archive", str(archive), "-o", str(tmp_path / "other.json"))
    assert "must contain 3 numbers" in capsys.readouterr().err
