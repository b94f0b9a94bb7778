"""VAEs with several stochastic layers: model, gradients, training, evaluation, runs."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from seeds import seeded
from torch import Tensor

import arms
from arms.bench.config import TrainConfig, identity, run_name
from arms.bench.data import Dataset
from arms.bench.evaluation import bounds, evaluate, logit_gradient_variances
from arms.bench.models import DiscreteVAE, build_vae
from arms.bench.pictures import sample_grid
from arms.bench.report import groups
from arms.bench.report.paper import printed
from arms.bench.runs.ensemble import ensemble_trainer, group_for_ensembles
from arms.bench.runs.loading import load_model
from arms.bench.runs.train import train, train_together
from arms.bench.training.layers import estimate_chains
from arms.bench.training.trainer import Trainer
from arms.checks import score_limit

CONFIG = TrainConfig(
    layers=(20, 10),
    num_samples=4,
    replicas=2,
    steps=40,
    report_every=10,
    learning_rate=2e-3,
    batch_size=20,
)


def small_vae(
    widths: tuple[int, ...] = (2, 2), pixels: int = 3, replicas: int = 1, categories: int = 2
) -> DiscreteVAE:
    """A model in float64 with few states and large weights."""
    mean = torch.full((pixels,), 0.4)
    vae = build_vae("linear", widths, mean, replicas, 3, categories=categories).double()
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(5), dtype=torch.float64))
    return vae


def every_chain(vae: DiscreteVAE, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Log-weights and log q of every joint state of two layers of two latents, `[states]` each, all attached."""
    kind = arms.Bits if vae.categories == 2 else arms.OneHot
    states = kind(torch.zeros(vae.event_shape, dtype=torch.float64)).states()
    b1, b2 = (torch.stack(one)[:, None, None] for one in zip(*product(states, states), strict=True))
    logits = [vae.encode(x), vae.encode_layer(1, b1)]
    log_q = [kind(own).log_prob(b).flatten() for own, b in zip(logits, (b1, b2), strict=True)]
    terms = torch.stack(vae.terms(x, logits, [b1, b2])).sum(0).flatten()
    return terms, log_q


# --- The model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("categories", [2, 3])
def test_log_weights_are_joint_over_posterior(categories: int) -> None:
    """The sum of w q over all states is p(x), and the sum of p(x) over all images is one."""
    vae = small_vae(categories=categories)
    total = 0.0
    for bits in product((0.0, 1.0), repeat=3):
        log_weights, log_q = every_chain(vae, torch.tensor(bits, dtype=torch.float64).view(1, 1, 3))
        total += (log_weights + sum(log_q)).exp().sum().item()
    assert total == pytest.approx(1.0, abs=1e-12)


def test_layers_have_the_widths_that_are_asked_for() -> None:
    vae = build_vae("nonlinear", (6, 5, 4), torch.full((9,), 0.3), replicas=2)
    shapes = [tuple(p.shape) for p in vae.parameters() if p.ndim == 3 and p.shape[1] > 1]
    assert (2, 9, 200) in shapes
    assert (2, 200, 6) in shapes
    assert vae.prior.shape == (2, 1, 4)
    assert torch.allclose(vae.decoder[-1].bias, torch.logit(torch.tensor(0.3)))  # type: ignore[index]
    assert vae.sample_prior(7, seeded()).shape == (2, 7, 6)
    assert len(vae.encoder_modules()) == 3


def test_one_layer_is_the_model_it_was() -> None:
    mean = torch.full((9,), 0.3)
    one, other = build_vae("linear", 6, mean, 2, seed=1), build_vae("linear", (6,), mean, 2, seed=1)
    assert type(one) is type(other) is DiscreteVAE
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert {name for name, _ in build_vae("linear", 6, mean, seed=None).named_parameters()} == set(
        dict(one.named_parameters())
    )


def test_weights_of_a_replica_do_not_depend_on_their_number() -> None:
    mean = torch.full((9,), 0.3)
    narrow, wide = (build_vae("nonlinear", (6, 5), mean, replicas, seed=1) for replicas in (1, 3))
    assert all(
        torch.equal(a, b[:1]) for a, b in zip(narrow.parameters(), wide.parameters(), strict=True)
    )


