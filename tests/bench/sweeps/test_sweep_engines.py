"""Sweeps in parallel: any engine comes to the numbers of any other, bit for bit, whatever is killed on the way."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from marks import needs_cluster, signals, slow
from processes import ARMS, IN_BACKGROUND, started
from rich.console import Console

from arms.bench.cli import main
from arms.bench.cli.runs import runs
from arms.bench.config import TrainConfig, run_name
from arms.bench.progress import SweepBar
from arms.bench.runs.archives import find_runs
from arms.bench.runs.files import locked
from arms.bench.runs.run import Run
from arms.bench.runs.train import train
from arms.bench.sweeps.driver import ATTEMPTS, Engine, Tally, run_sweep, share_out, work_of
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
    text = 'steps = 50\nestimator = ["arms", "loorf"]\nlayers = [8, 4]\n[[runs]]\nseed = [0, 1]\n[[runs]]\nsteps = 60'
    found = read_sweep(written(tmp_path, text))
    assert [(one.steps, one.estimator, one.seed) for one in found] == [
        *((50, name, seed) for name in ("arms", "loorf") for seed in (0, 1)),
        *((60, name, 0) for name in ("arms", "loorf")),
    ]
    assert all(one.layers == (8, 4) for one in found)
    found = read_sweep(written(tmp_path, "layers = [[8, 4], [4, 2]]\nreport_every = [10, 20]"))
    assert [one.layers for one in found] == [(8, 4), (4, 2)], (
        "how often one looks makes no other run"
    )


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
        (
            f"learning_rate = {10**400}",
            "learning_rate must be positive and finite, got a number of hundreds of digits",
        ),
        (f"seed = {'[' * 3000}{']' * 3000}", "brackets in brackets"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(
    tmp_path: Path,
    text: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["arms", "sweep", str(written(tmp_path, text)), "-o", str(tmp_path / "out")]
    )
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
        (
            ["figure3", "--checkpoint-seconds", "-1"],
            "--checkpoint-seconds must be a finite number >= 0, got -1",
        ),
        (["figure3", "-o", __file__], "--output must be a folder, got the file"),
    ],
)
def test_odd_words_are_one_line(
    words: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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

    def slots(self) -> int:
        return 1

    def has_room(self) -> bool:
        return not self.now

    def start(self, work: Work) -> None:
        self.now.append(work)
        self.started.append(work)

    def running(self) -> int:
        return len(self.now)

    def ended(self, seconds: float) -> list[tuple[Work, Outcome]]:
        return [(self.now.pop(), Outcome(self.kinds.pop(0)))]


def test_lost_work_is_begun_again_but_not_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_running_is_what_runs_not_what_waits_at_the_engine(tmp_path: Path) -> None:
    class Prefetching(Told):
        def has_room(self) -> bool:
            return len(self.now) < 2

    seen: list[tuple[int, int]] = []
    wanted = works([replace(SMALL, seed=seed) for seed in range(3)], tmp_path)
    tally = Tally(4)
    tally.counts["done"] = 1
    lines: list[str] = []
    run_sweep(
        wanted,
        Prefetching("done", "failed", "done"),
        tally,
        lines.append,
        lambda t: seen.append((t.running, t.ended)),
    )
    assert seen == [(1, 1), (1, 2), (1, 3), (0, 4)]
    assert lines[0].startswith("2/4 done, 1 running, 0 failed, about 0 s left: ")
    assert lines[-1].startswith("3/4 done, 0 running, 1 failed: ")


def test_the_bar_of_a_sweep_is_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no bars
    for on_terminal in (True, False):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=on_terminal, width=80, legacy_windows=False)
        monkeypatch.setattr("arms.bench.terminal.get_console", lambda console=console: console)
        with SweepBar() as bar:
            bar.show(7, 10, "7/10 done, 2 running, 0 failed, about 12 s left")
        assert (
            "7/10 done, 2 running, 0 failed, about 12 s left" in shown.getvalue()
        ) == on_terminal


def test_ensembles_are_shared_out_among_gpus(tmp_path: Path) -> None:
    wanted = [
        replace(SMALL, estimator=name)
        for name in ("arms", "arms-dirichlet", "arms-gaussian", "loorf", "disarm")
    ]
    together = work_of(plan(wanted, tmp_path, on_gpu=True))
    assert [len(work.configs) for work in together] == [5]
    assert sorted(len(work.configs) for work in share_out(together, 3)) == [1, 2, 2]
    assert len(share_out(together, 99)) == 5
    assert share_out([], 3) == []


# ---- processes on this machine


def sweep(engine: Engine, folder: Path, steps: int, notify: Callable[[str], None] = print) -> None:
    """Train four runs of that many steps."""
    wanted = [
        replace(LONG, estimator=name, seed=seed, steps=steps)
        for name in ("arms", "loorf")
        for seed in (0, 1)
    ]
    tally = Tally(len(wanted))
    run_sweep(works(wanted, folder), engine, tally, notify)
    assert tally.counts == {"done": len(wanted)}


def uninterrupted(folder: Path, steps: int) -> dict[str, tuple[object, object]]:
    """The table of the local sweep that nothing happens to."""
    with Processes(["cpu"], SETTINGS) as engine:
        sweep(engine, folder, steps)
    return table(folder)


@signals
def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    steps = LONG.steps // 5
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
        sweep(engine, tmp_path / "killed", steps, told.append)
    assert any("its process ended with code -9" in line for line in told)
    assert table(tmp_path / "killed") == uninterrupted(tmp_path / "whole", steps)
    command = {run.provenance()["command"] for run in find_runs(tmp_path / "killed")}
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


def test_another_run_in_its_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    (work,) = works([SMALL], tmp_path)
    train(replace(SMALL, steps=30), work.paths[0], device="cpu", progress=False)
    outcome = carry_out_here(work)
    assert outcome.kind == "failed"
    assert "holds another run (steps is 30 there, 20 was asked for)" in outcome.lines[-1]


def test_bounds_over_a_few_images_are_not_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(SMALL, tmp_path / run_name(SMALL), device="cpu", progress=False, evaluate=3)
    runs(tmp_path)
    assert "over 3 images only" in capsys.readouterr().out
    (job,) = plan([SMALL], tmp_path)
    assert job.tasks[0].state == "unfinished"
    assert carry_out_here(work_of([job])[0]).kind == "done"
    assert "images" not in (run.result() or {})
    assert plan([SMALL], tmp_path)[0].tasks[0].state == "done"


def carry_out_here(work: Work) -> Outcome:
    argv = sys.argv
    try:
        return carry_out(work, SETTINGS, "cpu")
    finally:
        sys.argv = argv


def test_what_cannot_be_trained_ends_no_sweep(tmp_path: Path) -> None:
    bad, blocked, good = works([SMALL, replace(SMALL, seed=1), replace(SMALL, seed=2)], tmp_path)
    bad.paths[0].mkdir()
    (bad.paths[0] / "result.json").write_text("{}")  # of which run, nothing says
    blocked.paths[0].write_text("a file in its place")
    tally, lines, workers = Tally(3), list[str](), list[int]()
    with Processes(["cpu"], SETTINGS) as engine:

        def note(line: str) -> None:
            lines.append(line)
            workers.append(len(engine._workers))

        run_sweep([blocked, bad, good], engine, tally, note)
    assert tally.counts == {"failed": 2, "done": 1}
    assert sum("no config.json" in line for line in lines) == 1, (
        "it will not be better the next time"
    )
    assert sum("FileExistsError: " in line for line in lines) == ATTEMPTS, "a file system may be"
    assert set(workers) == {0, 1}, (
        "one that failed is replaced, as an error of a GPU stays with its process"
    )


FILE = "steps = 400\nlatents = 10\nbatch_size = 10\nreport_every = 50\nseed = [0, 1, 2, 3]\n"


def started_sweep(
    path: Path, *words: str, before: Sequence[str] = ()
) -> AbstractContextManager["subprocess.Popen[str]"]:
    command = [*before, *ARMS, "sweep", "sweep.toml", "--gpus-per-job", "0", *words]
    return started(command, cwd=path, stderr=subprocess.STDOUT)


@slow
def test_two_sweeps_on_one_folder_and_a_third_after_them(tmp_path: Path) -> None:
    written(tmp_path, FILE)
    with started_sweep(tmp_path) as one, started_sweep(tmp_path) as other:
        both = [one, other]
        said = [one.communicate(timeout=240)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    runs = list(find_runs(tmp_path))
    assert {run.path.name for run in runs} == {
        run_name(one) for one in read_sweep(tmp_path / "sweep.toml")
    }
    for run in runs:
        assert run.result() is not None
        assert [record["step"] for record in run.metrics()] == list(range(50, 401, 50))
        assert len(list(run.path.glob("events.*"))) == 1, "begun once"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with started_sweep(tmp_path) as third:
        assert "4/4 done, 0 running, 0 failed: sweep" in third.communicate(timeout=120)[0]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@signals
def test_a_killed_driver_takes_its_processes_along_and_the_run_is_saved(tmp_path: Path) -> None:
    written(
        tmp_path, FILE.replace("400", "20000").replace("50", "500").replace("[0, 1, 2, 3]", "0")
    )
    path = tmp_path / "sweep" / run_name(read_sweep(tmp_path / "sweep.toml")[0])
    with started_sweep(tmp_path, "--checkpoint-seconds", "0") as first:
        wait_until(lambda: path.exists() and Run(path).step() > 0, 120)
        first.kill()
        first.communicate(timeout=60)
        wait_until(lambda: is_free(path))
    step = Run(path).step()
    assert 0 < step < 20000
    assert json.loads((path / "provenance.json").read_text())["command"].startswith("arms sweep")


@signals
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "the end of a job"]
)
def test_a_signal_to_all_processes_has_them_save(number: signal.Signals, tmp_path: Path) -> None:
    """The driver and its processes both get it, and the driver passes it on."""
    written(
        tmp_path, FILE.replace("400", "200000").replace("50", "500").replace("[0, 1, 2, 3]", "0")
    )
    path = tmp_path / "sweep" / run_name(read_sweep(tmp_path / "sweep.toml")[0])
    with started_sweep(tmp_path, "--checkpoint-seconds", "1e9") as first:
        wait_until(lambda: path.exists() and len(Run(path).metrics()) > 2, 120)
        os.killpg(first.pid, number)
        first.communicate(timeout=60)
        wait_until(lambda: is_free(path))
    assert Run(path).step() > 500, "later than the first record, which is always saved"


@signals
def test_in_the_background_a_sweep_ignores_ctrl_c_and_still_saves_on_sigterm(
    tmp_path: Path,
) -> None:
    written(
        tmp_path, FILE.replace("400", "200000").replace("50", "500").replace("[0, 1, 2, 3]", "0")
    )
    path = tmp_path / "sweep" / run_name(read_sweep(tmp_path / "sweep.toml")[0])
    with started_sweep(tmp_path, "--checkpoint-seconds", "1e9", before=IN_BACKGROUND) as first:
        wait_until(lambda: path.exists() and len(Run(path).metrics()) > 2, 120)
        os.killpg(first.pid, signal.SIGINT)
        records = len(Run(path).metrics())
        wait_until(lambda: len(Run(path).metrics()) > records + 2)
        assert first.poll() is None
        os.killpg(first.pid, signal.SIGTERM)
        first.communicate(timeout=60)
        wait_until(lambda: is_free(path))
    assert Run(path).step() > 500, "later than the first record, which is always saved"


def is_free(path: Path) -> bool:
    try:
        with locked(path):
            return True
    except ValueError:
        return False


# ---- Ray


@contextmanager
def two_nodes(**of_the_second: Any) -> Iterator[tuple[Any, Any]]:
    """A Ray cluster of two nodes with a core each, and the second node."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        try:
            yield cluster, cluster.add_node(num_cpus=1, **of_the_second)
        finally:
            cluster.shutdown()


