"""Likelihoods of the built-in networks, and models of several layers made by users."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from arms.bench import (
    CategoricalPixels,
    Dataset,
    DiscreteVAE,
    GaussianPixels,
    Run,
    TrainConfig,
    Trainer,
    build_vae,
    evaluate,
    load_model,
    train,
)
from arms.bench.cli import main
from arms.bench.config import (
    OBSERVATION,
    DataConfig,
    EstimatorConfig,
    ModelConfig,
    ObservationConfig,
    OptimizerConfig,
    identity,
)
from arms.bench.models import replicated, structure_of
from arms.bench.report.groups import setting_of
from arms.bench.runs.ensemble import ensemble_trainer, share_of_model

CONFIG = TrainConfig(
    latents=10, replicas=2, steps=20, report_every=10, learning_rate=1e-2, batch_size=20
)


@pytest.mark.parametrize("network", ["linear", "nonlinear"])
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("sizes", [{}, {"layers": (10, 6)}, {"categories": 3}])
def test_built_in_networks_learn_gray_values(
    network: str, likelihood: str, sizes: dict[str, object], digits: Dataset
) -> None:
    config = replace(CONFIG, network=network, likelihood=likelihood, **sizes)  # type: ignore[arg-type]
    trainer = Trainer(config, digits)
    before = evaluate(trainer.model, digits, "train", [10], 0)[10]
    for _ in range(80):
        trainer.step()
    after = evaluate(trainer.model, digits, "train", [10], 0)[10]
    assert min(b - a for a, b in zip(before, after, strict=True)) > 5


@pytest.mark.parametrize("likelihood", [GaussianPixels(), GaussianPixels(0.2)])
def test_a_decoder_starts_at_the_mean_of_the_pixels(
    likelihood: GaussianPixels, digits: Dataset
) -> None:
    mean = digits.pixel_mean()
    outputs = likelihood.initial_outputs(mean)
    assert outputs.shape == (likelihood.outputs(64),)
    torch.testing.assert_close(likelihood.mean(outputs), mean)
    model = build_vae("nonlinear", 5, mean, likelihood=likelihood)
    assert torch.equal(model.decoder[-1].bias[0, 0], outputs)  # type: ignore[index]


def test_categorical_pixels_of_one_level_start_as_bits() -> None:
    mean = torch.tensor([0.1, 0.5, 0.9])
    categorical = CategoricalPixels(1)
    torch.testing.assert_close(categorical.mean(categorical.initial_outputs(mean)), mean)


def test_a_run_has_its_likelihood_in_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "train --likelihood gaussian --steps 20 --report-every 10 --latents 5 --name run"
    monkeypatch.setattr(sys, "argv", ["arms", *words.split(), "--evaluate", "20"])
    main()
    run = Run("runs/run")
    assert identity(run.config())["likelihood"] == "gaussian"
    assert "likelihood" not in identity(TrainConfig())
    model, _ = load_model(run, "cpu")
    assert model.likelihood == GaussianPixels(0.1)
    assert "gaussian pixels" in setting_of(run.config()).title
    layers = setting_of(TrainConfig(layers=(20, 10), categories=4)).title
    assert "20x4 categories, 2 layers of 20, 10 latents" in layers


def test_ensembles_keep_their_likelihood(digits: Dataset) -> None:
    configs = [
        replace(CONFIG, estimator=name, likelihood="categorical") for name in ("arms", "loorf")
    ]
    trainer = ensemble_trainer(configs, [digits, digits], "cpu")
    trainer.step()
    assert share_of_model(trainer, configs[1], 1, 2).likelihood == CategoricalPixels(16)


def test_a_model_of_ones_own_has_its_own_likelihood(tmp_path: Path, digits: Dataset) -> None:
    model = DiscreteVAE(nn.Linear(64, 6), nn.Linear(6, 64), 6, digits.pixel_mean())
    config = replace(CONFIG, replicas=1, likelihood="gaussian")
    with pytest.raises(
        ValueError,
        match="networks, and this run has your own model, got 'gaussian': pass it to your",
    ):
        train(config, tmp_path / "run", dataset=digits, model=model)
    by_hand = build_vae("linear", 6, digits.pixel_mean(), likelihood=GaussianPixels(0.1))
    run = train(config, tmp_path / "run", dataset=digits, model=by_hand)
    assert run.config() == replace(config, latents=6)


# ---- several layers


def layered(dataset: Dataset) -> DiscreteVAE:
    encoders = [nn.Linear(64, 12), nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.LazyLinear(6))]
    decoders = [nn.Linear(12, 64), nn.Linear(6, 12)]
    return DiscreteVAE(encoders, decoders, [4, 2], dataset.pixel_mean(), categories=3)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_layered_model_of_ones_own_is_a_run(
    replicas: int, tmp_path: Path, digits: Dataset
) -> None:
    config = replace(CONFIG, latents=200, replicas=replicas, steps=100)
    run = train(config, tmp_path / "run", dataset=digits, model=layered)
    found = run.config()
    assert (found.layers, found.latents, found.categories) == ((4, 2), 4, 3)
    assert found.structure == structure_of(replicated(lambda: layered(digits), 1, 0))
    first, *_, last = (record["train_elbo"] for record in run.metrics())
    assert min(b - a for a, b in zip(first, last, strict=True)) > 1
    model, _ = load_model(run, "cpu", model=layered, dataset=digits)
    assert all(torch.equal(model.state_dict()[name], own) for name, own in run.weights().items())


def test_replicas_of_a_layered_model_are_as_they_would_be_alone(digits: Dataset) -> None:
    wide = replicated(lambda: layered(digits), 3, 7)
    one = replicated(lambda: layered(digits), 1, 7)
    x, b = torch.rand(1, 5, 64), torch.eye(3)[torch.zeros(2, 1, 5, 4, dtype=torch.long)]
    deeper = wide.encode_layer(1, b.expand(-1, 3, -1, -1, -1))
    assert torch.equal(wide.encode(x.expand(3, -1, -1))[0], one.encode(x)[0])
    assert torch.equal(deeper[:, 0], one.encode_layer(1, b)[:, 0])
    assert not torch.equal(deeper[:, 1], deeper[:, 0])


def test_layers_that_do_not_fit_are_refused(digits: Dataset) -> None:
    mean = digits.pixel_mean()
    with pytest.raises(
        ValueError, match="must have the same number of layers, at least one, got 2, 1 and 2"
    ):
        DiscreteVAE([nn.Linear(64, 6), nn.Linear(6, 3)], nn.Linear(6, 64), [6, 3], mean)
    encoders = [nn.Linear(64, 6), nn.Linear(6, 4)]
    model = DiscreteVAE(encoders, [nn.Linear(6, 64), nn.Linear(3, 6)], [6, 3], mean)
    with pytest.raises(ValueError, match=r"encoder must return logits \[..., 3\], got .*, 4\]"):
        model.encode_layer(1, torch.zeros(2, 1, 5, 6))


# ---- the configuration


def test_a_configuration_is_its_five_groups() -> None:
    groups = (DataConfig, ModelConfig, EstimatorConfig, OptimizerConfig, ObservationConfig)
    names = [field.name for group in groups for field in fields(group)]
    assert names == [field.name for field in fields(TrainConfig)]
    assert OBSERVATION == ("report_every", "evaluate_every", "evaluate_images")
    assert ModelConfig(layers=[30, 20]).latents == 30  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup_steps must be below 5 steps, got 5"):
        OptimizerConfig(steps=5, warmup_steps=5)


def test_a_field_that_is_gone_may_have_the_value_of_today(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.begin(CONFIG)
    file = run.path / "config.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written | {"layer_samples": "chains"}))
    assert Run(run.path).config() == CONFIG
    file.write_text(json.dumps(written | {"layer_samples": "separate"}))
    with pytest.raises(ValueError, match="unknown fields layer_samples"):
        Run(run.path).config()
