"""Tier 1: exact expectations by enumeration, and identities between estimators."""

import math
from dataclasses import replace

import pytest
import torch
from enumeration import every_draw, expected_estimate
from instances import ENUMERABLE, INSTANCES, Instance, parts
from sabotage import SEEN_BY_ENUMERATION, WrongCorrelation
from torch import Generator, Tensor

from arms import (
    ARM,
    ARMS,
    ARTS,
    LOORF,
    VIMCO,
    Bernoulli,
    BinaryCoupling,
    Dirichlet,
    DisARM,
    Draw,
    Estimator,
    Expectation,
    Gaussian,
    Independent,
    Latent,
    Midpoint,
    MultiSampleARMS,
    MultiSampleDisARM,
    MultiSampleLOORF,
    MultiSampleMidpoint,
    MultiSampleReinforce,
    OneHot,
    Reinforce,
    Systematic,
    as_estimator,
)
from arms.checks import exact_bound, exact_gradient, exact_value, random_table, table_objective
from arms.checks.bias import one_estimate
from arms.checks.oracle import as_seen, exact_target_gradient
from arms.couplings import CorrelatedPair
from arms.estimators.base import TensorObjective
from arms.estimators.multi_sample import SlotEstimator
from arms.estimators.pipeline import Options, evaluate

LATENTS = [
    *(Bernoulli(torch.tensor(row, dtype=torch.float64)) for row in ((0.0, 0.8), (-1.7, 2.3), (4.0, -6.0), (0.3, -0.3))),
    *(
        OneHot(torch.tensor(rows, dtype=torch.float64))
        for rows in (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((4.0, -1.0, 0.0), (-3.0, 0.3, 2.0)))
    ),
]


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def curved(latent: Latent) -> TensorObjective:
    return table_objective(2 * random_table(latent.count_states(), seeded(1)), latent)


def bias(estimator: Estimator, latent: Latent) -> float:
    objective = curved(latent)
    truth = exact_target_gradient(objective, latent, estimator.target)
    return (expected_estimate(estimator, objective, latent) - truth).abs().max().item()


@pytest.mark.parametrize("instance", ENUMERABLE, ids=str)
def test_expectation_is_the_gradient(instance: Instance) -> None:
    for latent in LATENTS:
        if isinstance(latent, instance.kind):
            assert bias(instance.estimator, latent) < 1e-12, latent


@pytest.mark.parametrize("instance", ENUMERABLE, ids=str)
def test_enumerated_probabilities_sum_to_one(instance: Instance) -> None:
    latent = next(latent for latent in LATENTS[1:] if isinstance(latent, instance.kind))
    _, weights = every_draw(instance.estimator, latent)
    assert weights.min() >= -1e-15
    assert abs(weights.sum() - 1) < 1e-13


@pytest.mark.parametrize("sabotaged", SEEN_BY_ENUMERATION, ids=str)
def test_enumeration_catches_sabotage(sabotaged: Estimator) -> None:
    latent = Bernoulli(torch.tensor([0.8, -1.7], dtype=torch.float64))
    assert bias(sabotaged, latent) > (1e-9 if isinstance(sabotaged, WrongCorrelation) else 1e-3)


# --- The oracle itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latent", LATENTS, ids=str)
def test_oracle_is_autograds_gradient_of_the_enumerated_value(latent: Latent) -> None:
    own = replace(latent, logits=latent.logits.clone().requires_grad_())
    (grad,) = torch.autograd.grad(exact_value(curved(latent), own, Expectation()), own.logits)
    assert (exact_gradient(curved(latent), latent) - grad).abs().max() < 1e-13


def brute_force_bound(log_weight: TensorObjective, latent: Latent, bound_samples: int) -> Tensor:
    """The K-sample bound over all joint states of K samples in their order, attached."""
    states = latent.states()
    chosen = torch.cartesian_prod(*[torch.arange(len(states))] * bound_samples).view(-1, bound_samples)
    probs = latent.log_prob(states).exp()[chosen].prod(-1)
    return (probs * log_weight(states).exp()[chosen].mean(-1).log()).sum()


