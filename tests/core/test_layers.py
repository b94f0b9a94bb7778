"""Several stochastic layers: chains and nested expectations against enumeration, and errors."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from seeds import seeded
from torch import Generator, Tensor, nn
from torch.distributions import OneHotCategorical

import arms
from arms import api, layers
from arms.checks import score_limit
from arms.designs import Dirichlet, Draw, Systematic
from arms.estimate import draw_ahead
from arms.estimators.derivative.midpoint import cross_paired
from arms.latents import Enumerable, HasMean
from arms.layers import draw_deeper, first_gradient, reason_not_first_layer
from arms.objective import Options

BITS, K = 2, 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class Problem(nn.Module):
    """b1 of two bits, b2 of two bits (or one choice among three) given b1, and a term for each.

    The first term sees b1 alone. It is curved between the states, so that wrong derivatives show.
    """

    def __init__(self, kind: type[Enumerable] = arms.Bits) -> None:
        super().__init__()
        self.kind = kind
        self.event = (BITS,) if kind is arms.Bits else (1, K)
        self.first = nn.Parameter(random(BITS, seed=1))
        self.weights = nn.Parameter(random(BITS, math.prod(self.event), seed=2))
        self.bias = nn.Parameter(random(math.prod(self.event), seed=3))
        self.model = nn.Parameter(random(8, seed=4))  # what the objective itself depends on
        self.mixed = random(BITS + math.prod(self.event), 5, seed=5)

    def second(self, b1: Tensor) -> Enumerable:
        return self.kind((b1 @ self.weights + self.bias).unflatten(-1, self.event))

    def terms(self, b1: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
        flat = b2.flatten(-len(self.event))
        every = torch.tanh(torch.cat([b1.expand(*flat.shape[:-1], -1), flat], -1) @ self.mixed)
        own = (
            3 * (b1[..., 0] * b1[..., 1] - b1[..., 1])
            + (b1 * (1 - b1)).sum(-1)
            + self.model[0] * b1[..., 0]
        )
        return own, (every * self.model[1:6]).sum(-1) * 2 + flat[..., 0].square()

    def exact(self) -> Tensor:
        """The expectation by enumeration of both layers, attached to everything."""
        first = arms.Bits(self.first)
        b1 = first.states()
        second = self.second(b1)
        b2 = second.states()[:, None].expand(-1, len(b1), *self.event)
        both = first.log_prob(b1) + second.log_prob(b2)
        return (both.exp() * sum(self.terms(b1, b2))).sum()

    def gradients(self, value: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(value, [self.first, self.weights, self.bias, self.model]))


def all_outcomes(estimator: arms.Estimator, latent: arms.Latent) -> tuple[Draw, Tensor]:
    found = estimator.design.outcomes(latent)
    assert found is not None
    return found


def repeated(draw: Draw, times: int) -> Draw:
    """Return a draw with every outcome repeated, one after the other."""
    memory = repeated(draw.memory, times) if isinstance(draw.memory, Draw) else draw.memory
    latent = draw.latent.with_logits(draw.latent.logits.repeat_interleave(times, 0))
    return Draw(latent, draw.points.repeat_interleave(times, 1), draw.extra, memory)


def as_handle(estimator: arms.Estimator, drawn: Draw, logits: Tensor) -> arms.Handle:
    """Return all outcomes of a draw as if `arms.draw` had returned them."""
    leaf = drawn.points.detach().clone()
    points = leaf.requires_grad_(bool(estimator.design.needs.derivatives))
    given = drawn.latent.with_logits(logits.expand(points.shape[1:]))
    return arms.Handle(estimator, given, replace(drawn, points=points))


def every_chain(
    problem: Problem, root: arms.Estimator, of: Literal["points", "samples"] = "points"
) -> tuple[list[arms.Handle], Tensor]:
    """Return draws of both layers for all outcomes of n chains, with their probabilities."""
    drawn, weights = all_outcomes(root, arms.Bits(problem.first.detach()))
    n = len(drawn.samples)
    states = problem.second(torch.zeros(BITS, dtype=torch.float64)).states()
    chosen = torch.tensor(list(itertools.product(range(len(states)), repeat=n)))
    first = as_handle(root, repeated(drawn, len(chosen)), problem.first)
    b2 = states[chosen].transpose(0, 1)
    b2 = b2.repeat(1, len(weights), *[1] * len(problem.event)).unsqueeze(2)
    given = problem.second(getattr(first, of))
    kept = given.detach()
    if drawn.extra:
        assert isinstance(kept, HasMean)
        b2 = torch.cat([b2, kept.mean()[n:]])
    below = arms.Handle(root, given, Draw(kept, b2, drawn.extra), parent=first)
    chain = kept.with_logits(kept.logits[:n]).log_prob(b2[:n]).sum(0).exp().squeeze(-1)
    return [first, below], weights.repeat_interleave(len(chosen)) * chain


def bias(
    problem: Problem,
    root: arms.Estimator,
    joined: bool,
    combine: Callable[..., Tensor] = arms.attach,
    of: Literal["points", "samples"] = "points",
) -> list[float]:
    """Return the largest errors of the expected gradient, of each parameter of the problem."""
    draws, weights = every_chain(problem, root, of)
    assert abs(weights.sum() - 1) < 1e-13
    terms = list(problem.terms(draws[0].points, draws[1].points))
    value = combine(draws, sum(terms) if joined else terms)
    found = problem.gradients((weights * value.squeeze(-1)).sum())
    return [
        (a - b).abs().max().item()
        for a, b in zip(found, problem.gradients(problem.exact()), strict=True)
    ]


ROOTS = [
    arms.Reinforce(1),
    *(arms.LOORF(n) for n in (2, 3)),
    *(arms.ARMS(n, coupling) for n in (2, 3) for coupling in (Systematic(), Dirichlet())),
    arms.DisARM(2),
    arms.DisARM(2, correlation=-0.3),
    arms.Midpoint(2),
    arms.Midpoint(2, Systematic()),
    arms.Midpoint(4),
    arms.Midpoint(4, pairs=1),
    cross_paired(4),
    arms.DoubleCV(2),
    *(arms.WithTaylor(arms.ARMS(n)) for n in (2, 3)),
]


@pytest.mark.parametrize("joined", [True, False], ids=["one tensor", "cost to go"])
@pytest.mark.parametrize("kind", [arms.Bits, arms.OneHot])
@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_expectation_over_chains_is_the_gradient(
    root: arms.Estimator, kind: type[Enumerable], joined: bool
) -> None:
    assert max(bias(Problem(kind), root, joined)) < 1e-12


@pytest.mark.parametrize("kind", [arms.Bits, arms.OneHot])
@pytest.mark.parametrize("root", [cross_paired(4), arms.DoubleCV(2)], ids=str)
def test_derivatives_at_samples_alone_need_no_part_in_the_deeper_logits(
    root: arms.Estimator, kind: type[Enumerable]
) -> None:
    assert max(bias(Problem(kind), root, joined=True, of="samples")) < 1e-12


# --- Nested expectations ------------------------------------------------------------------------


def every_nested(problem: Problem, outer: arms.Estimator, inner: arms.Estimator) -> list[float]:
    """Return the bias of nested calls.

    Given b1 the inner gradient is a one-layer estimate, so both are enumerated in turn.
    """
    drawn, weights = all_outcomes(outer, arms.Bits(problem.first.detach()))
    first = as_handle(outer, drawn, problem.first)
    rows = []
    for b1 in first.points.flatten(0, 2):
        second = problem.second(b1)
        every, chances = all_outcomes(inner, second.detach())
        below = as_handle(inner, every, second.logits)
        seen = arms.attach(below, sum(problem.terms(b1, below.points)))
        rows.append((chances * seen.squeeze(-1)).sum())
    value = arms.attach(first, torch.stack(rows).view(first.points.shape[:-1]))
    found = problem.gradients((weights * value.squeeze(-1)).sum())
    return [
        (a - b).abs().max().item()
        for a, b in zip(found, problem.gradients(problem.exact()), strict=True)
    ]


@pytest.mark.parametrize("kind", [arms.Bits, arms.OneHot])
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (arms.LOORF(2), arms.LOORF(3)),
        (arms.LOORF(3), arms.Reinforce(2)),
        (arms.ARMS(2, Systematic()), arms.LOORF(2)),
        (arms.ARMS(3, Dirichlet()), arms.LOORF(2)),
    ],
    ids=str,
)
def test_nested_expectation_is_the_gradient(
    outer: arms.Estimator, inner: arms.Estimator, kind: type[Enumerable]
) -> None:
    assert max(every_nested(Problem(kind), outer, inner)) < 1e-12


@pytest.mark.parametrize("n", [2, 3])
def test_nested_coupled_expectation_is_the_gradient(n: int) -> None:
    assert max(every_nested(Problem(), arms.ARMS(n), arms.ARMS(n))) < 1e-12


def test_nested_midpoints_are_the_gradient() -> None:
    """The outer derivatives are the inner estimate's, through the logits of the second layer.

    Any control variate would do.
    """
    assert max(every_nested(Problem(), arms.Midpoint(2), arms.Midpoint(2))) < 1e-12


# --- Draws --------------------------------------------------------------------------------------


def z_limit(scores: list[Tensor]) -> tuple[float, float]:
    every = torch.cat([score.flatten() for score in scores])
    return every.abs().max().item(), score_limit(every.numel())


def scores(found: Tensor, exact: Tensor) -> Tensor:
    return (found.mean(0) - exact) / (found.std(0) / math.sqrt(len(found))).clamp(min=1e-12)


class Deep:
    """Three layers: two bits, one choice among three, two bits; every layer sees all before it."""

    def __init__(self) -> None:
        self.first, self.to_second, self.to_third = (
            random(2, seed=1),
            random(2, 3, seed=2),
            random(5, 2, seed=3),
        )
        self.table = random(7, 6, seed=4)

    def second(self, b1: Tensor, offset: Tensor) -> OneHotCategorical:
        return OneHotCategorical(logits=(b1 @ self.to_second + offset).unsqueeze(-2))

    def third(self, b1: Tensor, b2: Tensor, offset: Tensor) -> Tensor:
        return torch.cat([b1, b2], -1) @ self.to_third + offset

    def terms(self, b1: Tensor, b2: Tensor, b3: Tensor) -> list[Tensor]:
        last = torch.sin(2 * torch.cat([b1, b2, b3], -1) @ self.table).sum(-1)
        return [b1.prod(-1), 2 * b1[..., 0] * b2[..., 1], last]

    def exact(self, offsets: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        bits = arms.Bits(torch.zeros(2, dtype=torch.float64)).states()
        for b1, b2, b3 in itertools.product(bits, torch.eye(3, dtype=torch.float64), bits):
            chance = (
                arms.Bits(offsets[0]).log_prob(b1) + self.second(b1, offsets[1]).log_prob(b2).sum()
            )
            chance = chance + arms.Bits(self.third(b1, b2, offsets[2])).log_prob(b3)
            total = total + chance.exp() * sum(self.terms(b1, b2, b3))
        return total


def three_layers(
    root: str, n: int, rows: int, generator: Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Estimates of the gradient of every layer's logits, one per row, and the exact gradient."""
    deep = Deep()
    at = [deep.first, torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    own = [one.expand(rows, -1).clone().requires_grad_() for one in at]
    q1 = arms.draw(own[0], root, n, generator)
    b1 = q1.points
    q2 = arms.draw(deep.second(b1, own[1]), given=q1, generator=generator)
    b2 = q2.points.flatten(-2)
    q3 = arms.draw(deep.third(b1, b2, own[2]), given=q2, generator=generator)
    value = arms.attach([q1, q2, q3], deep.terms(b1, b2, q3.points))
    exact = [one.clone().requires_grad_() for one in at]
    return list(torch.autograd.grad(value.sum(), own)), list(
        torch.autograd.grad(deep.exact(exact), exact)
    )


@pytest.mark.parametrize(
    ("root", "n"), [("arms", 4), ("disarm", 4), ("loorf", 3), ("midpoint", 4), ("arm", 2)]
)
def test_three_layers_of_bits_and_categories_agree_with_enumeration(root: str, n: int) -> None:
    found, exact = three_layers(root, n, 100_000, seeded(7))
    largest, limit = z_limit([scores(a, b) for a, b in zip(found, exact, strict=True)])
    assert largest < limit


def test_a_draw_given_another_has_the_right_distribution() -> None:
    first = arms.draw(torch.full((50_000, 2), 0.4), "arms", 4, seeded())
    logits = torch.stack([first.samples[..., 0] * 2 - 1, first.samples.sum(-1) - 1], -1)
    second = arms.draw(logits, given=first, generator=seeded(1)).samples
    assert second.shape == (4, 50_000, 2)
    probs = torch.sigmoid(logits)
    residual = (second - probs) / (probs * (1 - probs)).sqrt()
    means = residual.mean(1) * math.sqrt(50_000)
    products = (residual[0] * residual[1]).mean(0) * math.sqrt(50_000)
    assert torch.cat([means.flatten(), products]).abs().max() < score_limit(10)


# --- Identities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loorf", "arms", "disarm", "midpoint"])
def test_one_layer_is_no_layers(name: str) -> None:
    logits = random(5, 3).requires_grad_()

    def objective(b: Tensor) -> Tensor:
        return torch.sin(b.sum(-1)) + b[..., 0]

    expected = arms.expectation(objective, logits, name, 4, seeded())
    drawn = arms.draw(logits, name, 4, seeded())
    found = arms.attach([drawn], [objective(drawn.points)])
    assert torch.equal(found, expected)
    (a,), (b,) = (
        torch.autograd.grad(found.sum(), logits),
        torch.autograd.grad(expected.sum(), logits),
    )
    assert torch.equal(a, b)


def test_a_deeper_layer_that_ignores_the_first_is_loorf() -> None:
    first, second = random(5, 3), random(5, 2, seed=1).requires_grad_()
    q1 = arms.draw(first, "loorf", 4, seeded())
    q2 = arms.draw(second.expand(4, 5, 2), given=q1, generator=seeded(1))
    values = q2.samples.prod(-1) + q1.samples.sum(-1)
    (found,) = torch.autograd.grad(arms.attach([q1, q2], values).sum(), second)
    alone = arms.LOORF(4)
    expected = alone.combine(Draw(arms.Bits(second.detach()), q2.samples), values)
    torch.testing.assert_close(found, expected)


def test_nesting_over_a_certain_layer_is_a_single_layer() -> None:
    logits, certain = random(5, 3).requires_grad_(), torch.full((5, 2), 40.0, dtype=torch.float64)

    def nested(b: Tensor) -> Tensor:
        return arms.expectation(
            lambda c: (b * c[..., :1]).prod(-1), certain.expand(4, 5, 2), "arms", 2
        )

    (found,) = torch.autograd.grad(
        arms.expectation(nested, logits, "arms", 4, seeded()).sum(), logits
    )
    plain = arms.expectation(lambda b: b.prod(-1), logits, "arms", 4, seeded())
    torch.testing.assert_close(found, *torch.autograd.grad(plain.sum(), logits))


@pytest.mark.parametrize("root", ["loorf", "arms", "disarm", "midpoint"])
def test_a_constant_objective_has_no_gradient(root: str) -> None:
    logits, weights = random(5, 3).requires_grad_(), random(3, 2).requires_grad_()
    q1 = arms.draw(logits, root, 4, seeded())
    q2 = arms.draw(q1.points @ weights, given=q1, generator=seeded(1))
    seven = 7 + 0 * q1.points.sum(-1)
    value = arms.attach([q1, q2], [seven, seven])
    assert torch.equal(value, torch.full((5,), 14.0, dtype=torch.float64))
    assert all(not grad.any() for grad in torch.autograd.grad(value.sum(), [logits, weights]))


def test_terms_before_a_layer_are_no_part_of_what_it_learns_from() -> None:
    logits, weights = random(5, 3).requires_grad_(), random(3, 2).requires_grad_()
    q1 = arms.draw(logits, "arms", 4, seeded())
    q2 = arms.draw(q1.samples @ weights, given=q1, generator=seeded(1))
    first, second = q1.samples.sum(-1), q2.samples.prod(-1)
    one = torch.autograd.grad(
        arms.attach([q1, q2], [first, second]).sum(), [logits, weights], retain_graph=True
    )
    more = torch.autograd.grad(
        arms.attach([q1, q2], [100 * first, second]).sum(), [logits, weights], retain_graph=True
    )
    assert torch.equal(one[1], more[1])
    assert not torch.equal(one[0], more[0])
    whole = torch.autograd.grad(arms.attach([q1, q2], first + second).sum(), [logits, weights])
    torch.testing.assert_close(whole[0], one[0])
    assert not torch.equal(whole[1], one[1])


def test_cost_to_go_has_less_variance() -> None:
    """A claim of the documentation: terms that a layer cannot change are noise to it."""
    second = torch.zeros(20_000, 4, requires_grad=True)
    q1 = arms.draw(torch.zeros(20_000, 4), "loorf", 4, seeded())
    q2 = arms.draw(q1.samples - 0.5 + second, given=q1, generator=seeded(1))
    terms = [3 * q1.samples.sum(-1), (q1.samples * q2.samples).sum(-1)]
    (own,) = torch.autograd.grad(arms.attach([q1, q2], terms).sum(), second, retain_graph=True)
    (whole,) = torch.autograd.grad(arms.attach([q1, q2], terms[0] + terms[1]).sum(), second)
    assert own.var(0).sum() < 0.3 * whole.var(0).sum()


def test_a_compiled_or_forward_derivative_is_the_same() -> None:
    from torch.autograd import forward_ad

    logits, weights = random(5, 3), random(3, 2)

    def value(logits: Tensor, weights: Tensor) -> Tensor:
        q1 = arms.draw(logits, "arms", 4, seeded())
        q2 = arms.draw(q1.samples @ weights, given=q1, generator=seeded(1))
        return arms.attach([q1, q2], [q1.samples.sum(-1), q2.samples.prod(-1)]).sum()

    moved = random(3, 2, seed=9)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weights, moved)
        forward = forward_ad.unpack_dual(value(logits, dual)).tangent
    leaf = weights.clone().requires_grad_()
    (reverse,) = torch.autograd.grad(value(logits, leaf), leaf)
    torch.testing.assert_close(forward, (reverse * moved).sum())


