"""A damaged run among others: each command names it, explains what to do, and continues with the others."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Say
from run_directories import SHORT_FLAGS, make_run

import arms
from arms.bench.config import TrainConfig
from arms.bench.report import collect
from arms.bench.runs.archives import examine_runs, read_archive, write_archive
from arms.bench.runs.run import Run
from arms.bench.sweeps.jobs import plan

CONFIG = TrainConfig(steps=20, report_every=10, latents=4, num_samples=2, replicas=2)
FLAGS = [*SHORT_FLAGS, "--replicas", "2"]
HUGE = "1" + "0" * 400
BROKEN_RESULTS = {
    "NaN": ("-98.3", "NaN", "it contains NaN or infinity"),
    "Infinity": ("-98.3", "Infinity", "it contains NaN or infinity"),
    "an infinite number": ("-98.3", "1e999", "it contains NaN or infinity"),
    "a list as note": (
        '"note": ""',
        '"note": ["x"]',
        r"must contain text in 'note', got \['x'\]: remove it",
    ),
    "an empty list as note": (
        '"note": ""',
        '"note": []',
        r"must contain text in 'note', got \[\]: remove it",
    ),
    "half a letter": (
        '"note": ""',
        r'"note": "\ud800"',
        "it contains text that is not valid Unicode",
    ),
    "images in words": (
        '"note": ""',
        '"note": "", "images": "few"',
        "a whole number of at least 1 in 'images'",
    ),
}
BROKEN_CONFIGS = {
    "half a letter": (
        '"dataset": "digits"',
        r'"dataset": "\ud800"',
        "it contains text that is not valid Unicode",
    ),
    "NaN": ('"seed": 1', '"seed": NaN', "it contains NaN or infinity"),
    "a huge number": (
        '"seed": 1',
        f'"seed": {HUGE}',
        r"seed must be an integer >= 0 and below 2\*\*63",
    ),
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path) -> None:
    for name, seed in (("good", 0), ("bad", 1)):
        make_run(tmp_path / "runs" / name, replace(CONFIG, seed=seed))


def edit(name: str, old: str, new: str) -> None:
    path = Path("runs/bad", name)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def check_goes_on_with_the_other(say: Say, name: str, what: str) -> None:
    """Check the output of every command that reads several runs, if one run has a damaged file."""
    named = re.compile(rf"runs/bad/{re.escape(name)} .*{what}")
    code, said, error = say("runs")
    assert (code, error) == (0, "")
    assert "runs/good" in said
    assert re.search(f"broken: {named.pattern}", said), said
    code, said, error = say("report", "runs", "-o", "page.html", "--no-files")
    assert (code, error) == (0, "")
    assert "1 run " in said
    assert named.search(said), said
    assert "runs/bad" in Path("page.html").read_text()
    code, said, _ = say("train", *FLAGS, "--name", "good")
    assert (code, "(finished before)" in said) == (0, True)
    is_one_line(say("archive", "runs", "-o", "archive.json"), named.pattern)
    assert not Path("archive.json").exists()
    is_one_line(say("train", *FLAGS, "--seed", "1", "--name", "bad"), named.pattern)


def is_one_line(said: tuple[int, str, str], message: str) -> None:
    code, _, error = said
    assert (code, error.count("\n")) == (2, 1), error
    assert re.search(message, error), error


@pytest.mark.parametrize("kind", BROKEN_RESULTS)
def test_a_damaged_result(kind: str, say: Say) -> None:
    old, new, what = BROKEN_RESULTS[kind]
    edit("result.json", old, new)
    check_goes_on_with_the_other(say, "result.json", what)
    (good, bad) = plan([replace(CONFIG, seed=seed) for seed in (0, 1)], "runs")
    assert (good.tasks[0].state, bad.tasks[0].state) == ("done", "unfinished")


@pytest.mark.parametrize("kind", BROKEN_CONFIGS)
def test_a_damaged_configuration(kind: str, say: Say) -> None:
    old, new, what = BROKEN_CONFIGS[kind]
    edit("config.json", old, new)
    check_goes_on_with_the_other(say, "config.json", what)


@pytest.mark.parametrize("step", [HUGE, "-3"])
def test_a_record_of_an_impossible_step_is_skipped(step: str, say: Say) -> None:
    for name in ("good", "bad"):  # both, as a curve is of the steps that all seeds have
        with Path(f"runs/{name}/metrics.jsonl").open("a") as file:
            file.write(f'{{"step": {step}, "train_elbo": [1.0, 2.0]}}\n')
    code, said, error = say("report", "runs", "-o", "page.html")
    assert (code, error) == (0, "")
    assert "2 runs" in said
    assert "metrics.jsonl: skipped 1 of 6 lines, which are incomplete" in said
    assert say("runs")[0] == 0
    assert "2 runs" in say("archive", "runs", "-o", "archive.json")[1]


def test_a_record_of_fewer_replicas_is_not_packed(say: Say) -> None:
    with Path("runs/bad/metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "train_elbo": [1.0]}\n')
    assert "2 runs" in say("archive", "runs", "-o", "archive.json")[1]
    archived = {run.path.name: run for run in read_archive("archive.json")}
    assert [record["step"] for record in archived["bad"].metrics()] == [1, 2, 3, 4, 5]


def test_numbers_too_large_to_average_are_packed_and_listed(say: Say) -> None:
    run = Run("runs/huge").begin(replace(CONFIG, seed=2))
    for step in range(1, 101):
        run.append({"step": step, "train_elbo": [1.7e308, -1.7e308]})
    run.finish({"steps": 20, "note": "", "bounds": {"test": {"1": [1.7e308, -1.7e308]}}})
    code, said, error = say("runs")
    assert (code, error) == (0, "")
    assert "test bound K=1 0.00\n" in said
    assert say("archive", "runs", "-o", "archive.json")[0] == 0
    archived = {run.path.name: run for run in read_archive("archive.json")}
    assert archived["huge"].metrics()[0]["train_elbo"] == [1.7e308, -1.7e308]


def test_a_damaged_provenance_is_omitted_and_named(say: Say) -> None:
    Path("runs/bad/provenance.json").write_text('{"version": "\\ud800"}')
    code, said, error = say("report", "runs", "-o", "page.html", "--no-files")
    assert (code, error) == (0, "")
    assert "2 runs" in said
    assert "runs/bad: its provenance is omitted: runs/bad/provenance.json cannot be read" in said


# ---- archives


DAMAGED_ENTRIES: dict[str, dict[str, Any]] = {
    "no name": {"name": None},
    "half a letter": {"name": "\ud800"},
    "a null byte": {"name": "a\0b"},
    "the folder above": {"name": ".."},
    "a path": {"name": "a/b"},
    "a long name": {"name": "n" * 300},
    "no configuration": {"config": None},
    "half a letter inside": {"config": {"dataset": "\ud800"}},
    "NaN": {"result": {"bounds": {"test": {"1": [float("nan")] * 2}}}},
    "a huge step": {"curves": {"train_elbo": {"step": [10**400], "values": [[1.0, 2.0]]}}},
    "other values": {"curves": {"train_elbo": {"step": [1], "values": ["x"]}}},
}


@pytest.mark.parametrize("kind", DAMAGED_ENTRIES)
def test_a_damaged_run_of_a_pack_leaves_the_others(kind: str, say: Say) -> None:
    write_archive("archives/archive.json", [Run("runs/good"), Run("runs/bad")])
    content = json.loads(Path("archives/archive.json").read_text())
    content["runs"][0] |= DAMAGED_ENTRIES[kind]  # in the order of their names: "bad" is the first
    Path("archives/archive.json").write_text(json.dumps(content))
    what = r"archives/archive.json: run 1 is damaged, because .*: archive the run again, or remove it from the file"
    for place in ("archives", "archives/archive.json"):
        code, said, error = say("runs", place)
        assert (code, error) == (0, "")
        assert "archives/archive.json/good" in said
        assert re.search(f"broken: {what}", said)
        code, said, error = say("report", place, "-o", "page.html", "--no-files")
        assert (code, error) == (0, "")
        assert "1 run " in said
        assert re.search(what, said)
        is_one_line(say("archive", place, "-o", "other.json"), what)
    # The damaged run could be one of the wanted runs, so no run is trained again.
    with pytest.raises(ValueError, match=what):
        plan([CONFIG], "runs", results=["archives"])


def test_a_damaged_pack_beside_runs(say: Say) -> None:
    Path("runs/x.json").write_text('{"archived_runs": 1, "runs": 3}')
    found = dict(examine_runs("runs"))
    assert isinstance(found[Path("runs/x.json")], ValueError)
    code, said, _ = say("runs")
    assert code == 0
    assert said.count("finished: 20 steps") == 2
    assert (
        "broken: runs/x.json must contain a list of runs, got int: archive the runs again" in said
    )
    assert "(finished before)" in say("train", *FLAGS)[1], (
        "found by what it is, whatever lies beside it"
    )
    assert len(collect(["runs"]).runs) == 2


def test_nothing_but_damaged_runs_is_an_error(say: Say) -> None:
    edit("config.json", '"seed": 1', '"seed": NaN')
    Path("runs/good").rename("good")
    is_one_line(say("runs"), "runs/bad/config.json cannot be read: it contains NaN")


# ---- configurations that cannot be written


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"estimator": arms.LOORF(4)}, r"estimator must be a string, got LeaveOneOut\("),
        (
            {"layers": 5},
            r"of latents in each layer, as in \(200, 200\), got 5: for one layer, set latents",
        ),
        ({"dataset": "\ud800"}, "dataset must be valid Unicode, got"),
        ({"seed": 10**400}, "seed must be an integer >= 0 .*, got 1000"),
        ({"latents": 2**40, "categories": 2**40}, "latents times categories must be an integer"),
    ],
)
def test_a_configuration_that_could_not_be_read_again_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**fields)
