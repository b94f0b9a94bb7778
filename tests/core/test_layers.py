"""Several stochastic layers: chains and nested expectations against enumeration, identities, and what is refused."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from enumeration import every_draw
from torch import Generator, Tensor, nn
from torch.distributions import OneHotCategorical

import arms
from arms.checks import score_limit
from arms.estimators import Options, chained
from arms.estimators.chained import Chained, draw_next, layer_gradient, why_no_root
from arms.estimators.pipeline import draw_ahead

BITS, K = 2, 3


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class Problem(nn.Module):
    """b1 of two bits, b2 of two bits (or one choice among three) given b1, and an objective with a term for each.

    The first term sees b1 alone. Between the states it is curved, so that a wrong use of slopes cannot pass.
    """

    def __init__(self, kind: type[arms.Latent] = arms.Bernoulli) -> None:
        super().__init__()
        self.kind = kind
        self.event = (BITS,) if kind is arms.Bernoulli else (1, K)
        self.first = nn.Parameter(random(BITS, seed=1))
        self.weights = nn.Parameter(random(BITS, math.prod(self.event), seed=2))
        self.bias = nn.Parameter(random(math.prod(self.event), seed=3))
        self.model = nn.Parameter(random(8, seed=4))  # what the objective itself depends on
        self.mixed = random(BITS + math.prod(self.event), 5, seed=5)

    def second(self, b1: Tensor) -> arms.Latent:
        return self.kind((b1 @ self.weights + self.bias).unflatten(-1, self.event))

    def terms(self, b1: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
        flat = b2.flatten(-len(self.event))
        every = torch.tanh(torch.cat([b1.expand(*flat.shape[:-1], -1), flat], -1) @ self.mixed)
        own = 3 * (b1[..., 0] * b1[..., 1] - b1[..., 1]) + (b1 * (1 - b1)).sum(-1) + self.model[0] * b1[..., 0]
        return own, (every * self.model[1:6]).sum(-1) * 2 + flat[..., 0].square()

    def exact(self) -> Tensor:
        """The expectation by enumeration of both layers, attached to everything."""
        first = arms.Bernoulli(self.first)
        b1 = first.states()
        second = self.second(b1)
        b2 = second.states()[:, None].expand(-1, len(b1), *self.event)
        both = first.log_prob(b1) + second.log_prob(b2)
        return (both.exp() * sum(self.terms(b1, b2))).sum()

    def gradients(self, value: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(value, [self.first, self.weights, self.bias, self.model]))


def handed_out(drawn: arms.Draw, points: Tensor, latent: arms.Latent) -> arms.Draw:
    """A draw of every state as `arms.draw` would have returned it, for a latent without batch axes."""
    points = points.detach().clone().requires_grad_(drawn.estimator.slopes != "none")
    wide = type(latent)(latent.logits.expand(points.shape[1:]))
    return replace(drawn, latent=wide.detach(), points=points, given=wide)


def every_chain(
    problem: Problem, root: arms.Estimator, of: Literal["points", "samples"] = "points"
) -> tuple[list[arms.Draw], Tensor]:
    """Draws of both layers whose batch runs over all that n chains can do, and the probability of each."""
    drawn, weights = every_draw(root, arms.Bernoulli(problem.first.detach()))
    n = len(drawn.points) - drawn.extra
    states = problem.second(torch.zeros(BITS, dtype=torch.float64)).states()
    chosen = torch.tensor(list(itertools.product(range(len(states)), repeat=n)))
    first = handed_out(drawn, drawn.points.repeat_interleave(len(chosen), 1), arms.Bernoulli(problem.first))
    b2 = states[chosen].transpose(0, 1).repeat(1, len(weights), *[1] * len(problem.event)).unsqueeze(2)
    given = problem.second(getattr(first, of))
    kept = given.detach()
    if drawn.extra:
        b2 = torch.cat([b2, given.mean()[n:]])
    below = arms.Draw(Chained(n, drawn.extra), kept, b2, drawn.extra, given=given, parent=first)
    chain = type(kept)(kept.logits[:n]).log_prob(b2[:n].detach()).sum(0).exp().squeeze(-1)
    return [first, below], weights.repeat_interleave(len(chosen)) * chain


def bias(
    problem: Problem,
    root: arms.Estimator,
    joined: bool,
    combine: Callable[..., Tensor] = arms.attach,
    of: Literal["points", "samples"] = "points",
) -> list[float]:
    """The largest error of the expected gradient: of the first layer, of the second, and of the model."""
    draws, weights = every_chain(problem, root, of)
    assert abs(weights.sum() - 1) < 1e-13
    terms = list(problem.terms(draws[0].points, draws[1].points))
    value = combine(draws, sum(terms) if joined else terms)
    found = problem.gradients((weights * value.squeeze(-1)).sum())
    return [(a - b).abs().max().item() for a, b in zip(found, problem.gradients(problem.exact()), strict=True)]


ROOTS = [
    arms.Reinforce(1),
    *(arms.LOORF(n) for n in (2, 3)),
    *(arms.ARMS(n, coupling) for n in (2, 3) for coupling in (arms.Systematic(), arms.Dirichlet())),
    arms.DisARM(2),
    arms.ARTS(2, correlation=-0.3),
    arms.Midpoint(2),
    arms.Midpoint(2, arms.Systematic()),
    arms.Midpoint(4),
    arms.Midpoint(4, pairs=1),
    arms.Repaired(4),
    arms.DoubleCV(2),
    *(arms.ARMSTaylor(n) for n in (2, 3)),
]


@pytest.mark.parametrize("joined", [True, False], ids=["one tensor", "cost to go"])
@pytest.mark.parametrize("kind", [arms.Bernoulli, arms.OneHot])
@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_expectation_over_chains_is_the_gradient(root: arms.Estimator, kind: type[arms.Latent], joined: bool) -> None:
    assert max(bias(Problem(kind), root, joined)) < 1e-12


@pytest.mark.parametrize("kind", [arms.Bernoulli, arms.OneHot])
@pytest.mark.parametrize("root", [arms.Repaired(4), arms.DoubleCV(2)], ids=str)
def test_slopes_at_samples_alone_need_no_part_in_the_deeper_logits(
    root: arms.Estimator, kind: type[arms.Latent]
) -> None:
    assert max(bias(Problem(kind), root, joined=True, of="samples")) < 1e-12


# --- Nested expectations ----------------------------------------------------------------------------------------------


def every_nested(problem: Problem, outer: arms.Estimator, inner: arms.Estimator) -> list[float]:
    """The bias of nested calls: given b1 the inner gradient is a one-layer estimate, so both are enumerated in turn."""
    drawn, weights = every_draw(outer, arms.Bernoulli(problem.first.detach()))
    first = handed_out(drawn, drawn.points, arms.Bernoulli(problem.first))
    rows = []
    for b1 in first.points.flatten(0, 2):  # given the first layer, the exact expectation of the inner estimate
        second = problem.second(b1)
        every, chances = every_draw(inner, second.detach())
        below = handed_out(every, every.points, second)
        seen = arms.attach(below, sum(problem.terms(b1, below.points)))
        rows.append((chances * seen.squeeze(-1)).sum())
    value = arms.attach(first, torch.stack(rows).view(first.points.shape[:-1]))
    found = problem.gradients((weights * value.squeeze(-1)).sum())
    return [(a - b).abs().max().item() for a, b in zip(found, problem.gradients(problem.exact()), strict=True)]


@pytest.mark.parametrize("kind", [arms.Bernoulli, arms.OneHot])
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (arms.LOORF(2), arms.LOORF(3)),
        (arms.LOORF(3), arms.Reinforce(2)),
        (arms.ARMS(2, arms.Systematic()), arms.LOORF(2)),
        (arms.ARMS(3, arms.Dirichlet()), arms.LOORF(2)),
    ],
    ids=str,
)
def test_nested_expectation_is_the_gradient(
    outer: arms.Estimator, inner: arms.Estimator, kind: type[arms.Latent]
) -> None:
    assert max(every_nested(Problem(kind), outer, inner)) < 1e-12


@pytest.mark.parametrize("n", [2, 3])
def test_nested_coupled_expectation_is_the_gradient(n: int) -> None:
    assert max(every_nested(Problem(), arms.ARMS(n), arms.ARMS(n))) < 1e-12


def test_nested_midpoints_are_the_gradient() -> None:
    """The outer slopes are the inner estimate's, through the logits of the second layer: any control would do."""
    assert max(every_nested(Problem(), arms.Midpoint(2), arms.Midpoint(2))) < 1e-12