# --- Sabotage -----------------------------------------------------------------------------------


def coupled_deeper(first: Draw, latent: arms.Latent, generator: Generator | None = None) -> Tensor:
    """Deeper bits coupled by common strata, with the plain leave-one-out baseline."""
    shape = latent.logits.shape
    strata = torch.rand(shape, generator=generator, dtype=torch.float64).argsort(0)
    uniforms = strata + torch.rand(shape, generator=generator, dtype=torch.float64)
    return (uniforms / len(strata) < torch.sigmoid(latent.logits)).to(latent.logits.dtype)


def shared_noise(first: Draw, latent: arms.Latent, generator: Generator | None = None) -> Tensor:
    """The same uniforms for all chains."""
    uniforms = torch.rand(latent.logits.shape[1:], generator=generator, dtype=torch.float64)
    return (uniforms < torch.sigmoid(latent.logits)).to(latent.logits.dtype)


def self_baseline(latent: arms.Latent, points: Tensor, to_go: Tensor, n: int) -> Tensor:
    """The mean over all chains as the baseline, without the correction."""
    return layers.deeper_gradient(latent, points, to_go, n) * (n - 1) / n


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("draw_deeper", coupled_deeper),
        ("draw_deeper", shared_noise),
        ("deeper_gradient", self_baseline),
    ],
)
def test_draws_catch_sabotage_of_deeper_layers(
    name: str, wrong: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem()
    monkeypatch.setattr(api, name, wrong)
    rows = 100_000
    bias = problem.bias.detach().expand(rows, -1).clone().requires_grad_()
    q1 = arms.draw(problem.first.detach().expand(rows, -1), "arms", 4, seeded())
    q2 = arms.draw(q1.samples @ problem.weights.detach() + bias, given=q1, generator=seeded(1))
    value = arms.attach([q1, q2], list(problem.terms(q1.samples, q2.samples)))
    (found,) = torch.autograd.grad(value.sum(), bias)
    assert scores(found, problem.gradients(problem.exact())[2]).abs().max() > 2 * score_limit(2)


@pytest.mark.parametrize("root", [arms.LOORF(2), arms.ARMS(3)], ids=str)
def test_enumeration_catches_sabotage_of_chains(
    root: arms.Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misplaced(draws: list[arms.Handle], terms: list[Tensor]) -> Tensor:
        # The deeper term as the first layer's: the second layer does not learn from it.
        return arms.attach(draws, terms[::-1])

    def with_self_baseline(draws: list[arms.Handle], terms: list[Tensor]) -> Tensor:
        monkeypatch.setattr(api, "deeper_gradient", self_baseline)
        return arms.attach(draws, terms)

    for combine in (misplaced, with_self_baseline):
        error = bias(Problem(), root, False, combine)
        assert error[0] < 1e-12
        assert min(error[1:3]) > 1e-3


# --- The page -----------------------------------------------------------------------------------

BLOCKS = re.findall(
    r"```python\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "layers.md").read_text(),
    re.DOTALL,
)


def test_the_belief_network_of_the_page_takes_fifteen_lines_and_learns() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 15
    names: dict[str, Any] = {}
    exec(BLOCKS[0], names)
    assert names["elbo"].shape == (64,)
    weights = [
        part.weight.grad for part in (names[name] for name in ("enc1", "enc2", "dec1", "dec2"))
    ]
    assert all(grad is not None and grad.isfinite().all() and grad.any() for grad in weights)


def test_the_other_blocks_of_the_page_run() -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)
    assert names["value"].shape == (64,)


# --- What is refused ----------------------------------------------------------------------------


def two(n: int = 4) -> tuple[arms.Handle, arms.Handle]:
    first = arms.draw(torch.zeros(5, 3, requires_grad=True), "arms", n)
    return first, arms.draw(first.samples, given=first)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda q, r, f: arms.draw(q.samples, given=q, num_samples=4),
            "a deeper layer uses the estimator and the number of samples of the first layer:",
        ),
        (
            lambda q, r, f: arms.draw(q.samples, "arms", given=q),
            "a deeper layer uses the estimator and the number of samples of the first layer:",
        ),
        (
            lambda q, r, f: arms.draw(q.samples[0], given=q),
            r"\[4, 5, d\].* 4 samples.*got \[5, 3\]",
        ),
        (
            lambda q, r, f: arms.draw(q.samples[:3], given=q),
            r"of the 4 samples of the layer before it, got \[3, 5, 3\]: compute the logits",
        ),
        (
            lambda q, r, f: arms.draw(q.samples[:, :2], given=q),
            r"of the 4 samples of the layer before it, got \[4, 2, 3\]: compute the logits",
        ),
        (
            lambda q, r, f: arms.draw(q.samples, given=q.samples),
            "given must come from arms.draw, got Tensor",
        ),
        (
            lambda q, r, f: arms.attach(r, f),
            "the first draw in the list belongs to a deeper layer: start with the first",
        ),
        (
            lambda q, r, f: arms.attach([r], f),
            "the first draw in the list belongs to a deeper layer: start with the first",
        ),
        (
            lambda q, r, f: arms.attach([q, two()[0]], f),
            "draws must list all layers in order, but draw 2 was drawn without given=",
        ),
        (
            lambda q, r, f: arms.attach([q, r, r], f),
            "draws must list all layers in order, but draw 3 appears twice",
        ),
        (
            lambda q, r, f: arms.attach([q, two()[1]], f),
            "draws must list all layers in order, but draw 2 was drawn with given= a draw that is",
        ),
        (
            lambda q, r, f: arms.attach([q, arms.draw(r.samples, given=r)], f),
            "draws must list all layers in order, but draw 2 was drawn with given= a draw that is",
        ),
        (lambda q, r, f: arms.attach([], f), "at least one draw"),
        (
            lambda q, r, f: arms.attach([q, r], [f]),
            "values must be one tensor, or a list of 2 terms, one for each layer, got a list of 1",
        ),
        (
            lambda q, r, f: arms.attach([q, r], [f, f, f]),
            "values must be one tensor, or a list of 2 terms, one for each layer, got a list of 3",
        ),
        (lambda q, r, f: arms.attach([q, r], [f, f[0]]), r"shape \[4, 5\], got \[5\]"),
        (
            lambda q, r, f: arms.attach([q, r], f, derivatives=f),
            "derivatives cannot be passed for several layers: remove this argument, and autograd",
        ),
        (lambda q, r, f: arms.attach([q, f], f), "draw must come from arms.draw, got Tensor"),
        (lambda q, r, f: arms.attach([q, r], [f, f * torch.nan]), "NaN"),
    ],
)
def test_misuse_is_refused_with_a_sentence(call: Callable[..., object], message: str) -> None:
    first, second = two()
    with pytest.raises(ValueError, match=message.replace("\\\\", "\\")):
        call(first, second, torch.zeros(4, 5))


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("vimco", "VIMCO estimates the 4-sample bound, so it cannot be used for several layers:"),
        ("exact", "Exact enumerates all states, so it cannot be used for several layers: use arms"),
        (
            "unordered-set",
            "UnorderedSet weights its samples, so it cannot be used for several layers: use",
        ),
        (
            "relax",
            "has parameters, so it cannot be used for several layers: use arms or loorf instead",
        ),
        (
            "rodeo",
            "has parameters, so it cannot be used for several layers: use arms or loorf instead",
        ),
        *(
            (name, r"is biased \(it ignores how deeper layers change\), so it cannot be used for")
            for name in arms.BIASED_ESTIMATORS
        ),
    ],
)
@pytest.mark.parametrize("of", ["samples", "points"])
def test_first_layers_that_cannot_have_deeper_ones_say_so(root: str, message: str, of: str) -> None:
    first = arms.draw(torch.zeros(5, 3), root, 4)
    with pytest.raises(ValueError, match=message):
        arms.draw(getattr(first, of), given=first)


