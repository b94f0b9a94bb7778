"""Schedules: against a formula, in replayed and compiled steps, and with one rate per run in an ensemble."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from marks import needs_gpu
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.metrics import Record
from arms.bench.runs.ensemble import ensemble_trainer, names_of
from arms.bench.runs.run import Run
from arms.bench.runs.train import train_together
from arms.bench.training.engine import Engine, Execution
from arms.bench.training.optimizer import LearningRates
from arms.bench.training.trainer import Trainer

BASE = TrainConfig(
    num_samples=4, latents=4, batch_size=10, learning_rate=2e-3, steps=30, report_every=10
)
SETTINGS: list[dict[str, object]] = [
    {},
    {"warmup_steps": 5},
    {"schedule": "cosine"},
    {"schedule": "cosine", "warmup_steps": 7, "learning_rate": 1e-2},
    {"schedule": "step", "decay_every": 10},
    {
        "schedule": "step",
        "decay_every": 4,
        "decay_factor": 0.5,
        "warmup_steps": 3,
        "prior_learning_rate": 0.1,
    },
]
CONFIGS = [replace(BASE, **setting) for setting in SETTINGS]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    whole = load("digits")
    return Dataset(
        "digits", whole.train[:100], whole.valid[:20], whole.test[:20], 8, 8, whole.levels
    )


@pytest.fixture(scope="module")
def one_image() -> Dataset:
    """One image with deterministic pixels, so that every batch is the same."""
    image = (torch.arange(64) % 3 == 0).to(torch.uint8).expand(1, -1)
    return Dataset("one image", image, image, image, 8, 8, 1)


def plain_factor(config: TrainConfig, t: int) -> float:
    rise = min(1.0, (t + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    if config.schedule == "cosine":
        progress = max(0.0, (t - config.warmup_steps) / (config.steps - config.warmup_steps))
        return rise * (1 + math.cos(math.pi * progress)) / 2
    if config.schedule == "step":
        return rise * config.decay_factor ** (t // config.decay_every)
    return rise


@pytest.mark.parametrize("together", [False, True])
def test_schedules_are_their_formulas(together: bool) -> None:
    for configs in [CONFIGS] if together else [[config] for config in CONFIGS]:
        rates = LearningRates([replace(config, replicas=2) for config in configs], "cpu")
        for t in range(BASE.steps):
            found = rates.after(torch.tensor(float(t)))
            for rate, name in zip(found, ("learning_rate", "prior_learning_rate"), strict=True):
                expected = [getattr(config, name) * plain_factor(config, t) for config in configs]
                assert rate.tolist() == pytest.approx(
                    [rate for rate in expected for _ in range(2)] if together else expected[0],
                    rel=1e-6,
                    abs=1e-12,
                )


def test_a_cosine_ends_near_zero_and_a_rate_that_never_changes_is_no_work() -> None:
    (last, _) = LearningRates([CONFIGS[2]], "cpu").after(torch.tensor(29.0))
    assert 0 < last < 0.01 * BASE.learning_rate
    constant = LearningRates([BASE], "cpu")
    first = constant.after(torch.tensor(0.0))[0]
    assert first is constant.after(torch.tensor(7.0))[0]
    assert first.item() == BASE.learning_rate


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "linear"}, "schedule must be one of constant, cosine, step, got 'linear'"),
        ({"warmup_steps": -1}, "warmup_steps must be an integer >= 0, got -1"),
        ({"warmup_steps": 30}, r"warmup_steps must be below 30 steps, got 30"),
        (
            {"schedule": "step"},
            "schedule 'step' needs decay_every, got 0: try a third of all steps, 10",
        ),
        ({"decay_every": 10}, "decay_every needs schedule 'step', got 10 with schedule 'constant'"),
        (
            {"schedule": "step", "decay_every": 10, "decay_factor": 0},
            "decay_factor must be a positive, finite number, got 0",
        ),
        (
            {"schedule": "step", "decay_every": 10, "decay_factor": 2},
            "decay_factor must be at most 1, got 2",
        ),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BASE, **change)  # type: ignore[arg-type]


def test_the_trainer_moves_by_the_rate_of_its_step(one_image: Dataset) -> None:
    """The first step of Adam moves weights by the rate, and the prior by its rate times the gradient."""
    config = replace(CONFIGS[3], estimator="exact")
    trainer = Trainer(config, one_image)
    bias = trainer.model.decoder[-1].bias  # type: ignore[index]
    before, prior = (tensor.detach().clone() for tensor in (bias, trainer.prior[0]))
    prior_grad = trainer.gradients()[-1]
    trainer.step()
    moved = (bias - before).abs().max()
    assert moved.item() == pytest.approx(config.learning_rate * plain_factor(config, 0), rel=1e-2)
    expected = -config.prior_learning_rate * plain_factor(config, 0) * prior_grad
    torch.testing.assert_close(trainer.prior[0] - prior, expected)


def test_runs_of_an_ensemble_have_their_own_rates(one_image: Dataset) -> None:
    """Without noise (the exact gradient of one image), training together equals training alone.

    Adam turns rounding errors of tiny derivatives into a visible part of a step, so the tolerance
    is a hundredth of one.
    """
    configs = [replace(config, estimator="exact", replicas=2) for config in CONFIGS]
    together = ensemble_trainer(configs, [one_image] * len(configs), "cpu")
    for _ in range(12):
        together.step()
    for index, config in enumerate(configs):
        alone, atol = Trainer(config, one_image), 0.01 * config.learning_rate
        for _ in range(12):
            alone.step()
        for name, own in alone.model.state_dict().items():
            share = together.model.state_dict()[name].chunk(len(configs))[index]
            torch.testing.assert_close(share, own, rtol=1e-4, atol=atol, msg=f"{name} of {config}")
    assert len({tensor.sum().item() for tensor in together.model.prior.chunk(len(configs))}) > 3


def test_an_ensemble_of_rates_resumes_bit_for_bit(tmp_path: Path, digits: Dataset) -> None:
    configs = [replace(BASE, estimator="loorf"), CONFIGS[3], replace(CONFIGS[4], estimator="loorf")]

    def go(folder: Path, stop_at: int = 0) -> list[Run]:
        def stop(_: TrainConfig, record: Record) -> None:
            if record["step"] == stop_at:
                raise InterruptedError

        paths = [folder / str(index) for index in range(len(configs))]
        datasets = [digits] * len(configs)
        return train_together(
            configs, paths, device="cpu", datasets=datasets, checkpoint_seconds=0, on_record=stop
        )

    with pytest.raises(InterruptedError):
        go(tmp_path / "again", stop_at=10)
    for ours, theirs, config in zip(
        go(tmp_path / "again"), go(tmp_path / "once"), configs, strict=True
    ):
        one, other = ours.checkpoint(), theirs.checkpoint()
        assert one is not None
        assert other is not None
        assert ours.result() == theirs.result()
        assert ours.metrics() == theirs.metrics()
        assert all(torch.equal(one[name], other[name]) for name in one)
        Trainer(config, digits).load_state(one)  # fits: the run could be resumed alone


def test_a_schedule_resumes_bit_for_bit(digits: Dataset) -> None:
    whole, first, second = (Trainer(CONFIGS[3], digits) for _ in range(3))
    for _ in range(12):
        whole.step()
    for _ in range(9):
        first.step()
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    for _ in range(3):
        second.step()
    assert all(torch.equal(tensor, second.state()[name]) for name, tensor in whole.state().items())


def test_runs_are_told_apart_by_their_rates() -> None:
    assert names_of([BASE, replace(BASE, learning_rate=1e-3, dataset="strokes")]) == [
        "arms on digits, learning_rate 0.002",
        "arms on strokes, learning_rate 0.001",
    ]


def ensemble(dataset: Dataset) -> Trainer:
    return ensemble_trainer(
        [replace(config, estimator="exact") for config in CONFIGS], [dataset] * len(CONFIGS), "cpu"
    )


def alone(dataset: Dataset) -> Trainer:
    return Trainer(replace(CONFIGS[3], estimator="exact"), dataset)


@pytest.mark.parametrize("make", [alone, ensemble])
def test_compiled_steps_move_along_the_schedule(
    make: Callable[[Dataset], Trainer], one_image: Dataset
) -> None:
    plain, compiled = make(one_image), make(one_image)
    graphs = []

    def counting(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph

    apply = torch.compile(compiled.apply, fullgraph=True, dynamic=False, backend=counting)
    for _ in range(10):
        plain.update()
        compiled.update(apply=apply)
    torch.compiler.reset()
    assert len(graphs) == 1, "no other for another step"
    # A hundredth of the largest rate's step, since Adam amplifies the rounding of tiny derivatives.
    atol = 0.01 * max(config.learning_rate for config in CONFIGS)
    for ours, theirs in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(
    "drive", ["eager", *(pytest.param(drive, marks=needs_gpu) for drive in ("graph", "compiled"))]
)
@pytest.mark.parametrize("runs", [1, 2])
def test_replayed_steps_move_along_the_schedule(
    runs: int, drive: Execution, digits: Dataset
) -> None:
    """With a learning rate that drops to almost zero after two steps, weights do not change afterwards."""
    cut = replace(BASE, schedule="step", decay_every=2, decay_factor=1e-6, replicas=2)
    device = "cpu" if drive == "eager" else "cuda"
    trainer = ensemble_trainer([cut, replace(BASE, replicas=2)][:runs], [digits] * runs, device)
    engine = Engine(trainer, drive, block=2)
    engine.advance(2)
    before = [weight.detach().clone() for weight in trainer.optimizer_parameters]
    engine.advance(10)
    torch.compiler.reset()
    assert trainer.steps_on_device == trainer.steps_done == 12
    moved = [
        (now - then).abs().flatten(1).amax(1)
        for now, then in zip(trainer.optimizer_parameters, before, strict=True)
    ]
    most = torch.stack(moved).amax(0).chunk(runs)
    assert (most[0] < 1e-3 * BASE.learning_rate).all()
    assert (most[-1] > 2 * BASE.learning_rate).all() or runs == 1
