"""Runs of user models: identity, replicas, likelihoods, more steps, and errors."""

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import signals
from torch import Tensor, nn

from arms.bench import Dataset, DiscreteVAE, Run, TrainConfig, Trainer, evaluate, load_model, train
from arms.bench.cli import main
from arms.bench.config import run_name
from arms.bench.models import PlainNetwork, replicated, structure_of
from arms.bench.models.networks import CategoricalPixels, GaussianPixels
from arms.bench.pictures import sample_grid, write_samples
from arms.bench.report import build_report, collect
from arms.bench.report.groups import group_runs
from arms.bench.runs.ensemble import TerminatedError
from arms.bench.training.engine import Engine

CONFIG = TrainConfig(steps=20, report_every=10, learning_rate=1e-3, num_samples=4)


def conv(dataset: Dataset) -> DiscreteVAE:
    shape = (1, dataset.height, dataset.width)
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6))
    decoder = nn.Sequential(
        nn.Linear(6, 48), nn.Unflatten(1, (3, 4, 4)), nn.ConvTranspose2d(3, 1, 2, 2)
    )
    return DiscreteVAE(PlainNetwork(encoder, shape), PlainNetwork(decoder), 6, dataset.pixel_mean())


def activated(activation: type[nn.Module]) -> Callable[[Dataset], DiscreteVAE]:
    def perceptron(dataset: Dataset) -> DiscreteVAE:
        encoder = nn.Sequential(nn.Linear(64, 8), activation(), nn.Linear(8, 6))
        return DiscreteVAE(encoder, nn.Linear(6, 64), 6, dataset.pixel_mean())

    return perceptron


def weights(run: Run) -> dict[str, Tensor]:
    return run.weights()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- who they are


def test_a_run_says_which_model_it_is_of(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path / "run", dataset=digits, model=conv)
    config = run.config()
    assert (config.network, config.latents) == ("conv", 6)
    assert config.structure == structure_of(conv(digits))
    assert "conv" in run_name(config)
    assert json.loads((run.path / "config.json").read_text())["structure"] == config.structure


def test_names_come_from_the_model_or_the_function_or_the_class(
    tmp_path: Path, digits: Dataset
) -> None:
    class Mine(DiscreteVAE):
        pass

    def network(model: Any) -> str:
        return (
            train(
                CONFIG, tmp_path / str(len(list(tmp_path.iterdir()))), dataset=digits, model=model
            )
            .config()
            .network
        )

    parts = (nn.Linear(64, 6), nn.Linear(6, 64), 6, digits.pixel_mean())
    assert network(DiscreteVAE(*parts, name="deep net")) == "deep net"
    assert network(lambda dataset: DiscreteVAE(*parts)) == "own"
    assert network(Mine(*parts)) == "Mine"
    with pytest.raises(
        ValueError,
        match="not have the name of a built-in network, got 'linear', which is built in:",
    ):
        network(DiscreteVAE(*parts, name="linear"))
    with pytest.raises(ValueError, match="a model's name must be 1 to 60 letters"):
        network(DiscreteVAE(*parts, name="<script>"))


def test_a_structure_is_more_than_shapes_and_less_than_weights(digits: Dataset) -> None:
    relu, tanh = activated(nn.ReLU)(digits), activated(nn.Tanh)(digits)
    assert structure_of(relu) != structure_of(tanh)
    assert structure_of(relu) == structure_of(activated(nn.ReLU)(digits))
    for replicas in (2, 3):
        assert structure_of(replicated(lambda: conv(digits), replicas, 0)) == structure_of(
            conv(digits)
        )


def test_architectures_are_rows_of_their_own(tmp_path: Path, digits: Dataset) -> None:
    """Three models with one configuration are three runs, and none is skipped."""
    train(replace(CONFIG, latents=6), tmp_path / "builtin", dataset=digits)
    for activation in (nn.ReLU, nn.Tanh):
        train(CONFIG, tmp_path / activation.__name__, dataset=digits, model=activated(activation))
    train(CONFIG, tmp_path / "conv", dataset=digits, model=conv)
    found = build_report([tmp_path], tmp_path / "report.html", files=False)
    assert len(found.runs) == 4
    assert not found.problems
    titles = [group.setting.parts[1] for group in group_runs(found.runs)]
    assert sorted(titles)[:2] == ["conv", "linear"]
    assert all(title.startswith("perceptron (structure ") for title in sorted(titles)[2:])
    assert "digits, conv, n = 4" in (tmp_path / "report.html").read_text()


