"""Tier 1: exact expectations by enumeration, and identities between estimators."""

import math
from dataclasses import replace

import pytest
import torch
from enumeration import exact_mean
from instances import ENUMERABLE, INSTANCES, Instance, parts
from sabotage import SEEN_BY_ENUMERATION, WrongCorrelation
from seeds import seeded
from torch import Tensor

from arms import (
    ARM,
    ARMS,
    LOORF,
    VIMCO,
    Bits,
    DisARM,
    DisARMOnBound,
    Estimator,
    Expectation,
    ExtraSample,
    Flips,
    FlipsOnBound,
    Latent,
    Midpoint,
    MidpointOnBound,
    OnBound,
    OneHot,
    Reinforce,
    Stacked,
    as_estimator,
)
from arms.checks import (
    exact_gradient,
    exact_value,
    expected_estimate,
    random_table,
    table_objective,
)
from arms.checks.oracle import exact_target_gradient
from arms.designs import BitCoupling, CorrelatedPair, Dirichlet, Draw, Gaussian, Systematic
from arms.estimators.base import TensorObjective
from arms.estimators.bound.slots import direct_term
from arms.latents import Enumerable
from arms.objective import Options, evaluate
from arms.targets import ImportanceBound

LATENTS = [
    *(
        Bits(torch.tensor(row, dtype=torch.float64))
        for row in ((0.0, 0.8), (-1.7, 2.3), (4.0, -6.0), (0.3, -0.3))
    ),
    *(
        OneHot(torch.tensor(rows, dtype=torch.float64))
        for rows in (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((4.0, -1.0, 0.0), (-3.0, 0.3, 2.0)))
    ),
]


def curved(latent: Latent) -> TensorObjective:
    assert isinstance(latent, Enumerable)
    return table_objective(2 * random_table(latent.count_states(), seeded(1)), latent)


def bias(estimator: Estimator, latent: Latent) -> float:
    objective = curved(latent)
    truth = exact_target_gradient(objective, latent, estimator.target)
    return (exact_mean(estimator, objective, latent) - truth).abs().max().item()


@pytest.mark.parametrize("instance", ENUMERABLE, ids=str)
def test_expectation_is_the_gradient(instance: Instance) -> None:
    for latent in LATENTS:
        if isinstance(latent, instance.kind):
            assert bias(instance.estimator, latent) < 1e-12, latent


def is_stacked(estimator: Estimator) -> bool:
    """Whether stacked estimators divide a batch, of which an outcome is only one row."""
    inner = estimator.inner if isinstance(estimator, ExtraSample) else estimator
    return isinstance(inner, Stacked)


@pytest.mark.parametrize(
    "instance", [one for one in ENUMERABLE if not is_stacked(one.estimator)], ids=str
)
def test_outcomes_have_probability_one_and_the_value_of_the_target(instance: Instance) -> None:
    estimator = instance.estimator
    latent = next(latent for latent in LATENTS[1:] if isinstance(latent, instance.kind))
    outcomes = estimator.design.outcomes(latent)
    assert outcomes is not None
    probabilities = outcomes[1]
    assert probabilities.min() >= -1e-15
    assert abs(probabilities.sum() - 1) < 1e-13
    found = expected_estimate(estimator, curved(latent), latent)
    assert found is not None
    assert abs(found[1] - exact_value(curved(latent), latent, estimator.target)) < 1e-12


@pytest.mark.parametrize("sabotaged", SEEN_BY_ENUMERATION, ids=str)
def test_enumeration_catches_sabotage(sabotaged: Estimator) -> None:
    latent = Bits(torch.tensor([0.8, -1.7], dtype=torch.float64))
    assert bias(sabotaged, latent) > (1e-9 if isinstance(sabotaged, WrongCorrelation) else 1e-3)


# --- The oracle itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("latent", LATENTS, ids=str)
def test_oracle_is_autograds_gradient_of_the_enumerated_value(latent: Latent) -> None:
    own = latent.with_logits(latent.logits.clone().requires_grad_())
    (grad,) = torch.autograd.grad(exact_value(curved(latent), own, Expectation()), own.logits)
    assert (exact_gradient(curved(latent), latent) - grad).abs().max() < 1e-13


