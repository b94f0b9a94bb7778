"""The number of reads of a run directory, the number of files that training uses, and the lock."""

import errno
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from commands import Say
from processes import completed

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.runs.archives import find_runs
from arms.bench.runs.files import BusyError, locked
from arms.bench.runs.train import train

ROOT = Path(__file__).parents[3]
CONFIG = TrainConfig(steps=4, report_every=2, latents=4, num_samples=2)


@pytest.fixture(scope="module")
def trace() -> ModuleType:
    spec = spec_from_file_location("call_trace", ROOT / "benchmarks" / "call_trace.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_extending_a_run_reads_its_directory_five_times(trace: ModuleType) -> None:
    reads = trace.reads_of_an_extension()
    assert len(reads) <= 5, reads
    assert reads[0] == reads[1] == "config.json", "before the lock, and under it"


def test_a_training_goes_through_few_files(trace: ModuleType) -> None:
    files = trace.files_of_a_training()
    assert len(files) < 35, files
    assert sum("bench/runs" in file for file in files) <= 6
    assert sum("bench/training" in file for file in files) <= 3


def test_a_run_is_locked_by_the_living_only(tmp_path: Path, digits: Dataset) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path; from arms.bench.runs.files import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = completed([sys.executable, "-c", script, str(tmp_path)])
    assert done.returncode != 0
    assert (tmp_path / ".lock").exists()
    with locked(tmp_path), pytest.raises(BusyError), locked(tmp_path):
        pass
    run = train(CONFIG, tmp_path, device="cpu", dataset=digits, evaluate=5)
    assert [found.path for found in find_runs(tmp_path)] == [run.path]


def test_a_file_system_without_locks_is_only_warned_of(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("filelock.lock_descriptor", refuse)
    told: list[str] = []
    run = train(CONFIG, tmp_path, device="cpu", dataset=digits, evaluate=5, notify=told.append)
    assert run.result() is not None
    assert told == [
        f"{tmp_path} cannot be locked (No locks available): train it in one process only"
    ]


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock").symlink_to("precious")
    with (
        pytest.raises(
            ValueError,
            match="must be a regular file or a new path, got a link to 'precious': remove the",
        ),
        locked(tmp_path),
    ):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


TRAIN = [
    "train",
    "--report-every",
    "2",
    "--latents",
    "4",
    "--num-samples",
    "2",
    "--name",
    "run",
    "--evaluate",
    "5",
]


def test_a_log_has_lines_of_progress(say: Say) -> None:
    code, said, error = say(*TRAIN, "--steps", "40")
    assert (code, error) == (0, "")
    lines = [line for line in said.splitlines() if line.startswith("arms: step ")]
    assert [line.split()[2] for line in lines] == [str(step) for step in range(4, 41, 4)]
    assert "of 40  ELBO -" in lines[0]
    assert "resumes" not in said
    code, said, error = say(*TRAIN, "--steps", "60")
    assert "arms: resumes at step 40 of 60\narms: step 42 of 60" in said


def test_a_run_that_is_evaluated_again_was_not_finished_before(say: Say) -> None:
    assert "finished before" not in say(*TRAIN, "--steps", "4")[1]
    assert "run (finished before): test bound" in say(*TRAIN, "--steps", "4")[1]
    again = say(*TRAIN[:-2], "--steps", "4")[1]
    assert "run: test bound" in again
    assert "images of each split" not in again
