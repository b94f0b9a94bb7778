"""Files are written whole and through no link, and read without waiting; links lead to runs and no further."""

import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Say
from run_directories import make_run

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.runs.directory import Run
from arms.bench.runs.packs import find_runs, write_pack
from arms.bench.runs.pipeline import train

CONFIG = TrainConfig(steps=20, report_every=10, latents=4, num_samples=2)
FLAGS = ["--report-every", "10", "--latents", "4", "--num-samples", "2", "--evaluate", "5"]
MORE_STEPS = ["train", *FLAGS, "--steps", "40", "--name", "run"]
REPORT, PACK = ["report", "runs", "-o", "page.html"], ["pack", "runs", "-o", "pack.json"]


@pytest.fixture
def run(tmp_path: Path, all_digits: Dataset) -> Run:
    return train(CONFIG, tmp_path / "runs" / "run", device="cpu", dataset=all_digits, evaluate=5)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail where something would be waited for."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- writing


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (MORE_STEPS, "runs/run/metrics.jsonl.new"),
        (MORE_STEPS, "runs/run/checkpoint.new"),
        (MORE_STEPS, "runs/run/config.json.new"),
        (REPORT, "page.html.new"),
        (REPORT, "page_files/1-digits-linear-n2-20-all.md.new"),
        (PACK, "pack.json.new"),
        (["sample", "runs/run"], "runs/run/samples.png.new"),
    ],
)
def test_a_link_in_place_of_a_temporary_file_is_not_followed(
    words: list[str], name: str, run: Run, tmp_path: Path, say: Say
) -> None:
    precious = plant(tmp_path, name)
    assert say(*words)[0] == 0
    assert precious.read_text() == "precious"
    assert not list(tmp_path.rglob("*.new")), "nor does it stay"
    written = tmp_path / name.removesuffix(".new").replace(
        "run/checkpoint", "run/checkpoint.safetensors"
    )
    assert stat.S_ISREG(written.lstat().st_mode)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (MORE_STEPS, "runs/run/metrics.jsonl"),
        (MORE_STEPS, "runs/run/checkpoint.safetensors"),
        (MORE_STEPS, "runs/run/checkpoint.previous.safetensors"),
        (MORE_STEPS, "runs/run/result.json"),
        (MORE_STEPS, "runs/run/provenance.json"),
        (REPORT, "page.html"),
        (REPORT, "page_files/1-digits-linear-n2-20-all.md"),
        (REPORT, "page_files/1-digits-linear-n2-20-all-training.pdf"),
        (PACK, "pack.json"),
        (["sample", "runs/run"], "runs/run/samples.png"),
        (["correlations", "-o", "figure"], "figure/correlations.svg"),
        (["correlations", "-o", "figure"], "figure/correlations.csv"),
    ],
)
def test_a_link_in_place_of_a_file_to_write_is_refused(
    words: list[str], name: str, run: Run, tmp_path: Path, say: Say
) -> None:
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    precious = tmp_path / "precious"
    if link.exists():
        link.rename(precious)  # the run is as it was, but for the link
    else:
        precious.write_text("precious")
    link.symlink_to(precious)
    before = precious.read_bytes()
    code, _, error = say(*words)
    assert (code, error.count("\n")) == (2, 1), error
    assert f"{name} must be a file, got a link to '{precious}': remove the link" in error
    assert precious.read_bytes() == before
    assert link.is_symlink()


def plant(folder: Path, name: str) -> Path:
    """Make a link to a precious file, as somebody else who may write into the folder could."""
    precious = folder / "precious"
    precious.write_text("precious")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(precious)
    return precious


def test_folders_may_be_links(tmp_path: Path, say: Say) -> None:
    """To another disk, say: that of all runs, of one run, and of the files of a page."""
    for name in ("runs", "page_files"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    (tmp_path / "disk" / "run").mkdir()
    (tmp_path / "runs" / "run").symlink_to(tmp_path / "disk" / "run")
    assert say(*MORE_STEPS)[0] == 0
    assert (tmp_path / "disk" / "run" / "result.json").is_file()
    assert "finished: 40 steps" in say("runs")[1]
    assert say(*REPORT)[0] == 0
    assert list((tmp_path / "disk" / "page_files").glob("*.md"))


def test_names_of_events_cannot_be_guessed(run: Run, tmp_path: Path, all_digits: Dataset) -> None:
    again = train(CONFIG, tmp_path / "again", device="cpu", dataset=all_digits, evaluate=5)
    endings = [
        path.name.rpartition(".")[2] for one in (run, again) for path in one.path.glob("events.*")
    ]
    assert len(set(endings)) == 2
    assert all(len(bytes.fromhex(ending)) == 8 for ending in endings)


def test_of_two_processes_that_write_one_file_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(tmp_path / "runs" / str(seed), replace(CONFIG, seed=seed)) for seed in (0, 1)]
    pack, fsync = tmp_path / "pack.json", os.fsync

    def fsync_and_write(descriptor: int) -> None:
        fsync(descriptor)
        monkeypatch.setattr(os, "fsync", fsync)
        write_pack(pack, runs)

    monkeypatch.setattr(os, "fsync", fsync_and_write)
    with pytest.raises(FileExistsError, match="another process is writing the same file"):
        write_pack(pack, runs[:1])
    assert len(list(find_runs(pack))) == 2, "that of the other one, whole"
    assert not list(tmp_path.glob("*.new"))


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "pack.json.new").write_text("half of a pa")
    before = os.umask(0o027)
    try:
        write_pack(tmp_path / "pack.json", [make_run(tmp_path / "run", CONFIG)])
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.glob("*.json*")] == ["pack.json"]
    assert stat.S_IMODE((tmp_path / "pack.json").stat().st_mode) == 0o640, (
        "as the user's umask says"
    )


# ---- reading


@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "metrics.jsonl", "checkpoint.safetensors"]
)
def test_a_pipe_is_not_waited_for(name: str, run: Run, say: Say) -> None:
    make_run(run.path.parent / "other", replace(CONFIG, seed=1))
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    os.mkfifo(run.path.parent / "x.json")
    with at_most(60):
        code, said, error = say("runs")
        assert (code, error) == (0, "")
        assert "runs/other" in said
        assert say("report", "runs", "--no-files")[0] == 0
        code, _, error = say("train", *FLAGS, "--steps", "40", "--name", "run")
    assert (code, error.count("\n")) == (2, 1)
    assert f"runs/run/{name} cannot be read: it must be a regular file, got a pipe" in error


def test_links_lead_to_runs_and_no_further(tmp_path: Path, say: Say) -> None:
    make_run(tmp_path / "disk" / "runs" / "deep" / "run", CONFIG)
    make_run(tmp_path / "disk" / "one", replace(CONFIG, seed=1))
    make_run(tmp_path / "runs" / "own", replace(CONFIG, seed=2))
    links = {
        "everything": "/",
        "above": "..",
        "itself": ".",
        "folder": "../disk/runs",
        "linked": "../disk/one",
    }
    for name, target in links.items():
        (tmp_path / "runs" / name).symlink_to(target)
    (tmp_path / "runs" / "again").symlink_to("own")
    with at_most(20):
        assert [run.path.name for run in find_runs(tmp_path / "runs")] == ["own", "linked"]
        assert say("runs")[0] == 0


def test_reading_makes_no_temporary_folders(
    run: Run, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("it would stay if the command were killed")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    for words in (["runs"], PACK, ["sweep", "figure3", "--results", "runs", "--dry-run"]):
        assert say(*words)[0] == 0
