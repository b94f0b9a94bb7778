"""Sampling sites against enumeration: the real block, with all outcomes instead of draws.

Every row of the batch is one joint outcome of all sites in all copies. What a block returns per
row, weighted by the row's probability, must have the exact gradient of the expected loss.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Generator, Tensor

import arms
from arms.attachment import needs_gradient
from arms.designs import Dirichlet, Draw
from arms.latents import Enumerable
from arms.sites import _BLOCK, Sampling, _Form, _Repeated

Model = Callable[[Sampling, Tensor], Tensor]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class Listed(Sampling):
    """A block that draws scripted choices, one per row and site, with their probabilities."""

    def __init__(self, estimator: arms.Estimator, script: Tensor) -> None:
        super().__init__(estimator, None, validate=True)
        self.script = script  # [rows, sites]
        self.sizes: list[int] = []  # the number of outcomes of each site
        self.probability = torch.ones(len(script), dtype=torch.float64)

    def chosen(self) -> Tensor:
        at = len(self.sizes)
        blank = torch.zeros(len(self.script), dtype=torch.long)
        return self.script[:, at] if at < self.script.shape[1] else blank

    def took(self, size: int, chances: Tensor) -> None:
        self.sizes.append(size)
        self.probability = self.probability * chances

    def draw_once(
        self, chosen: arms.Estimator, latent: arms.Latent, generator: Generator | None
    ) -> Draw:
        points, chances, size, flat = [], [], 0, flattened(latent)
        known: dict[tuple[float, ...], tuple[Draw, Tensor]] = {}
        for logits, which in zip(flat.logits, self.chosen().tolist(), strict=True):
            key = tuple(logits.flatten().tolist())
            if key not in known:
                found = chosen.design.outcomes(flat.with_logits(logits))
                assert found is not None
                known[key] = found
            drawn, probabilities = known[key]
            size = len(probabilities)
            points.append(drawn.points[:, which, 0])
            chances.append(probabilities[which])
        self.took(size, torch.stack(chances))
        drawn_points = torch.stack(points, 1)
        shape = latent.logits.shape
        return Draw(latent.detach(), drawn_points.view(len(drawn_points), *shape))

    def draw_repeated(self, latent: arms.Latent, generator: Generator | None) -> Tensor:
        flat = flattened(latent)
        assert isinstance(flat, Enumerable)
        states = flat.with_logits(flat.logits[0]).states()
        digits = digits_of(self.chosen(), len(states), self.copies)  # [n, rows]
        points = states[digits].flatten(0, 1)
        chances = flat.log_prob(points).exp().view(self.copies, -1)
        self.took(len(states) ** self.copies, chances.prod(0))
        return points.view(latent.logits.shape)


def flattened(latent: arms.Latent) -> arms.Latent:
    """Return a latent with rows only; those of several axes consist of bits."""
    kept = latent.detach()
    if isinstance(kept, arms.Bits):
        return arms.Bits(kept.logits.flatten(1))
    if isinstance(kept, arms.OneHot):  # [rows, 1, 1, K] of one choice per row
        return kept.with_logits(kept.logits.view(len(kept.logits), 1, -1))
    return kept


def digits_of(number: Tensor, base: int, count: int) -> Tensor:
    return torch.stack([number // base**power % base for power in reversed(range(count))])


def expected_gradient(
    block: Callable[[Tensor], Listed], model: Model, data: Tensor, parameters: list[Tensor]
) -> list[Tensor]:
    """Return the expected gradient of what a block returns; rows of `data` are equally likely."""

    def run(script: Tensor, x: Tensor) -> tuple[Listed, Tensor]:
        with block(script) as s:
            loss = model(s, x)
        assert isinstance(s, Listed)
        return s, s.expectation(loss)

    sizes = run(torch.zeros(len(data), 0, dtype=torch.long), data)[0].sizes
    ranges = [torch.arange(size) for size in sizes]
    script = torch.cartesian_prod(*ranges).view(-1, len(sizes))
    x = data.repeat_interleave(len(script), 0)
    s, value = run(script.repeat(len(data), 1), x)
    total = s.probability.sum().item()
    assert abs(total - len(data)) < 1e-12 * len(data), total
    mean = (s.probability.detach() * value).sum() / len(data)
    found = torch.autograd.grad(mean, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


def error(found: list[Tensor], exact: Tensor, parameters: list[Tensor]) -> float:
    truth = torch.autograd.grad(exact, parameters, allow_unused=True)
    return max(
        (a - (torch.zeros_like(a) if b is None else b)).abs().max().item()
        for a, b in zip(found, truth, strict=True)
    )


# --- Three sites: bits, one of three categories, and bits given both --------------------------


class Chain:
    """Three sites whose logits depend on all choices before them; `zero` makes that dependence
    start at zero, so that the logits of all copies are equal and their Jacobians are not."""

    def __init__(self, zero: bool = False) -> None:
        scale = 0.0 if zero else 1.0
        self.first = random(2, seed=1).requires_grad_()
        self.second = (scale * random(2, 3, seed=2)).requires_grad_()
        self.shift = random(3, seed=3).requires_grad_()
        self.third = (scale * random(5, 1, seed=4)).requires_grad_()
        self.weight = random(6, seed=5).requires_grad_()
        self.parameters = [self.first, self.second, self.shift, self.third, self.weight]

    def latents(self, x: Tensor, past: list[Tensor]) -> arms.Latent:
        if not past:
            return arms.Bits(x * self.first)
        if len(past) == 1:
            return arms.OneHot(past[0] @ self.second + self.shift)
        return arms.Bits(torch.cat(past, -1) @ self.third)

    def loss(self, past: list[Tensor]) -> Tensor:
        energy = torch.cat(past, -1) @ self.weight
        return torch.sin(2 * energy) + energy.square()

    def model(self, s: Sampling, x: Tensor, repeated: bool, to_go: bool) -> Tensor:
        past: list[Tensor] = []
        x = s.repeat(x) if repeated else x
        for _ in range(3):
            past.append(arms.sample(self.latents(x, past)))
            if to_go and len(past) == 1:  # known here: later sites need not learn from it
                s.cost(self.early(past[0]))
        return self.loss(past)

    def early(self, first: Tensor) -> Tensor:
        return 3 * first.prod(-1) * self.weight[0]

    def exact(self, to_go: bool) -> Tensor:
        total, eye = torch.zeros((), dtype=torch.float64), torch.eye(3, dtype=torch.float64)
        pairs = arms.Bits(self.first).states()
        ends = arms.Bits(torch.zeros(1, dtype=torch.float64)).states()
        for past in itertools.product(pairs, eye, ends):
            chance = torch.zeros((), dtype=torch.float64)
            for place, one in enumerate(past):
                latent = self.latents(torch.ones(1, dtype=torch.float64), list(past[:place]))
                if isinstance(latent, arms.OneHot):
                    chance = chance + latent.logits.log_softmax(-1) @ one
                else:
                    chance = chance + latent.log_prob(one)
            loss = self.loss(list(past)) + (self.early(past[0]) if to_go else 0.0)
            total = total + chance.exp() * loss
        return total


ONE_ROW = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("to_go", [False, True], ids=["one loss", "cost to go"])
@pytest.mark.parametrize("zero", [False, True], ids=["random layers", "zero layers"])
@pytest.mark.parametrize("repeated", [True, False], ids=["repeated first", "computed once"])
@pytest.mark.parametrize(
    "estimator", [arms.LOORF(2), arms.ARMS(2), arms.DisARM(2), arms.ARMS(2, Dirichlet())], ids=str
)
def test_three_sites_have_the_exact_gradient(
    estimator: arms.Estimator, repeated: bool, zero: bool, to_go: bool
) -> None:
    chain = Chain(zero)
    found = expected_gradient(
        lambda script: Listed(estimator, script),
        lambda s, x: chain.model(s, x, repeated, to_go),
        ONE_ROW,
        chain.parameters,
    )
    assert error(found, chain.exact(to_go), chain.parameters) < 1e-12


# --- A coupled site behind dropout, and one that is computed late ------------------------------


class Dropped:
    """A bit behind dropout whose weight starts at zero: equal logits, and Jacobians that differ."""

    def __init__(self, start: float) -> None:
        self.bias = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
        self.weight = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        self.parameters = [self.bias, self.weight]

    def bit(self, mask: Tensor) -> Tensor:
        return self.bias + self.weight * mask

    def loss(self, b: Tensor, mask: Tensor) -> Tensor:
        return (torch.sin(2 * b + mask) + 3 * b * mask).squeeze(-1)

    def exact(self) -> Tensor:
        masks = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        p = torch.sigmoid(self.bit(masks)).squeeze(-1)
        one, zero = (self.loss(torch.full_like(masks, b), masks) for b in (1.0, 0.0))
        return (p * one + (1 - p) * zero).mean()


MASKS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
MASKS_PER_COPY = torch.cartesian_prod(MASKS[:, 0], MASKS[:, 0])


@pytest.mark.parametrize("start", [0.0, 0.7])
@pytest.mark.parametrize("estimator", [arms.ARMS(2), arms.LOORF(2), arms.ARMS(3)], ids=str)
def test_a_coupled_site_behind_dropout_is_exact(estimator: arms.Estimator, start: float) -> None:
    """Dropout runs once: all copies of a row share the mask."""
    dropped = Dropped(start)

    def model(s: Sampling, mask: Tensor) -> Tensor:
        b = arms.sample(dropped.bit(mask))
        return dropped.loss(b, s.repeat(mask))

    found = expected_gradient(
        lambda script: Listed(estimator, script), model, MASKS, dropped.parameters
    )
    assert error(found, dropped.exact(), dropped.parameters) < 1e-12


def repeated_dropout(dropped: Dropped, block: Callable[[Tensor], Listed]) -> float:
    """Return the error where the batch is repeated first: each copy has a mask of its own."""

    def model(s: Sampling, masks: Tensor) -> Tensor:
        s.repeat(masks)
        mask = masks.T.reshape(-1, 1)  # copy-major: what dropout makes of a repeated batch
        return dropped.loss(arms.sample(dropped.bit(mask)), mask)

    found = expected_gradient(block, model, MASKS_PER_COPY, dropped.parameters)
    return error(found, dropped.exact(), dropped.parameters)


@pytest.mark.parametrize("start", [0.0, 0.7])
def test_a_site_behind_repeated_dropout_is_exact(start: float) -> None:
    assert repeated_dropout(Dropped(start), lambda script: Listed(arms.ARMS(2), script)) < 1e-12


def test_a_site_computed_once_after_other_choices_is_exact() -> None:
    """The logits of this site do not depend on earlier choices, so its copies may be coupled."""
    first, late = (random(1, seed=seed).requires_grad_() for seed in (1, 2))
    weight = random(2, seed=3).requires_grad_()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return torch.sin(3 * torch.cat([a, b], -1) @ weight) + (a * b).squeeze(-1)

    def model(s: Sampling, x: Tensor) -> Tensor:
        a = arms.sample(s.repeat(x) * first)
        return loss(a, arms.sample(x * late))

    states = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    exact = sum(
        (arms.Bits(first).log_prob(a) + arms.Bits(late).log_prob(b)).exp() * loss(a, b)
        for a, b in itertools.product(states, states)
    )
    assert isinstance(exact, Tensor)
    parameters = [first, late, weight]
    found = expected_gradient(lambda one: Listed(arms.ARMS(3), one), model, ONE_ROW, parameters)
    assert error(found, exact, parameters) < 1e-12


# --- A router: two of three experts, then bits given what they say -----------------------------


class Routed:
    """Two of three experts, whose mean output decides a bit."""

    def __init__(self) -> None:
        self.router = random(3, seed=1).requires_grad_()
        self.experts = random(3, 2, seed=2).requires_grad_()
        self.parameters = [self.router, self.experts]

    def hidden(self, mask: Tensor) -> Tensor:
        return torch.tanh(mask @ self.experts)

    def loss(self, mask: Tensor, b: Tensor) -> Tensor:
        return (self.hidden(mask)[..., :1] * (b + 0.3) + b * mask[..., :1]).squeeze(-1).exp()

    def exact(self) -> Tensor:
        subset, total = arms.Subset(self.router, 2), torch.zeros((), dtype=torch.float64)
        for mask, b in itertools.product(
            subset.states(), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        ):
            bit = arms.Bits(self.hidden(mask)[..., 1:])
            total = total + (subset.log_prob(mask) + bit.log_prob(b)).exp() * self.loss(mask, b)
        return total


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("estimator", [arms.LOORF(2), arms.ARMS(2), arms.LOORF(3)], ids=str)
def test_a_router_of_k_experts_has_the_exact_gradient(
    estimator: arms.Estimator, repeated: bool
) -> None:
    routed = Routed()

    def model(s: Sampling, x: Tensor) -> Tensor:
        x = s.repeat(x) if repeated else x
        mask = arms.sample(arms.Subset(x * routed.router, 2))
        return routed.loss(mask, arms.sample(routed.hidden(mask)[:, 1:]))

    found = expected_gradient(
        lambda script: Listed(estimator, script), model, ONE_ROW, routed.parameters
    )
    assert error(found, routed.exact(), routed.parameters) < 1e-12


def test_several_choices_per_row_have_the_exact_gradient() -> None:
    """Bits on two axes of a row, and tokens that were flattened into the batch."""
    logits, weight = random(2, 2, seed=1).requires_grad_(), random(4, seed=2).requires_grad_()

    def loss(b: Tensor) -> Tensor:
        return torch.sin(2 * b.flatten(-2) @ weight)

    flat = arms.Bits(torch.zeros(4, dtype=torch.float64)).states().unflatten(-1, (2, 2))
    chance = arms.Bits(logits.flatten()).log_prob(flat.flatten(-2)).exp()
    exact = (chance * loss(flat)).sum()
    truth = torch.autograd.grad(exact, [logits, weight])
    for repeated, tokens in itertools.product((False, True), repeat=2):

        def model(s: Sampling, x: Tensor, repeated: bool = repeated, tokens: bool = tokens) -> Any:
            x = s.repeat(x) if repeated else x
            every = x.unsqueeze(-1) * logits
            if not tokens:
                return loss(arms.sample(every))
            return loss(arms.sample(every.flatten(0, 1), tokens=2).unflatten(0, (-1, 2)))

        found = expected_gradient(
            lambda script: Listed(arms.ARMS(2), script), model, ONE_ROW, [logits, weight]
        )
        for one, expected in zip(found, truth, strict=True):
            assert (one - expected).abs().max() < 1e-12, (repeated, tokens)


# --- Sabotage: coupling what must not be coupled ----------------------------------------------


@dataclass(frozen=True)
class CoupledCopies(_Repeated):
    """A site of the repeated batch with coupled copies, and with the correction that would need a shared Jacobian."""

    coupled: Tensor  # [rows]
    estimator: arms.LeaveOneOut

    def attach(self, value: Tensor, signal: Tensor) -> Tensor:
        n = self.copies
        logits = self.latent.logits.unflatten(0, (n, -1))
        points = self.points.unflatten(0, (n, -1))
        kept = self.latent.with_logits(logits.detach())
        weight = (signal - signal.mean(0)) / (n - 1)
        grad = kept.score(points) * weight.unsqueeze(-1)
        corrected = self.estimator.design.correct(arms.Bits(logits[0].detach()), grad)
        grad = torch.where(self.coupled.view(-1, 1), corrected, grad)
        found: Tensor = value + ((logits - logits.detach()) * grad).sum((0, -1))
        return found


class CoupledByValue(Listed):
    """A block that couples repeated rows of bits wherever the logits of all copies are equal."""

    def draw(self, form: _Form, generator: Generator | None) -> Tensor:
        latent = form.latent
        if form.count == self.rows or not isinstance(latent, arms.Bits):
            return super().draw(form, generator)
        logits = latent.logits.detach().unflatten(0, (self.copies, -1))
        coupled = (logits == logits[0]).all(0).all(-1)
        which, before = self.chosen(), self.probability
        apart = self.draw_repeated(latent, generator).unflatten(0, (self.copies, -1))
        alone = self.probability
        self.sizes.pop()
        self.probability = before
        together = self.draw_once(self.estimator, arms.Bits(logits[0]), generator).points
        assert len(which) == len(coupled)
        self.probability = torch.where(coupled, self.probability, alone)
        points = torch.where(coupled.view(-1, 1), together, apart).flatten(0, 1)
        if needs_gradient(latent):
            assert isinstance(self.estimator, arms.LeaveOneOut)
            site = CoupledCopies(latent, points, self.copies, coupled, self.estimator)
            self._sites.append(site)
        return points


class TwoLayers:
    """Two bits, the second given the first, with a layer between them that may start at zero."""

    def __init__(self, zero: bool) -> None:
        self.first = random(1, seed=1).requires_grad_()
        self.second = (0.0 if zero else 1.0) * random(1, seed=2)
        self.second.requires_grad_()
        self.shift, self.weight = random(1, seed=3), random(2, seed=4)
        self.parameters = [self.first, self.second]

    def then(self, a: Tensor) -> Tensor:
        return a * self.second + self.shift

    def loss(self, a: Tensor, b: Tensor) -> Tensor:
        found: Tensor = 4 * torch.sin(3 * torch.cat([a, b], -1) @ self.weight)
        return found

    def model(self, s: Sampling, x: Tensor) -> Tensor:
        a = arms.sample(s.repeat(x) * self.first)
        return self.loss(a, arms.sample(self.then(a)))

    def exact(self) -> Tensor:
        states = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        return torch.stack([
            (arms.Bits(self.first).log_prob(a) + arms.Bits(self.then(a)).log_prob(b)).exp()
            * self.loss(a, b)
            for a, b in itertools.product(states, states)
        ]).sum()  # fmt: skip


@pytest.mark.parametrize("zero", [False, True], ids=["random layers", "zero layers"])
def test_coupling_by_equal_logits_is_caught_where_layers_start_at_zero(zero: bool) -> None:
    """The sabotaged block is exact for random weights. Only zero layers reveal the error."""
    problem = TwoLayers(zero)

    def bias(kind: type[Listed]) -> float:
        found = expected_gradient(
            lambda script: kind(arms.ARMS(2), script), problem.model, ONE_ROW, problem.parameters
        )
        return error(found, problem.exact(), problem.parameters)

    assert bias(Listed) < 1e-12
    sabotaged = bias(CoupledByValue)
    assert sabotaged > 1e-2 if zero else sabotaged < 1e-12


@pytest.mark.parametrize("start", [0.0, 0.7])
def test_coupling_after_a_repeated_dropout_is_caught_where_its_weight_starts_at_zero(
    start: float,
) -> None:
    found = repeated_dropout(Dropped(start), lambda script: CoupledByValue(arms.ARMS(2), script))
    assert found > 1e-2 if start == 0 else found < 1e-12


def test_no_block_is_left_open() -> None:
    assert _BLOCK.get() is None