# ---- back again


def test_everything_can_be_asked_of_such_a_run(tmp_path: Path, digits: Dataset) -> None:
    run = train(replace(CONFIG, replicas=2), tmp_path / "run", dataset=digits, model=conv)
    model, dataset = load_model(str(run.path), "cpu", model=conv, dataset=digits)
    assert same(model.state_dict(), weights(run))
    result = run.result()
    assert result is not None
    found = evaluate(model, dataset, "test", [1, 100], seed=0)
    assert {str(count): values for count, values in found.items()} == {
        count: result["bounds"]["test"][count] for count in ("1", "100")
    }
    write_samples(str(tmp_path / "samples.png"), model, dataset, 3, torch.Generator())
    assert (tmp_path / "samples.png").exists()


def test_weights_fit_the_model_itself(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path / "run", dataset=digits, model=conv)
    model = conv(digits)
    model.load_state_dict(run.weights())
    trainer = Trainer(run.config(), digits, model=conv(digits))
    state = run.checkpoint()
    assert state is not None
    trainer.load_state(state)
    assert trainer.steps_done == CONFIG.steps
    with pytest.raises(ValueError, match="has no intact checkpoint: train it first"):
        Run(tmp_path / "new").begin(CONFIG).weights()


def test_another_model_is_refused(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path / "run", dataset=digits, model=activated(nn.ReLU))
    with pytest.raises(
        ValueError,
        match=r"is a run of your own model 'perceptron', which cannot be loaded by name: pass it",
    ):
        load_model(run, dataset=digits)
    with pytest.raises(
        ValueError,
        match=r"trained a model with the structure \w+ \('perceptron'\), but the model given",
    ):
        load_model(run, model=activated(nn.Tanh), dataset=digits)
    with pytest.raises(ValueError, match=r"contains another run \(structure is '\w+' there"):
        train(CONFIG, run.path, dataset=digits, model=activated(nn.Tanh))


def test_a_model_without_a_name_comes_back(tmp_path: Path, digits: Dataset) -> None:
    """Pass the data set as an object, also with the configuration of the run."""
    run = train(CONFIG, tmp_path / "run", dataset=digits, model=conv(digits))
    assert run.config().network == "own"
    model, _ = load_model(run, "cpu", model=conv(digits), dataset=digits)
    assert same(model.state_dict(), weights(run))
    longer = replace(run.config(), steps=30)
    with pytest.raises(ValueError, match="'own' is your own model: pass it as the model argument"):
        train(longer, run.path, dataset=digits)
    assert run.result(), "nothing was changed"
    train(longer, run.path, dataset=digits, model=conv(digits), notify=lambda line: None)
    assert run.step() == 30


def test_the_built_in_network_by_hand_is_the_built_in_one(tmp_path: Path, digits: Dataset) -> None:
    from arms.bench import build_vae

    model = build_vae("linear", 6, digits.pixel_mean())
    assert train(CONFIG, tmp_path / "run", dataset=digits, model=model).config() == replace(
        CONFIG, latents=6
    )


# ---- replicas


def test_replicas_are_made_by_a_function_each_as_it_would_be_alone(
    tmp_path: Path, digits: Dataset
) -> None:
    one, three = (replicated(lambda: conv(digits), replicas, 7) for replicas in (1, 3))
    x = torch.rand(1, 4, 64)
    assert torch.equal(three.encode(x.expand(3, -1, -1))[0], one.encode(x)[0])
    assert not torch.equal(three.encode(x.expand(3, -1, -1))[1], one.encode(x)[0])
    state = torch.get_rng_state()
    replicated(lambda: conv(digits), 2, 0)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is the user's"
    run = train(replace(CONFIG, replicas=3), tmp_path / "run", dataset=digits, model=conv)
    assert len(run.metrics()[-1]["train_elbo"]) == 3


