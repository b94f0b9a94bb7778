"""Parallel sweeps: all engines give the same numbers, bit for bit, even if processes are killed."""

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

import numpy as np
import pytest
import torch
from commands import Say
from marks import needs_cluster, signals, slow
from processes import ARMS, IN_BACKGROUND, started
from rich.console import Console

from arms.bench import DiscreteVAE
from arms.bench.cli import main
from arms.bench.cli.runs import runs
from arms.bench.config import TrainConfig, run_name
from arms.bench.data import Dataset
from arms.bench.experiments import read_sweep
from arms.bench.output import SweepBar
from arms.bench.runs.archives import find_runs
from arms.bench.runs.files import locked
from arms.bench.runs.run import Run
from arms.bench.runs.train import train
from arms.bench.sweeps.engines import Processes, RayCluster, SweepEngine
from arms.bench.sweeps.engines.base import Outcome, Settings, run_in_worker
from arms.bench.sweeps.jobs import Job, plan, split_jobs
from arms.bench.sweeps.sweep import ATTEMPTS, SweepError, Tally, run_jobs, sweep

SMALL = TrainConfig(latents=10, batch_size=10, steps=20, report_every=10)
LONG = replace(SMALL, steps=3000, report_every=100)  # long enough to be caught half-way
SETTINGS = Settings(("arms", "sweep", "typed"), str(Path.cwd()), checkpoint_seconds=0)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def table(folder: Path) -> dict[str, tuple[object, object]]:
    """Return the results of a run: its records and its final bounds."""
    return {run.path.name: (run.metrics(), run.result()) for run in find_runs(folder)}


def jobs_of(wanted: Sequence[TrainConfig], output: Path) -> list[Job]:
    return split_jobs(plan(wanted, output))


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
    assert [job.tasks[0].config.layers for job in plan(found, tmp_path)] == [(8, 4), (4, 2)], (
        "how often one looks makes no other run"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("steps = ", "Invalid value"),
        ("stepz = 3", "there is no field named 'stepz': did you mean steps"),
        ("steps = -1", "steps must be an integer >= 1, got -1"),
        ("seed = []", "seed must be a value or a list of values"),
        ("runs = 3", "runs must be a list of tables"),
        ('precision = ["high", "highest"]', "precision must be a single value"),
        (f"learning_rate = {10**400}", "learning_rate must be a positive, finite number, got 1000"),
        (f"seed = {'[' * 3000}{']' * 3000}", "nested too deeply"),
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
        (["nothing"], "'nothing' is neither an experiment nor a file"),
        (["figure1"], "the experiment figure1 needs no training"),
        (["figure3", "--cpus-per-job", "0"], "cpus_per_job must be an integer >= 1"),
        (["figure3", "--gpus-per-job", "2"], "gpus_per_job must be from 0 to 1"),
        (["figure3", "--gpus-per-job", "nan"], "gpus_per_job must be from 0 to 1"),
        (["figure3", "--address", "here:1"], "the engine 'processes' has no option address"),
        (
            ["figure3", "--engine", "procesess"],
            "there is no engine named 'procesess': did you mean process",
        ),
        (
            ["figure3", "--checkpoint-seconds", "-1"],
            "checkpoint_seconds must be a finite number >= 0, got -1",
        ),
        (["figure3", "-o", __file__], "output must be a folder, got the file"),
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


# ---- the driver, with a scripted engine


class Told(SweepEngine):
    """An engine whose outcomes are given."""

    on_gpu = False

    def __init__(self, *kinds: Any) -> None:
        self.kinds, self.started, self.now = list(kinds), list[Job](), list[Job]()

    def start(self, job: Job, settings: Settings) -> None:
        self.now.append(job)
        self.started.append(job)

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        return [(self.now.pop(), Outcome(self.kinds.pop(0)))]


def test_lost_work_is_begun_again_but_not_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arms.bench.sweeps.sweep.PAUSE", 0.0)
    planned = plan([SMALL], tmp_path)
    for kinds, ends in (
        (["lost", "busy", "busy", "busy", "lost", "lost", "done"], "done"),
        (["lost"] * 4, "failed"),
        (["failed"], "failed"),
        (["diverged"], "diverged"),
    ):
        engine, tally = Told(*kinds), Tally(planned)
        run_jobs(split_jobs(planned), engine, SETTINGS, tally, print)
        assert tally.counts == {"done": 0, "diverged": 0, ends: 1}
        assert tally.running == 0
        assert len(engine.started) == len(kinds)


def test_running_is_what_runs_not_what_waits_at_the_engine(tmp_path: Path) -> None:
    engine = Told("done", "failed", "done")
    engine.queued = 1
    seen: list[tuple[int, int]] = []
    planned = plan([replace(SMALL, seed=seed) for seed in range(4)], tmp_path)
    tally = Tally(planned)
    tally.counts["done"] = 1
    lines: list[str] = []

    def watch(tally: Tally) -> None:
        seen.append((tally.running, tally.ended))

    run_jobs(split_jobs(planned[1:]), engine, SETTINGS, tally, lines.append, watch)
    assert seen == [(1, 1), (1, 2), (1, 3)]
    assert tally.running == 0
    assert lines[0].startswith("2/4 done, 1 running, 0 failed, about 0:00:00 left: ")
    assert lines[-1].startswith("3/4 done, 0 running, 1 failed: ")


def test_the_bar_of_a_sweep_is_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no bars
    for on_terminal in (True, False):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=on_terminal, width=80, legacy_windows=False)
        monkeypatch.setattr("arms.bench.output.get_console", lambda console=console: console)
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
    together = plan(wanted, tmp_path, on_gpu=True)
    assert [len(job.tasks) for job in split_jobs(together)] == [5]
    assert sorted(len(job.tasks) for job in split_jobs(together, 3)) == [1, 2, 2]
    assert len(split_jobs(together, 99)) == 5
    assert split_jobs([], 3) == []


