"""Sweeps in parallel: any engine comes to the numbers of any other, bit for bit, whatever is killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from marks import slow

from arms.bench.cli import main
from arms.bench.config import TrainConfig, run_name
from arms.bench.runs.directory import Run
from arms.bench.runs.files import locked
from arms.bench.runs.packs import find_runs
from arms.bench.sweeps.driver import Engine, Tally, run_sweep, share_out, work_of
from arms.bench.sweeps.files import read_sweep
from arms.bench.sweeps.jobs import plan
from arms.bench.sweeps.on_ray import RayCluster
from arms.bench.sweeps.processes import Processes
from arms.bench.sweeps.worker import Outcome, Settings, Work, carry_out

SMALL = TrainConfig(latents=10, batch_size=10, steps=20, report_every=10)
LONG = replace(SMALL, steps=3000, report_every=100)  # long enough to be caught half-way
SETTINGS = Settings(("arms", "sweep", "typed"), checkpoint_seconds=0)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def table(folder: Path) -> dict[str, tuple[object, object]]:
    """Everything that a run comes to: its records and its final bounds."""
    return {run.path.name: (run.metrics(), run.result()) for run in find_runs(folder)}


def works(wanted: Sequence[TrainConfig], output: Path) -> list[Work]:
    return work_of(plan(wanted, output))


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# ---- the file


def test_lists_are_every_combination(tmp_path: Path) -> None:
    text = 'steps = 50\nestimator = ["arms-s", "loorf"]\nlayers = [8, 4]\n[[runs]]\nseed = [0, 1]\n[[runs]]\nsteps = 60'
    found = read_sweep(written(tmp_path, text))
    assert [(one.steps, one.estimator, one.seed) for one in found] == [
        *((50, name, seed) for name in ("arms-s", "loorf") for seed in (0, 1)),
        *((60, name, 0) for name in ("arms-s", "loorf")),
    ]
    assert all(one.layers == (8, 4) for one in found)
    found = read_sweep(written(tmp_path, "layers = [[8, 4], [4, 2]]\nreport_every = [10, 20]"))
    assert [one.layers for one in found] == [(8, 4), (4, 2)], "how often one looks makes no other run"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("steps = ", "Invalid value"),
        ("stepz = 3", "no field is called 'stepz': perhaps steps"),
        ("steps = -1", "steps must be an integer >= 1, got -1"),
        ("seed = []", "seed must be a value or a list of values"),
        ("runs = 3", "runs must be tables"),
        ('precision = ["high", "highest"]', "precision must be one value"),
        ('dataset = "mine.npz"', "no data set is called 'mine.npz'"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(
    tmp_path: Path, text: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["arms", "sweep", str(written(tmp_path, text)), "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1
    assert "sweep.toml: " in said
    assert complaint in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nothing"], "there is no experiment and no file 'nothing'"),
        (["figure1"], "figure1 is drawn without training"),
        (["figure3", "--cpus-per-job", "0"], "--cpus-per-job must be an integer >= 1"),
        (["figure3", "--gpus-per-job", "2"], "--gpus-per-job must be between 0 and 1"),
        (["figure3", "--gpus-per-job", "nan"], "--gpus-per-job must be between 0 and 1"),
        (["figure3", "--address", "here:1"], "is for --engine ray only"),
    ],
)
def test_odd_words_are_one_line(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["arms", "sweep", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


# ---- the driver, with an engine that does what it is told


class Told:
    """An engine whose outcomes are given."""

    def __init__(self, *kinds: Any) -> None:
        self.kinds, self.started, self.now = list(kinds), list[Work](), list[Work]()

    def has_room(self) -> bool:
        return not self.now

    def start(self, work: Work) -> None:
        self.now.append(work)
        self.started.append(work)

    def running(self) -> int:
        return len(self.now)

    def ended(self, seconds: float) -> list[tuple[Work, Outcome]]:
        return [(self.now.pop(), Outcome(self.kinds.pop(0)))]


def test_lost_work_is_begun_again_but_not_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arms.bench.sweeps.driver.PAUSE", 0.0)
    wanted = works([SMALL], tmp_path)
    for kinds, ends in (
        (["lost", "busy", "busy", "busy", "lost", "lost", "done"], "done"),
        (["lost"] * 4, "failed"),
        (["failed"], "failed"),
        (["diverged"], "diverged"),
    ):
        engine, tally = Told(*kinds), Tally(1)
        run_sweep(wanted, engine, tally, print)
        assert tally.counts == {ends: 1}
        assert tally.running == 0
        assert len(engine.started) == len(kinds)


def test_ensembles_are_shared_out_among_gpus(tmp_path: Path) -> None:
    wanted = [replace(SMALL, estimator=name) for name in ("arms-s", "arms-d", "arms-n", "loorf", "disarm")]
    together = work_of(plan(wanted, tmp_path, on_gpu=True))
    assert [len(work.configs) for work in together] == [5]
    assert sorted(len(work.configs) for work in share_out(together, 3)) == [1, 2, 2]
    assert len(share_out(together, 99)) == 5
    assert share_out([], 3) == []


# ---- processes on this machine


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, object]]:
    """The table of the local sweep that nothing happens to."""
    folder = tmp_path_factory.mktemp("local")
    with Processes(["cpu"], SETTINGS) as engine:
        sweep(engine, folder)
    return table(folder)


WANTED = [replace(LONG, estimator=name, seed=seed) for name in ("arms-s", "loorf") for seed in (0, 1)]


def sweep(engine: Engine, folder: Path, notify: Callable[[str], None] = print) -> None:
    tally = Tally(len(WANTED))
    run_sweep(works(WANTED, folder), engine, tally, notify)
    assert tally.counts == {"done": len(WANTED)}


def test_killed_processes_lose_nothing(tmp_path: Path, uninterrupted: dict[str, tuple[object, object]]) -> None:
    told: list[str] = []
    with Processes(["cpu", "cpu"], SETTINGS) as engine:
        start = engine.start

        def start_and_kill_the_second(work: Work) -> None:
            start(work)
            if engine.running() == 2 and not told:
                victim = engine._workers[1]
                assert victim.work is not None
                path = victim.work.paths[0]
                wait_until(lambda: Run(path).step() > 0)
                assert victim.process.pid is not None
                os.kill(victim.process.pid, signal.SIGKILL)
                told.append("killed")

        engine.start = start_and_kill_the_second  # type: ignore[method-assign]
        sweep(engine, tmp_path, told.append)
    assert any("its process ended with code -9" in line for line in told)
    assert table(tmp_path) == uninterrupted
    command = {run.provenance()["command"] for run in find_runs(tmp_path)}
    assert command == {"arms sweep typed"}, "the user's, not the worker's"


def test_a_run_of_another_process_is_waited_for(tmp_path: Path) -> None:
    (work,) = works([SMALL], tmp_path)
    work.paths[0].mkdir()
    with locked(work.paths[0]):
        assert carry_out_here(work).kind == "busy"
        assert not list(work.paths[0].iterdir())
    assert carry_out_here(work).kind == "done"
    before = (work.paths[0] / "provenance.json").stat()
    assert carry_out_here(work).kind == "done"
    assert (work.paths[0] / "provenance.json").stat() == before, "not trained again"


def carry_out_here(work: Work) -> Outcome:
    argv = sys.argv
    try:
        return carry_out(work, SETTINGS, "cpu")
    finally:
        sys.argv = argv


def test_what_cannot_be_trained_ends_no_sweep(tmp_path: Path) -> None:
    bad, good = works([SMALL, replace(SMALL, seed=1)], tmp_path)
    bad.paths[0].write_text("a file in its place")
    tally = Tally(2)
    with Processes(["cpu"], SETTINGS) as engine:
        run_sweep([bad, good], engine, tally, print)
    assert tally.counts == {"failed": 1, "done": 1}


FILE = "steps = 400\nlatents = 10\nbatch_size = 10\nreport_every = 50\nseed = [0, 1, 2, 3]\n"


def command(path: Path, *words: str) -> "subprocess.Popen[str]":
    call = ["sweep", "sweep.toml", "--gpus-per-job", "0", *words]
    code = "import sys; from arms.bench.cli import main; sys.argv[0] = 'arms'; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *call], cwd=path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_two_sweeps_on_one_folder_and_a_third_after_them(tmp_path: Path) -> None:
    written(tmp_path, FILE)
    both = [command(tmp_path), command(tmp_path)]
    said = [one.communicate(timeout=240)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    runs = list(find_runs(tmp_path))
    assert {run.path.name for run in runs} == {run_name(one) for one in read_sweep(tmp_path / "sweep.toml")}
    for run in runs:
        assert run.result() is not None
        assert [record["step"] for record in run.metrics()] == list(range(50, 401, 50))
        assert len(list(run.path.glob("events.*"))) == 1, "begun once"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    third = command(tmp_path)
    assert "4/4 done, 0 running, 0 failed: sweep" in third.communicate(timeout=120)[0]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_killed_driver_takes_its_processes_along_and_the_run_is_saved(tmp_path: Path) -> None:
    written(tmp_path, FILE.replace("400", "20000").replace("50", "500").replace("[0, 1, 2, 3]", "0"))
    first = command(tmp_path, "--checkpoint-seconds", "0")
    path = tmp_path / "sweep" / run_name(read_sweep(tmp_path / "sweep.toml")[0])
    wait_until(lambda: path.exists() and Run(path).step() > 0, 120)
    first.kill()
    first.communicate(timeout=60)
    wait_until(lambda: is_free(path))
    step = Run(path).step()
    assert 0 < step < 20000
    assert json.loads((path / "provenance.json").read_text())["command"].startswith("arms sweep")


def is_free(path: Path) -> bool:
    try:
        with locked(path):
            return True
    except ValueError:
        return False


# ---- Ray


def trained_by(folder: Path) -> dict[Path, int]:
    """The process that holds the lock of each run that has been saved, and has half of its steps before it."""
    found = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            path = link.readlink()
            if path.parent == folder and 0 < Run(path).step() <= LONG.steps // 2:
                found[path] = int(link.parts[2])
    return found


@pytest.mark.filterwarnings("ignore")  # Ray's own
@slow  # starts a cluster; where Ray is installed
def test_a_killed_worker_and_a_lost_node_lose_nothing(
    tmp_path: Path, uninterrupted: dict[str, tuple[object, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'arms-grad[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    told: list[str] = []
    errors: list[BaseException] = []

    def havoc() -> None:
        try:
            wait_until(lambda: trained_by(tmp_path), 120)
            os.kill(next(iter(trained_by(tmp_path).values())), signal.SIGKILL)
            wait_until(lambda: len(trained_by(tmp_path)) == 2, 120)
            told.append("the node goes")
            cluster.remove_node(node, allow_graceful=False)
        except BaseException as error:
            errors.append(error)
            raise

    try:
        node = cluster.add_node(num_cpus=1)
        with RayCluster(SETTINGS, address=cluster.address) as engine:
            assert engine.slots() == 2
            thread = Thread(target=havoc)
            thread.start()
            sweep(engine, tmp_path, told.append)
            thread.join()
    finally:
        cluster.shutdown()
    assert not errors
    lost = [line for line in told if "Error: " in line]
    assert len(lost) >= 2, told
    assert told.index("the node goes") < len(told) - 1
    assert table(tmp_path) == uninterrupted
    assert {run.provenance()["command"] for run in find_runs(tmp_path)} == {"arms sweep typed"}


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["arms", "sweep", str(written(tmp_path, FILE)), "--engine", "ray"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "arms: the engine ray needs Ray: pip install 'arms-grad[ray]' ('.[ray]' in its folder)\n"
    )


@pytest.mark.filterwarnings("ignore")
def test_no_cluster_is_one_line() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'arms-grad[ray]'")
    with pytest.raises(ValueError, match=r"no Ray cluster at '127.0.0.1:1': .*refused"):
        RayCluster(SETTINGS, address="127.0.0.1:1")