def brute_force_bound(log_joint: TensorObjective, latent: Latent, bound_samples: int) -> Tensor:
    """The K-sample bound over all joint states of K samples in their order, attached."""
    assert isinstance(latent, Enumerable)
    states = latent.states()
    every = [torch.arange(len(states))] * bound_samples
    chosen = torch.cartesian_prod(*every).view(-1, bound_samples)
    log_q = latent.log_prob(states)
    weights = (log_joint(states) - log_q).exp()
    return (log_q.exp()[chosen].prod(-1) * weights[chosen].mean(-1).log()).sum()


@pytest.mark.parametrize("bound_samples", [1, 2, 3])
@pytest.mark.parametrize("latent", [LATENTS[1], LATENTS[4]], ids=str)
def test_oracle_by_multisets_equals_brute_force(latent: Latent, bound_samples: int) -> None:
    own = latent.with_logits(latent.logits.clone().requires_grad_())
    brute = brute_force_bound(curved(latent), own, bound_samples)
    assert abs(exact_value(curved(latent), own, ImportanceBound(bound_samples)) - brute) < 1e-13
    (grad,) = torch.autograd.grad(brute, own.logits)
    found = exact_target_gradient(curved(latent), latent, ImportanceBound(bound_samples))
    assert (found - grad).abs().max() < 1e-13


def test_exact_gradient_by_hand() -> None:
    phi = torch.tensor([0.5, -1.0], dtype=torch.float64)
    p, r = torch.sigmoid(phi)
    table = torch.tensor([1.0, 2.0, 5.0, 11.0], dtype=torch.float64)  # f(00), f(01), f(10), f(11)
    first = p * (1 - p) * ((1 - r) * (5 - 1) + r * (11 - 2))
    second = r * (1 - r) * ((1 - p) * (2 - 1) + p * (11 - 5))
    assert torch.allclose(
        exact_gradient(table_objective(table), phi), torch.stack([first, second]), atol=1e-15
    )


def test_exact_gradient_of_categories_by_hand() -> None:
    phi = torch.tensor([[0.5, -1.0, 0.2]], dtype=torch.float64)
    p, f = torch.softmax(phi, -1), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    expected = p * (f - (p * f).sum())
    assert torch.allclose(
        exact_gradient(lambda b: (b * f).sum((-1, -2)), OneHot(phi)), expected, atol=1e-15
    )


def test_exact_gradient_keeps_its_digits_at_large_logits() -> None:
    phi = torch.tensor([15.0, -15.0])
    exact = exact_gradient(lambda b: b.sum(-1) + 100, phi)
    assert torch.allclose(
        exact.double(),
        torch.sigmoid(phi.double()) * torch.sigmoid(-phi.double()),
        rtol=1e-4,
        atol=0,
    )


@pytest.mark.parametrize("latent", LATENTS, ids=str)
def test_tables_hold_at_the_states_and_are_curved_between_them(latent: Latent) -> None:
    """On a multilinear extension the mean of the derivatives is the difference between the states.

    Straight-through would look unbiased there.
    """
    assert isinstance(latent, Enumerable)
    table = random_table(latent.count_states(), seeded(2))
    states = latent.states().requires_grad_()
    values = table_objective(table, latent)(states)
    assert (values - table).abs().max() < 1e-13
    (derivatives,) = torch.autograd.grad(values.sum(), states)
    if isinstance(latent, Bits):
        step = table.view(2, 2).diff(dim=0).squeeze(0)  # of the first bit
        assert (derivatives[2:, 0] - step).abs().min() > 0.1
        assert (derivatives[:2, 0] - step).abs().min() > 0.1


@pytest.mark.parametrize("n", [2, 3, 4, 7, 20, 100])
@pytest.mark.parametrize("coupling", [Dirichlet(), Systematic()], ids=str)
def test_count_distribution_agrees_with_marginals_and_debias(coupling: BitCoupling, n: int) -> None:
    phi = torch.tensor([0.0, 0.3, -1.2, 3.0, -9.0, 30.0], dtype=torch.float64)
    found = coupling.count_distribution(phi, n)
    assert found is not None
    counts = torch.arange(n + 1, dtype=torch.float64).unsqueeze(-1)
    assert (found.sum(0) - 1).abs().max() < 1e-12
    assert found.min() >= 0
    assert ((found * counts).sum(0) / n - torch.sigmoid(phi)).abs().max() < 1e-12
    differ = (found * counts * (n - counts)).sum(0) / (n * (n - 1))
    truth = torch.sigmoid(phi) * torch.sigmoid(-phi) / coupling.debias(phi, n)
    assert (differ / truth - 1).abs().max() < 1e-11