@pytest.mark.parametrize("bound_samples", [1, 2, 3])
@pytest.mark.parametrize("latent", [LATENTS[1], LATENTS[4]], ids=str)
def test_oracle_by_multisets_equals_brute_force(latent: Latent, bound_samples: int) -> None:
    own = replace(latent, logits=latent.logits.clone().requires_grad_())
    target = MultiSampleReinforce(bound_samples).target
    log_weight = as_seen(curved(latent), own, target)
    brute = brute_force_bound(log_weight, own, bound_samples)
    assert abs(exact_bound(log_weight, own, bound_samples) - brute) < 1e-13
    (grad,) = torch.autograd.grad(brute, own.logits)
    assert (exact_target_gradient(curved(latent), latent, target) - grad).abs().max() < 1e-13


def test_exact_gradient_by_hand() -> None:
    phi = torch.tensor([0.5, -1.0], dtype=torch.float64)
    p, r = torch.sigmoid(phi)
    table = torch.tensor([1.0, 2.0, 5.0, 11.0], dtype=torch.float64)  # f(00), f(01), f(10), f(11)
    first = p * (1 - p) * ((1 - r) * (5 - 1) + r * (11 - 2))
    second = r * (1 - r) * ((1 - p) * (2 - 1) + p * (11 - 5))
    assert torch.allclose(exact_gradient(table_objective(table), phi), torch.stack([first, second]), atol=1e-15)


def test_exact_gradient_of_categories_by_hand() -> None:
    phi = torch.tensor([[0.5, -1.0, 0.2]], dtype=torch.float64)
    p, f = torch.softmax(phi, -1), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    expected = p * (f - (p * f).sum())
    assert torch.allclose(exact_gradient(lambda b: (b * f).sum((-1, -2)), OneHot(phi)), expected, atol=1e-15)


def test_exact_gradient_keeps_its_digits_at_large_logits() -> None:
    phi = torch.tensor([15.0, -15.0])
    exact = exact_gradient(lambda b: b.sum(-1) + 100, phi)
    assert torch.allclose(exact.double(), torch.sigmoid(phi.double()) * torch.sigmoid(-phi.double()), rtol=1e-4, atol=0)


@pytest.mark.parametrize("latent", LATENTS, ids=str)
def test_tables_hold_at_the_states_and_are_curved_between_them(latent: Latent) -> None:
    """On a multilinear extension straight-through would be right: the mean of slopes must differ from differences."""
    table = random_table(latent.count_states(), seeded(2))
    states = latent.states().requires_grad_()
    values = table_objective(table, latent)(states)
    assert (values - table).abs().max() < 1e-13
    (slopes,) = torch.autograd.grad(values.sum(), states)
    if isinstance(latent, Bernoulli):
        step = table.view(2, 2).diff(dim=0).squeeze(0)  # of the first bit
        assert (slopes[2:, 0] - step).abs().min() > 0.1
        assert (slopes[:2, 0] - step).abs().min() > 0.1


@pytest.mark.parametrize("n", [2, 3, 4, 7, 20, 100])
@pytest.mark.parametrize("coupling", [Independent(), Dirichlet(), Systematic()], ids=str)
def test_count_law_agrees_with_marginals_and_debias(coupling: BinaryCoupling, n: int) -> None:
    phi = torch.tensor([0.0, 0.3, -1.2, 3.0, -9.0, 30.0], dtype=torch.float64)
    law = coupling.count_law(phi, n)
    assert law is not None
    counts = torch.arange(n + 1, dtype=torch.float64).unsqueeze(-1)
    assert (law.sum(0) - 1).abs().max() < 1e-12
    assert law.min() >= 0
    assert ((law * counts).sum(0) / n - torch.sigmoid(phi)).abs().max() < 1e-12
    differ = (law * counts * (n - counts)).sum(0) / (n * (n - 1))
    truth = torch.sigmoid(phi) * torch.sigmoid(-phi) / coupling.debias(phi, n)
    assert (differ / truth - 1).abs().max() < 1e-11