# --- Draws ------------------------------------------------------------------------------------------------------------


def z_limit(scores: list[Tensor]) -> tuple[float, float]:
    every = torch.cat([score.flatten() for score in scores])
    return every.abs().max().item(), score_limit(every.numel())


def scores(found: Tensor, exact: Tensor) -> Tensor:
    return (found.mean(0) - exact) / (found.std(0) / math.sqrt(len(found))).clamp(min=1e-12)


class Deep:
    """Three layers: two bits, one choice among three, two bits; every layer sees all before it."""

    def __init__(self) -> None:
        self.first, self.to_second, self.to_third = random(2, seed=1), random(2, 3, seed=2), random(5, 2, seed=3)
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
        bits = arms.Bernoulli(torch.zeros(2, dtype=torch.float64)).states()
        for b1, b2, b3 in itertools.product(bits, torch.eye(3, dtype=torch.float64), bits):
            chance = arms.Bernoulli(offsets[0]).log_prob(b1) + self.second(b1, offsets[1]).log_prob(b2).sum()
            chance = chance + arms.Bernoulli(self.third(b1, b2, offsets[2])).log_prob(b3)
            total = total + chance.exp() * sum(self.terms(b1, b2, b3))
        return total


def three_layers(root: str, n: int, rows: int, generator: Generator) -> tuple[list[Tensor], list[Tensor]]:
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
    return list(torch.autograd.grad(value.sum(), own)), list(torch.autograd.grad(deep.exact(exact), exact))


