"""A trainer does not change other random numbers in the process.

On a GPU they live in the device's default generator while a step runs; the CPU's default one stands in for it here.
"""

from contextlib import suppress

import pytest
import torch
from marks import needs_gpu

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, load
from arms.bench.training.engine import Engine, Execution, Noise
from arms.bench.training.trainer import Trainer

SMALL = TrainConfig(
    num_samples=4, latents=10, batch_size=10, learning_rate=2e-3, steps=40, report_every=20
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


def borrowing(seed: int = 3) -> Noise:
    return Noise(torch.Generator().manual_seed(seed), torch.default_generator)


def test_the_default_generator_is_lent_and_given_back() -> None:
    expected = torch.rand(6, generator=torch.Generator().manual_seed(3))
    noise = borrowing()
    torch.manual_seed(8)
    users = torch.random.get_rng_state()
    with noise.active():
        first = torch.rand(3, generator=noise.generator)
        midway = noise.get_state()
        with noise.active():  # a step within a block
            second = torch.rand(3, generator=noise.generator)
    assert torch.equal(torch.cat([first, second]), expected)
    assert torch.equal(torch.random.get_rng_state(), users)
    noise.set_state(midway)
    assert torch.equal(torch.random.get_rng_state(), users)
    with noise.active():
        assert torch.equal(torch.rand(3), second)
        noise.set_state(midway)
        assert torch.equal(torch.rand(3), second)


def test_it_is_given_back_after_an_error_too() -> None:
    noise = borrowing()
    users = torch.random.get_rng_state()
    with suppress(RuntimeError), noise.active():
        torch.rand(3)
        raise RuntimeError("in a step")
    assert torch.equal(torch.random.get_rng_state(), users)
    assert not torch.equal(noise.get_state(), torch.Generator().manual_seed(3).get_state())


def test_a_generator_of_its_own_needs_no_loan() -> None:
    noise = Noise.of(0, torch.device("cpu"))
    users = torch.random.get_rng_state()
    with noise.active():
        torch.rand(3, generator=noise.generator)
        assert torch.equal(torch.random.get_rng_state(), users)


@pytest.mark.parametrize("by", ["engine", "step"])
def test_steps_leave_the_users_numbers_alone(by: str, digits: Dataset) -> None:
    """Two trainers in turns, with draws by the user in between, give the same numbers as each alone."""
    alone = Trainer(SMALL, digits)
    for _ in range(4):
        alone.step()
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    trainers, drawn = [Trainer(SMALL, digits) for _ in range(2)], []
    for trainer in trainers:
        trainer.noise = Noise(trainer.noise._own, torch.default_generator)
        trainer._generator = trainer.noise.generator
        assert trainer._generator is None
    engines = [Engine(trainer) for trainer in trainers]
    for _ in range(4):
        for engine, trainer in zip(engines, trainers, strict=True):
            engine.advance(1) if by == "engine" else trainer.step()
        drawn.append(torch.rand(1))
    assert torch.equal(torch.cat(drawn), expected)
    for trainer in trainers:
        assert all(
            torch.equal(tensor, alone.state()[name]) for name, tensor in trainer.state().items()
        )


@needs_gpu
@pytest.mark.parametrize("drive", ["eager", "graph", "compiled"])
def test_gpu_steps_leave_the_users_numbers_alone(drive: Execution, digits: Dataset) -> None:
    once = Trainer(SMALL, digits, "cuda")
    Engine(once, drive, block=2).advance(4)
    torch.manual_seed(5)
    expected = torch.cat([torch.rand(1, device="cuda") for _ in range(2)])
    torch.manual_seed(5)
    drawn = []
    trainer = Trainer(SMALL, digits, "cuda")
    engine = Engine(trainer, drive, block=2)
    for _ in range(2):
        engine.advance(2)
        drawn.append(torch.rand(1, device="cuda"))
    torch.compiler.reset()
    torch.testing.assert_close(torch.cat(drawn), expected, rtol=0, atol=0)
    assert torch.equal(trainer.noise.get_state(), once.noise.get_state())
    torch.testing.assert_close(
        trainer.sums["train_elbo"], once.sums["train_elbo"], rtol=1e-3, atol=0
    )
