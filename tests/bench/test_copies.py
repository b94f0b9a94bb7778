"""Finished runs at addresses: what a sweep copies there counts, and is read from there; half a copy is no run."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest
from commands import Say
from marks import needs_cluster, slow

from arms.bench.cli import main
from arms.bench.config import TrainConfig, run_name
from arms.bench.runs.copies import copied_names, copy_run, local_copies
from arms.bench.runs.directory import Run
from arms.bench.runs.packs import find_runs, read_pack, write_pack
from arms.bench.runs.pipeline import train
from arms.bench.sweeps.driver import work_of
from arms.bench.sweeps.jobs import plan
from arms.bench.sweeps.worker import Settings, carry_out

SMALL = TrainConfig(latents=10, batch_size=10, steps=20, report_every=10)
NAME = run_name(SMALL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(SMALL, tmp_path_factory.mktemp("runs") / "one", device="cpu", progress=False)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid4()}/runs" if request.param == "memory" else f"file://{tmp_path / 'copies' / 'runs'}"


def arms(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["arms", *words])
    main()
    return capsys.readouterr().out


def test_a_copy_is_the_run(run: Run, url: str) -> None:
    assert copied_names(url) == set()
    copy_run(run.path, url)
    copy_run(run.path, url)  # again does no harm
    assert copied_names(url) == {NAME}
    for place in (url, f"{url}/", f"{url}/{NAME}"):
        with local_copies([place, "elsewhere"]) as (folder, other):
            (copy,) = find_runs(folder)
            assert other == Path("elsewhere")
            assert (copy.path.name, copy.config(), copy.metrics(), copy.result(), copy.provenance()) == (
                *(NAME, SMALL, run.metrics(), run.result(), run.provenance()),
            )
            assert not list(folder.rglob("*.safetensors")), "too large for what is read here"
    assert not folder.exists()


def test_half_a_copy_is_no_run(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    copy_run(run.path, url)
    (tmp_path / NAME / "result.json").unlink()
    (tmp_path / NAME / "result.json").mkdir()  # so that it cannot be written
    with pytest.raises(OSError, match=r"^file://"):
        copy_run(run.path, url)
    assert (tmp_path / NAME / "metrics.jsonl").exists()
    assert copied_names(url) == set()
    (tmp_path / NAME / "result.json").rmdir()
    copy_run(run.path, url)
    assert copied_names(url) == {NAME}
    assert (tmp_path / NAME / "checkpoint.safetensors").exists(), "the model can be had from there"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nothing://x/y", "nothing://x/y: Protocol not known: nothing"),
        ("oci://bucket@a/runs", "oci://bucket@a/runs: .*[Ii]nstall ocifs"),
        ("memory://not/there", "there is no run at memory://not/there"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_line(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as error, local_copies([url]):
        pass
    assert "\n" not in str(error.value)


def test_a_worker_copies_what_has_ended(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # a worker sets it
    diverging = TrainConfig(latents=10, batch_size=10, steps=20, report_every=10, learning_rate=1e38)
    for wanted, kind in ((SMALL, "done"), (diverging, "diverged")):
        (work,) = work_of(plan([wanted], tmp_path))
        outcome = carry_out(work, Settings(("arms",), copy_to="nothing://x"), "cpu")
        assert (outcome.kind, outcome.lines[-1]) == ("lost", "OSError: nothing://x: Protocol not known: nothing")
        monkeypatch.setattr("arms.bench.sweeps.worker._dataset", None)  # what has ended needs no data
        assert carry_out(work, Settings(("arms",), copy_to=url), "cpu").kind == kind
        monkeypatch.undo()
        assert work.paths[0].name in copied_names(url)


def test_a_copy_over_the_run_itself_is_refused(tmp_path: Path, run: Run) -> None:
    own = Path(shutil.copytree(run.path, tmp_path / NAME))
    before = {file.name: file.read_bytes() for file in own.iterdir()}
    for place in (str(tmp_path), f"file://{tmp_path}", f"{tmp_path}/x/.."):
        with pytest.raises(ValueError, match="copies must be apart from the runs"):
            copy_run(own, place)
    assert {file.name: file.read_bytes() for file in own.iterdir()} == before


@pytest.mark.parametrize("place", ["sweep", "file://{}/sweep", "sweep/copies", "."])
def test_a_sweep_does_not_copy_into_its_own_folder(place: str, tmp_path: Path, say: Say) -> None:
    Path("sweep.toml").write_text(FILE)
    code, _, error = say("sweep", "sweep.toml", "--gpus-per-job", "0", "--copy-to", place.format(tmp_path))
    assert (code, error.count("\n")) == (2, 1)
    assert "copies must be apart from the runs in sweep" in error
    assert not Path("sweep").exists()


def test_copies_are_told_apart_by_what_they_are(tmp_path: Path, say: Say) -> None:
    """Runs whose folders have one name, one that was given more steps, one evaluated again, and one that diverged."""
    url, options = f"file://{tmp_path}/copies", ("--gpus-per-job", "0", "-o", "runs", "--copy-to")
    config = "steps = 20\nlatents = 10\nbatch_size = 10\nreport_every = 10\n"
    Path("sweep.toml").write_text(f"{config}seed = [0, 1]\n")
    seeds = [replace(SMALL, seed=seed) for seed in (0, 1)]
    for seed, one in enumerate(seeds):
        train(one, f"runs/{seed}/run", device="cpu", progress=False, evaluate=None if seed else 5)
    assert "2/2 done" in say("sweep", "sweep.toml", *options, url)[1]
    assert copied_names(url) == set(map(run_name, seeds))
    with local_copies([url]) as (folder,):
        assert {run.config().seed: run.result() for run in find_runs(folder)} == {
            seed: Run(f"runs/{seed}/run").result() for seed in (0, 1)
        }
    assert "images" not in (Run("runs/0/run").result() or {}), "bounds over five images were no result"
    damaged = Path("copies", run_name(seeds[1]), "result.json")
    for content in ('{"bounds": 3}', damaged.read_text().replace("-", "-9")):
        damaged.write_text(content)
        assert "2/2 done" in say("sweep", "sweep.toml", *options, url)[1]
        assert damaged.read_bytes() == Path("runs/1/run/result.json").read_bytes()
    longer = replace(SMALL, steps=30)
    train(longer, "runs/0/run", device="cpu", progress=False, notify=print)
    Path("sweep.toml").write_text(config.replace("steps = 20", "steps = 30"))
    assert "1/1 done" in say("sweep", "sweep.toml", *options, url)[1]
    assert copied_names(url) == {*map(run_name, seeds), run_name(longer)}
    Path("sweep.toml").write_text(f"{config}learning_rate = 1e38\n")
    assert "1 diverged" in say("sweep", "sweep.toml", *options[:-1])[1]
    assert "1 diverged" in say("sweep", "sweep.toml", *options, url)[1]
    assert copied_names(url) == {*map(run_name, seeds), run_name(longer), run_name(replace(SMALL, learning_rate=1e38))}


def test_packs_at_an_address_count(tmp_path: Path, run: Run, say: Say) -> None:
    Path("sweep.toml").write_text(FILE.replace("[0, 1, 2]", "0"))
    write_pack("packs/pack.json", [run])
    for place in ("packs", f"file://{tmp_path}/packs", f"file://{tmp_path}/packs/pack.json"):
        said = say("sweep", "sweep.toml", "--gpus-per-job", "0", "--dry-run", "--results", place)[1]
        assert "1 done, 0 unfinished, 0 missing" in said


FILE = "steps = 20\nlatents = 10\nbatch_size = 10\nreport_every = 10\nseed = [0, 1, 2]\n"


def check_whole_way(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep that copies, one that finds everything there, one that copies what it has; then reading."""
    call = partial(arms, monkeypatch=monkeypatch, capsys=capsys)
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(FILE)
    words = ("sweep", "sweep.toml", "--gpus-per-job", "0")
    call("sweep", "sweep.toml", "--gpus-per-job", "0", "-o", "plain")
    assert "3/3 done, 0 running, 0 failed: first" in call(*words, "-o", "first", "--copy-to", url)
    assert copied_names(url) == {path.name for path in Path("first").iterdir()}
    assert "3 done, 0 unfinished, 0 missing" in call(*words, "-o", "second", "--copy-to", url, "--dry-run")
    assert "3/3 done, 0 running, 0 failed: second" in call(*words, "-o", "second", "--copy-to", url)
    assert "3/3 done" in call(*words, "-o", "second", "--results", url)
    assert not Path("second").exists(), "they are done, though not here"
    before = {path: path.stat().st_mtime_ns for path in Path("plain").rglob("*")}
    assert call(*words, "-o", "plain", "--copy-to", f"{url}/again").count(" done\n") == 3
    assert copied_names(f"{url}/again") == copied_names(url), "copied, as it was done"
    assert {path: path.stat().st_mtime_ns for path in Path("plain").rglob("*")} == before
    check_reading(url, 6, call)


