"""Adam, in its two forms, against PyTorch's."""

import pytest
import torch

from arms.bench.training.optimizer import EPSILON, Adam


@pytest.mark.parametrize("form", ["fused", "foreach"])
def test_adam_is_pytorchs(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((3, 4, 5), (3, 1, 5))]
    ours, theirs = [tensor.clone() for tensor in start], [tensor.clone() for tensor in start]
    adam, reference = Adam(ours, 0.01), torch.optim.Adam(theirs, 0.01, eps=EPSILON)
    for _ in range(20):
        grads = [torch.randn(tensor.shape, generator=generator) for tensor in start]
        if form == "fused":
            adam.step(grads)
        else:
            adam.count.add_(1)
            adam._foreach(grads)
        for tensor, grad in zip(theirs, grads, strict=True):
            tensor.grad = grad
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_no_parameters_are_no_work() -> None:
    Adam([], 0.1).step([])


def test_gradients_may_be_views() -> None:
    weight = torch.zeros(2, 3, 4)
    Adam([weight], 0.1).step([torch.ones(2, 4, 3).mT])
    assert torch.allclose(weight, torch.tensor(-0.1))


def test_parameters_may_be_views() -> None:
    grad = torch.arange(12.0).reshape(3, 4) - 5
    plain, turned = torch.zeros(3, 4), torch.zeros(4, 3).t()
    for tensor in (plain, turned):
        Adam([tensor], 0.1).step([grad])
    torch.testing.assert_close(turned, plain)
