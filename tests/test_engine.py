"""The engine and packing: the same law as plain steps, and run directories that plain training can go on with.

CUDA graphs need a GPU and are tested where there is one.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import arms
from arms.checks import score_limit
from arms.data import Dataset, load
from arms.engine import Engine
from arms.models import Network
from arms.packing import Packed, train_packed
from arms.pipeline import train
from arms.training import TrainConfig, Trainer

SMALL = TrainConfig(num_samples=4, latents=20, learning_rate=2e-3, replicas=2, steps=40, report_every=20)
COMPILABLE = [name for name, make in arms.ESTIMATORS.items() if name != "exact" and not make(4).relaxes]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


def test_eager_engine_is_the_plain_step(digits: Dataset) -> None:
    one, other = Trainer(SMALL, digits), Trainer(SMALL, digits)
    Engine(one).advance(5)
    for _ in range(5):
        other.step()
    assert all(torch.equal(tensor, other.state()[name]) for name, tensor in one.state().items())


def test_graphs_are_refused_on_a_cpu(digits: Dataset) -> None:
    with pytest.raises(ValueError, match="drive 'graph' needs a GPU, and the run is on cpu"):
        Engine(Trainer(SMALL, digits), "graph")


def test_packed_members_serve_their_own_replicas() -> None:
    members = (arms.LOORF(4), arms.ARMS(4), arms.DisARM(4))
    packed = Packed(4, members, replicas=2)
    logits = torch.linspace(-2, 2, 6 * 5 * 3, dtype=torch.float64).reshape(6, 5, 3)
    draw = packed.draw(logits, torch.Generator().manual_seed(0))
    values = draw.samples.sum(-1).square()
    grad = packed.combine(draw, values)
    for index, member in enumerate(members):
        part = slice(2 * index, 2 * index + 2)
        own = member.combine(arms.Draw(member, logits[part], draw.samples[:, part]), values[:, part])
        assert torch.equal(grad[part], own)


def test_packed_estimates_are_unbiased() -> None:
    packed = Packed(4, (arms.LOORF(4), arms.ARMS(4)), replicas=20_000)
    logits = torch.tensor([0.4, -1.2, 0.9], dtype=torch.float64)
    table = arms.checks.table_objective(arms.checks.random_table(3, torch.Generator().manual_seed(1)))
    grad = packed(table, logits.expand(40_000, 1, -1), torch.Generator().manual_seed(2)).grad.squeeze(1)
    truth = arms.checks.exact_gradient(table, logits)
    for part in grad.split(20_000):
        error = part.std(0) / len(part) ** 0.5
        assert ((part.mean(0) - truth).abs() <= score_limit(6) * error).all()


def test_packed_runs_are_runs_of_their_own(tmp_path: Path, digits: Dataset) -> None:
    names = ["loorf", "arms-s"]
    runs = train_packed(SMALL, names, [tmp_path / name for name in names], device="cpu", dataset=digits)
    for name, run in zip(names, runs, strict=True):
        assert run.config() == replace(SMALL, estimator=name)
        result = run.result()
        assert result is not None
        assert len(result["bounds"]["test"]["100"]) == SMALL.replicas
        assert [record["step"] for record in run.metrics()] == [20, 40]
        assert all(len(record["train_elbo"]) == SMALL.replicas for record in run.metrics())
        state = run.load()
        assert state is not None
        Trainer(run.config(), digits).load_state(state)  # fits: plain training could go on
    assert runs[0].metrics() != runs[1].metrics()
    before = (tmp_path / "loorf" / "result.json").stat().st_mtime_ns
    train_packed(SMALL, names, [tmp_path / name for name in names], device="cpu", dataset=digits)
    assert (tmp_path / "loorf" / "result.json").stat().st_mtime_ns == before
    assert train(replace(SMALL, estimator="loorf"), tmp_path / "loorf").result() == runs[0].result()


@pytest.mark.parametrize("name", ["relax", "vimco", "arm"])
def test_what_cannot_be_packed_is_refused(name: str, tmp_path: Path, digits: Dataset) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        train_packed(SMALL, ["loorf", name], [tmp_path / "a", tmp_path / "b"], device="cpu", dataset=digits)
    assert not list(tmp_path.iterdir())


@needs_gpu
@pytest.mark.parametrize("network", ["linear", "nonlinear"])
@pytest.mark.parametrize("name", [name for name in arms.ESTIMATORS if name != "exact"])
def test_engine_and_eager_agree(name: str, network: Network) -> None:
    """On the same noise, drawn in the same order, and so to rounding: a bit may fall the other way once in 1e7."""
    config = replace(SMALL, estimator=name, network=network)
    trainers = []
    for drive in ("eager", "graph", "compiled"):
        trainer = Trainer(config, noise_images(), "cuda")
        Engine(trainer, drive).advance(10)
        trainers.append(trainer)
        torch.compiler.reset()
    eager, *others = trainers
    for other in others:
        torch.testing.assert_close(other.elbo_sum, eager.elbo_sum, rtol=1e-4, atol=1e-3)
        for ours, theirs in zip(other.mean_grads, eager.mean_grads, strict=True):
            assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


def noise_images() -> Dataset:
    images = torch.randint(256, (100, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Dataset("noise", images, images, images, 8, 8, 255)