@pytest.mark.parametrize(("root", "n"), [("arms-s", 4), ("disarm", 4), ("loorf", 3), ("midpoint", 4), ("arm", 2)])
def test_three_layers_of_bits_and_categories_agree_with_enumeration(root: str, n: int) -> None:
    found, exact = three_layers(root, n, 100_000, seeded(7))
    largest, limit = z_limit([scores(a, b) for a, b in zip(found, exact, strict=True)])
    assert largest < limit


def test_a_draw_given_another_has_the_right_law() -> None:
    first = arms.draw(torch.full((50_000, 2), 0.4), "arms-s", 4, seeded())
    logits = torch.stack([first.samples[..., 0] * 2 - 1, first.samples.sum(-1) - 1], -1)
    second = arms.draw(logits, given=first, generator=seeded(1)).samples
    assert second.shape == (4, 50_000, 2)
    probs = torch.sigmoid(logits)
    residual = (second - probs) / (probs * (1 - probs)).sqrt()
    means = residual.mean(1) * math.sqrt(50_000)
    products = (residual[0] * residual[1]).mean(0) * math.sqrt(50_000)
    assert torch.cat([means.flatten(), products]).abs().max() < score_limit(10)


# --- Identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loorf", "arms-s", "disarm", "midpoint"])
def test_one_layer_is_no_layers(name: str) -> None:
    logits = random(5, 3).requires_grad_()

    def objective(b: Tensor) -> Tensor:
        return torch.sin(b.sum(-1)) + b[..., 0]

    expected = arms.expectation(objective, logits, name, 4, seeded())
    drawn = arms.draw(logits, name, 4, seeded())
    found = arms.attach([drawn], [objective(drawn.points)])
    assert torch.equal(found, expected)
    (a,), (b,) = torch.autograd.grad(found.sum(), logits), torch.autograd.grad(expected.sum(), logits)
    assert torch.equal(a, b)