def test_a_replica_that_stopped_is_left_out(tmp_path: Path, digits: Dataset) -> None:
    run = train(replace(CONFIG, replicas=3), tmp_path / "run", dataset=digits, model=conv)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["train_elbo"][1] = None
    (run.path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    model, _ = load_model(run, "cpu", model=conv, dataset=digits)
    assert model.replicas == 2
    assert torch.equal(model.prior, weights(run)["prior"][[0, 2]])
    x = torch.rand(2, 4, 64)
    whole = replicated(lambda: conv(digits), 3, 0)
    whole.load_state_dict(weights(run))
    assert torch.equal(model.encode(x)[1], whole.encode(x[[0, 0, 1]])[2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda dataset: nn.Linear(3, 3), "must return an arms.bench.DiscreteVAE, got Linear"),
        (
            lambda dataset: replicated(lambda: conv(dataset), 2, 0),
            "must return a model of one replica, got 2",
        ),
        (
            lambda dataset: DiscreteVAE(
                nn.Conv2d(1, 2, 3), nn.Linear(6, 64), 6, dataset.pixel_mean()
            ),
            r"the model 'own' must accept images \[[13], 2, 64\] \(replicas, images, pixels\) of",
        ),
        (
            lambda dataset: DiscreteVAE(
                nn.Linear(64, 5), nn.Linear(6, 64), 6, dataset.pixel_mean()
            ),
            "encoder must return",
        ),
        (7, "model must be a DiscreteVAE, or a function that makes one, got int"),
    ],
)
def test_nothing_is_written_before_everything_was_checked(
    make: Any, message: str, tmp_path: Path, digits: Dataset
) -> None:
    for replicas in (1, 3):
        with pytest.raises(ValueError, match=message):
            train(replace(CONFIG, replicas=replicas), tmp_path / "run", dataset=digits, model=make)
    plain = conv(digits)
    with pytest.raises(
        ValueError, match="the model must have 3 replicas, as the configuration says, got 1"
    ):
        train(replace(CONFIG, replicas=3), tmp_path / "run", dataset=digits, model=plain)
    with pytest.raises(ValueError, match="evaluate must be an integer >= 1, got 0"):
        train(CONFIG, tmp_path / "run", dataset=digits, model=plain, evaluate=0)
    assert not list(tmp_path.iterdir())


# ---- likelihoods


def gaussian(dataset: Dataset) -> DiscreteVAE:
    return DiscreteVAE(
        nn.Linear(64, 6),
        nn.Linear(6, 128),
        6,
        dataset.pixel_mean(),
        name="gaussian",
        likelihood=GaussianPixels(),
    )


def categorical(dataset: Dataset) -> DiscreteVAE:
    likelihood = CategoricalPixels(16)
    return DiscreteVAE(
        nn.Linear(64, 6), nn.Linear(6, 64 * 17), 6, dataset.pixel_mean(), likelihood=likelihood
    )


def test_likelihoods_are_those_of_torch() -> None:
    x = torch.randint(0, 17, (2, 5, 64)) / 16
    outputs = torch.randn(3, 2, 5, 128)
    mean, log_variance = outputs.chunk(2, -1)
    normal = torch.distributions.Normal(mean, (log_variance / 2).exp())
    assert torch.allclose(
        GaussianPixels().log_prob(outputs, x), normal.log_prob(x).sum(-1), rtol=1e-5
    )
    fixed = torch.distributions.Normal(mean, 0.3)
    assert torch.allclose(
        GaussianPixels(0.3).log_prob(mean, x), fixed.log_prob(x).sum(-1), rtol=1e-5
    )
    outputs = torch.randn(3, 2, 5, 64 * 17)
    levels = torch.distributions.Categorical(logits=outputs.unflatten(-1, (64, 17)))
    assert torch.allclose(
        CategoricalPixels(16).log_prob(outputs, x), levels.log_prob(x * 16).sum(-1), rtol=1e-5
    )
    assert torch.allclose(
        CategoricalPixels(16).mean(outputs), (levels.probs * torch.arange(17) / 16).sum(-1)
    )


@pytest.mark.parametrize("make", [gaussian, categorical])
@pytest.mark.parametrize("estimator", ["arms", "midpoint", "relax", "vimco"])
def test_models_with_other_likelihoods_learn(
    make: Callable[[Dataset], DiscreteVAE], estimator: str, tmp_path: Path, digits: Dataset
) -> None:
    config = replace(CONFIG, estimator=estimator, steps=60, learning_rate=1e-2)
    run = train(config, tmp_path / "run", dataset=digits, model=make)
    first, *_, last = (record["train_elbo"][0] for record in run.metrics())
    assert last > first + 5
    model, _ = load_model(run, "cpu", model=make, dataset=digits)
    grid = sample_grid(model, digits, 4, torch.Generator())
    assert 0 <= float(grid.min()) <= float(grid.max()) <= 1