@pytest.mark.parametrize("name", ["exact", "reinforce", "reinforce-ms", "vimco"])
def test_scores_without_a_baseline_keep_their_digits(name: str) -> None:
    estimator = as_estimator(name, 4)
    samples, values = torch.ones(4, 2), torch.tensor([3.0, 1.0, 2.5, 7.0])
    narrow, wide = (
        estimator.combine(
            estimator.design.assemble(
                Bits(torch.tensor([15.0, 18.0]).to(dtype)), samples.to(dtype)
            ),
            values.to(dtype),
        )
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.allclose(narrow.double(), wide, rtol=1e-5, atol=0)


# --- Identities -----------------------------------------------------------------------------------

MANY = Bits(torch.tensor([0.4, -2.0, 1.1], dtype=torch.float64).expand(500, -1))


def table_values(samples: Tensor) -> Tensor:
    return table_objective(3 * random_table(8, seeded(3)))(samples)


def direct_part(estimator: Estimator, draw: Draw, values: Tensor) -> Tensor:
    """The direct term of the samples that make the bound."""
    count = estimator.target.size
    return direct_term(draw.latent, draw.points[:count], values[:count].softmax(0))


@pytest.mark.parametrize("coupling", [Dirichlet(), Gaussian(), Systematic()], ids=str)
def test_arms_of_two_is_disarm(coupling: BitCoupling) -> None:
    draw = ARMS(2, coupling).design.draw(MANY, seeded())
    values = table_values(draw.points)
    one, other = (estimator.combine(draw, values) for estimator in (ARMS(2, coupling), DisARM(2)))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    phi = MANY.logits
    assert torch.allclose(CorrelatedPair().debias(phi, 2), coupling.debias(phi, 2), rtol=1e-15)


def test_disarm_is_arm_with_the_noise_integrated_out() -> None:
    outcomes = ARM(2).design.outcomes(Bits(torch.tensor([0.7], dtype=torch.float64)))
    assert outcomes is not None
    draw, _ = outcomes
    values = table_objective(torch.tensor([1.0, 4.0], dtype=torch.float64))(draw.points)
    assert torch.allclose(ARM(2).combine(draw, values), DisARM(2).combine(draw, values))


@pytest.mark.parametrize(
    ("multi", "single"),
    [
        (VIMCO(1), Reinforce(1)),
        (VIMCO(1, "none"), Reinforce(1)),
        (DisARMOnBound(2, folded=False), DisARM(2)),
        *(
            (OnBound(ARMS(5, coupling), 1, folded=False), ARMS(5, coupling))
            for coupling in (Dirichlet(), Gaussian(), Systematic())
        ),
    ],
    ids=str,
)
def test_one_sample_bound_is_the_expectation_plus_the_direct_term(
    multi: Estimator, single: Estimator
) -> None:
    draw = multi.design.draw(MANY, seeded())
    inner = draw.memory if isinstance(multi, OnBound) else draw
    values = table_values(draw.points)
    whole = multi.combine(draw, values) - direct_part(multi, draw, values)
    expected = single.combine(inner, values[len(draw.points) - len(inner.points) :])
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-14)
    assert torch.equal(multi.target.value(values), values[0])


@pytest.mark.parametrize(
    ("folded", "single", "used"),
    [
        (DisARMOnBound(2), DisARM(2), slice(0, 2)),
        (OnBound(LOORF(4), 1), LOORF(4), slice(1, 5)),
        (OnBound(ARMS(5), 1), ARMS(5), slice(1, 6)),
        (FlipsOnBound(1), Flips(1, safe=False), slice(0, 2)),
        (MidpointOnBound(2), Midpoint(2), slice(0, 3)),
        (MidpointOnBound(3, shared=1), Midpoint(2), slice(1, 4)),
        (MidpointOnBound(5, shared=2), Midpoint(4, pairs=1, own_bits=False), slice(1, 7)),
    ],
    ids=str,
)
def test_folded_one_sample_bound_is_the_expectations_estimate(
    folded: Estimator, single: Estimator, used: slice
) -> None:
    """There is no noise from the score of the single sample."""
    draw = folded.design.draw(MANY, seeded())
    values, derivatives, _ = evaluate(folded, table_values, draw, Options())
    whole = folded.combine(draw, values.detach(), derivatives)
    part = Draw(MANY, draw.points[used], draw.extra, draw.memory)
    expected = single.combine(part, values.detach()[used], derivatives)
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-13)


