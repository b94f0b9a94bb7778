"""Run directories after SIGKILL, SIGINT, full disks, and damage to files."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from marks import signals
from processes import completed, started
from run_directories import make_run

import arms
from arms.bench.cli.runs import runs as list_runs
from arms.bench.config import TrainConfig, identity, run_name
from arms.bench.report import collect
from arms.bench.runs import run as provenance
from arms.bench.runs.archives import find_runs, read_archive, write_archive
from arms.bench.runs.files import CHECKPOINTS
from arms.bench.runs.loading import load_model, load_once
from arms.bench.runs.run import Run
from arms.bench.runs.train import train
from arms.bench.training.engine import block_of, choose_device

ROOT = Path(__file__).parents[3]

CONFIG = TrainConfig(
    steps=120, report_every=10, num_samples=4, latents=20, replicas=2, learning_rate=1e-3
)

SCRIPT = """
import json, sys, time
import torch
torch.set_num_threads(1)
from arms.bench.runs.train import train
from arms.bench.config import TrainConfig
config = TrainConfig(**json.loads(sys.argv[2]))
slow = lambda record: time.sleep(float(sys.argv[3]))
train(config, sys.argv[1], device="cpu", checkpoint_seconds=0, on_record=slow)
"""


def words(
    path: Path, pause: float = 0.0, config: TrainConfig = CONFIG, script: str = SCRIPT
) -> list[str]:
    return [sys.executable, "-c", script, str(path), json.dumps(asdict(config)), str(pause)]


def wait_for_reports(path: Path, count: int) -> None:
    deadline = time.time() + 60
    while time.time() < deadline:
        if path.exists() and len(path.read_bytes().splitlines()) >= count:
            return
        time.sleep(0.005)
    raise AssertionError("the run never reported")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is trained without interruption."""
    torch.set_num_threads(1)
    return train(CONFIG, tmp_path_factory.mktemp("whole") / "run", device="cpu")


def assert_same(run: Run, whole: Run) -> None:
    assert run.result() == whole.result()
    assert run.metrics() == whole.metrics()
    ours, theirs = run.checkpoint(), whole.checkpoint()
    assert ours is not None
    assert theirs is not None
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@signals
def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path, whole: Run) -> None:
    path = tmp_path / "run"
    for reports in (1, 4, 9):
        with started(words(path, pause=0.03)) as process:
            wait_for_reports(path / "metrics.jsonl", reports)
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (path / "result.json").exists()
    done = completed(words(path))
    assert done.returncode == 0, done.stderr
    assert_same(Run(path), whole)
    assert not list(path.glob("*.new"))


