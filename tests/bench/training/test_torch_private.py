"""Replacements for PyTorch's private functions give the same numbers."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import load
from arms.bench.training import optimizer, torch_private
from arms.bench.training.engine import compiled_update
from arms.bench.training.optimizer import Moments, foreach_adam_, fused_adam_, lerp_all_
from arms.bench.training.trainer import Trainer

RATES = {
    "common": torch.tensor(0.01, dtype=torch.float64),
    "own": torch.tensor([0.1, 0.01, 0.0], dtype=torch.float64),
}


def adam_steps(rate: Tensor, fuses: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    start, *grads = [
        [torch.randn(s, generator=generator) for s in ((3, 4, 5), (3, 1, 5), (3,))]
        for _ in range(11)
    ]
    means, squares = ([torch.zeros_like(tensor) for tensor in start] for _ in range(2))
    adam = Moments(start, means, squares, (0.9, 0.999), 1e-7)
    for index, own in enumerate(grads):
        (fused_adam_ if fuses else foreach_adam_)(adam, own, rate, torch.tensor(index + 1.0))
    return [*adam.parameters, *adam.means, *adam.squares]


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate", RATES)
def test_adam_without_private_kernels(rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = adam_steps(RATES[rate], fuses=rate == "common")
    assert_close(adam_steps(RATES[rate], fuses=False), expected)
    monkeypatch.setattr(optimizer, "HAS_FUSED_ADAM", False)
    monkeypatch.delattr(torch, "_fused_adam_")
    assert_close(adam_steps(RATES[rate], fuses=True), expected)
    monkeypatch.setattr(optimizer, "HAS_FOREACH", False)
    for name in optimizer._FOREACH:
        monkeypatch.delattr(torch, f"_foreach_{name}")
    assert_close(adam_steps(RATES[rate], fuses=True), expected)


def test_averages_without_private_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for has in (True, False):
        monkeypatch.setattr(optimizer, "HAS_FOREACH", has)
        targets = [torch.ones(3), torch.zeros(2)]
        lerp_all_(targets, [torch.arange(3.0), torch.ones(2)], 0.25)
        found.append(targets)
    assert_close(*found)
    assert torch.equal(found[0][0], torch.tensor([0.75, 1.0, 1.25]))


def test_noise_is_taken_out_in_its_order() -> None:
    def function() -> list[Tensor]:
        first, second = torch.rand(3), torch.randn(2, 3)
        # one depends on another, and one comes after
        return [(second - first) * torch.bernoulli(first) + torch.rand(3)]

    torch.manual_seed(0)
    (expected,) = function()
    traced = torch_private.trace(function)
    assert traced is not None
    graph, draws = traced
    assert [tuple(draw().shape) for draw in draws] == [(3,), (2, 3)]
    assert [str(node.target) for node in graph.graph.nodes if "rand" in str(node.target)] == [
        "aten.rand.default"
    ]
    torch.manual_seed(0)
    assert torch.equal(graph(*(draw() for draw in draws))[0], expected)


def test_a_second_derivative_runs_plainly_where_it_cannot_be_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_private, "make_fx", None)
    config = TrainConfig(estimator="relax", num_samples=4, latents=10, batch_size=5)
    plain, other = (Trainer(config, load("digits")) for _ in range(2))
    compiler = partial(torch.compile, fullgraph=True, dynamic=False, backend="eager")
    update = compiled_update(other, compiler)
    plain.update()
    update()
    torch.compiler.reset()
    assert_close(list(other.model.parameters()), list(plain.model.parameters()))


def test_options_that_a_version_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_private.inductor_options() == torch_private.INDUCTOR, (
        "a name has changed: look for the new one"
    )
    monkeypatch.setattr("torch._inductor.list_options", lambda: ["fallback_random"])
    assert torch_private.inductor_options() == {"fallback_random": True}
    monkeypatch.delattr("torch._inductor.list_options")
    assert torch_private.inductor_options() == {}