def test_a_deeper_layer_that_ignores_the_first_is_loorf() -> None:
    first, second = random(5, 3), random(5, 2, seed=1).requires_grad_()
    q1 = arms.draw(first, "loorf", 4, seeded())
    q2 = arms.draw(second.expand(4, 5, 2), given=q1, generator=seeded(1))
    values = q2.samples.prod(-1) + q1.samples.sum(-1)
    (found,) = torch.autograd.grad(arms.attach([q1, q2], values).sum(), second)
    alone = arms.LOORF(4)
    expected = alone.combine(arms.Draw(alone, arms.Bernoulli(second.detach()), q2.samples), values)
    torch.testing.assert_close(found, expected)


def test_nesting_over_a_certain_layer_is_a_single_layer() -> None:
    logits, certain = random(5, 3).requires_grad_(), torch.full((5, 2), 40.0, dtype=torch.float64)

    def nested(b: Tensor) -> Tensor:
        return arms.expectation(lambda c: (b * c[..., :1]).prod(-1), certain.expand(4, 5, 2), "arms-s", 2)

    (found,) = torch.autograd.grad(arms.expectation(nested, logits, "arms-s", 4, seeded()).sum(), logits)
    plain = arms.expectation(lambda b: b.prod(-1), logits, "arms-s", 4, seeded())
    torch.testing.assert_close(found, *torch.autograd.grad(plain.sum(), logits))


@pytest.mark.parametrize("root", ["loorf", "arms-s", "disarm", "midpoint"])
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
    q1 = arms.draw(logits, "arms-s", 4, seeded())
    q2 = arms.draw(q1.samples @ weights, given=q1, generator=seeded(1))
    first, second = q1.samples.sum(-1), q2.samples.prod(-1)
    one = torch.autograd.grad(arms.attach([q1, q2], [first, second]).sum(), [logits, weights], retain_graph=True)
    more = torch.autograd.grad(arms.attach([q1, q2], [100 * first, second]).sum(), [logits, weights], retain_graph=True)
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
        q1 = arms.draw(logits, "arms-s", 4, seeded())
        q2 = arms.draw(q1.samples @ weights, given=q1, generator=seeded(1))
        return arms.attach([q1, q2], [q1.samples.sum(-1), q2.samples.prod(-1)]).sum()

    moved = random(3, 2, seed=9)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weights, moved)
        forward = forward_ad.unpack_dual(value(logits, dual)).tangent
    leaf = weights.clone().requires_grad_()
    (reverse,) = torch.autograd.grad(value(logits, leaf), leaf)
    torch.testing.assert_close(forward, (reverse * moved).sum())


# --- Sabotage ---------------------------------------------------------------------------------------------------------


class CoupledDeeper(Chained):
    """Deeper bits coupled by common strata, with the plain leave-one-out baseline."""

    def draw(self, latent: arms.Latent, generator: Generator | None = None) -> arms.Draw:
        shape = latent.logits.shape
        strata = torch.rand(shape, generator=generator, dtype=torch.float64).argsort(0)
        uniforms = (strata + torch.rand(shape, generator=generator, dtype=torch.float64)) / len(strata)
        return arms.Draw(self, latent, (uniforms < torch.sigmoid(latent.logits)).to(latent.logits.dtype))


class SharedNoise(Chained):
    """The same uniforms for all chains."""

    def draw(self, latent: arms.Latent, generator: Generator | None = None) -> arms.Draw:
        uniforms = torch.rand(latent.logits.shape[1:], generator=generator, dtype=torch.float64)
        return arms.Draw(self, latent, (uniforms < torch.sigmoid(latent.logits)).to(latent.logits.dtype))