@signals
def test_interrupted_it_saves_and_goes_on(tmp_path: Path, whole: Run) -> None:
    path = tmp_path / "run"
    script = SCRIPT.replace("checkpoint_seconds=0", "checkpoint_seconds=1e9")
    with started(words(path, pause=0.03, script=script)) as process:
        wait_for_reports(path / "metrics.jsonl", 3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    state = Run(path).checkpoint()
    assert state is not None, "Ctrl-C must leave a checkpoint"
    assert 30 <= int(state["counts"][0]) < 120
    train(CONFIG, path, device="cpu")
    assert_same(Run(path), whole)


def test_finished_runs_are_left_alone(tmp_path: Path) -> None:
    train(CONFIG, tmp_path, device="cpu")
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    train(CONFIG, tmp_path, device="cpu")
    assert before == {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}


def stopped_halfway(path: Path, config: TrainConfig = CONFIG) -> None:
    class StoppedError(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        if record["step"] == 60:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(config, path, device="cpu", checkpoint_seconds=0, on_record=stop)


@pytest.mark.parametrize("damage", ["flip a bit", "truncate", "empty", "no header"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, whole: Run, damage: str
) -> None:
    stopped_halfway(tmp_path)
    newest = tmp_path / CHECKPOINTS[0]
    data = bytearray(newest.read_bytes())
    data[-100] ^= 1
    broken = {
        "flip a bit": bytes(data),
        "truncate": bytes(data[:-50]),
        "empty": b"",
        "no header": b"x" * 64,
    }
    newest.write_bytes(broken[damage])
    state = Run(tmp_path).checkpoint()
    assert state is not None
    assert int(state["counts"][0]) == 50
    train(CONFIG, tmp_path, device="cpu")
    assert_same(Run(tmp_path), whole)


def test_a_checkpoint_may_be_replaced_while_it_is_read(tmp_path: Path) -> None:
    run = Run(tmp_path).begin(CONFIG)
    run.save_checkpoint({"counts": torch.tensor([7, 0])})
    file, away, done = tmp_path / CHECKPOINTS[0], tmp_path / "away", Event()

    def rename() -> None:
        while not done.is_set():
            file.rename(away)
            away.rename(file)

    thread = Thread(target=rename)
    thread.start()
    end = time.monotonic() + 2  # about ten times the file is gone between two looks at it
    try:
        while time.monotonic() < end:
            assert run.step() in (0, 7)
            assert set(run.checkpoints()) <= {7}
    finally:
        done.set()
        thread.join()


def test_without_any_checkpoint_it_starts_anew(tmp_path: Path, whole: Run) -> None:
    stopped_halfway(tmp_path)
    for name in CHECKPOINTS:
        (tmp_path / name).write_bytes(b"gone")
    train(CONFIG, tmp_path, device="cpu")
    assert_same(Run(tmp_path), whole)


FULL_DISK = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))
"""


def test_a_full_disk_leaves_the_last_checkpoint_readable(tmp_path: Path, whole: Run) -> None:
    stopped_halfway(tmp_path)
    before = Run(tmp_path).checkpoint()
    done = completed(words(tmp_path, script=FULL_DISK + SCRIPT))
    assert done.returncode != 0
    assert "File too large" in done.stderr
    after = Run(tmp_path).checkpoint()
    assert before is not None
    assert after is not None
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list(tmp_path.glob("*.new"))
    train(CONFIG, tmp_path, device="cpu")
    assert_same(Run(tmp_path), whole)


def test_half_written_reports_are_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path).begin(CONFIG)
    run.append({"step": 10, "train_elbo": [1.0]})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "train_')
    assert [record["step"] for record in run.metrics()] == [10]
    run.truncate_after(0)
    assert run.metrics() == []


def test_nothing_grows_with_the_number_of_steps(tmp_path: Path) -> None:
    sizes = []
    for steps in (20, 120):
        config = replace(CONFIG, steps=steps, report_every=20)
        run = train(config, tmp_path / str(steps), device="cpu")
        state = run.checkpoint()
        assert state is not None
        sizes.append(sum(tensor.numel() for tensor in state.values()))
    assert sizes[0] == sizes[1]


def test_provenance_says_where_numbers_come_from(whole: Run) -> None:
    record = whole.provenance()
    assert record["torch"] == torch.__version__
    assert record["wall_seconds"] > 0
    assert {"version", "commit", "python", "device", "threads", "command"} <= set(record)


def test_events_for_tensorboard(whole: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole.path))
    events.Reload()
    curve = events.Scalars("train_elbo/1")
    assert [event.step for event in curve] == list(range(10, 130, 10))
    assert curve[-1].value == pytest.approx(whole.metrics()[-1]["train_elbo"][1])


def test_names_tell_configurations_apart() -> None:
    assert run_name(CONFIG) == run_name(replace(CONFIG))
    assert run_name(CONFIG) != run_name(replace(CONFIG, learning_rate=2e-3))


def test_refusals(tmp_path: Path, whole: Run) -> None:
    with pytest.raises(ValueError, match="contains another run"):
        train(replace(CONFIG, seed=5), whole.path)
    with pytest.raises(ValueError, match=r"has no config\.json, so it is not a run directory"):
        Run(tmp_path).config()
    Run(tmp_path / "new").begin(CONFIG)
    with pytest.raises(ValueError, match="no intact checkpoint"):
        load_model(Run(tmp_path / "new"))
    (tmp_path / "new" / "config.json").write_text('{"steps": 5, "color": "red"}')
    with pytest.raises(ValueError, match="unknown fields color"):
        Run(tmp_path / "new").config()
    (tmp_path / "new" / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="must contain a JSON object"):
        Run(tmp_path / "new").config()
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got 'tpu'"):
        choose_device("tpu")
    with pytest.raises(ValueError, match="there is no data set named 'cifar'"):
        train(replace(CONFIG, dataset="cifar"), tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_commit_is_that_of_the_package_not_of_a_project_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for folder in ("kept", "installed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    subprocess.run([*git, "add", "kept"], check=True)
    subprocess.run([*git, "commit", "-qm", "theirs"], check=True)
    monkeypatch.delenv("ARMS_COMMIT", raising=False)
    found = {}
    for folder in ("kept", "installed"):
        monkeypatch.setattr(provenance, "PACKAGE", tmp_path / folder)
        found[folder] = provenance.commit()
    assert re.fullmatch(r"[0-9a-f]{40}", found["kept"])
    assert re.fullmatch(r"source-[0-9a-f]{16}", found["installed"])
    (tmp_path / "installed" / "__init__.py").write_text("x = 1")
    assert provenance.commit() not in found.values(), "other code, another digest"
    monkeypatch.setenv("ARMS_COMMIT", "abc123")
    for folder in ("kept", "installed"):
        monkeypatch.setattr(provenance, "PACKAGE", tmp_path / folder)
        assert provenance.commit() == "abc123", "said by somebody who knows"


def test_the_version_needs_no_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "arms.__version__"}
    source = (ROOT / "src" / "arms" / "__init__.py").read_text()
    assert f'\n__version__ = "{arms.__version__}"\n' in source, (
        "a literal, which is read without importing torch"
    )


@pytest.mark.parametrize("note", ['{"wall_seconds": "long"}', '{"wall_seconds": null}', "[]", "{"])
def test_a_damaged_provenance_does_not_end_a_training(note: str, tmp_path: Path) -> None:
    run = Run(tmp_path).begin(CONFIG)
    (tmp_path / "provenance.json").write_text(note)
    run.write_provenance("cpu", 2.0)
    run.write_provenance("cpu", 1.0)
    assert run.provenance()["wall_seconds"] == 3.0


def test_no_committed_provenance_is_unknown() -> None:
    notes = [run.provenance() for run in find_runs(ROOT / "results")]
    assert len(notes) >= 50
    for note in notes:
        assert "unknown" not in json.dumps(note)
        assert note.keys() >= {"version", "commit", "device", "command", "wall_seconds"}
        assert len(note["together"]) >= 3


# ---- the identity of a run


def test_how_often_one_looks_is_no_part_of_a_run() -> None:
    looks = replace(CONFIG, report_every=5, evaluate_every=10, evaluate_images=7)
    assert identity(looks) == identity(CONFIG)
    assert run_name(looks) == run_name(CONFIG)
    words = {
        "dataset": "other",
        "network": "nonlinear",
        "estimator": "loorf",
        "decoder_samples": "extra",
    }
    words |= {"precision": "high"}
    for name in (
        "num_samples",
        "replicas",
        "steps",
        "seed",
        "batch_size",
        "latents",
        "learning_rate",
        *words,
    ):
        changes: dict[str, Any] = {name: words.get(name) or 2 * getattr(CONFIG, name) + 2}
        other = replace(CONFIG, **changes)
        assert identity(other) != identity(CONFIG), name


def test_a_field_that_is_added_renames_no_run() -> None:
    @dataclass(frozen=True)
    class Later(TrainConfig):
        color: str = "red"

    values = asdict(CONFIG)
    assert run_name(Later(**values)) == run_name(CONFIG)
    assert run_name(Later(**values, color="blue")) != run_name(CONFIG)


def test_a_configuration_may_lack_fields(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"schema": 4, "seed": 3}')
    assert Run(tmp_path).config() == TrainConfig(seed=3)
    assert Run(tmp_path).begin(TrainConfig(seed=3, report_every=20)).identity() == {
        "schema": 4,
        "seed": 3,
    }


def test_another_run_is_told_by_its_fields(tmp_path: Path) -> None:
    Run(tmp_path).begin(CONFIG)
    message = (
        r"contains another run \(latents is 20 there, but 30 was requested, "
        r"seed is 0 there, but 5 was requested\)"
    )
    with pytest.raises(ValueError, match=message):
        Run(tmp_path).begin(replace(CONFIG, seed=5, latents=30, report_every=20))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"schema": 1}))
    with pytest.raises(
        ValueError, match=r"another version of this library \(schema 1, expected 4\)"
    ):
        Run(tmp_path).begin(CONFIG)


def test_a_run_on_the_bound_has_one_decoder_rule() -> None:
    config = replace(CONFIG, estimator="vimco", decoder_samples="extra")
    assert config == replace(CONFIG, estimator="vimco")


@pytest.mark.parametrize("schema", [5, 0, 4.0, "4", True, None])
def test_a_run_of_another_schema_is_read_by_nothing(
    schema: object, tmp_path: Path, whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """All fields are known, but have a different meaning."""
    write_archive(tmp_path / "archive.json", [whole])
    shutil.copytree(whole.path, tmp_path / "run")
    for file in (tmp_path / "run" / "config.json", tmp_path / "archive.json"):
        text = file.read_text()
        assert text.count('"schema": 4') == 1
        file.write_text(text.replace('"schema": 4', f'"schema": {json.dumps(schema)}'))
    expected = f"must have a schema from 1 to 4, got {schema!r}: read it with the version"
    found = collect([tmp_path])
    assert not found.runs
    assert [expected in problem.what for problem in found.problems] == [True, True]
    with pytest.raises(ValueError, match=re.escape(expected)):
        list_runs(tmp_path)
    make_run(tmp_path / "readable", CONFIG)
    list_runs(tmp_path)
    assert capsys.readouterr().out.replace("\n", " ").count(f"broken: {tmp_path}") == 2
    for read in (load_model, lambda run: write_archive(tmp_path / "again.json", [run])):
        with pytest.raises(ValueError, match=re.escape(expected)):
            read(Run(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"another version of this library|a schema from 1 to 4"):
        train(CONFIG, tmp_path / "run", device="cpu")


def test_a_run_with_bounds_over_some_images_has_ended_and_is_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", CONFIG)
    list_runs(tmp_path)
    assert "finished: 120 steps; test bound" in capsys.readouterr().out
    run.finish({**run.read("result.json"), "images": 5})
    assert (run.has_ended(), run.is_finished(), run.is_finished(images=5)) == (True, False, True)
    list_runs(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "ended: 120 steps; test bound" in said
    assert "over 5 images of each split" in said
    assert "finished" not in said
    write_archive(tmp_path / "archive.json", [run])
    (archived,) = read_archive(tmp_path / "archive.json")
    assert (archived.has_ended(), archived.is_finished()) == (True, False)


def test_a_papers_form_is_a_run_of_its_own(tmp_path: Path) -> None:
    folded = TrainConfig(estimator="disarm-ms", num_samples=8)
    unfolded = replace(folded, folded=False)
    assert replace(folded, estimator="disarm-ms-paper") == unfolded
    run = Run(tmp_path).begin(unfolded)
    assert run.config() == unfolded
    assert run.identity() == identity(folded) | {"folded": False}
    assert "disarm-ms-unfolded-" in run_name(unfolded)
    with pytest.raises(ValueError, match="folded is False there, but True was requested"):
        Run(tmp_path).begin(folded)


@pytest.mark.parametrize("every", [5, 40])
def test_resumed_with_another_interval_it_ends_the_same(
    every: int, tmp_path: Path, whole: Run
) -> None:
    stopped_halfway(tmp_path)
    run = train(replace(CONFIG, report_every=every), tmp_path, device="cpu")
    assert run.config() == CONFIG, "config.json keeps what it was begun with"
    assert run.result() == whole.result()
    ours, theirs = run.checkpoint(), whole.checkpoint()
    assert ours is not None
    assert theirs is not None
    assert all(
        torch.equal(ours[name], tensor)
        for name, tensor in theirs.items()
        if name.startswith(("model", "adam"))
    )
    assert [record["step"] for record in run.metrics()] == [
        *range(10, 70, 10),
        *(step for step in range(every, 121, every) if step > 60),
    ]


def test_blocks_end_on_the_records_of_a_resumed_run() -> None:
    assert block_of(100, 1000) == 10
    assert block_of(100, 1000, 500) == 10
    assert block_of(100, 1000, 15) == 5


# ---- files that do not belong together


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    """A checkpoint of another run with the same shapes is only recognized by its digest."""
    stopped_halfway(tmp_path / "ours")
    other = replace(CONFIG, estimator="loorf", seed=5, learning_rate=1e-2)
    train(other, tmp_path / "theirs", device="cpu")
    for name in CHECKPOINTS:
        shutil.copy(tmp_path / "theirs" / name, tmp_path / "ours" / name)
    with pytest.raises(ValueError, match="the checkpoint"):
        train(CONFIG, tmp_path / "ours", device="cpu")
    with pytest.raises(ValueError, match=r"does not belong to the config.json"):
        load_model(Run(tmp_path / "ours"), "cpu")


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", *CHECKPOINTS])
def test_a_directory_without_its_configuration_is_not_adopted(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(
        ValueError,
        match=rf"contains {name}, but .* config\.json is missing: restore config\.json, delete these files, or choose",
    ):
        train(replace(CONFIG, estimator="loorf"), tmp_path, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_changed_file_of_the_same_name_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set()
    for folder, seed in [("first", 0), ("second", 1), ("second", 2)]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        images = np.random.default_rng(seed).integers(0, 256, (20, 4, 4), dtype=np.uint8)
        np.savez("mine.npz", train=images, test=images)
        found = load_once("mine.npz", None)
        assert load_once("mine.npz", None) is found
        names.add(found.name)
    assert len(names) == 3