# --- Every layer's gradient -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator",
    [
        arms.LOORF(3),
        arms.ARMS(4),
        arms.Midpoint(4),
        arms.Midpoint(2),
        arms.ExtraSample(arms.ARMS(3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("categories", [2, 3])
def test_gradients_agree_with_enumeration(estimator: arms.Estimator, categories: int) -> None:
    vae, rows = small_vae(categories=categories), 40_000
    x = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).view(1, 1, 3)
    log_weights, log_q = every_chain(vae, x)
    exact = (sum(log_q).exp() * log_weights).sum()  # type: ignore[union-attr]
    parameters = list(vae.parameters())
    truth = torch.autograd.grad(exact, parameters)
    many = x.expand(1, rows, 3)
    found = estimate_chains(vae, estimator, many, seeded(1))
    # The gradient of an encoder's bias is the gradient of the logits, so the biases suffice.
    names = [name for name, _ in vae.named_parameters()]
    first = found.grads[0][0]
    deeper = found.grads[1].sum(0)[0]
    limit = score_limit(8 if categories == 2 else 24)
    for grads, name in ((first, "encoder.0.bias"), (deeper, "deeper_encoders.0.0.bias")):
        row_grads, expected = grads.flatten(1), truth[names.index(name)].flatten()
        z = (row_grads.mean(0) - expected) / (row_grads.std(0) / math.sqrt(rows)).clamp(min=1e-12)
        assert z.abs().max() < limit
    seen = found.value[0]
    assert abs((seen.mean() - exact) / (seen.std() / math.sqrt(rows))) < limit
    # The parameters of the model get autograd's gradient of the value.
    pixels = torch.autograd.grad(found.value.mean(), [vae.decoder[-1].bias, vae.prior])  # type: ignore[index]
    for grad, name in zip(pixels, ("decoder.0.bias", "prior"), strict=True):
        assert (grad - truth[names.index(name)]).abs().max() < 0.05


def test_the_librarys_chains_are_the_benchs() -> None:
    """The same noise through `arms.draw(given=)` and `arms.attach` gives the same gradients."""
    vae = small_vae(replicas=2)
    x = torch.bernoulli(torch.full((2, 5, 3), 0.5, dtype=torch.float64), generator=seeded(2))
    for name in ("loorf", "arms", "midpoint"):
        found = estimate_chains(vae, arms.as_estimator(name, 4), x, seeded(1))
        expected = torch.autograd.grad(
            found.logits, list(vae.deeper_encoders.parameters()), found.grads
        )
        noise = seeded(1)
        q1 = arms.draw(vae.encode(x), name, 4, noise)
        q2 = arms.draw(vae.encode_layer(1, q1.points), given=q1, generator=noise)
        value = arms.attach([q1, q2], vae.terms(x, [q1.logits, q2.logits], [q1.points, q2.points]))
        own = torch.autograd.grad(value.sum(), list(vae.deeper_encoders.parameters()))
        torch.testing.assert_close(value, found.value)
        for a, b in zip(own, expected, strict=True):
            torch.testing.assert_close(a, b)


# --- Evaluation and pictures ------------------------------------------------------------------------------------------


def test_bounds_over_chains_rise_to_the_likelihood() -> None:
    vae = small_vae().float()
    images = torch.tensor([[1, 0, 1]], dtype=torch.uint8).expand(4000, 3)
    found = {k: bound.item() for k, bound in bounds(vae, images, 1, [1, 10, 200], seeded()).items()}
    log_weights, log_q = every_chain(vae.double(), torch.tensor([1.0, 0, 1]).double().view(1, 1, 3))
    likelihood = (log_weights + sum(log_q)).exp().sum().log().item()
    elbo = (sum(log_q).exp() * log_weights).sum().item()  # type: ignore[union-attr]
    assert found[1] == pytest.approx(elbo, abs=0.25)
    assert found[1] < found[10] < found[200] < likelihood + 0.02
    assert found[200] == pytest.approx(likelihood, abs=0.1)


def test_samples_come_from_the_top(digits: Dataset) -> None:
    trainer = Trainer(CONFIG, digits)
    assert sample_grid(trainer.model, digits, 4, seeded()).shape[0] > 0
    with pytest.raises(ValueError, match="models of one stochastic layer"):
        logit_gradient_variances(
            trainer.model, torch.zeros(2, 3, 64), ["loorf"], 4, seeded(), repeats=2
        )


# --- Training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "network", "changes"),
    [
        ("loorf", "linear", {}),
        ("arms", "nonlinear", {}),
        ("midpoint", "linear", {}),
        ("disarm", "linear", {}),
        ("arms", "linear", {"categories": 3, "learning_rate": 5e-3}),
        ("midpoint", "nonlinear", {"categories": 4, "likelihood": "gaussian"}),
        ("arms", "linear", {"decoder_samples": "extra"}),
        ("arms", "linear", {"layers": (20, 15, 10, 5)}),
    ],
)
def test_every_scheme_learns(
    estimator: str, network: str, changes: dict[str, object], digits: Dataset
) -> None:
    config = replace(CONFIG, estimator=estimator, network=network, **changes)  # type: ignore[arg-type]
    trainer = Trainer(config, digits)
    before = evaluate(trainer.model, digits, "test", [20], 0)[20]
    deepest = trainer.model.encoder_modules()[-1]
    start = [parameter.clone() for parameter in deepest.parameters()]
    for _ in range(200):
        trainer.step()
    after = evaluate(trainer.model, digits, "test", [20], 0)[20]
    assert min(b - a for a, b in zip(before, after, strict=True)) > 2.0
    assert all(not torch.equal(a, b) for a, b in zip(start, deepest.parameters(), strict=True))
    assert (trainer.gradient_variance() > 0).all()


def test_state_brings_back_the_future(digits: Dataset) -> None:
    whole, first, second = (Trainer(CONFIG, digits) for _ in range(3))
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    second.load_state({key: tensor.clone() for key, tensor in first.state().items()})
    for _ in range(3):
        second.step()
    assert all(torch.equal(tensor, second.state()[key]) for key, tensor in whole.state().items())


def test_replicas_and_ensembles_are_independent(digits: Dataset) -> None:
    configs = [replace(CONFIG, estimator=name) for name in ("loorf", "arms")]
    assert group_for_ensembles(configs) == [configs]
    trainer = ensemble_trainer(configs, [digits, digits], "cpu")
    alone = Trainer(configs[0], digits).model.state_dict()
    together = trainer.model.state_dict()
    assert all(torch.equal(together[name].chunk(2)[0], tensor) for name, tensor in alone.items())
    trainer.step()
    assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())


