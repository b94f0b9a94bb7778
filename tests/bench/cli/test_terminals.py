"""The command line on unusual terminals (closed, narrow, without colors or Unicode), and with hostile names."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from commands import Say
from processes import ARMS, completed, started
from run_directories import SHORT_FLAGS, make_run

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.runs.run import Run
from arms.bench.runs.train import train

CONFIG = TrainConfig(steps=20, report_every=10, latents=4, num_samples=2, replicas=2)
TRAIN = ["train", *SHORT_FLAGS, "--replicas", "2"]
TRAIN += ["--name", "run", "--evaluate", "20"]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, all_digits: Dataset) -> Run:
    """The run that all runs of `TRAIN` must equal."""
    return train(
        CONFIG,
        tmp_path_factory.mktemp("usual") / "run",
        device="cpu",
        dataset=all_digits,
        evaluate=20,
    )


# ---- closed streams


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_training_finishes_without_a_terminal(closed: str, tmp_path: Path, usual: Run) -> None:
    done = completed(["sh", "-c", f'exec "$@" {closed}', "sh", *ARMS, *TRAIN], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert Run(tmp_path / "runs/run").result() == usual.result()
    assert (", K=100 -" in done.stdout) is (closed == "2>&-")


def test_a_sweep_finishes_without_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        "steps = 20\nlatents = 4\nreport_every = 10\nseed = [0, 1]\n"
    )
    words = ["sweep", "sweep.toml", "--gpus-per-job", "0"]
    done = completed(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *ARMS, *words], cwd=tmp_path)
    assert done.returncode == 0
    assert len(list(tmp_path.glob("sweep/*/result.json"))) == 2


@pytest.mark.parametrize(
    "stderr",
    [
        "2>&-",
        pytest.param(
            "2>/dev/full",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="a Linux device"),
        ),
    ],
)
def test_a_mistake_has_its_exit_code_even_where_it_cannot_be_printed(
    stderr: str, tmp_path: Path
) -> None:
    done = completed(["sh", "-c", f'exec "$@" {stderr}', "sh", *ARMS, "trian"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


# ---- environments

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
SEVERAL = """
import sys
from arms_command import main
for words in (["estimators"], sys.argv[1:], ["runs"]):
    sys.argv = ["arms", *words]
    main()
"""


@pytest.mark.parametrize(
    ("environment", "mean"),
    [
        ({"PYTHONIOENCODING": "ascii", "COLUMNS": "20", "TERM": "dumb"}, r"-\d+\.\d\d \?\d"),
        ({"PYTHONIOENCODING": "latin-1"}, r"-\d+\.\d\d ±\d"),
        (C_LOCALE, r"-\d+\.\d\d \?\d"),
        ({"COLUMNS": "0"}, r"-\d+\.\d\d ±\d"),
        ({"PYTHONOPTIMIZE": "1", "FORCE_COLOR": "1"}, r"-\d+\.\d\d ±\d"),
    ],
    ids=lambda value: (
        " ".join(f"{name}={text}" for name, text in value.items())
        if isinstance(value, dict)
        else ""
    ),
)
def test_every_environment_shows_the_numbers(
    environment: dict[str, str], mean: str, tmp_path: Path, usual: Run
) -> None:
    encoding = "latin-1" if "latin-1" in environment.values() else "utf-8"
    command = [sys.executable, "-c", SEVERAL, *TRAIN]
    done = completed(command, cwd=tmp_path, env={**os.environ, **environment}, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert Run(tmp_path / "runs/run").result() == usual.result()
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stdout)
    assert "rein" in said, "a narrow table breaks the name"
    assert re.search(f"runs/run: test bound K=1 {mean}", said)
    assert re.search(f"ended: 20 steps; test bound K=1 {mean}", said)


# ---- hostile names

HOSTILE = "digits\x1b]0;owned\x07\x1b[2J\x1b[8m\x9b2J\u202e\r\b[bold]:car:\nother: finished"
IN_PATHS = HOSTILE.encode(
    "ascii", "ignore"
).decode()  # some locales do not allow other characters in file names
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def rename_in_file(path: Path, field: str, value: str) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["runs", "archive.json"],
        ["report", "runs", "--no-files"],
        ["report", "archive.json", "--no-files"],
        ["archive", "runs", "-o", "again.json"],
        ["evaluate", f"runs/{IN_PATHS}"],
        ["variance", f"runs/{IN_PATHS}"],
        ["sample", f"runs/{IN_PATHS}"],
        ["train", *TRAIN[1:-4], "--name", HOSTILE],
        ["train", "--dataset", HOSTILE],
        ["train", "--estimator", HOSTILE],
        ["train", "--model", f"{HOSTILE}:x"],
        ["check", HOSTILE],
        ["check", f"math:{HOSTILE}"],
        ["data", "get", HOSTILE],
        ["data", "list", "--data-dir", HOSTILE],
        ["experiments", "run", HOSTILE],
        ["sweep", "hostile.toml", "--dry-run"],
        ["sweep", HOSTILE],
        [HOSTILE],
        ["report", HOSTILE],
        ["runs", HOSTILE],
        ["toy", "--num-samples", HOSTILE],
    ],
    ids=lambda words: " ".join(words).replace(HOSTILE, "HOSTILE").replace(IN_PATHS, "HOSTILE"),
)
def test_no_terminal_obeys_a_name(words: list[str], say: Say) -> None:
    run = make_run(Path("runs") / IN_PATHS, CONFIG, note=HOSTILE)
    say("archive", "runs", "-o", "archive.json")
    rename_in_file(run.path / "config.json", "dataset", HOSTILE)
    Path("archive.json").write_text(
        Path("archive.json").read_text().replace('"digits"', json.dumps(HOSTILE))
    )
    Path("hostile.toml").write_text(f"dataset = {json.dumps(HOSTILE)}\nsteps = 20\n")
    _, out, error = say(*words)
    assert out + error
    assert not CONTROL.search(out + error), repr(out + error)
    assert not re.search("^other: finished", out + error, re.MULTILINE), "a name adds no line"


def test_an_absurdly_long_name_is_cut(say: Say) -> None:
    """Without a limit, rich takes quadratic time: 73 seconds for this word."""
    run = make_run(Path("runs/run"), CONFIG)
    rename_in_file(run.path / "config.json", "dataset", "a" * 80_000)
    for words in (["runs"], ["report", "runs", "--no-files"]):
        code, out, _ = say(*words)
        assert code == 0
        assert "aaa... (80000 characters)" in out
        assert len(out) < 1000


# ---- readers that leave, and disks that are full


def test_a_training_whose_reader_leaves_is_finished(tmp_path: Path, usual: Run) -> None:
    for words in (TRAIN, ["runs"]):
        with started([*ARMS, *words], cwd=tmp_path) as process:
            assert process.stdout is not None
            process.stdout.close()
            _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (141, "")
        assert Run(tmp_path / "runs/run").result() == usual.result()


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux device")
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["estimators"]])
def test_a_full_disk_for_the_output_is_one_line(words: list[str], tmp_path: Path) -> None:
    done = completed(["sh", "-c", 'exec "$@" >/dev/full', "sh", *ARMS, *words], cwd=tmp_path)
    message = "arms: No space left on device: choose another path, or correct this problem\n"
    assert (done.returncode, done.stderr) == (2, message)