@pytest.mark.parametrize("name", ["exact", "reinforce", "reinforce-ms", "vimco"])
def test_scores_without_a_baseline_keep_their_digits(name: str) -> None:
    estimator = as_estimator(name, 4)
    samples, values = torch.ones(4, 2), torch.tensor([3.0, 1.0, 2.5, 7.0])
    narrow, wide = (
        estimator.combine(
            Draw(estimator, Bernoulli(torch.tensor([15.0, 18.0]).to(dtype)), samples.to(dtype)), values.to(dtype)
        )
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.allclose(narrow.double(), wide, rtol=1e-5, atol=0)


# --- Identities -------------------------------------------------------------------------------------------------------

MANY = Bernoulli(torch.tensor([0.4, -2.0, 1.1], dtype=torch.float64).expand(500, -1))


def combined(estimator: Estimator, latent: Latent, points: Tensor, values: Tensor) -> Tensor:
    return estimator.combine(Draw(estimator, latent, points), values)


def table_values(samples: Tensor) -> Tensor:
    return table_objective(3 * random_table(8, seeded(3)))(samples)


def _same(a: Estimator, b: Estimator, samples: Tensor) -> bool:
    values = table_values(samples)
    return torch.allclose(combined(a, MANY, samples, values), combined(b, MANY, samples, values), rtol=0, atol=1e-14)


@pytest.mark.parametrize("coupling", [Dirichlet(), Gaussian(), Systematic()], ids=str)
def test_arms_of_two_is_disarm(coupling: BinaryCoupling) -> None:
    assert _same(ARMS(2, coupling), DisARM(2), coupling.sample(MANY, 2, seeded()))
    assert torch.allclose(CorrelatedPair().debias(MANY.logits, 2), coupling.debias(MANY.logits, 2), rtol=1e-15)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ARMS(2, Independent()), LOORF(2)),
        (ARMS(5, Independent()), LOORF(5)),
        (MultiSampleARMS(8, coupling=Independent()), MultiSampleLOORF(8)),
    ],
    ids=str,
)
def test_arms_with_independent_samples_is_loorf(one: Estimator, other: Estimator) -> None:
    grads = [one_estimate(estimator, table_values, MANY, seeded())[0] for estimator in (one, other)]
    assert torch.equal(*grads)


def test_arts_at_the_lowest_correlation_is_disarm() -> None:
    assert _same(ARTS(4), DisARM(4), DisARM(4).draw(MANY, seeded()).points)


def test_disarm_is_arm_with_the_noise_integrated_out() -> None:
    draw, _ = every_draw(ARM(2), Bernoulli(torch.tensor([0.7], dtype=torch.float64)))
    values = table_objective(torch.tensor([1.0, 4.0], dtype=torch.float64))(draw.points)
    assert torch.allclose(ARM(2).combine(draw, values), combined(DisARM(2), draw.latent, draw.points, values))


@pytest.mark.parametrize(
    ("multi", "single"),
    [
        (VIMCO(1), Reinforce(1)),
        (MultiSampleReinforce(1), Reinforce(1)),
        (MultiSampleDisARM(2, folded=False), DisARM(2)),
    ],
    ids=str,
)
def test_one_sample_bound_is_the_expectation(multi: Estimator, single: Estimator) -> None:
    draw = multi.draw(MANY, seeded())
    values = table_values(draw.points)
    assert _same(multi, single, draw.points)
    assert torch.equal(multi.value(draw, values), values[0])


