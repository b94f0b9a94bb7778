"""Tier 1: exact expectations by enumeration, and identities between estimators."""

import math

import pytest
import torch
from enumeration import every_draw, expected_estimate
from instances import ESTIMATORS
from torch import Tensor

from arms import ARM, ARMS, ARTS, LOORF, Dirichlet, DisARM, Draw, Estimator, Gaussian, Independent, Systematic
from arms import estimator as estimator_of
from arms.checks import exact_gradient, random_table, table_objective
from arms.couplings import Coupling
from arms.estimators.arts import CorrelatedPair

# Gaussian counts have no closed form: that coupling is held against enumeration statistically, in test_bias.py.
ENUMERABLE = [e for e in ESTIMATORS if not (isinstance(e, ARMS) and isinstance(e.coupling, Gaussian))]
LOGITS = [(0.0, 0.8), (-1.7, 2.3), (4.0, -6.0), (0.3, -0.3)]


@pytest.mark.parametrize("logits", LOGITS, ids=str)
@pytest.mark.parametrize("estimator", ENUMERABLE, ids=str)
def test_expectation_is_the_gradient(estimator: Estimator, logits: tuple[float, float]) -> None:
    phi = torch.tensor(logits, dtype=torch.float64)
    objective = table_objective(random_table(2, torch.Generator().manual_seed(1)))
    error = (expected_estimate(estimator, objective, phi) - exact_gradient(objective, phi)).abs().max()
    assert error < 1e-12


@pytest.mark.parametrize("estimator", ENUMERABLE, ids=str)
def test_enumerated_probabilities_sum_to_one(estimator: Estimator) -> None:
    _, weights = every_draw(estimator, torch.tensor([0.4, -1.1], dtype=torch.float64))
    assert weights.min() >= -1e-15
    assert abs(weights.sum() - 1) < 1e-13


class NoDebias(ARMS):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return super().combine(draw, values) / self.coupling.debias(draw.logits, self.num_samples)


class WrongCorrelation(ARMS):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return super().combine(draw, values) * (1 + 1e-6)


class MeanBaselineWithoutCorrection(LOORF):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return super().combine(draw, values) * (self.num_samples - 1) / self.num_samples


class FlippedNoise(ARM):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        assert draw.noise is not None
        return super().combine(Draw(self, draw.logits, draw.samples, 1 - draw.noise), values)


@pytest.mark.parametrize(
    "sabotaged",
    [NoDebias(3), NoDebias(3, Dirichlet()), WrongCorrelation(3), MeanBaselineWithoutCorrection(3), FlippedNoise(2)],
)
def test_enumeration_catches_sabotage(sabotaged: Estimator) -> None:
    phi = torch.tensor([0.8, -1.7], dtype=torch.float64)
    objective = table_objective(random_table(2, torch.Generator().manual_seed(1)))
    assert (expected_estimate(sabotaged, objective, phi) - exact_gradient(objective, phi)).abs().max() > 1e-9


@pytest.mark.parametrize("n", [2, 3, 4, 7, 20, 100])
@pytest.mark.parametrize("coupling", [Independent(), Dirichlet(), Systematic()], ids=str)
def test_count_law_agrees_with_marginals_and_debias(coupling: Coupling, n: int) -> None:
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


def test_exact_gradient_by_hand() -> None:
    phi = torch.tensor([0.5, -1.0], dtype=torch.float64)
    p, r = torch.sigmoid(phi)
    table = torch.tensor([1.0, 2.0, 5.0, 11.0], dtype=torch.float64)  # f(00), f(01), f(10), f(11)
    first = p * (1 - p) * ((1 - r) * (5 - 1) + r * (11 - 2))
    second = r * (1 - r) * ((1 - p) * (2 - 1) + p * (11 - 5))
    assert torch.allclose(exact_gradient(table_objective(table), phi), torch.stack([first, second]), atol=1e-15)


def test_exact_gradient_keeps_its_digits_at_large_logits() -> None:
    phi = torch.tensor([15.0, -15.0])
    exact = exact_gradient(lambda b: b.sum(-1) + 100, phi)
    assert torch.allclose(exact.double(), torch.sigmoid(phi.double()) * torch.sigmoid(-phi.double()), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["exact", "reinforce", "reinforce-ms", "vimco"])
def test_scores_without_a_baseline_keep_their_digits(name: str) -> None:
    estimator = estimator_of(name, 4)
    samples, values = torch.ones(4, 2), torch.tensor([3.0, 1.0, 2.5, 7.0])
    narrow, wide = (
        estimator.combine(Draw(estimator, torch.tensor([15.0, 18.0]).to(dtype), samples.to(dtype)), values.to(dtype))
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.allclose(narrow.double(), wide, rtol=1e-5, atol=0)


def _same(a: Estimator, b: Estimator, samples: Tensor, phi: Tensor) -> bool:
    values = table_objective(random_table(3, torch.Generator().manual_seed(3)))(samples)
    return torch.allclose(
        a.combine(Draw(a, phi, samples), values), b.combine(Draw(b, phi, samples), values), atol=1e-14
    )


@pytest.mark.parametrize("coupling", [Dirichlet(), Gaussian(), Systematic()], ids=str)
def test_arms_of_two_is_disarm(coupling: Coupling) -> None:
    phi = torch.tensor([0.4, -2.0, 1.1], dtype=torch.float64).expand(500, -1)
    samples = coupling.sample(phi, 2, torch.Generator().manual_seed(0))
    assert _same(ARMS(2, coupling), DisARM(2), samples, phi)
    assert torch.allclose(CorrelatedPair().debias(phi, 2), coupling.debias(phi, 2), rtol=1e-15)


@pytest.mark.parametrize("n", [2, 5])
def test_arms_with_independent_samples_is_loorf(n: int) -> None:
    phi = torch.tensor([0.4, -2.0, 1.1], dtype=torch.float64).expand(500, -1)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    objective = table_objective(random_table(3, torch.Generator().manual_seed(3)))
    assert torch.equal(
        ARMS(n, Independent())(objective, phi, generators[0]).grad, LOORF(n)(objective, phi, generators[1]).grad
    )


def test_arts_at_the_lowest_correlation_is_disarm() -> None:
    phi = torch.tensor([0.4, -2.0, 1.1], dtype=torch.float64).expand(500, -1)
    samples = DisARM(4).draw(phi, torch.Generator().manual_seed(0)).samples
    assert _same(ARTS(4), DisARM(4), samples, phi)


def test_disarm_is_arm_with_the_noise_integrated_out() -> None:
    phi = torch.tensor([0.7], dtype=torch.float64)
    draw, _ = every_draw(ARM(2), phi)
    values = table_objective(torch.tensor([1.0, 4.0], dtype=torch.float64))(draw.samples)
    disarm = DisARM(2)
    assert torch.allclose(ARM(2).combine(draw, values), disarm.combine(Draw(disarm, draw.logits, draw.samples), values))


@pytest.mark.parametrize(
    "estimator", [e for e in ESTIMATORS if "Reinforce" not in str(e) and "Exact" not in str(e)], ids=str
)
def test_constant_objective_has_gradient_zero_in_every_draw(estimator: Estimator) -> None:
    phi = torch.linspace(-3, 3, 6, dtype=torch.float64).expand(100, 6)
    grad = estimator(
        lambda b: torch.full(b.shape[:-1], math.pi, dtype=b.dtype), phi, torch.Generator().manual_seed(0)
    ).grad
    assert grad.abs().max() < 1e-14
