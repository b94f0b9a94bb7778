"""A user's own model and images, from training to the report, on the command line and in Python."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Say
from marks import signals
from processes import KILLED_AFTER_SAVES, completed

from arms.bench import Run, TrainConfig, build_report, evaluate, load_model, train
from arms.bench.data import Dataset
from arms.bench.evaluation import logit_gradient_variances
from arms.bench.pictures import write_samples

NETS = """
from torch import nn
from arms.bench import DiscreteVAE, PlainNetwork

def conv(dataset):
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8))
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 1, 2, 2))
    shape = (1, dataset.height, dataset.width)
    return DiscreteVAE(PlainNetwork(encoder, shape), PlainNetwork(decoder), 8, dataset.pixel_mean())

def perceptron(dataset):
    return DiscreteVAE(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 8)), nn.Linear(8, 64), 8,
                     dataset.pixel_mean())
"""
FLAGS = [
    "--report-every",
    "50",
    "--replicas",
    "2",
    "--learning-rate",
    "1e-3",
    "--checkpoint-seconds",
    "0",
]
TRAIN = ["train", "--dataset", "mine.npz", "--model", "nets:conv", *FLAGS]


@pytest.fixture
def say(say: Say, all_digits: Dataset) -> Callable[..., str]:
    """Run a command in a folder with a module of networks and a file of images, and return its output."""
    Path("nets.py").write_text(NETS)
    np.savez(
        "mine.npz",
        train=all_digits.train[:200].view(-1, 8, 8),
        test=all_digits.test[:40].view(-1, 8, 8),
        levels=16,
    )

    def call(*words: str) -> str:
        code, out, error = say(*words)
        assert code == 0, error
        return out

    return call


@signals
def test_by_command(say: Callable[..., str]) -> None:
    done = completed([sys.executable, "-c", KILLED_AFTER_SAVES, "2", *TRAIN, "--steps", "150"])
    assert done.returncode == -signal.SIGKILL, done.stderr
    (conv,) = Path("runs").iterdir()
    assert "unfinished: step 100 of 150" in say("runs")
    say(*TRAIN, "--steps", "150")  # resumes
    assert "(finished before)" in say(*TRAIN, "--steps", "150")
    assert f"{conv} continues from step 150 to 250" in say(*TRAIN, "--steps", "250")
    assert "(finished before)" in say(*TRAIN, "--steps", "250")
    assert list(Path("runs").iterdir()) == [conv]
    say(*TRAIN, "--steps", "250", "--runs", "whole")
    (whole,) = Path("whole").iterdir()
    assert Run(conv).result() == Run(whole).result()
    assert Run(conv).metrics() == Run(whole).metrics()

    say("train", "--dataset", "mine.npz", "--model", "nets:perceptron", *FLAGS, "--steps", "250")
    perceptron = next(path for path in Path("runs").iterdir() if path != conv)
    own = ["--model", "nets:conv"]
    assert "test bound" in say("evaluate", str(conv), *own, "--samples", "1", "7")
    assert "arms" in say(
        "variance", str(conv), *own, "--estimators", "loorf", "arms", "--repeats", "5"
    )
    say("sample", str(conv), *own)
    say(
        "sample",
        str(perceptron),
        "--model",
        "nets:perceptron",
        "-o",
        str(perceptron / "samples.png"),
    )
    listed = say("runs")
    assert re.search(
        r"mine@\w{8}, perceptron, arms n=4, R=2, latents 8, learning_rate 0.001, seed 0", listed
    )
    assert listed.count("finished: 250 steps; test bound K=1 -") == 2
    said = say("report", "runs", "-o", "report.html", "--no-files")
    assert "2 runs" in said
    assert "skipped" not in said
    page = Path("report.html").read_text()
    overview = page[page.index("Overview") : page.index("</section>")]
    assert "<td>conv</td>" in overview
    assert "<td>perceptron</td>" in overview
    assert page.count('<img src="data:image/png') == 2


def test_a_cosine_begins_anew_and_says_so(say: Callable[..., str]) -> None:
    cosine = [*TRAIN, "--schedule", "cosine", "--evaluate", "5"]
    say(*cosine, "--steps", "50")
    assert "ends at step 50 of its cosine schedule: starting a new run of 100 steps" in say(
        *cosine, "--steps", "100"
    )
    assert len(list(Path("runs").iterdir())) == 2


def test_by_python(say: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    import nets  # type: ignore[import-not-found]

    def config(steps: int) -> TrainConfig:
        return TrainConfig(steps=steps, report_every=50, replicas=2, learning_rate=1e-3)

    def stop(record: dict[str, object]) -> None:
        if record["step"] == 50:
            raise InterruptedError

    whole = train(config(150), "runs/whole", dataset="mine.npz", model=nets.conv)
    with pytest.raises(InterruptedError):
        train(
            config(100),
            "runs/conv",
            dataset="mine.npz",
            model=nets.conv,
            on_record=stop,
            checkpoint_seconds=0,
        )
    run = train(config(100), "runs/conv", dataset="mine.npz", model=nets.conv)
    run = train(config(150), "runs/conv", dataset="mine.npz", model=nets.conv, notify=print)
    assert run.result() == whole.result()
    assert repr(run) == "Run('runs/conv')"

    model, dataset = load_model(run, "cpu", model=nets.conv)
    result = run.result()
    assert result is not None
    assert evaluate(model, dataset, "test", [1], seed=0)[1] == result["bounds"]["test"]["1"]
    x = torch.ones(2, 3, 64)
    table = logit_gradient_variances(model, x, ["loorf", "arms"], 4, torch.Generator(), repeats=5)
    assert "<td>arms</td>" in table._repr_html_()
    write_samples("runs/conv/samples.png", model, dataset, 3, torch.Generator())
    train(config(150), "runs/perceptron", dataset="mine.npz", model=nets.perceptron)
    found = build_report(["runs/conv", "runs/perceptron"], "report.html")
    assert sorted(one.config.network for one in found.runs) == ["conv", "perceptron"]
    assert not found.problems