@pytest.mark.parametrize("coupling", [Dirichlet(), Gaussian(), Systematic()], ids=str)
def test_one_sample_bound_is_arms_on_the_coupled_samples(coupling: BinaryCoupling) -> None:
    multi = MultiSampleARMS(6, bound_samples=1, coupling=coupling, folded=False)
    draw = multi.draw(MANY, seeded())
    values = table_values(draw.points)
    expected = combined(ARMS(5, coupling), MANY, draw.points[1:], values[1:])
    torch.testing.assert_close(multi.combine(draw, values), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("folded", "single", "used"),
    [
        (MultiSampleDisARM(2), DisARM(2), slice(0, 2)),
        (MultiSampleLOORF(5, bound_samples=1), LOORF(4), slice(1, 5)),
        (MultiSampleARMS(6, bound_samples=1, coupling=Systematic()), ARMS(5), slice(1, 6)),
        (MultiSampleMidpoint(2), Midpoint(2), slice(0, 3)),
        (MultiSampleMidpoint(3, tried=1), Midpoint(2), slice(1, 4)),
        (MultiSampleMidpoint(5, tried=2), Midpoint(4, pairs=1, own_bits=False), slice(1, 7)),
    ],
    ids=str,
)
def test_folded_one_sample_bound_is_the_expectations_estimate(
    folded: Estimator, single: Estimator, used: slice
) -> None:
    """The whole of it, score and direct term: the noise of the one sample's own score is gone."""
    own = replace(MANY, logits=MANY.logits.clone().requires_grad_())
    draw = replace(folded.draw(MANY, seeded()))
    log_weight = as_seen(table_values, own, folded.target)
    found = evaluate(log_weight, draw, Options())
    (direct,) = torch.autograd.grad(folded.value(draw, found.values).sum(), own.logits)
    whole = folded.combine(draw, found.values.detach(), found.slopes) + direct
    part = Draw(single, MANY, draw.points[used], draw.extra)
    expected = single.combine(part, found.values.detach()[used], found.slopes)
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("instance", [one for one in INSTANCES if isinstance(one.estimator, SlotEstimator)], ids=str)
def test_where_q_is_the_posterior_the_folded_gradient_is_zero_in_every_draw(instance: Instance) -> None:
    """All weights are equal then: nothing is to be learnt, and the papers' forms are noise all the same."""
    latent = instance.kind(torch.linspace(-3, 3, 6, dtype=torch.float64).expand(100, 6))
    if instance.kind is OneHot:
        latent = OneHot(latent.logits.unflatten(-1, (2, 3)))
    whole, _ = one_estimate(instance.estimator, lambda b: latent.log_prob(b) + math.pi, latent, seeded())
    assert isinstance(instance.estimator, SlotEstimator)
    assert (whole.abs().max() < 1e-13) == instance.estimator.folded


@pytest.mark.parametrize("name", ["reinforce", "loorf", "exact", "reinforce-ms", "vimco", "loorf-ms", "loorf-ms-paper"])
def test_two_categories_are_a_bit(name: str) -> None:
    """Bits b are one-hot (1 - b, b), logits (0, phi)."""
    estimator = as_estimator(name, 4)
    draw = estimator.draw(MANY, seeded())
    values, bits, phi = table_values(draw.points), draw.points, MANY.logits
    categories = OneHot(torch.stack([torch.zeros_like(phi), phi], -1))
    binary, categorical = (
        combined(estimator, MANY, bits, values),
        combined(estimator, categories, torch.stack([1 - bits, bits], -1), values),
    )
    torch.testing.assert_close(categorical[..., 1], binary, rtol=0, atol=1e-14)
    torch.testing.assert_close(categorical[..., 0], -binary, rtol=0, atol=1e-14)
    assert torch.equal(categories.states()[..., 1], MANY.states())


def has_a_baseline(instance: Instance) -> bool:
    return instance.estimator.slopes == "none" and not any(
        isinstance(part, Reinforce | MultiSampleReinforce)
        or (isinstance(part, SlotEstimator) and part.folded)  # of a bound, they take off what autograd adds
        or (isinstance(part, VIMCO) and part.num_samples == 1)
        or list(part.parameters())
        for part in parts(instance.estimator)
    )


@pytest.mark.parametrize("instance", [one for one in INSTANCES if has_a_baseline(one)], ids=str)
def test_constant_objective_has_gradient_zero_in_every_draw(instance: Instance) -> None:
    latent = instance.kind(torch.linspace(-3, 3, 6, dtype=torch.float64).expand(100, 6))
    if instance.kind is OneHot:
        latent = OneHot(latent.logits.unflatten(-1, (2, 3)))

    def constant(b: Tensor) -> Tensor:
        return torch.full(b.shape[: b.ndim - latent.event_dims], math.pi, dtype=b.dtype)

    grad = instance.fitted(100)(constant, latent, seeded()).grad
    assert grad.abs().max() < 1e-14