# ---- processes on this machine


def four_runs(steps: int) -> list[TrainConfig]:
    return [
        replace(LONG, estimator=name, seed=seed, steps=steps)
        for name in ("arms", "loorf")
        for seed in (0, 1)
    ]


@pytest.fixture
def _typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["arms", "sweep", "typed"])


def uninterrupted(folder: Path, steps: int) -> dict[str, tuple[object, object]]:
    """The table of a local sweep without interruption."""
    runs = sweep(four_runs(steps), folder, engine="processes", checkpoint_seconds=0, progress=False)
    assert [run.config() for run in runs] == four_runs(steps)
    return table(folder)


class Murderous(Processes):
    """An engine that kills its second process after a save."""

    victims: int = 0

    def start(self, job: Job, settings: Settings) -> None:
        super().start(job, settings)
        if len(self._workers) == 2 and not self.victims:
            self.victims += 1
            victim = self._workers[1]
            wait_until(lambda: Run(job.tasks[0].path).step() > 0)
            assert victim.process.pid is not None
            os.kill(victim.process.pid, signal.SIGKILL)


@signals
@pytest.mark.usefixtures("_typed")
def test_killed_processes_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = ["cpu", "cpu"]
    monkeypatch.setattr("arms.bench.sweeps.engines.processes._local_devices", lambda *_: [*two])
    told: list[str] = []
    steps = LONG.steps // 5
    options: dict[str, Any] = {"checkpoint_seconds": 0, "notify": told.append}
    sweep(four_runs(steps), tmp_path / "killed", engine=Murderous(), **options)
    assert any("the worker process ended with code -9" in line for line in told)
    assert table(tmp_path / "killed") == uninterrupted(tmp_path / "whole", steps)
    command = {run.provenance()["command"] for run in find_runs(tmp_path / "killed")}
    assert command == {"arms sweep typed"}, "the user's, not the worker's"


def test_a_run_of_another_process_is_waited_for(tmp_path: Path) -> None:
    (job,) = jobs_of([SMALL], tmp_path)
    path = job.tasks[0].path
    path.mkdir()
    with locked(path):
        assert run_as_worker(job).kind == "busy"
        assert [file.name for file in path.iterdir()] == [".lock"]
    assert run_as_worker(job).kind == "done"
    before = (path / "provenance.json").stat()
    assert run_as_worker(job).kind == "done"
    assert (path / "provenance.json").stat() == before, "not trained again"


def test_another_run_in_its_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    (job,) = jobs_of([SMALL], tmp_path)
    train(replace(SMALL, steps=30), job.tasks[0].path, device="cpu", progress=False)
    outcome = run_as_worker(job)
    assert outcome.kind == "failed"
    assert "contains another run (steps is 30 there, but 20 was requested)" in outcome.lines[-1]