class SelfBaseline(Chained):
    """The mean over all chains as the baseline, without the correction."""

    def combine(self, draw: arms.Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (self.num_samples - 1) / self.num_samples


@pytest.mark.parametrize("wrong", [CoupledDeeper, SharedNoise, SelfBaseline])
def test_draws_catch_sabotage_of_deeper_layers(wrong: type[Chained], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem()
    monkeypatch.setattr(chained, "Chained", wrong)
    rows = 100_000
    bias = problem.bias.detach().expand(rows, -1).clone().requires_grad_()
    q1 = arms.draw(problem.first.detach().expand(rows, -1), "arms-s", 4, seeded())
    q2 = arms.draw(q1.samples @ problem.weights.detach() + bias, given=q1, generator=seeded(1))
    value = arms.attach([q1, q2], list(problem.terms(q1.samples, q2.samples)))
    (found,) = torch.autograd.grad(value.sum(), bias)
    assert scores(found, problem.gradients(problem.exact())[2]).abs().max() > 2 * score_limit(2)


@pytest.mark.parametrize("root", [arms.LOORF(2), arms.ARMS(3)], ids=str)
def test_enumeration_catches_sabotage_of_chains(root: arms.Estimator) -> None:
    def misplaced(draws: list[arms.Draw], terms: list[Tensor]) -> Tensor:
        return arms.attach(draws, terms[::-1])  # the deeper term as the first layer's: layer 2 does not learn from it

    def self_baseline(draws: list[arms.Draw], terms: list[Tensor]) -> Tensor:
        wrong = SelfBaseline(draws[1].estimator.num_samples)
        return arms.attach([draws[0], replace(draws[1], estimator=wrong)], terms)

    for combine in (misplaced, self_baseline):
        error = bias(Problem(), root, False, combine)
        assert error[0] < 1e-12
        assert min(error[1:3]) > 1e-3


# --- The page ---------------------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "layers.md").read_text(), re.DOTALL)


def test_the_belief_network_of_the_page_takes_fifteen_lines_and_learns() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 15
    names: dict[str, Any] = {}
    exec(BLOCKS[0], names)
    assert names["elbo"].shape == (64,)
    weights = [part.weight.grad for part in (names[name] for name in ("enc1", "enc2", "dec1", "dec2"))]
    assert all(grad is not None and grad.isfinite().all() and grad.any() for grad in weights)


def test_the_other_blocks_of_the_page_run() -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)
    assert names["value"].shape == (64,)


# --- What is refused --------------------------------------------------------------------------------------------------


def two(n: int = 4) -> tuple[arms.Draw, arms.Draw]:
    first = arms.draw(torch.zeros(5, 3, requires_grad=True), "arms-s", n)
    return first, arms.draw(first.samples, given=first)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda q, r, f: arms.draw(q.samples, given=q, num_samples=4),
            "from the first layer, got num_samples=4: leave",
        ),
        (lambda q, r, f: arms.draw(q.samples, "arms-s", given=q), "'arms-s': leave it out.*coupled ones"),
        (lambda q, r, f: arms.draw(q.samples[0], given=q), r"\[4, 5, d\].*its 4 samples.*got \[5, 3\]"),
        (lambda q, r, f: arms.draw(q.samples[:3], given=q), r"must be \[4, 5, d\].*got \[3, 5, 3\]"),
        (lambda q, r, f: arms.draw(q.samples[:, :2], given=q), r"\[4, 5, d\], each of its 4 samples"),
        (lambda q, r, f: arms.draw(q.samples, given=q.samples), "given must be what arms.draw returned, got Tensor"),
        (lambda q, r, f: arms.attach(r, f), r"one layer of several: attach all.*\[first, second\]"),
        (lambda q, r, f: arms.attach([r], f), "first draw in the list must be the first layer"),
        (lambda q, r, f: arms.attach([q, two()[0]], f), "number 2 was made without given"),
        (lambda q, r, f: arms.attach([q, r, r], f), "each draw must be in the list once, got number 3 twice"),
        (lambda q, r, f: arms.attach([q, two()[1]], f), "number 2 was made given a draw that is not before it"),
        (
            lambda q, r, f: arms.attach([q, arms.draw(r.samples, given=r)], f),
            "number 2 was made given a draw that is not before it in the list: list all layers",
        ),
        (lambda q, r, f: arms.attach([], f), "at least one draw"),
        (lambda q, r, f: arms.attach([q, r], [f]), "2 layers must be one tensor, or a list.*got 1 terms"),
        (lambda q, r, f: arms.attach([q, r], [f, f, f]), "got 3 terms"),
        (lambda q, r, f: arms.attach([q, r], [f, f[0]]), r"shape \[4, 5\], got \[5\]"),
        (lambda q, r, f: arms.attach([q, r], f, slopes=f), "leave slopes out"),
        (lambda q, r, f: arms.attach([q, f], f), "what arms.draw returned, got Tensor"),
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
        ("vimco", "estimates the 4-sample bound and cannot be the first of several layers"),
        ("exact", "enumerates all states and cannot"),
        ("unord", "draws without replacement and cannot"),
        ("relax", "has parameters of its own and cannot"),
        ("rodeo", "has parameters of its own and cannot"),
        *((name, "is biased, its slopes blind to .* and cannot") for name in arms.BIASED_ESTIMATORS),
    ],
)
@pytest.mark.parametrize("of", ["samples", "points"])
def test_first_layers_that_cannot_have_deeper_ones_say_so(root: str, message: str, of: str) -> None:
    first = arms.draw(torch.zeros(5, 3), root, 4)
    with pytest.raises(ValueError, match=message):
        arms.draw(getattr(first, of), given=first)