def test_the_derivatives_of_a_biased_first_layer_would_be_blind_to_a_deeper_one() -> None:
    """Why they are refused: f depends on the first bit only through the second.

    So the first bit has a gradient, but f has no derivative with respect to it.
    """
    logits, estimator = torch.zeros(1, 1, dtype=torch.float64), arms.ReinMax(4)
    root = draw_ahead(estimator, arms.Bits(logits), seeded())
    second = draw_deeper(root, arms.Bits(6 * root.points - 3), seeded(1))
    values = second.sum(-1) + 0 * root.points.sum(-1)
    assert not first_gradient(estimator, root, values, Options()).any()
    q1, q2 = arms.Bits(logits), arms.Bits(torch.tensor([[-3.0], [3.0]], dtype=torch.float64))
    assert q1.covariance_matvec(q2.mean()[1] - q2.mean()[0]).item() > 0.2


DIFFERENTIATING = [
    name
    for name, make in arms.ESTIMATORS.items()
    if make(4).design.needs.derivatives and not reason_not_first_layer(make(4))
]


def test_some_first_layers_need_derivatives() -> None:
    expected = ["midpoint", "midpoint-single", "cross-paired", "arms-taylor", "double-cv"]
    assert expected == DIFFERENTIATING


@pytest.mark.parametrize("at", ["samples", "points"])
@pytest.mark.parametrize("of", ["samples", "points"])
@pytest.mark.parametrize("name", DIFFERENTIATING)
def test_a_first_layer_that_needs_derivatives_says_where(name: str, of: str, at: str) -> None:
    """Logits and values must cover all points. Otherwise, the error mentions points."""
    logits = random(5, 3).requires_grad_()
    first = arms.draw(logits, name, 4, seeded())

    def value() -> Tensor:
        second = arms.draw(getattr(first, of) @ random(3, 2), given=first, generator=seeded(1))
        b1, b2 = getattr(first, at), getattr(second, at)
        return arms.attach([first, second], torch.sin(b1.sum(-1) + b2.sum(-1)))

    if at == "points" and (of == "points" or not first.drawn.extra):
        (grad,) = torch.autograd.grad(value().sum(), logits)
        assert grad.isfinite().all()
        assert grad.any()
        return
    with pytest.raises(ValueError, match=r"compute the logits from given\.points|draw\.points"):
        value()


@pytest.mark.parametrize("name", ["cross-paired", "double-cv"])
def test_the_hint_about_logits_depends_on_derivatives(name: str) -> None:
    first = arms.draw(torch.zeros(5, 3), name, 4)
    with pytest.raises(
        ValueError,
        match=r"each of the 4 points of the layer before it, got \[3, 5, 3\]: compute the logits",
    ):
        arms.draw(first.points[:3], given=first)


def test_a_midpoint_needs_the_deeper_layer_at_its_points() -> None:
    first = arms.draw(torch.zeros(5, 3), "midpoint", 4)
    with pytest.raises(
        ValueError,
        match=r"each of the 5 points of the layer before it, got \[4, 5, 3\]: compute the logits",
    ):
        arms.draw(first.samples, given=first)


def test_points_changed_in_place_are_refused_in_any_layer() -> None:
    first, second = two()
    second.points.zero_()
    with pytest.raises(
        ValueError,
        match=r"draw.points was modified in place after the draw: modify draw.samples instead,",
    ):
        arms.attach([first, second], torch.zeros(4, 5))
