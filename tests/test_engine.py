"""The engine: the same law as plain steps.

CUDA graphs need a GPU and are tested where there is one.
"""

from dataclasses import replace

import pytest
import torch

import arms
from arms.data import Dataset, load
from arms.engine import Engine
from arms.training import TrainConfig, Trainer

SMALL = TrainConfig(num_samples=4, latents=20, learning_rate=2e-3, replicas=2, steps=40, report_every=20)
COMPILABLE = [name for name, make in arms.ESTIMATORS.items() if name != "exact" and not make(4).relaxes]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


@pytest.mark.parametrize("rule", ["all", "extra"])
@pytest.mark.parametrize("name", COMPILABLE)
def test_surrogate_has_the_steps_gradient(name: str, rule: str, digits: Dataset) -> None:
    """The one function that is compiled, held against the step that is not, on the same noise."""
    config = replace(SMALL, estimator=name, decoder_samples=rule)  # type: ignore[arg-type]
    plain, whole = Trainer(config, digits), Trainer(config, digits)
    plain._backward(plain._batch())
    loss, elbo = whole.surrogate()
    loss.backward()
    assert torch.equal(plain.elbo_sum, elbo)
    for one, other in zip(plain.model.parameters(), whole.model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_eager_engine_is_the_plain_step(digits: Dataset) -> None:
    one, other = Trainer(SMALL, digits), Trainer(SMALL, digits)
    Engine(one).advance(5)
    for _ in range(5):
        other.step()
    assert all(torch.equal(tensor, other.state()[name]) for name, tensor in one.state().items())


def test_graphs_are_refused_on_a_cpu(digits: Dataset) -> None:
    with pytest.raises(ValueError, match="drive 'graph' needs a GPU, and the run is on cpu"):
        Engine(Trainer(SMALL, digits), "graph")


@needs_gpu
@pytest.mark.parametrize("drive", ["graph", "compiled"])
@pytest.mark.parametrize("name", [name for name in arms.ESTIMATORS if name != "exact"])
def test_engine_and_eager_agree_in_law(name: str, drive: str, digits: Dataset) -> None:
    config = replace(SMALL, estimator=name, replicas=20)
    means = []
    for kind in ("eager", drive):
        trainer = Trainer(config, digits, "cuda")
        Engine(trainer, kind).advance(200)  # type: ignore[arg-type]
        means.append(trainer.recent_elbo())
        torch.compiler.reset()
    error = torch.sqrt((means[0].var() + means[1].var()) / 20)
    assert abs(means[0].mean() - means[1].mean()) <= 6 * error
