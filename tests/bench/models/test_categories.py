"""Categorical VAEs: the model against a direct computation, training, and every subcommand on such a run."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import OneHotCategorical

from arms.bench.cli import main
from arms.bench.config import TrainConfig, identity
from arms.bench.data import Dataset
from arms.bench.models import build_vae
from arms.bench.runs.run import Run
from arms.bench.training.trainer import Trainer
from arms.latents import OneHot

SMALL = TrainConfig(
    latents=3, categories=4, steps=40, report_every=20, learning_rate=3e-3, batch_size=20
)


@pytest.mark.parametrize("network", ["linear", "nonlinear"])
def test_log_weights_by_hand(network: str, digits: Dataset) -> None:
    vae = build_vae(network, 3, digits.pixel_mean(), replicas=2, categories=4)
    with torch.no_grad():
        vae.prior.copy_(torch.randn(2, 1, 3, 4))
    x = torch.bernoulli(torch.rand(2, 5, 64))
    logits = vae.encode(x)
    assert logits.shape == (2, 5, 3, 4)
    b = OneHot(logits).sample(6)
    pixels = torch.distributions.Bernoulli(logits=vae.decoder(b.flatten(-2)))
    prior, posterior = OneHotCategorical(logits=vae.prior), OneHotCategorical(logits=logits)
    by_hand = pixels.log_prob(x).sum(-1) + prior.log_prob(b).sum(-1) - posterior.log_prob(b).sum(-1)
    torch.testing.assert_close(vae.log_weights(b, x, logits), by_hand, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        vae.log_weights(b, x, logits, attached=2), by_hand, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize(
    "name", ["arms", "loorf", "midpoint", "unordered-set", "disarm", "vimco", "reinmax", "exact"]
)
def test_training_gains(name: str, digits: Dataset) -> None:
    trainer = Trainer(replace(SMALL, estimator=name, learning_rate=1e-2, steps=150), digits)
    trainer.step()
    before = trainer.take_elbo().item()
    for _ in range(149):
        trainer.step()
    trainer.take_elbo()
    for _ in range(10):
        trainer.step()
    assert trainer.take_elbo().item() > before + 1


@pytest.mark.parametrize("name", ["unordered-set", "exact"])
def test_recorded_elbo_is_that_of_the_law(name: str, digits: Dataset) -> None:
    """Samples without replacement, and all states, have weights, so their plain mean is a different number."""
    still = replace(SMALL, latents=2, categories=3, learning_rate=1e-12, prior_learning_rate=1e-12)
    found = {}
    for estimator in (name, "loorf"):
        trainer = Trainer(replace(still, estimator=estimator), digits)
        with torch.no_grad():  # make posterior and prior far from uniform
            trainer.model.prior.copy_(torch.tensor([[3.0, 0.0, -3.0], [0.0, -4.0, 4.0]]))
            dict(trainer.model.named_parameters())["encoder.0.weight"].mul_(8)
        for _ in range(300):
            trainer.step()
        found[estimator] = trainer.take_elbo().item()
    assert abs(found[name] - found["loorf"]) < 0.3


def test_a_model_and_a_configuration_that_differ(digits: Dataset) -> None:
    bits = build_vae("linear", 20, digits.pixel_mean())
    with pytest.raises(
        ValueError,
        match="the configuration has categories=10, but the model has categories=2: remove",
    ):
        Trainer(TrainConfig(latents=20, categories=10), digits, model=bits)
    layered = build_vae("linear", [20, 10], digits.pixel_mean())
    with pytest.raises(
        ValueError, match=r"needs layers in the configuration, got none: write TrainConfig\(layers="
    ):
        Trainer(TrainConfig(estimator="vimco"), digits, model=layered)
    with pytest.raises(ValueError, match="call chain_log_weights for several layers"):
        layered(torch.zeros(1, 1, 5, 20), torch.zeros(1, 5, 64), torch.zeros(1, 5, 20))


def test_bits_keep_their_identity() -> None:
    assert "categories" not in identity(TrainConfig(latents=20))
    assert identity(TrainConfig(latents=20, categories=10))["categories"] == 10


def test_a_state_goes_on_bit_for_bit(digits: Dataset) -> None:
    whole, parts = Trainer(SMALL, digits), Trainer(SMALL, digits)
    for _ in range(6):
        whole.step()
    for _ in range(3):
        parts.step()
    resumed = Trainer(SMALL, digits)
    resumed.load_state({name: tensor.clone() for name, tensor in parts.state().items()})
    for _ in range(3):
        resumed.step()
    assert all(torch.equal(tensor, resumed.state()[name]) for name, tensor in whole.state().items())


def arms(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["arms", *words])
    main()


def test_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train = [
        "train",
        "--latents",
        "3",
        "--categories",
        "4",
        "--steps",
        "40",
        "--report-every",
        "20",
        "--together",
        "arms",
        "loorf",
    ]
    arms(monkeypatch, *train, "--name", "codes", "--evaluate", "50")
    for run in ("runs/codes-arms", "runs/codes-loorf"):
        assert Run(run).config().categories == 4
    arms(monkeypatch, "evaluate", "runs/codes-arms", "--images", "20")
    arms(monkeypatch, "variance", "runs/codes-arms", "--repeats", "3")
    assert "unordered-set" in capsys.readouterr().out
    arms(monkeypatch, "sample", "runs/codes-arms", "-o", "samples.png")
    assert Path("samples.png").stat().st_size > 0
    arms(
        monkeypatch, *train[:1], "--latents", "5", *train[5:9], "--evaluate", "50", "--name", "bits"
    )
    arms(
        monkeypatch,
        *train[:1],
        "--layers",
        "6",
        "5",
        *train[5:9],
        "--evaluate",
        "50",
        "--name",
        "layers",
    )
    arms(monkeypatch, "report", "runs", "-o", "report.html")  # with runs of all three kinds
    page = Path("report.html").read_text()
    for title in (
        "3x4 categories, n = 4, 40 steps",
        "2 layers of 6, 5 bits, n = 4, 40 steps",
        "digits, linear, n = 4, 40 s",
    ):
        assert title in page


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["--latents", "20", "--categories", "10", "--estimator", "arm"],
            "arm can train bits only, got latents with 10 categories: choose an estimator for categor",
        ),
        (
            ["--latents", "20", "--categories", "10", "--estimator", "exact"],
            "exact can train with at most 65536 joint states, got 20x10 latents: choose another",
        ),
        (
            ["--latents", "20", "--categories", "10", "--estimator", "arms-ms-gaussian"],
            "choose an estimator for categories, such as vimco or arms-ms",
        ),
        (["--latents", "20", "--categories", "1"], "categories must be an integer >= 2, got 1"),
        (
            ["--latents", "1", "--categories", "3", "--estimator", "unordered-set"],
            "unordered-set needs num_samples <= 3, the number of joint states, got",
        ),
    ],
)
def test_misuse_is_one_line(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        arms(monkeypatch, "train", *words)
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert complaint in said
    assert said.count("\n") == 1
    assert not Path("runs").exists()


def test_a_configuration_of_countless_states_is_made_at_once() -> None:
    for latents in (10**11, 2 * 10**18):
        with pytest.raises(
            ValueError,
            match=rf"can train with at most 65536 joint states, got {latents}x3 latents: choose",
        ):
            TrainConfig(latents=latents, categories=3, estimator="exact")
        assert (
            TrainConfig(
                latents=latents, categories=3, estimator="unordered-set", num_samples=1000
            ).latents
            == latents
        )
