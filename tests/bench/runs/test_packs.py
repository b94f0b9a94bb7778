"""Packs: what is read from one file is what the run directories say, but for thinned curves."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_directories import bounds_of, make_run

from arms.bench.cli import main
from arms.bench.config import TrainConfig
from arms.bench.reports import build_report, collect
from arms.bench.runs.directory import Run
from arms.bench.runs.packs import CURVE_POINTS, find_runs, is_pack, read_pack, write_pack
from arms.bench.sweeps.jobs import plan
from arms.bench.sweeps.local import preview

ROOT = Path(__file__).parents[3]
CONFIG = TrainConfig("dynamic-mnist", "linear", "loorf", 4, replicas=3, steps=120)


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


def test_a_report_of_the_pack_has_the_cells_of_that_of_the_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_runs(Path("runs"))
    say(monkeypatch, "pack", "runs", "-o", "packs/all.json")
    assert capsys.readouterr().out.startswith("wrote packs/all.json: 6 runs, ")
    say(monkeypatch, "report", "runs", "-o", "directories.html")
    say(monkeypatch, "report", "packs/all.json", "-o", "packed.html")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == said[2] == "6 runs · 18 replicas · data: dynamic-mnist"
    tables = sorted(Path("directories_files").glob("*.csv"))
    assert len(tables) >= 7  # two comparisons, each beside the paper at two K, and the overview
    for table in tables:
        assert table.read_text() == (Path("packed_files") / table.name).read_text()


def test_what_was_written_is_read_word_for_word(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs")
    write_pack(tmp_path / "pack.json", runs)
    packed = {run.path.name: run for run in read_pack(tmp_path / "pack.json")}
    assert len(packed) == len(runs)
    for run in runs:
        again = packed[run.path.name]
        for name in ("config.json", "result.json", "provenance.json"):
            assert again.read(name) == run.read(name)
        assert (again.config(), again.identity(), again.result()) == (
            run.config(),
            run.identity(),
            run.result(),
        )
        assert again.exists()
        with pytest.raises(ValueError, match=r"cannot be read|no intact checkpoint"):
            again.load()


def test_curves_are_thinned_to_means_under_the_last_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=120)
    write_pack(tmp_path / "pack.json", [run])
    (packed,) = read_pack(tmp_path / "pack.json")
    records = packed.metrics()
    assert len(records) == 40 <= CURVE_POINTS
    assert records[0] == {
        "step": 3,
        "train_elbo": [-98.0, -97.0, -96.0],
        "gradient_variance": [0.037] * 3,
    }
    assert records[-1]["step"] == 120
    assert records[-1]["train_elbo"][0] == 19.0
    write_pack(tmp_path / "again.json", [packed])
    assert (tmp_path / "again.json").read_text() == (tmp_path / "pack.json").read_text()


def test_a_curve_that_few_records_have_keeps_its_points(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=119)
    run.append({"step": 120, "train_elbo": [1.0] * 3, "test_bound_100": [-90.123456789] * 3})
    write_pack(tmp_path / "pack.json", [run])
    (packed,) = read_pack(tmp_path / "pack.json")
    assert packed.metrics()[-1]["test_bound_100"] == [-90.1235] * 3


def test_a_replica_that_stopped_stays_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=118)
    for step in (119, 120):
        run.append(
            {"step": step, "train_elbo": [1.0, None, 1.0], "gradient_variance": [1.0, None, 1.0]}
        )
    write_pack(tmp_path / "pack.json", [run])
    (packed,) = read_pack(tmp_path / "pack.json")
    assert packed.stopped() == {1: 120}
    assert packed.metrics()[-2]["train_elbo"][1] is not None


def test_a_run_that_diverged_is_packed_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CONFIG, records=3, finish=False)
    with pytest.raises(
        ValueError,
        match="run is unfinished, and only finished runs are packed: train it to its end",
    ):
        write_pack(tmp_path / "pack.json", [run])
    assert not list(tmp_path.glob("*.json*"))
    run.append({"step": 4, "train_elbo": [None] * 3})
    write_pack(tmp_path / "pack.json", [run])
    (problem,) = collect([tmp_path / "pack.json"]).problems
    assert problem.what.startswith("diverged at step 4")


def test_a_pack_is_found_in_folders_and_counts_as_finished_runs(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs")
    write_pack(tmp_path / "results" / "deep" / "pack.json", runs)
    (tmp_path / "results" / "other.json").write_text('{"a": 1}')
    shutil.rmtree(tmp_path / "runs")
    assert len(list(find_runs(tmp_path / "results"))) == len(runs)
    for results in (tmp_path / "results", tmp_path / "results" / "deep" / "pack.json"):
        (job,) = plan([CONFIG], tmp_path / "out", results=[results])
        assert job.tasks[0].state == "done"
        assert preview(["table1"], "smoke", tmp_path / "out", results=[results], device="cpu")
        # The page of a sweep is made of the paths of its tasks.
        found = build_report([task.path for task in job.tasks], tmp_path / "page.html", files=False)
        assert [run.config for run in found.runs] == [CONFIG]
        assert not found.problems


def test_packs_can_be_joined_and_names_are_unique(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a/run"), CONFIG)
    make_run(Path("b/other"), replace(CONFIG, seed=1))
    make_run(Path("c/run"), replace(CONFIG, seed=2))
    say(monkeypatch, "pack", "a", "-o", "pack.json")
    say(monkeypatch, "pack", "pack.json", "b", "-o", "pack.json")
    assert [run.path.name for run in read_pack("pack.json")] == ["other", "run"]
    with pytest.raises(
        ValueError, match="must have names of their own, got two that differ as run"
    ):
        write_pack("pack.json", [*read_pack("pack.json"), Run("c/run")])
    assert len(read_pack("pack.json")) == 2
    say(monkeypatch, "pack", "pack.json", "a", "b", "-o", "pack.json")
    assert len(read_pack("pack.json")) == 2, "what is there twice in the same words is one"


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    pack = tmp_path / "pack.json"
    write_pack(pack, [make_run(tmp_path / "run", CONFIG)])
    content = json.loads(pack.read_text())
    pack.write_text(json.dumps({**content, "runs": content["runs"] * 2}))
    with pytest.raises(ValueError, match="must hold each run once, got 2 with 1 names"):
        read_pack(pack)


def test_what_a_damaged_pack_held_is_not_trained_again(tmp_path: Path) -> None:
    pack = tmp_path / "packs" / "pack.json"
    write_pack(pack, [make_run(tmp_path / "run", CONFIG)])
    whole = pack.read_text()
    pack.write_text("\ufeff" + whole)  # as some editors write it
    assert plan([CONFIG], tmp_path / "out", results=[pack.parent])[0].tasks[0].state == "done"
    pack.write_text(whole.replace('"estimator": "loorf"', '"estimator": null'))
    with pytest.raises(ValueError, match=r"pack\.json/run/config\.json is not a configuration"):
        plan([CONFIG], tmp_path / "out", results=[pack.parent])


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
    "a later version": '{"packed_runs": 2, "runs": []}',
    "no runs": '{"packed_runs": 1}',
    "no name": '{"packed_runs": 1, "runs": [{"config": {}, "curves": {}}]}',
    "a path": '{"packed_runs": 1, "runs": [{"name": "../x", "config": {}, "curves": {}}]}',
    "no configuration": '{"packed_runs": 1, "runs": [{"name": "x", "curves": {}}]}',
    "no object": '{"packed_runs": 1, "runs": [{"name": "x", "config": {}, "result": 3, "curves": {}}]}',
    "no curves": '{"packed_runs": 1, "runs": [{"name": "x", "config": {}}]}',
    "odd curves": '{"packed_runs": 1, "runs": [{"name": "x", "config": {}, "curves": {"a": {"step": [1]}}}]}',
    "short curves": '{"packed_runs": 1, "runs": [{"name": "x", "config": {}, "curves": {"a": {"step": [1], '
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
    for verb in ("report", "pack", "runs"):
        with pytest.raises(SystemExit) as stop:
            say(monkeypatch, verb, "bad.json")
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("arms: bad.json")
        assert error.count("\n") == 1
    # In a folder a damaged pack is named on the page, and other JSON is none of ours.
    make_run(Path("run"), CONFIG)
    problems = collect(["."]).problems
    assert [problem.where for problem in problems] == (["bad.json"] if is_pack("bad.json") else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["pack", "run", "nowhere"],
            "there is no run in nowhere: give run directories, or folders of them",
        ),
        (
            ["pack"],
            "give at least one run directory, or a folder of them: arms pack runs -o runs.json",
        ),
        (
            ["pack", "run", "broken"],
            "broken is no run directory, or an unfinished one: it has no config.json",
        ),
        (
            ["pack", "run", "-o", "page.html"],
            "a pack must be a .json file, got page.html: try page.json",
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


def test_a_broken_run_leaves_the_others_of_its_pack(tmp_path: Path) -> None:
    pack = tmp_path / "pack.json"
    write_pack(pack, make_runs(tmp_path / "runs"))
    content = json.loads(pack.read_text())
    content["runs"][0]["result"]["bounds"]["test"]["1"] = [1.0]
    pack.write_text(json.dumps(content))
    found = collect([pack])
    assert len(found.runs) == 5
    assert "must hold 3 numbers" in found.problems[0].what


@pytest.mark.parametrize(
    "bounds", [5, ["x", "y", "z"], [10**400, 1, 2]], ids=["a number", "words", "too large"]
)
def test_bounds_that_are_no_numbers_are_said_to_be_broken(
    bounds: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pack = tmp_path / "pack.json"
    write_pack(pack, [make_run(tmp_path / "run", CONFIG)])
    content = json.loads(pack.read_text())
    content["runs"][0]["result"]["bounds"]["test"]["1"] = bounds
    pack.write_text(json.dumps(content))
    say(monkeypatch, "runs", str(pack))
    assert "broken: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        say(monkeypatch, "pack", str(pack), "-o", str(tmp_path / "other.json"))
    assert "must hold 3 numbers" in capsys.readouterr().err