def check_reading(url: str, count: int, call: "partial[str]") -> None:
    assert call("runs", url).count("finished: 20 steps") == count
    assert "3 runs" in call("pack", f"{url}/again", "-o", "pack.json")
    assert [run.result() for run in read_pack("pack.json")] == [run.result() for run in find_runs("plain")]
    assert "3 runs" in call("report", url, "-o", "page.html", "--no-files")


def test_a_sweep_and_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_whole_way(f"file://{tmp_path / 'copies'}", tmp_path, monkeypatch, capsys)


@needs_cluster  # by aiohttp, which comes with Lightning
def test_copies_are_read_from_the_web(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = tmp_path / "copies"
    check_whole_way(f"file://{copies}", tmp_path, monkeypatch, capsys)
    handler = partial(SimpleHTTPRequestHandler, directory=str(copies))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        call = partial(arms, monkeypatch=monkeypatch, capsys=capsys)
        check_reading(f"http://127.0.0.1:{server.server_port}/", 6, call)
        server.shutdown()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server on this machine that speaks S3."""
    pytest.importorskip("s3fs", reason="fsspec reads s3 by s3fs")
    server_of = pytest.importorskip("moto.server", reason="needs a server of S3: pip install 'moto[server]'")
    server = server_of.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
    try:
        yield "s3://bucket/runs"
    finally:
        server.stop()


@slow
@pytest.mark.filterwarnings("ignore")  # those of the server and its client
def test_a_sweep_and_its_copies_in_a_bucket(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "AWS_ENDPOINT_URL" in os.environ
    check_whole_way(bucket, tmp_path, monkeypatch, capsys)
