"""Unusual uses of samples, logits and rows: they are correct or raise an error, and are never biased."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import logsigmoid

import arms
from arms.checks import score_limit

PHI, WEIGHTS = torch.tensor([0.3, -0.5, 1.0]), torch.tensor([1.0, 2.0, -1.0])


def value(b: Tensor) -> Tensor:
    return (b @ WEIGHTS - 0.3) ** 2


def exact_gradient() -> Tensor:
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    phi = PHI.clone().requires_grad_()
    log_p = (states * logsigmoid(phi) + (1 - states) * logsigmoid(-phi)).sum(-1)
    return torch.autograd.grad((log_p.exp() * value(states)).sum(), phi)[0]


# --- Changes in place ---------------------------------------------------------------------------


def negated_twice(b: Tensor) -> Tensor:
    return (b.mul_(2).sub_(1) + 1) / 2


def zeroed(b: Tensor) -> Tensor:
    kept = b.clone()
    b[:, :2] = 0
    return kept


@pytest.mark.parametrize("change", [negated_twice, zeroed])
@pytest.mark.parametrize("repeated", [True, False])
def test_a_sample_may_be_changed_in_place(
    change: Callable[[Tensor], Tensor], repeated: bool
) -> None:
    rows = 20_000
    logits = PHI.repeat(rows, 1).requires_grad_()
    with arms.sampling(num_samples=4, generator=seeded()) as s:
        loss = value(change(arms.sample(s.repeat(logits) if repeated else logits)))
    (grad,) = torch.autograd.grad(s.expectation(loss).sum(), logits)
    score = (grad.mean(0) - exact_gradient()) / (grad.std(0) / math.sqrt(rows))
    assert score.abs().max() < score_limit(3)


@pytest.mark.parametrize("repeated", [True, False])
def test_logits_changed_in_place_are_refused(repeated: bool) -> None:
    phi = torch.zeros(5, 3, requires_grad=True)
    with arms.sampling(num_samples=4) as s:
        logits = 1 * (s.repeat(phi) if repeated else phi)
        b = arms.sample(logits)
        logits.mul_(2)
    with pytest.raises(
        ValueError,
        match=r"the logits passed to arms.sample were modified in place afterwards: use an",
    ):
        s.expectation(b.sum(-1))


# --- Batch normalization ------------------------------------------------------------------------


def norm_before_the_second_site(s: Any, norm: nn.Module, logits: Tensor) -> Any:
    a = arms.sample(logits)
    return arms.sample(2 * norm(a)).sum(-1)


def norm_in_a_cost(s: Any, norm: nn.Module, logits: Tensor) -> Any:
    a = arms.sample(logits)
    s.cost(norm(a).sum(-1))
    return a.sum(-1)


def norm_before_a_choice_without_a_loss(s: Any, norm: nn.Module, logits: Tensor) -> Any:
    a = arms.sample(logits)
    return arms.sample(Categorical(logits=norm(a))).numpy()


@pytest.mark.parametrize(
    "use", [norm_before_the_second_site, norm_in_a_cost, norm_before_a_choice_without_a_loss]
)
def test_batch_normalization_between_sites_is_refused(use: Callable[..., Any]) -> None:
    norm, logits = nn.BatchNorm1d(3), torch.zeros(6, 3, requires_grad=True)
    with arms.sampling(num_samples=2) as s:
        loss = use(s, norm, logits)
        with pytest.raises(
            ValueError,
            match=r"batch normalization in training mode follows a call of arms.sample, so the loss",
        ):
            s.expectation(loss)
    norm.eval()
    with arms.sampling(num_samples=2) as s:
        s.expectation(use(s, norm, logits))


def test_batch_normalization_before_all_choices_is_allowed() -> None:
    """Even if only the logits of the second site come from it."""
    norm, x = nn.BatchNorm1d(3), torch.randn(6, 3)
    early = norm(x)
    with arms.sampling(num_samples=2) as s:
        a = arms.sample(nn.Linear(3, 3)(x))
        b = arms.sample(early)
        value = s.expectation((a * b * s.repeat(early)).sum(-1))
    value.sum().backward()
    assert norm.weight.grad is not None


# --- Costs, values and rows ---------------------------------------------------------------------


def test_a_cost_after_the_expectation_is_refused() -> None:
    with arms.sampling(num_samples=2) as s:
        b = arms.sample(torch.zeros(5, 3, requires_grad=True))
        s.expectation(b.sum(-1))
        with pytest.raises(
            ValueError, match=r"s.cost was called after s.expectation: call s.cost before"
        ):
            s.cost(b.sum(-1))


def test_costs_are_added_once() -> None:
    for costs in (False, True):
        with arms.sampling(num_samples=2) as s:
            b = arms.sample(torch.zeros(5, 3, requires_grad=True))
            if costs:
                s.cost(b.sum(-1))
        s.expectation(b.sum(-1))
        if costs:
            with pytest.raises(
                ValueError,
                match=r"s.expectation was called twice in a block with s.cost, so the costs would count",
            ):
                s.expectation(b.sum(-1))
        else:
            s.expectation(b.sum(-1))


@pytest.mark.parametrize("given", ["abc", None, [[1.0], [1.0, 2.0]], object()])
def test_a_loss_that_is_no_array_is_refused(given: object) -> None:
    with arms.sampling(num_samples=2) as s:
        arms.sample(torch.zeros(5, 3, requires_grad=True))
    with pytest.raises(ValueError, match="the loss must be a tensor or an array, got"):
        s.expectation(given)  # type: ignore[arg-type]


def sample_in_a_block(logits: Tensor) -> None:
    with arms.sampling(num_samples=2):
        arms.sample(logits)


def test_a_block_without_an_expectation_warns() -> None:
    with pytest.warns(UserWarning, match="ended without s.expectation, so the logits of its sites"):
        sample_in_a_block(torch.zeros(3, 4, requires_grad=True))


def test_a_block_that_needs_no_gradient_does_not_warn() -> None:
    sample_in_a_block(torch.zeros(3, 4))  # warnings are errors here
    with torch.no_grad():
        sample_in_a_block(torch.zeros(3, 4, requires_grad=True))
    with pytest.raises(ValueError, match="logits must have 3 rows"):
        fail_in_a_block(torch.zeros(3, 4, requires_grad=True))


def fail_in_a_block(logits: Tensor) -> None:
    """Raise after a draw, before `s.expectation`."""
    with arms.sampling(num_samples=2):
        arms.sample(logits)
        arms.sample(torch.zeros(7, 4))