def test_bounds_over_a_few_images_are_not_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(SMALL, tmp_path / run_name(SMALL), device="cpu", progress=False, evaluate=3)
    runs(tmp_path)
    assert "over 3 images of each split" in capsys.readouterr().out
    (job,) = plan([SMALL], tmp_path)
    assert job.tasks[0].state == "unfinished"
    assert run_as_worker(job).kind == "done"
    assert "images" not in (Run(run.path).result() or {})
    assert plan([SMALL], tmp_path)[0].tasks[0].state == "done"


def run_as_worker(job: Job) -> Outcome:
    argv = sys.argv
    try:
        return run_in_worker(job, SETTINGS, "cpu", 1)
    finally:
        sys.argv = argv


def test_what_cannot_be_trained_ends_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, bad, good = wanted = [replace(SMALL, seed=seed) for seed in range(3)]
    (tmp_path / run_name(bad)).mkdir()
    (tmp_path / run_name(bad) / "result.json").write_text("{}")  # of which run, nothing says
    (tmp_path / run_name(blocked)).write_text("a file in its place")
    monkeypatch.setattr("arms.bench.sweeps.engines.processes._local_devices", lambda *_: ["cpu"])
    engine, lines, workers = Processes(), list[str](), list[int]()

    def note(line: str) -> None:
        lines.append(line)
        workers.append(len(engine._workers))

    with pytest.raises(
        SweepError, match=rf"2 of 3 runs failed, the last one with: {run_name(blocked)}"
    ):
        sweep(wanted, tmp_path, engine=engine, notify=note, progress=False)
    assert Run(tmp_path / run_name(good)).result() is not None
    assert lines[-1].startswith("1/3 done, 0 running, 2 failed: ")
    assert sum("config.json is missing" in line for line in lines) == 1, (
        "it will not be better the next time"
    )
    assert sum("FileExistsError: " in line for line in lines) == ATTEMPTS, "a file system may be"
    assert set(workers[:-1]) == {0, 1}, (
        "one that failed is replaced, as an error of a GPU stays with its process"
    )


# ---- models and images of one's own

NETS = """
from torch import nn
from arms.bench import DiscreteVAE

def perceptron(dataset):
    encoder = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4))
    return DiscreteVAE(encoder, nn.Linear(4, 64), 4, dataset.pixel_mean())
"""