def trained_by(folder: Path) -> dict[int, Path]:
    """The run that each process has locked and saved, and of which half of the steps or more are still to come."""
    runs = {path.stat().st_ino: path for path in folder.iterdir()}
    found = {}
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, *_, process, file, _, _ = line.split()
        path = runs.get(int(file.rpartition(":")[2]))
        if kind == "FLOCK" and path and 0 < Run(path).step() <= LONG.steps // 2:
            found[int(process)] = path
    return found


def kill_a_worker(folder: Path) -> None:
    wait_until(lambda: trained_by(folder), 120)
    os.kill(min(trained_by(folder)), signal.SIGKILL)


def at_work(*nodes: Any) -> set[int]:
    """The processes of nodes that carry out work, whether they have come to train or not."""
    raylets = {raylet.process.pid for node in nodes for raylet in node.all_processes["raylet"]}
    found = set()
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            parent = int(Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[1])
            if (
                parent in raylets
                and b"_carry_out" in Path("/proc", process, "cmdline").read_bytes()
            ):
                found.add(int(process))
    return found


def lose_the_node(cluster: Any, node: Any, folder: Path) -> None:
    """Wait until a worker of the node trains, and kill the node."""
    wait_until(lambda: at_work(node) & set(trained_by(folder)), 120)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.filterwarnings("ignore")  # Ray's own
