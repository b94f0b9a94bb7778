"""The page for users of other methods: every diff runs, and the result is unbiased."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import arms

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text()
SETUP = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)[0]
DIFFS = {
    title: re.findall(r"^```diff\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)[0]
    for title, text in re.findall(
        r"^## From (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
}
ROWS, LIMIT = 20_000, 5.5
"""A right gradient of five entries fails once in five million times."""


def side(title: str, removed: str) -> dict[str, Any]:
    """Return the names that a section defines: with its `+` lines if the `-` lines are removed, or the reverse."""
    (found,) = [text for name, text in DIFFS.items() if title in name]
    kept = [line[1:] for line in found.splitlines() if not line.startswith(removed)]
    encoder = torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 5))
    names: dict[str, Any] = {"encoder": encoder}
    exec(SETUP, names)
    exec("\n".join(kept), names)
    return names


def largest_score(loss: Callable[[Tensor], Tensor], cost: Callable[[Tensor], Tensor]) -> float:
    """Return the largest z-score of the mean gradient of a row, against the enumerated gradient."""
    logits = torch.tensor([0.3, -0.5, 1.0, 0.0, -1.5])
    rows = logits.expand(ROWS, 5).clone().requires_grad_()
    value = loss(rows)
    if rows.grad is None:  # storchastic has called backward() itself
        value.backward()
    assert rows.grad is not None
    estimates = rows.grad.double() * ROWS
    exact = arms.checks.exact_gradient(cost, logits.double())
    error = estimates.std(0) / ROWS**0.5
    return float(((estimates.mean(0) - exact) / error).abs().max())


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


UNBIASED = ["straight-through", "REINFORCE", "REBAR", "storchastic"]


def test_every_section_has_a_diff_that_is_tested() -> None:
    tested = [*UNBIASED, "gumbel_softmax", "RLOO", "Pyro"]
    assert len(tested) == len(DIFFS)
    assert all(any(name in title for title in DIFFS) for name in tested)
    for text in DIFFS.values():
        assert max(len(line) for line in text.splitlines()) <= 100
        assert {"+", "-"} <= {line[0] for line in text.splitlines() if line}


@pytest.mark.parametrize("title", UNBIASED)
def test_what_a_diff_makes_is_unbiased(title: str) -> None:
    names = side(title, removed="-")
    doubled = lambda b: names["cost"](b.float()).double()  # noqa: E731
    assert largest_score(names["loss"], doubled) < LIMIT


def test_rebar_by_hand_is_unbiased_and_straight_through_is_not() -> None:
    """The old code of the page runs, and the test above can fail."""
    for title, biased in (("REBAR", False), ("straight-through", True)):
        names = side(title, removed="+")
        doubled = lambda b, cost=names["cost"]: cost(b.float()).double()  # noqa: E731
        assert (largest_score(names["loss"], doubled) > 2 * LIMIT) is biased


def test_reinforce_by_hand_is_too_small_by_what_the_page_says() -> None:
    """In a batch of two rows, half of the gradient is missing."""
    names = side("REINFORCE", removed="+")
    logits = torch.tensor([0.3, -0.5, 1.0, 0.0, -1.5])
    found = []
    for _ in range(4000):
        rows = logits.expand(2, 5).clone().requires_grad_()
        names["loss"](rows).backward()
        assert rows.grad is not None
        found.append(rows.grad.sum(0))
    estimates = torch.stack(found)
    exact = arms.checks.exact_gradient(names["cost"], logits)
    error = estimates.std(0) / len(found) ** 0.5
    assert ((estimates.mean(0) - exact / 2) / error).abs().max() < LIMIT
    assert ((estimates.mean(0) - exact) / error).abs().max() > LIMIT


def test_the_choice_among_experts_becomes_unbiased() -> None:
    new, old = side("gumbel_softmax", removed="-"), side("gumbel_softmax", removed="+")
    x, y = torch.randn(2, 8), torch.tensor([0, 2])
    model = new["Experts"]()
    torch.nn.init.normal_(model.experts.weight, std=1.5)
    state = model.state_dict()

    def gradient(loss: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(loss, model.route.bias)
        double: Tensor = found.double()
        return double

    one_hot = torch.eye(4).unsqueeze(1).expand(4, 2, 4)
    every = model.experts(x).unflatten(-1, (4, 3))
    scores = torch.einsum("rek,nre->nrk", every, one_hot)
    losses = -scores.log_softmax(-1)[:, [0, 1], y]
    exact = gradient((model.route(x).softmax(-1) * losses.T.detach()).sum(-1).mean())

    def score(loss: Callable[..., Tensor]) -> float:
        found = torch.stack(
            [gradient(loss(model, x.repeat(250, 1), y.repeat(250))) for _ in range(200)]
        )
        return float(((found.mean(0) - exact) / (found.std(0) / 200**0.5)).abs().max())

    assert score(new["loss"]) < LIMIT
    model = old["Experts"]()
    model.load_state_dict(state)
    assert score(old["loss"]) > 2 * LIMIT


def test_the_weights_of_a_trainer_are_the_same() -> None:
    rewards, log_probs = torch.randn(7, 4), torch.randn(7, 4, requires_grad=True)
    found = []
    for removed in "+-":
        loss = side("RLOO", removed)["loss"](log_probs, rewards)
        found.append(torch.autograd.grad(loss, log_probs)[0])
    torch.testing.assert_close(*found)


def elbo_score(loss: Callable[[Tensor], object], names: dict[str, Any]) -> float:
    """Return the largest z-score of the gradient of the encoder's bias, over many calls on two rows."""
    x, bias = torch.tensor([0.4, -1.0]), names["encoder"][1].bias
    names["encoder"][1].weight.data.zero_()
    found = []
    for _ in range(400):
        bias.grad = None
        value = loss(x.repeat(50))
        if isinstance(value, Tensor):
            value.backward()
        found.append(bias.grad.double() / 50)
    estimates = torch.stack(found)
    exact = torch.zeros(5, dtype=torch.float64)
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 5)
    logits = bias.detach().double().requires_grad_()
    q = torch.distributions.Bernoulli(logits=logits)
    log_q = q.log_prob(states.double()).sum(-1)
    for one in x:
        normal = torch.distributions.Normal((states @ names["weights"]).double(), 1.0)
        log_joint = normal.log_prob(one.double()) - 5 * torch.tensor(2.0).double().log()
        negative = -(log_q.exp() * (log_joint - log_q)).sum()
        exact += torch.autograd.grad(negative, logits, retain_graph=True)[0]
    return float(((estimates.mean(0) - exact) / (estimates.std(0) / 20)).abs().max())


def test_the_elbo_becomes_one_expectation() -> None:
    names = side("Pyro", removed="-")
    assert elbo_score(names["loss"], names) < LIMIT


def test_the_elbo_of_pyro_is_the_same() -> None:
    pyro = pytest.importorskip("pyro")
    names = side("Pyro", removed="+")
    names |= {"pyro": pyro, "dist": pyro.distributions}
    names["TraceGraph_ELBO"] = pyro.infer.TraceGraph_ELBO
    assert elbo_score(names["loss"], names) < LIMIT


def test_the_old_code_of_storchastic_is_the_same() -> None:
    storch = pytest.importorskip("storch")
    names = side("storchastic", removed="+")
    names["storch"] = storch
    doubled = lambda b: names["cost"](b.float()).double()  # noqa: E731
    assert largest_score(names["loss"], doubled) < LIMIT
