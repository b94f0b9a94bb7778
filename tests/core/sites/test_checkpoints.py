"""Checkpointed parts of a model: the second forward pass has the random numbers of the first."""

from collections.abc import Callable

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import arms
from arms.estimate import takes

FOR_BITS = [
    name
    for name in arms.BIASED_ESTIMATORS
    if takes(arms.as_estimator(name, 1), arms.Bits(torch.zeros(2, 3)))
]


class Noisy(nn.Module):
    """Sites, each followed by dropout, with an optional biased sample in between."""

    def __init__(self, drop_in: str | None = None, explicit: bool = False, inplace: bool = False):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.drop_in, self.inplace = drop_in, inplace
        self.generator = seeded(7) if explicit else None

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.dropout(arms.sample(self.first(x), generator=self.generator) * x)
        if self.drop_in:
            h = h * arms.sample(self.second(h), self.drop_in, self.generator)
            h = nn.functional.dropout(h)
        b = arms.sample(self.second(h), generator=self.generator)
        if self.inplace:
            b.mul_(3)
        found: Tensor = self.last(nn.functional.dropout(torch.tanh(b + h))).squeeze(-1) ** 2
        return found


def gradients(
    make: Callable[[], nn.Module], run: Callable[[nn.Module, Tensor], Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Return the gradients of all parameters, and a random number drawn after the step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = make(), torch.randn(6, 4)
        with arms.sampling(num_samples=3) as s:
            loss = run(model, s.repeat(x))
        s.expectation(loss).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None], torch.rand(3)


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)  # type: ignore[no-any-return]


def checkpointed(model: nn.Module, x: Tensor) -> Tensor:
    context = arms.same_samples
    return checkpoint(model, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


def nested(model: nn.Module, x: Tensor) -> Tensor:
    return checkpointed(lambda x: checkpointed(model, x), x)  # type: ignore[arg-type]


@pytest.mark.parametrize("run", [checkpointed, nested])
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("drop_in", [None, *FOR_BITS])
def test_what_is_random_after_a_site_is_the_same_again(
    drop_in: str | None, explicit: bool, run: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    make = lambda: Noisy(drop_in, explicit)  # noqa: E731
    (expected, after), (found, later) = gradients(make, plain), gradients(make, run)
    assert len(found) == len(expected) > 3
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(after, later)  # the backward pass takes no random numbers from others


def test_the_generators_are_left_alone_where_a_checkpoint_does_not_keep_them() -> None:
    def unkept(model: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(  # type: ignore[no-any-return]
            *(model, x), use_reentrant=False, context_fn=arms.same_samples, preserve_rng_state=False
        )

    assert torch.equal(gradients(Noisy, plain)[1], gradients(Noisy, unkept)[1])


def test_a_sample_that_is_changed_in_place_is_the_same_again() -> None:
    make = lambda: Noisy(inplace=True)  # noqa: E731
    (expected, _), (found, _) = gradients(make, plain), gradients(make, checkpointed)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("estimator", [None, "reinmax"])
def test_a_frozen_site_that_would_draw_anew_is_refused(estimator: str | None) -> None:
    first, last, generator = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1), seeded()

    def forward(x: Tensor) -> Tensor:
        found: Tensor = last(arms.sample(first(x), estimator, generator) * x).tanh()
        return found

    out = checkpoint(forward, torch.randn(6, 4), use_reentrant=False)
    with pytest.raises(
        ValueError,
        match=r"arms.sample was called again during the backward pass, where it would draw",
    ):
        out.sum().backward()


def test_a_second_forward_with_more_choices_is_refused() -> None:
    last, turns = nn.Linear(4, 1), iter([1, 3])

    def forward(x: Tensor) -> Tensor:
        for _ in range(next(turns)):
            x = x * arms.sample(torch.zeros(6, 4))
        found: Tensor = last(x).tanh()
        return found

    out = checkpointed(forward, torch.randn(6, 4))  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=r"the second forward pass of a checkpoint called arms.sample more often than the",
    ):
        out.sum().backward()
