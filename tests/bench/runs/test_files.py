"""Files are written as a whole, never through links, and read without waiting. Only links to folders are followed."""

import os
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Say
from run_directories import make_run

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.runs.archives import find_runs, write_archive
from arms.bench.runs.run import Run
from arms.bench.runs.train import train

CONFIG = TrainConfig(steps=20, report_every=10, latents=4, num_samples=2)
FLAGS = ["--report-every", "10", "--latents", "4", "--num-samples", "2", "--evaluate", "5"]
MORE_STEPS = ["train", *FLAGS, "--steps", "40", "--name", "run"]
REPORT, PACK = ["report", "runs", "-o", "page.html"], ["archive", "runs", "-o", "archive.json"]


@pytest.fixture
def run(tmp_path: Path, all_digits: Dataset) -> Run:
    return train(CONFIG, tmp_path / "runs" / "run", device="cpu", dataset=all_digits, evaluate=5)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail if the code would wait for something."""

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
        (PACK, "archive.json.new"),
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
        (REPORT, "page_files/1-digits-linear-n2-20-all-train-elbo.pdf"),
        (PACK, "archive.json"),
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
    assert (
        f"{name} must be a regular file or a new path, got a link to '{precious}': remove the link"
        in error
    )
    assert precious.read_bytes() == before
    assert link.is_symlink()


def plant(folder: Path, name: str) -> Path:
    """Make a link to a precious file, as another user with write access to the folder could."""
    precious = folder / "precious"
    precious.write_text("precious")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(precious)
    return precious


def test_folders_may_be_links(tmp_path: Path, say: Say) -> None:
    """Folders may be links, for example to another disk: the folder of all runs, of one run, and of a page's files."""
    for name in ("runs", "page_files"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    (tmp_path / "disk" / "run").mkdir()
    (tmp_path / "runs" / "run").symlink_to(tmp_path / "disk" / "run")
    assert say(*MORE_STEPS)[0] == 0
    assert (tmp_path / "disk" / "run" / "result.json").is_file()
    assert "ended: 40 steps" in say("runs")[1]
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
    archive, fsync = tmp_path / "archive.json", os.fsync

    def fsync_and_write(descriptor: int) -> None:
        fsync(descriptor)
        monkeypatch.setattr(os, "fsync", fsync)
        write_archive(archive, runs)

    monkeypatch.setattr(os, "fsync", fsync_and_write)
    with pytest.raises(
        FileExistsError,
        match=r"\[Errno 17\] another process is writing this file at the same time:",
    ):
        write_archive(archive, runs[:1])
    assert len(list(find_runs(archive))) == 2, "that of the other one, whole"
    assert not list(tmp_path.glob("*.new"))


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "archive.json.new").write_text("half of a pa")
    before = os.umask(0o027)
    try:
        write_archive(tmp_path / "archive.json", [make_run(tmp_path / "run", CONFIG)])
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.glob("*.json*")] == ["archive.json"]
    assert stat.S_IMODE((tmp_path / "archive.json").stat().st_mode) == 0o640, (
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
    # A run that gets more steps only needs to replace its result.
    what = "" if name == "result.json" else "cannot be read: this "
    assert f"runs/run/{name} {what}must be a regular file" in error
    assert "got a pipe" in error


def test_links_lead_to_folders_and_no_further(tmp_path: Path, say: Say) -> None:
    make_run(tmp_path / "disk" / "runs" / "deep" / "run", CONFIG)
    make_run(tmp_path / "disk" / "one", replace(CONFIG, seed=1))
    make_run(tmp_path / "runs" / "own", replace(CONFIG, seed=2))
    make_run(tmp_path / "elsewhere" / "behind-two-links", replace(CONFIG, seed=3))
    make_run(tmp_path / "beside", replace(CONFIG, seed=4))
    links = {
        "everything": "/",
        "above": "..",
        "itself": ".",
        "folder": "../disk/runs",
        "same-folder": "../disk/runs/deep",
        "linked": "../disk/one",
        "again": "own",
    }
    for name, target in links.items():
        (tmp_path / "runs" / name).symlink_to(target)
    (tmp_path / "disk" / "runs" / "second").symlink_to("../../elsewhere")
    (tmp_path / "disk" / "runs" / "back").symlink_to("../../runs")
    found = ["runs/own", "runs/folder/deep/run", "runs/linked"]
    with at_most(20):
        assert [str(run.path) for run in find_runs(tmp_path / "runs")] == [
            str(tmp_path / name) for name in found
        ]
        code, said, error = say("runs")
        assert (code, error) == (0, "")
        assert [line for line in said.splitlines() if not line.startswith(" ")] == found
        assert "3 runs" in say("archive", "runs", "-o", "archive.json")[1]


def test_reading_makes_no_temporary_folders(
    run: Run, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("it would stay if the command were killed")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    for words in (["runs"], PACK, ["sweep", "figure3", "--results", "runs", "--dry-run"]):
        assert say(*words)[0] == 0


@contextmanager
def as_other_user(folder: Path) -> Iterator[None]:
    """Give up root's right to read everything, and keep the folder of the tests accessible."""
    if os.geteuid() != 0:
        yield
        return
    folder.chmod(0o777)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, say: Say) -> None:
    make_run(tmp_path / "runs" / "own", CONFIG)
    closed = make_run(tmp_path / "runs" / "closed", replace(CONFIG, seed=1)).path
    sweep = ["sweep", "figure3", "--results", "runs", "--dry-run"]
    for words in (["runs"], REPORT, PACK, sweep):
        assert say(*words)[0] == 0
    closed.chmod(0)
    message = "the folder runs/closed cannot be read (Permission denied): change its permissions"
    try:
        with as_other_user(tmp_path):
            code, said, error = say("runs")
            assert (code, error) == (0, "")
            assert f"broken: {message}" in said
            assert "runs/own" in said
            for words in (PACK, sweep):
                code, _, error = say(*words)
                assert (code, error.count("\n")) == (2, 1)
                assert error.startswith(f"arms: {message}")
            code, said, error = say("report", "runs", "--no-files", "-o", "other.html")
            assert (code, error) == (0, "")
            assert f"runs/closed: broken: {message}" in said
    finally:
        closed.chmod(0o755)


def test_metrics_that_may_not_be_read_are_not_to_be_removed(tmp_path: Path, say: Say) -> None:
    run = make_run(tmp_path / "runs" / "own", CONFIG)
    assert say(*PACK)[0] == 0
    (run.path / "metrics.jsonl").chmod(0)
    with as_other_user(tmp_path):
        code, _, error = say(*PACK)
    message = "cannot be read: Permission denied: change its permissions"
    assert (code, error) == (2, f"arms: runs/own/metrics.jsonl {message}\n")


# ---- what lies in the place of a file to write


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # of the current folder: the whole path may be too long for a socket


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["sample", "runs/run"], "runs/run/samples.png"),
        (["sample", "runs/run", "-o", "place.png"], "place.png"),
        (REPORT, "page.html"),
        (REPORT, "page_files/1-digits-linear-n2-20-all.md"),
        (PACK, "archive.json"),
        (["correlations", "-o", "figure"], "figure/correlations.svg"),
        (MORE_STEPS, "runs/run/provenance.json"),
    ],
)
@pytest.mark.parametrize(
    ("make", "kind"), [(make_pipe, "a pipe"), (make_socket, "a socket"), (Path.mkdir, "a folder")]
)
def test_what_is_no_regular_file_is_not_replaced(
    make: Callable[[Path], None],
    kind: str,
    words: list[str],
    name: str,
    run: Run,
    tmp_path: Path,
    say: Say,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    with monkeypatch.context() as inside:
        inside.chdir(place.parent)
        make(place)
    before = place.lstat()
    with at_most(60):
        code, _, error = say(*words)
    assert (code, error.count("\n")) == (2, 1), error
    if (name, kind) == ("page.html", "a folder"):
        assert "the report must be a file, got the folder" in error
    else:
        said = f"{name} must be a regular file or a new path, got {kind}: choose another path"
        assert said in error
    assert os.path.samestat(place.lstat(), before)
    assert ".new" not in error


def test_a_device_is_not_replaced(tmp_path: Path, run: Run, say: Say) -> None:
    """Return a device, from the system's own if the file system of the test supports none."""
    device = tmp_path / "device.png"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        device = Path(os.devnull)
        if os.access(device.parent, os.W_OK):
            pytest.skip("a failure would remove the null device")
    code, _, error = say("sample", "runs/run", "-o", str(device))
    assert (code, error) == (
        2,
        f"arms: {device} must be a regular file or a new path, got a device: choose another path\n",
    )
    assert stat.S_ISCHR(device.lstat().st_mode)


def test_the_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, say: Say) -> None:
    make_run(tmp_path / "runs" / "own", CONFIG)
    assert say(*PACK)[0] == 0
    (tmp_path / "closed").mkdir(mode=0o555)
    with as_other_user(tmp_path):
        code, _, error = say("archive", "runs", "-o", "closed/archive.json")
    message = "Permission denied: choose another path, or correct this problem"
    assert (code, error) == (2, f"arms: cannot use closed/archive.json: {message}\n")