@pytest.fixture
def mine(tmp_path: Path, all_digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of networks and a file of images."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    train, test = (x.view(-1, 8, 8) for x in (all_digits.train[:100], all_digits.test[:20]))
    np.savez("mine.npz", levels=16, train=train, test=test)
    return tmp_path


@pytest.mark.usefixtures("mine")
def test_workers_train_models_and_images_of_ones_own(say: Say) -> None:
    wanted = [replace(SMALL, seed=seed, latents=200) for seed in (0, 1)]
    found = sweep(wanted, "here", model="nets:perceptron", dataset="mine.npz", notify=print)
    assert all(run.config().network == "perceptron" for run in found)
    assert all(run.config().dataset.startswith("mine@") for run in found)
    Path("sweep.toml").write_text(
        'dataset = "mine.npz"\nbatch_size = 10\nsteps = 20\nreport_every = 10\nseed = [0, 1]\n'
    )
    words = ("sweep", "sweep.toml", "--model", "nets:perceptron", "--gpus-per-job", "0")
    code, said, error = say(*words)
    assert code == 0, error
    assert said.endswith("2/2 done, 0 running, 0 failed: sweep\n")
    assert table(Path("sweep")) == table(Path("here"))
    assert "total: 2 runs in 2 jobs: 2 done" in say(*words, "--dry-run")[1]


def test_a_data_set_in_memory_goes_to_workers(tmp_path: Path, digits: Dataset) -> None:
    options: dict[str, Any] = {"dataset": digits, "notify": print, "progress": False}
    sweep([SMALL], tmp_path / "here", **options)
    sweep([SMALL], tmp_path / "processes", engine="processes", **options)
    assert table(tmp_path / "here") == table(tmp_path / "processes")


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (lambda dataset: torch.nn.Identity(), "must return an arms.bench.DiscreteVAE"),
        ("nets:missing", "cannot find 'nets:missing'"),
        (torch.nn.Identity(), "a function that makes a model for each run, got a model"),
    ],
)
def test_a_model_that_is_none_is_refused_before_anything_is_written(
    mine: Path, model: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        sweep([SMALL], "out", model=model)
    assert not Path("out").exists()


def test_a_function_that_cannot_be_imported_is_refused(mine: Path) -> None:
    def local(dataset: Dataset) -> DiscreteVAE:
        return DiscreteVAE(torch.nn.Linear(64, 4), torch.nn.Linear(4, 64), 4, dataset.pixel_mean())

    with pytest.raises(ValueError, match="must be a function that other processes can import"):
        sweep([SMALL], "out", model=local, engine=Processes(gpus_per_job=0))
    assert sweep([SMALL], "out", model=local, notify=print)[0].result() is not None


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
    """Return the run that each process has locked and saved, if at least half of its steps remain."""
    runs = {lock.stat().st_ino: lock.parent for lock in folder.glob("*/.lock")}
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
    """Return the worker processes of nodes, including those that do not train yet."""
    raylets = {raylet.process.pid for node in nodes for raylet in node.all_processes["raylet"]}
    found = set()
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            parent = int(Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets and b"_run_job" in Path("/proc", process, "cmdline").read_bytes():
                found.add(int(process))
    return found


def lose_the_node(cluster: Any, node: Any, folder: Path) -> None:
    """Wait until a worker of the node trains, and kill the node."""
    wait_until(lambda: at_work(node) & set(trained_by(folder)), 120)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.filterwarnings("ignore")  # Ray's own
@needs_cluster
@pytest.mark.usefixtures("_typed")
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

        engine = RayCluster(gpus_per_job=0, address=cluster.address)
        with engine:
            assert engine.slots() == 2
            assert engine.warning() is None
        done = thread.submit(havoc)
        options: dict[str, Any] = {"checkpoint_seconds": 0, "notify": told.append}
        sweep(four_runs(LONG.steps), folder, engine=engine, **options)
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
        )  # from now on, no further run starts
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

        with RayCluster(2, 0.5, cluster.address) as engine:
            assert "no node of the Ray cluster has 2 CPUs and 0.5 GPUs" in str(engine.warning())
            assert engine.slots() == 1, "so that the cluster is asked to grow"
        cluster.add_node(num_cpus=2, num_gpus=1)
        with RayCluster(gpus_per_job=0.5, address=cluster.address) as engine:
            assert engine.warning() is None
            assert engine.slots() == 3, "one where there is one core, two where there are two"
            planned = plan(wanted, tmp_path, on_gpu=engine.on_gpu)
            shares = split_jobs(planned, engine.slots())
            assert sorted(len(job.tasks) for job in shares) == [1, 1, 2]
            free: list[float] = []
            engine._device = (
                "cpu"  # this cluster only declares GPUs, so only the requests are tested
            )
            tally = Tally(planned)

            def look(tally: Tally) -> None:
                if tally.running == len(wanted):
                    free.append(ray.available_resources().get("GPU", 0))

            run_jobs(shares, engine, SETTINGS, tally, print, look)
    assert tally.counts["done"] == 4
    assert min(free) == 0.5, "three halves of two GPUs"
    together = {tuple(run.provenance().get("together", [])) for run in find_runs(tmp_path)}
    assert sorted(map(len, together))[-1] == 2, together


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_cancelled_work_is_saved_also_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    (job,) = jobs_of([replace(LONG, steps=10**6)], tmp_path)
    path = job.tasks[0].path
    settings = replace(SETTINGS, checkpoint_seconds=1e9)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
    try:
        with two_nodes() as (cluster, _):
            with RayCluster(gpus_per_job=0, address=cluster.address) as engine:
                engine.start(job, settings)
                wait_until(lambda: len(Run(path).metrics()) > 2, 120)
            wait_until(lambda: is_free(path), 60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Run(path).step() > LONG.report_every, (
        "later than the first record, which is always saved"
    )


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_a_job_for_a_gpu_that_is_not_there_fails_in_one_line(tmp_path: Path) -> None:
    told: list[str] = []
    with two_nodes(num_gpus=1) as (cluster, _):
        engine = RayCluster(gpus_per_job=1, address=cluster.address)
        with pytest.raises(SweepError, match="1 of 1 runs"):
            sweep([SMALL], tmp_path, engine=engine, notify=told.append)
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
        "arms: the engine 'ray' needs the package Ray: run pip install 'arms-grad[ray]', or "
        "pip install '.[ray]' in a clone of the repository\n"
    )


@pytest.mark.filterwarnings("ignore")
@needs_cluster
def test_no_cluster_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"no Ray cluster answers at '127.0.0.1:1' \(.*refused"):
        RayCluster(address="127.0.0.1:1").__enter__()
