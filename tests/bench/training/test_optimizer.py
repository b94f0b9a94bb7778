"""Both forms of Adam against PyTorch's Adam, and the trainer's requirements of an optimizer."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from arms.bench.config import TrainConfig
from arms.bench.data import load
from arms.bench.training.optimizer import (
    EPSILON,
    FIRST_DECAY,
    SECOND_DECAY,
    Adam,
    Optimizer,
    descend,
    foreach_adam_,
)
from arms.bench.training.trainer import Trainer

RATE, ONE = torch.tensor(0.01, dtype=torch.float64), torch.ones(())


def stepped(
    adam: Adam, all_grads: Sequence[Sequence[Tensor]], rate: Tensor, form: str = "fused"
) -> None:
    for index, grads in enumerate(all_grads):
        count = torch.tensor(index + 1.0)
        if form == "fused":
            adam.step(grads, rate, count)
        else:
            foreach_adam_(adam._moments, grads, rate, count)


def random_lists(
    count: int, shapes: Sequence[Sequence[int]] = ((3, 4, 5), (3, 1, 5))
) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(*shape, generator=generator) for shape in shapes] for _ in range(count)]


@pytest.mark.parametrize("form", ["fused", "foreach"])
def test_adam_is_pytorchs(form: str) -> None:
    start, *grads = random_lists(21)
    ours, theirs = [tensor.clone() for tensor in start], [tensor.clone() for tensor in start]
    stepped(Adam(ours), grads, RATE, form)
    reference = torch.optim.Adam(theirs, 0.01, eps=EPSILON)
    for own in grads:
        for tensor, grad in zip(theirs, own, strict=True):
            tensor.grad = grad
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_rate_in_a_tensor_is_the_number_it_holds() -> None:
    """In float64, a learning rate as a tensor gives the same bits as a learning rate as a number."""
    start, *grads = random_lists(6)
    ours, theirs = [tensor.clone() for tensor in start], [tensor.clone() for tensor in start]
    stepped(Adam(ours), grads, RATE)
    means, squares = ([torch.zeros_like(tensor) for tensor in start] for _ in range(2))
    for index, own in enumerate(grads):
        counts = [torch.tensor(index + 1.0)] * 2
        torch._fused_adam_(
            theirs,
            own,
            means,
            squares,
            [],
            counts,
            lr=0.01,
            beta1=FIRST_DECAY,
            beta2=SECOND_DECAY,
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_every_replica_may_have_its_own_rate() -> None:
    start, *grads = random_lists(10)
    rates = torch.tensor([0.1, 0.01, 0.0], dtype=torch.float64)
    together = [tensor.clone() for tensor in start]
    stepped(Adam(together), grads, rates)
    for replica, rate in enumerate(rates):
        alone = [tensor[replica : replica + 1].clone() for tensor in start]
        stepped(Adam(alone), [[grad[replica : replica + 1] for grad in own] for own in grads], rate)
        for whole, own in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[replica : replica + 1], own, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(whole[2], own[2]) for whole, own in zip(together, start, strict=True))


def test_no_parameters_are_no_work() -> None:
    Adam([]).step([], RATE, ONE)


def test_gradients_may_be_views() -> None:
    weight = torch.zeros(2, 3, 4)
    Adam([weight]).step([torch.ones(2, 4, 3).mT], RATE, ONE)
    assert torch.allclose(weight, torch.tensor(-0.01))


def test_parameters_may_be_views() -> None:
    grad = torch.arange(12.0).reshape(3, 4) - 5
    plain, turned = torch.zeros(3, 4), torch.zeros(4, 3).t()
    for tensor in (plain, turned):
        Adam([tensor]).step([grad], RATE, ONE)
    torch.testing.assert_close(turned, plain)


def test_plain_descent() -> None:
    (start,), (grad,) = random_lists(2, [(3, 1, 5)])
    one, each = start.clone(), start.clone()
    descend([one], [grad], RATE)
    assert torch.equal(one, start.add(grad, alpha=-0.01)), (
        "bit for bit what a number as the rate gives"
    )
    descend([each], [grad], torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    torch.testing.assert_close(each, start - torch.tensor([1.0, 0.5, 0.0]).view(3, 1, 1) * grad)


class Momentum(Optimizer):
    """An optimizer as a contributor would add it."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.velocities = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]

    def step(self, grads: Sequence[Tensor], rate: Tensor, count: Tensor) -> None:
        for square, velocity, grad in zip(self.squares, self.velocities, grads, strict=True):
            velocity.mul_(0.9).add_(grad)
            square.lerp_(grad.square(), 1 - SECOND_DECAY)
        descend(self.parameters, self.velocities, rate)

    def state(self) -> dict[str, list[Tensor]]:
        return {"velocity": self.velocities, "square": self.squares}

    def second_moments(self) -> list[Tensor]:
        return self.squares


def test_another_optimizer_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "arms.bench.training.trainer.build_optimizer",
        lambda config, parameters: Momentum(parameters),
    )
    digits = load("digits")
    config = TrainConfig(
        num_samples=4, latents=20, learning_rate=0.02, replicas=2, steps=40, schedule="cosine"
    )
    trainer, resumed = Trainer(config, digits), Trainer(config, digits)
    trainer.step()
    first = trainer.take_elbo().mean()
    resumed.load_state(trainer.state())
    for _ in range(39):
        trainer.step()
        resumed.step()
    assert trainer.take_elbo().mean() > first + 0.7
    assert (trainer.gradient_variance() > 0).all()
    state = trainer.state()
    assert all(
        torch.equal(tensor, resumed.state()[name])
        for name, tensor in state.items()
        if name.startswith("optimizer.")
    )
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"checkpoint has no optimizer.encoder.mean.0"):
        Trainer(config, digits).load_state(state)