DERIVATIVES_ON_BOUND = FlipsOnBound | MidpointOnBound


def has_a_baseline(estimator: Estimator) -> bool:
    return not any(
        isinstance(part, Reinforce)
        or (isinstance(part, VIMCO) and (part.num_samples == 1 or part.baseline == "none"))
        or list(part.parameters())
        for part in parts(estimator)
    )


def spread_latent(kind: type[Latent]) -> Latent:
    logits = torch.linspace(-3, 3, 6, dtype=torch.float64).expand(100, 6)
    return kind(logits.unflatten(-1, (2, 3)) if kind is OneHot else logits)


@pytest.mark.parametrize(
    "instance",
    [
        one
        for one in INSTANCES
        if isinstance(one.estimator, VIMCO | OnBound | DisARMOnBound | DERIVATIVES_ON_BOUND)
        and has_a_baseline(one.estimator)
    ],
    ids=str,
)
def test_where_q_is_the_posterior_only_the_direct_term_is_left(instance: Instance) -> None:
    """If all weights are equal, folded estimates are zero in every draw, and others are noise."""
    latent, estimator = spread_latent(instance.kind), instance.estimator
    draw = estimator.design.draw(latent, seeded())
    values, derivatives, _ = evaluate(
        estimator, lambda b: latent.log_prob(b) + math.pi, draw, Options()
    )
    found = estimator.combine(draw, values.detach(), derivatives)
    if isinstance(estimator, DERIVATIVES_ON_BOUND) or getattr(estimator, "folded", False):
        assert found.abs().max() < 1e-13
    else:
        direct = direct_part(estimator, draw, values.detach())
        assert (found - direct).abs().max() < 1e-13
        assert direct.abs().max() > 1e-2


def as_categories(draw: Draw) -> Draw:
    """Bits b as one-hot (1 - b, b), logits (0, phi)."""
    phi, bits = draw.latent.logits, draw.points
    memory = as_categories(draw.memory) if isinstance(draw.memory, Draw) else draw.memory
    categories = OneHot(torch.stack([torch.zeros_like(phi), phi], -1))
    return replace(draw, latent=categories, points=torch.stack([1 - bits, bits], -1), memory=memory)


@pytest.mark.parametrize(
    "name",
    [
        "reinforce",
        "loorf",
        "arms",
        "arms-dirichlet",
        "arms-stratified",
        "disarm",
        "disarm-stick",
        "unordered-set",
        "exact",
        "reinforce-ms",
        "vimco",
        "disarm-ms",
        "loorf-ms",
        "loorf-ms-paper",
        "arms-ms",
    ],
)
def test_two_categories_are_a_bit(name: str) -> None:
    estimator = as_estimator(name, 4)
    draw = estimator.design.draw(MANY, seeded())
    values, categories = table_values(draw.points), as_categories(draw)
    binary, categorical = (estimator.combine(one, values) for one in (draw, categories))
    torch.testing.assert_close(categorical[..., 1], binary, rtol=0, atol=1e-14)
    torch.testing.assert_close(categorical[..., 0], -binary, rtol=0, atol=1e-14)
    assert isinstance(categories.latent, Enumerable)
    assert torch.equal(categories.latent.states()[..., 1], MANY.states())


@pytest.mark.parametrize(
    "instance",
    [
        one
        for one in INSTANCES
        if has_a_baseline(one.estimator)
        and not one.estimator.design.needs.derivatives
        and not one.estimator.target.subtracts_log_q
    ],
    ids=str,
)
def test_constant_objective_has_gradient_zero_in_every_draw(instance: Instance) -> None:
    latent = spread_latent(instance.kind)

    def constant(b: Tensor) -> Tensor:
        return torch.full(b.shape[: b.ndim - latent.event_dims], math.pi, dtype=b.dtype)

    grad = instance.fitted(100)(constant, latent, seeded()).grad
    assert grad.abs().max() < 1e-14