@needs_cluster
def test_a_killed_worker_and_a_lost_node_lose_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "killed"
    folder.mkdir()
    with two_nodes() as (cluster, node), ThreadPoolExecutor(1) as thread:

        def havoc() -> None:
            kill_a_worker(folder)
            wait_until(lambda: any("Error: " in line for line in told))
            told.append("the node goes")
            lose_the_node(cluster, node, folder)

        with RayCluster(SETTINGS, address=cluster.address) as engine:
            assert engine.slots() == 2
            assert engine.check_room() is None
            done = thread.submit(havoc)
            sweep(engine, folder, LONG.steps, told.append)
            done.result()
    after = told[told.index("the node goes") :]
    assert any("Error: " in line for line in after), told
    assert table(folder) == uninterrupted(tmp_path / "whole", LONG.steps)
    assert {run.provenance()["command"] for run in find_runs(folder)} == {"arms sweep typed"}


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_a_killed_driver_is_begun_again_and_two_drivers_share_the_work(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        written(folder, FILE.replace("400", str(LONG.steps)).replace("50", "100"))
    with two_nodes() as (cluster, node):
        words = ("--engine", "ray", "--address", cluster.address, "--checkpoint-seconds", "0")
        with started_sweep(there, *words) as first:
            wait_until(
                lambda: (
                    first.poll() is not None
                    or ((there / "sweep").exists() and trained_by(there / "sweep"))
                ),
                240,
            )
            assert first.poll() is None, first.communicate()[0]
            assert at_work(cluster.head_node, node)
            first.kill()
            first.communicate(timeout=60)
        wait_until(
            lambda: not at_work(cluster.head_node, node)
        )  # only now is it certain that nothing more is begun
        unfinished = [run.path for run in find_runs(there) if run.result() is None]
        sessions = {path: len(list(path.glob("events.*"))) for path in unfinished}
        assert sessions
        with started_sweep(there, *words) as one, started_sweep(there, *words) as other:
            both = [one, other]
            said = [one.communicate(timeout=400)[0] for one in both]
        assert [one.returncode for one in both] == [0, 0], said
    with started_sweep(here) as alone:
        assert "4/4 done, 0 running, 0 failed" in alone.communicate(timeout=240)[0]
    assert table(there) == table(here)
    for run in find_runs(there):
        assert len(list(run.path.glob("events.*"))) == 1 + sessions.get(run.path, 0), (
            "begun once, or resumed once"
        )


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_ensembles_share_a_gpu_of_the_cluster(tmp_path: Path) -> None:
    wanted = [
        replace(LONG, estimator=name) for name in ("arms", "arms-dirichlet", "loorf", "disarm")
    ]
    with two_nodes(num_gpus=1) as (cluster, _):
        import ray

        with RayCluster(
            SETTINGS, address=cluster.address, cpus_per_job=2, gpus_per_job=0.5
        ) as engine:
            assert "no node of the Ray cluster has 2 CPUs and 0.5 of a GPU" in str(
                engine.check_room()
            )
            assert engine.slots() == 1, "so that the cluster is asked to grow"
        cluster.add_node(num_cpus=2, num_gpus=1)
        with RayCluster(SETTINGS, address=cluster.address, gpus_per_job=0.5) as engine:
            assert engine.check_room() is None
            assert engine.slots() == 3, "one where there is one core, two where there are two"
            shares = work_of(plan(wanted, tmp_path, on_gpu=True), engine.slots())
            assert sorted(len(work.configs) for work in shares) == [1, 1, 2]
            free: list[float] = []
            engine._device = "cpu"  # the GPUs of this cluster are numbers only: what is asked for is what is tested
            tally = Tally(len(wanted))

            def look(tally: Tally) -> None:
                if tally.running == len(wanted):
                    free.append(ray.available_resources().get("GPU", 0))

            run_sweep(shares, engine, tally, print, look)
    assert tally.counts == {"done": 4}
    assert min(free) == 0.5, "three halves of two GPUs"
    together = {tuple(run.provenance().get("together", [])) for run in find_runs(tmp_path)}
    assert sorted(map(len, together))[-1] == 2, together


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_cancelled_work_is_saved_also_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    (work,) = works([replace(LONG, steps=10**6)], tmp_path)
    run = Run(work.paths[0])
    settings = replace(SETTINGS, checkpoint_seconds=1e9)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
    try:
        with two_nodes() as (cluster, _):
            with RayCluster(settings, address=cluster.address) as engine:
                engine.start(work)
                wait_until(lambda: len(run.metrics()) > 2, 120)
            wait_until(lambda: is_free(run.path), 60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.step() > LONG.report_every, "later than the first record, which is always saved"


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_a_job_for_a_gpu_that_is_not_there_fails_in_one_line(tmp_path: Path) -> None:
    told: list[str] = []
    tally = Tally(1)
    with (
        two_nodes(num_gpus=1) as (cluster, _),
        RayCluster(SETTINGS, address=cluster.address, gpus_per_job=1) as engine,
    ):
        run_sweep(works([SMALL], tmp_path), engine, tally, told.append)
    assert tally.counts == {"failed": 1}
    assert "cuda" in told[0]


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(
        sys, "argv", ["arms", "sweep", str(written(tmp_path, FILE)), "--engine", "ray"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "arms: the engine ray needs Ray: pip install 'arms-grad[ray]' ('.[ray]' in its folder)\n"
    )


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_no_cluster_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"no Ray cluster at '127.0.0.1:1': .*refused"):
        RayCluster(SETTINGS, address="127.0.0.1:1")