# --- Runs, reports, configuration -------------------------------------------------------------------------------------


def test_a_run_from_the_command_line_to_the_report(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path / "run", device="cpu", dataset=digits)
    assert run.config() == CONFIG
    assert json.loads((tmp_path / "run" / "config.json").read_text())["layers"] == [20, 10]
    result = run.result()
    assert result is not None
    assert set(result["bounds"]["test"]) == {"1", "2", "4", "100"}
    model, _ = load_model(run, "cpu")
    assert len(model.layers) == 2
    setting = groups.setting_of(run.config())
    assert "2 layers of 20, 10 bits" in setting.title
    assert printed(setting._replace(dataset="dynamic-mnist"), "loorf", "train") is None
    assert setting != groups.setting_of(replace(CONFIG, layers=(), latents=20))


def test_runs_of_one_ensemble(tmp_path: Path, digits: Dataset) -> None:
    configs = [replace(CONFIG, estimator=name, steps=20) for name in ("loorf", "arms")]
    runs = train_together(
        configs, [tmp_path / "a", tmp_path / "b"], device="cpu", datasets=[digits, digits]
    )
    assert all(run.result() for run in runs)


def test_names_and_identities() -> None:
    assert identity(TrainConfig(layers=(200, 200))) == {"schema": 4, "layers": (200, 200)}
    assert run_name(TrainConfig(layers=(200, 100))).startswith(
        "digits-linear-200x100-arms-n4-r1-seed0-"
    )
    assert run_name(TrainConfig()) == "digits-linear-arms-n4-r1-seed0-a231e32c"
    assert TrainConfig(layers=[30, 20]).layers == (30, 20)  # type: ignore[arg-type]
    assert TrainConfig(layers=(30, 20)).latents == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layers": (200,)},
            "layers must list at least two layers, got one layer of 200: set latents=200 instead",
        ),
        ({"layers": (200, 0)}, "layers must be an integer >= 1"),
        (
            {"layers": (200, 100), "latents": 50},
            "latents must be 200, the first entry of layers, got 50: remove latents",
        ),
        (
            {"layers": (20, 10), "estimator": "vimco"},
            "vimco estimates the 4-sample bound, so it cannot train several layers: use",
        ),
        (
            {"layers": (8, 4), "estimator": "exact"},
            "exact enumerates all states, so it cannot train several layers: use arms, loorf",
        ),
        (
            {"layers": (20, 10), "estimator": "relax"},
            "relax has parameters, so it cannot train several layers: use arms, loorf or midpoint",
        ),
        (
            {"layers": (20, 10), "estimator": "reinmax"},
            r"reinmax is biased \(it ignores how deeper layers change\), so it cannot train",
        ),
    ],
)
def test_misuse_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**changes)  # type: ignore[arg-type]


def test_bounds_of_three_layers_do_not_depend_on_which_others_are_evaluated(
    digits: Dataset,
) -> None:
    model = build_vae("linear", [12, 8, 6], digits.pixel_mean())
    alone = evaluate(model, digits, "test", [1], 0, images=40)[1]
    assert evaluate(model, digits, "test", [1, 2, 10], 0, images=40)[1] == alone