def test_gray_values_are_no_bits(digits: Dataset) -> None:
    assert set(Trainer(CONFIG, digits)._batch().unique().tolist()) == {0.0, 1.0}
    seen = Trainer(CONFIG, digits, model=gaussian(digits))._batch()
    assert set((seen * 16).unique().tolist()) == set(map(float, range(17)))


def test_levels_of_model_and_data_are_the_same(tmp_path: Path, digits: Dataset) -> None:
    model = DiscreteVAE(
        nn.Linear(64, 6), nn.Linear(6, 256), 6, digits.pixel_mean(), likelihood=CategoricalPixels(3)
    )
    with pytest.raises(
        ValueError, match="the model needs pixels from 0 to 3, got a data set with pixels from 0 to"
    ):
        train(CONFIG, tmp_path / "run", dataset=digits, model=model)


def test_log_weights_of_ones_own(digits: Dataset) -> None:
    """The model defines the objective. If it ignores the hints about graphs, only the time changes."""

    class ByHand(DiscreteVAE):
        def log_weights(self, b: Tensor, x: Tensor, logits: Tensor, *_: Any, **how: Any) -> Tensor:
            pixels, softplus = self.decode(b), nn.functional.softplus
            ratio = (
                b * (self.prior - logits) - softplus(self.prior) + softplus(logits)
            )  # also between the bits
            return (x * pixels - softplus(pixels)).sum(-1) + ratio.sum(-1)

        forward = log_weights

    for estimator in ("arms", "midpoint", "relax", "vimco"):
        grads = []
        for kind in (DiscreteVAE, ByHand):
            torch.manual_seed(0)
            model = kind(nn.Linear(64, 6), nn.Linear(6, 64), 6, digits.pixel_mean())
            trainer = Trainer(replace(CONFIG, estimator=estimator, latents=6), digits, model=model)
            grads.append(trainer.gradients())
        for one, other in zip(*grads, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-5), estimator


# ---- more steps


def make_run(path: Path, digits: Dataset, steps: int, model: Any = conv, **changes: Any) -> Run:
    return train(
        replace(CONFIG, steps=steps, **changes),
        path,
        dataset=digits,
        model=model,
        notify=lambda line: None,
    )


@pytest.mark.parametrize("model", [None, conv])
def test_more_steps_go_on_to_the_same_numbers(model: Any, tmp_path: Path, digits: Dataset) -> None:
    whole = make_run(tmp_path / "whole", digits, 60, model)
    told: list[str] = []
    for steps in (20, 40, 60):
        config = replace(CONFIG, steps=steps)
        run = train(config, tmp_path / "parts", dataset=digits, model=model, notify=told.append)
    assert told == [f"{run.path} continues from step {done} to {done + 20}" for done in (20, 40)]
    assert run.result() == whole.result()
    assert run.metrics() == whole.metrics()
    assert same(weights(run), weights(whole))
    assert run.config() == whole.config()
    with pytest.raises(
        ValueError, match=r"contains another run \(steps is 60 there, but 40 was requested\)"
    ):
        make_run(tmp_path / "parts", digits, 40, model)


