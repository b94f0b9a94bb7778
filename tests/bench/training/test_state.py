"""The checkpoint's schema: every tensor is declared, cut and joined along its replica axis, and checked when loaded."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.models import DiscreteVAE, seeded_generator
from arms.bench.training.trainer import (
    Trainer,
    check_fits,
    finite_replicas,
    has_replica_axis,
    joined,
    model_of,
    of_run,
    step_of,
)

SMALL = TrainConfig(estimator="relax", num_samples=4, latents=10, batch_size=10, replicas=4)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture
def state(digits: Dataset) -> dict[str, Tensor]:
    trainer = Trainer(SMALL, digits)
    for _ in range(3):
        trainer.step()
    return {name: tensor.clone() for name, tensor in trainer.state().items()}


def test_every_tensor_of_a_trainer_is_declared(state: dict[str, Tensor]) -> None:
    assert all(len(tensor) == 4 for name, tensor in state.items() if has_replica_axis(name))
    assert {name for name in state if not has_replica_axis(name)} == {"generator", "counts"}
    assert step_of(state) == 3


def test_a_tensor_that_is_not_declared_is_not_cut(state: dict[str, Tensor]) -> None:
    new = state | {"temperature": torch.ones(4)}
    with pytest.raises(ValueError, match="unknown tensor 'temperature'"):
        of_run(new, 0, 2)
    with pytest.raises(ValueError, match="unknown tensor 'temperature'"):
        joined([new, new], 0, "cpu")


def test_cutting_and_joining(state: dict[str, Tensor]) -> None:
    parts = [of_run(state, index, 2) for index in range(2)]
    assert torch.equal(parts[1]["sum.train_elbo"], state["sum.train_elbo"][2:])
    whole = joined(parts, 0, "cpu")
    assert whole.keys() == state.keys()
    assert all(torch.equal(whole[name], tensor) for name, tensor in state.items())
    assert torch.equal(parts[1]["counts"], state["counts"])
    assert model_of(parts[1]).keys() == {
        "prior",
        "pixel_mean",
        *(n[6:] for n in state if n.startswith("model.")),
    }


def test_runs_that_used_other_noise_continue_on_fresh(state: dict[str, Tensor]) -> None:
    other = state | {"generator": torch.Generator().manual_seed(5).get_state()}
    fresh = seeded_generator(6, "train from 3").get_state()
    assert torch.equal(joined([state, other], 6, "cpu")["generator"], fresh)
    with pytest.raises(
        ValueError,
        match="different kinds of devices: resume each of them on the device where it was started",
    ):
        joined([state, state | {"generator": torch.zeros(16, dtype=torch.uint8)}], 0, "cpu")


def test_a_run_alone_is_never_cut(digits: Dataset) -> None:
    """A user's model may lack a replica axis, and its buffers may be scalars."""
    encoder = nn.Sequential(nn.Linear(64, 10))
    encoder.register_buffer("calls", torch.tensor(3))
    model = DiscreteVAE(encoder, nn.Linear(10, 64), 10, digits.pixel_mean())
    trainer = Trainer(
        replace(SMALL, replicas=1, estimator="arms", schedule="cosine"), digits, model=model
    )
    trainer.step()
    state = trainer.state()
    assert of_run(state, 0, 1).keys() == joined([state], 0, "cpu").keys() == state.keys()
    assert finite_replicas(model_of(state), 1) == [True]


def test_not_finite_replicas_are_found(state: dict[str, Tensor]) -> None:
    state["model.prior"][2, 0, 3] = float("nan")
    assert finite_replicas(model_of(state), 4) == [True, True, False, True]


@pytest.mark.parametrize(
    "name", ["generator", "counts", "model.prior", "optimizer.others.square.0", "estimator.0"]
)
def test_what_is_lacking_is_named(name: str, state: dict[str, Tensor], digits: Dataset) -> None:
    del state[name]
    with pytest.raises(ValueError, match=f"the checkpoint has no {name}, so another configuration"):
        Trainer(SMALL, digits).load_state(state)


def test_other_shapes_are_refused_before_anything_changes(
    state: dict[str, Tensor], digits: Dataset
) -> None:
    trainer = Trainer(SMALL, digits)
    before = {name: tensor.clone() for name, tensor in trainer.state().items()}
    with pytest.raises(
        ValueError,
        match=r"model.prior in the checkpoint must have the shape \[4, 1, 10\] of the model, got \[4, 1, 9\]",
    ):
        trainer.load_state(state | {"model.prior": torch.zeros(4, 1, 9)})
    with pytest.raises(
        ValueError,
        match=r"cannot be resumed on cpu, because .* another kind of device .*: resume it on that kind",
    ):
        check_fits(
            state | {"generator": torch.zeros(16, dtype=torch.uint8)}, before, trainer.device
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state().items())


def test_a_metric_may_be_newer_than_the_checkpoint(
    state: dict[str, Tensor], digits: Dataset
) -> None:
    del state["sum.train_elbo"]
    trainer = Trainer(SMALL, digits)
    trainer.step()
    trainer.load_state(state)
    assert trainer.sums["train_elbo"].tolist() == [0.0] * SMALL.replicas