def test_the_slopes_of_a_biased_first_layer_would_be_blind_to_a_deeper_one() -> None:
    """Why they are refused: f depends on the first bit through the law of the second alone, and so has a gradient."""
    logits = torch.zeros(1, 1, dtype=torch.float64)
    root = draw_ahead(arms.ReinMax(4), arms.Bernoulli(logits), seeded())
    second = draw_next(root, arms.Bernoulli(6 * root.points - 3), seeded(1))
    values = second.points.sum(-1) + 0 * root.points.sum(-1)
    assert not layer_gradient(root, values, Options()).any()
    q1, q2 = arms.Bernoulli(logits), arms.Bernoulli(torch.tensor([[-3.0], [3.0]], dtype=torch.float64))
    assert q1.covary(q2.mean()[1] - q2.mean()[0]).item() > 0.2


SLOPED = [
    name for name, factory in arms.ESTIMATORS.items() if factory(4).slopes != "none" and not why_no_root(factory(4))
]


def test_some_first_layers_take_slopes() -> None:
    assert SLOPED == ["midpoint", "midpoint-single", "repaired", "arms-s-taylor", "double-cv"]


@pytest.mark.parametrize("at", ["samples", "points"])
@pytest.mark.parametrize("of", ["samples", "points"])
@pytest.mark.parametrize("name", SLOPED)
def test_a_first_layer_that_takes_slopes_says_where_it_needs_them(name: str, of: str, at: str) -> None:
    """Logits and values of points serve every one of them; what does not is refused with a word about points."""
    logits = random(5, 3).requires_grad_()
    first = arms.draw(logits, name, 4, seeded())

    def value() -> Tensor:
        second = arms.draw(getattr(first, of) @ random(3, 2), given=first, generator=seeded(1))
        b1, b2 = getattr(first, at), getattr(second, at)
        return arms.attach([first, second], torch.sin(b1.sum(-1) + b2.sum(-1)))

    if at == "points" and (of == "points" or not first.extra):
        (grad,) = torch.autograd.grad(value().sum(), logits)
        assert grad.isfinite().all()
        assert grad.any()
        return
    with pytest.raises(ValueError, match=r"make them of given\.points|draw\.points"):
        value()


@pytest.mark.parametrize("name", ["repaired", "double-cv"])
def test_the_hint_about_logits_goes_by_slopes(name: str) -> None:
    first = arms.draw(torch.zeros(5, 3), name, 4)
    with pytest.raises(ValueError, match=r"each of its 4 points with logits of its own.*make them of given\.points"):
        arms.draw(first.points[:3], given=first)


def test_a_midpoint_needs_the_deeper_layer_at_its_points() -> None:
    first = arms.draw(torch.zeros(5, 3), "midpoint", 4)
    with pytest.raises(ValueError, match=r"\[5, 5, d\], each of its 5 points.*make them of given.points"):
        arms.draw(first.samples, given=first)


def test_points_changed_in_place_are_refused_in_any_layer() -> None:
    first, second = two()
    second.points.zero_()
    with pytest.raises(ValueError, match="changed in place"):
        arms.attach([first, second], torch.zeros(4, 5))