def test_a_crash_right_after_lengthening_loses_nothing(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(tmp_path / "whole", digits, 60)
    run = make_run(tmp_path / "parts", digits, 20)

    def crash(engine: Engine) -> None:
        raise InterruptedError

    monkeypatch.setattr(Engine, "advance_block", crash)
    with pytest.raises(InterruptedError):
        make_run(run.path, digits, 40)
    assert Run(run.path).result() is None, "the bounds of the earlier end are no longer the run's"
    monkeypatch.undo()
    run = make_run(run.path, digits, 60)
    assert run.result() == whole.result()


def test_a_cosine_is_not_lengthened(tmp_path: Path, digits: Dataset) -> None:
    make_run(tmp_path, digits, 20, schedule="cosine")
    with pytest.raises(
        ValueError, match=r"steps is 20 there, but 30 was requested; a cosine schedule ends"
    ):
        make_run(tmp_path, digits, 30, schedule="cosine")
    assert Run(tmp_path).result()


def test_a_run_without_checkpoints_is_not_begun_anew(tmp_path: Path, digits: Dataset) -> None:
    run = make_run(tmp_path / "run", digits, 20)
    for path in run.path.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(
        ValueError, match="is finished, but has no intact checkpoint to continue from"
    ):
        make_run(run.path, digits, 40)
    assert run.result()
    assert run.config().steps == 20


# ---- the loop


def test_fit_is_the_loop(digits: Dataset) -> None:
    by_hand, fitted = (
        Trainer(CONFIG, digits, model=replicated(lambda: conv(digits), 1, 0)) for _ in range(2)
    )
    for _ in range(CONFIG.steps):
        by_hand.step()
    shown: list[int] = []
    records = fitted.fit(on_record=lambda record: shown.append(record["step"]))
    assert [record["step"] for record in records] == shown == [10, 20]
    assert same(fitted.model.state_dict(), by_hand.model.state_dict())
    assert fitted.fit() == []
    assert [record["step"] for record in fitted.fit(5)] == [25]


def test_a_bar_by_default_on_a_terminal(
    tmp_path: Path,
    digits: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Trainer(CONFIG, digits).fit()
    train(CONFIG, tmp_path / "silent", dataset=digits)
    assert capsys.readouterr() == ("", ""), "a script's output is its own"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    config = replace(CONFIG, steps=30, estimator="arms-taylor")
    train(config, tmp_path / "shown", dataset=digits)
    said = capsys.readouterr()
    assert said.out == ""
    assert "30/30" in said.err
    assert "evaluating" in said.err
    assert "…" not in said.err, "it fits 80 columns"
    train(config, tmp_path / "off", dataset=digits, progress=False)
    assert capsys.readouterr().err == ""


def test_less_may_be_evaluated_and_more_later(tmp_path: Path, digits: Dataset) -> None:
    run = train(CONFIG, tmp_path, dataset=digits, evaluate=5)
    result = run.result()
    assert result is not None
    assert result["images"] == 5
    (found,) = collect([tmp_path]).runs
    assert found.note == "final bounds over 5 images of each split only"
    before = weights(run)
    train(CONFIG, tmp_path, dataset=digits, evaluate=3)
    assert Run(tmp_path).result() == result, "enough was evaluated"
    whole = train(CONFIG, tmp_path, dataset=digits).result()
    assert whole is not None
    assert "images" not in whole
    assert same(before, weights(run))


@signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_first(
    number: signal.Signals, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(tmp_path / "whole", digits, 20)
    advance = Engine.advance_block

    def stopping(engine: Engine) -> None:
        advance(engine)
        if engine.trainer.steps_done == 13:
            signal.raise_signal(number)

    monkeypatch.setattr(Engine, "advance_block", stopping)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match="saved at step 13") as stopped:
        make_run(tmp_path / "run", digits, 20)
    assert stopped.type is (TerminatedError if number == signal.SIGTERM else KeyboardInterrupt)
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    assert make_run(tmp_path / "run", digits, 20).result() == whole.result()


# ---- runs of before


def test_runs_lists_what_there_is(
    tmp_path: Path,
    digits: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(tmp_path / "runs" / "done", digits, 20, replicas=2)
    Run(tmp_path / "runs" / "begun").begin(CONFIG)
    broken = Run(tmp_path / "runs" / "broken").begin(replace(CONFIG, seed=3))
    (broken.path / "result.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["arms", "runs"])
    main()
    begun, what, state, *rest = capsys.readouterr().out.splitlines()
    assert (begun, state) == ("runs/begun", "    unfinished: step 0 of 20")
    assert what == "    digits, linear, arms n=4, R=1, learning_rate 0.001, seed 0"
    assert "broken: runs/broken/result.json must contain" in rest[2]
    assert rest[3:5] == [
        "runs/done",
        "    digits, conv, arms n=4, R=2, latents 6, learning_rate 0.001, seed 0",
    ]
    assert rest[5].startswith("    finished: 20 steps; test bound K=1 -")
    monkeypatch.setattr(sys, "argv", ["arms", "runs", "nowhere"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert (
        capsys.readouterr().err
        == "arms: the folder nowhere does not exist: train a run, or name another folder\n"
    )
