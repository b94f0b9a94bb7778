"""The command that trains the paper's tables: it finds missing runs, stops in time, resumes, and writes the page."""

import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from commands import Say
from marks import signals
from processes import KILLED_AFTER_SAVES, completed

from arms.bench.config import TrainConfig, identity, run_name
from arms.bench.report.paper import all_printed
from arms.bench.runs.archives import ArchivedRun, find_runs, write_archive
from arms.bench.runs.ensemble import TrainOptions
from arms.bench.runs.limit import OutOfTimeError, TimeLimit
from arms.bench.runs.run import Run
from arms.bench.runs.train import train
from arms.bench.sweeps.paper import missing_numbers, wanted_numbers
from arms.bench.sweeps.reproduced import committed, page_of
from arms.bench.sweeps.sweep import sweep

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
SMALL = TrainConfig(latents=10, batch_size=10, replicas=2, steps=200, report_every=20)


def invented(configs: Sequence[TrainConfig]) -> list[ArchivedRun]:
    """Return finished runs of some configurations with made-up bounds."""
    found = []
    for config in configs:
        n = config.num_samples
        counts = {"train": (1, n // 2, n), "test": (1, n // 2, n, 100)}
        values = [-100.0 - replica for replica in range(config.replicas)]
        bounds = {split: {str(k): values for k in counts[split]} for split in counts}
        fields = {**asdict(config), "schema": identity(config)["schema"]}
        parts = {
            "config": {name: value for name, value in fields.items() if name != "structure"},
            "result": {"steps": config.steps, "note": "", "bounds": bounds},
            "provenance": {},
        }
        found.append(ArchivedRun(Path(run_name(config)), parts, []))
    return found


def compared(text: str) -> int:
    """Return the number of compared numbers according to a page."""
    (found,) = re.findall(r"\| all \| 384 \| \*\*(\d+)\*\* \|", text)
    return int(found)


# ---- what is missing


def test_what_is_missing_is_what_the_committed_files_lack(say: Say) -> None:
    there = set()
    for file in RESULTS.glob("*.json"):  # read here without any of the code that plans runs
        for run in json.loads(file.read_text())["runs"]:
            config = run["config"]
            assert run["result"]["steps"] == config["steps"] == 1_000_000
            unfolded = config["estimator"] != "vimco" and config.get("folded") is False
            name = config["estimator"] + (" (unfolded)" if unfolded else "")
            there.add((config["dataset"], config["network"], config["num_samples"], name))
    lacking = {key: one for key, one in all_printed().items() if (*key[:3], key[4]) not in there}
    code, said, _ = say("sweep", "paper", "--dry-run", "--results", str(RESULTS))
    *lines, last = said.splitlines()
    assert code == 0
    runs = len({(*key[:3], key[4]) for key in lacking})  # each has a number on train and on test
    assert last == f"total: {len(lacking)} of 384 numbers are missing, which are {runs} runs"
    expected = {
        f"table {number.table}: {dataset}, {network}, n = {n}, {estimator}, {split}: "
        f"{number.mean:.2f} ± {number.plus_minus:.2f}".replace(": -", ": \u2212")
        for (dataset, network, n, split, estimator), number in lacking.items()
    }
    assert len(lines) == len(expected)
    assert set(lines) == expected
    assert len(lacking) == 384 - compared((ROOT / "docs" / "reproduced.md").read_text())
    assert not list(Path().iterdir())


def test_a_number_is_missing_until_its_run_is_finished(tmp_path: Path) -> None:
    wanted = wanted_numbers("smoke")
    one = wanted[0].config
    assert len(missing_numbers(wanted, tmp_path, [])) == 384
    (tmp_path / "kept").mkdir()
    write_archive(tmp_path / "kept" / "digits.json", invented([one]))
    rest = missing_numbers(wanted, tmp_path / "output", [tmp_path / "kept"])
    # At this scale, all data sets are digits, so one run serves three data sets, on train and on test.
    assert len(rest) == 384 - 6
    assert one not in [number.config for number in rest]


def test_a_wrong_folder_of_results_is_an_error_and_trains_nothing(say: Say) -> None:
    code, _, error = say("sweep", "paper", "--device", "cpu")
    assert (code, error.count("\n")) == (2, 1)
    assert "results must name existing folders or archives, got results" in error
    assert not list(Path().iterdir())
    code, _, error = say("sweep", "paper", "--results", str(RESULTS), "--minutes", "-1")
    assert (code, error.count("\n")) == (2, 1)
    assert "minutes must be a number >= 0, got -1" in error
    assert not list(Path().iterdir())


# ---- the page


def test_the_page_fills_itself_in(say: Say) -> None:
    """The command archives runs that have ended, here all missing runs, and writes the page."""
    missing = missing_numbers(wanted_numbers(), Path("nowhere"), [RESULTS])
    relax = [one.config for one in missing if one.config.estimator == "relax"][:1]
    words = ("sweep", "paper", "--results", "mine", "--minutes", "0", "--device", "cpu")
    Path("mine").mkdir()
    for file in RESULTS.glob("*.json"):
        (Path("mine") / file.name).write_bytes(file.read_bytes())
    before = {file.name: file.read_bytes() for file in Path("mine").iterdir()}
    code, said, _ = say(*words, "--page", "made/page.md")
    assert (code, said.splitlines()[-1]) == (0, "made/page.md")
    page = Path("made/page.md")
    assert page.read_text() == (ROOT / "docs" / "reproduced.md").read_text()
    assert {file.name: file.read_bytes() for file in Path("mine").iterdir()} == before

    with_one = 384 - len(missing) + 2  # a run has a number on train and on test
    for configs, count in ((relax, with_one), ([one.config for one in missing], 384)):
        unique = list(dict.fromkeys(configs))
        write_archive("paper/new.json", invented(unique))
        code, said, _ = say(*words, "--page", "made/page.md")
        assert code == 0
        text = page.read_text()
        assert compared(text) == count
        assert f"| `relax` | 48 | {2 if count == with_one else 48} |" in text
        assert text.startswith("# The paper, reproduced in part\n") == (count < 384)
    kept = json.loads((Path("mine") / "dynamic-mnist-linear.json").read_text())["runs"]
    was = json.loads(before["dynamic-mnist-linear.json"])["runs"]
    assert len(kept) == 19 + 15
    assert [run for run in kept if run in was] == was
    _, said, _ = say("sweep", "paper", "--results", "mine", "--dry-run")
    assert said == "total: 0 of 384 numbers are missing, which are 0 runs\n"


def test_a_page_of_few_numbers_draws_no_conclusions(tmp_path: Path) -> None:
    assert compared(page_of(committed(tmp_path))) == 0
    run = next(run for run in find_runs(RESULTS) if run.config().estimator == "loorf")
    write_archive(tmp_path / "one.json", [run])
    text = page_of(committed(tmp_path))
    assert compared(text) == 2
    assert "What we conclude" not in text


# ---- training


@signals
def test_killed_and_resumed(say: Say, tmp_path: Path) -> None:
    configs = list(dict.fromkeys(one.config for one in wanted_numbers("smoke")))
    left = [config for config in configs if config.estimator in ("loorf", "disarm")][:3]
    Path("results").mkdir()
    rest = [config for config in configs if config not in left]
    write_archive("results/others.json", invented(rest))
    words = ("sweep", "paper", "--scale", "smoke", "--device", "cpu", "--checkpoint-seconds", "0")
    done = completed([sys.executable, "-c", KILLED_AFTER_SAVES, "5", *words])
    assert done.returncode == -signal.SIGKILL, done.stderr
    (path,) = Path("paper").iterdir()
    assert Run(path).step() == 25
    assert not Run(path).is_finished()
    _, said, _ = say(*words, "--dry-run")
    assert said.splitlines()[-1] == "total: 18 of 384 numbers are missing, which are 3 runs"

    code, said, error = say(*words, "--minutes", "60")
    assert (code, error) == (0, "")
    assert said.splitlines()[-2:] == [
        "64/64 done, 0 running, 0 failed: paper",
        "results/digits-linear.json",
    ]
    kept = {run.path.name: run for run in find_runs("results/digits-linear.json")}
    assert set(kept) == {run_name(config) for config in left}
    for config in left:
        whole = train(config, tmp_path / "whole" / run_name(config), device="cpu", progress=False)
        assert kept[run_name(config)].result() == whole.result()
    _, said, _ = say(*words, "--dry-run")
    assert said == "total: 0 of 384 numbers are missing, which are 0 runs\n"
    assert not Path("docs").exists()  # the paper's numbers are not those of digits


# ---- the limit on time


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the limit: a step takes 1 s, a save 3 s, and the bounds 10 s."""
    made = Clock()
    for module in ("limit", "ensemble"):
        monkeypatch.setattr(f"arms.bench.runs.{module}.time", made)
    from arms.bench.runs import ensemble
    from arms.bench.training.engine import Engine

    def slowed(where: object, name: str, seconds: float) -> None:
        function = getattr(where, name)

        def slow(*args: object, **options: object) -> object:
            made.now += seconds
            return function(*args, **options)

        monkeypatch.setattr(where, name, slow)

    slowed(Engine, "advance_block", 1)
    slowed(ensemble, "_save", 3)
    slowed(ensemble, "final_bounds", 10)
    slowed(ensemble, "_resumed", 20)
    return made


def test_a_limit_counts_the_longest_of_each_part(clock: Clock) -> None:
    limit = TimeLimit(100 / 60)
    assert limit.allows("start", "block", "save", "bounds")
    for seconds in (30, 20):
        began = clock.now
        clock.now += seconds
        limit.add("block", began)
    assert limit.allows("block")  # 50 are left, and a block takes 30
    assert limit.allows("save")
    assert not limit.allows("block", "block")
    clock.now += 20
    assert not limit.allows("block")
    assert limit.allows("save")
    assert not TimeLimit(0).allows("save")
    assert TimeLimit().allows("block")
    assert TrainOptions("cpu", "eager", 0, print).limit.allows("block")
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="minutes must be a number >= 0, got"):
            TimeLimit(wrong)


def test_a_sweep_stops_in_time_and_resumes(tmp_path: Path, clock: Clock) -> None:
    told: list[str] = []
    wanted = [replace(SMALL, estimator=name) for name in ("loorf", "arms", "disarm")]
    began = clock.now
    # A run takes 20 to start, 200 for its steps, 3 for each save, and 10 for its bounds.
    found = sweep(wanted, tmp_path / "runs", minutes=6, notify=told.append)
    assert began + 300 < clock.now <= began + 360
    assert [run.is_finished() for run in found] == [True, False]
    assert 0 < found[1].step() < 200
    assert found[1].step() % 20  # between two records: it used what time was left
    assert "the time limit was reached, saved at step" in told[-2]
    assert told[-1].startswith("1/3 done, 0 running, 0 failed")
    assert told[-1].endswith("the time limit was reached: repeat the call to train the rest")

    clock.now += 1000
    began = clock.now
    again = sweep(wanted, tmp_path / "runs", minutes=5, notify=told.append)
    assert clock.now <= began + 300
    assert [run.is_finished() for run in again] == [True, True, False]
    assert again[2].step() > 0  # there is no time for two whole runs: the second was resumed
    last = sweep(wanted, tmp_path / "runs", notify=told.append)
    for config, run in zip(wanted, last, strict=True):
        whole = train(config, tmp_path / "whole" / config.estimator, progress=False)
        assert run.result() == whole.result()


def test_no_run_is_begun_that_could_not_go_on(tmp_path: Path, clock: Clock) -> None:
    told: list[str] = []
    wanted = [replace(SMALL, estimator=name) for name in ("loorf", "arms")]
    assert sweep(wanted, tmp_path / "none", minutes=0, notify=told.append) == []
    assert not (tmp_path / "none").exists()
    # One whole run, and 15 s: a start takes 21.
    alone = sweep(wanted[:1], tmp_path / "first", notify=told.append)
    assert alone[0].is_finished()
    seconds = clock.now - 1000 + 15
    (run,) = sweep(wanted, tmp_path / "runs", minutes=seconds / 60, notify=told.append)
    assert run.is_finished()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run_name(wanted[0])]


def test_no_time_for_the_bounds(tmp_path: Path, clock: Clock) -> None:
    limit = TimeLimit(1000 / 60)
    began = clock.now
    clock.now += 500
    limit.add("bounds", began)
    clock.now += 0.5
    with pytest.raises(OutOfTimeError, match="saved at step 200, before its final bounds"):
        train(SMALL, tmp_path / "run", limit=limit, progress=False)
    run = Run(tmp_path / "run")
    assert (run.step(), run.is_finished()) == (200, False)
    assert train(SMALL, tmp_path / "run", progress=False).is_finished()
