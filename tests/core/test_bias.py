"""Tiers 2 and 3: statistical bias tests with a declared failure rate, and proof that they can fail."""

import dataclasses

import pytest
import torch
from instances import ESTIMATORS
from torch import Generator, Tensor

from arms import (
    ARMS,
    COUPLINGS,
    LOORF,
    Coupling,
    Dirichlet,
    DisARM,
    Draw,
    Estimator,
    Gaussian,
    Independent,
    Systematic,
    coupling,
)
from arms.checks import check_bias, check_coupling, check_estimator
from arms.estimators.arts import CorrelatedPair

TESTS = 100  # statistical tests in this suite, at the most
RATE = 1e-6 / TESTS


@pytest.mark.parametrize("estimator", [*ESTIMATORS, ARMS(12), ARMS(12, Gaussian()), LOORF(12)], ids=str)
def test_unbiased(estimator: Estimator) -> None:
    finding = check_bias(estimator, draws=40_000, failure_rate=RATE)
    assert finding.passed, finding.figure


class NoDebias(ARMS):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return super().combine(draw, values) / self.coupling.debias(draw.logits, self.num_samples)


class OtherCouplingsDebias(ARMS):
    def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
        return dataclasses.replace(super().draw(logits, generator), estimator=ARMS(self.num_samples, Dirichlet()))


class ProductOfAverages(LOORF):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        score = draw.samples - torch.sigmoid(draw.logits)
        return values.mean(0).unsqueeze(-1) * score.mean(0)


class SelfBaseline(LOORF):
    def combine(self, draw: Draw, values: Tensor) -> Tensor:
        return super().combine(draw, values) * (self.num_samples - 1) / self.num_samples


@pytest.mark.parametrize(
    "sabotaged",
    [NoDebias(4, Gaussian()), NoDebias(4), OtherCouplingsDebias(4, Gaussian()), ProductOfAverages(4), SelfBaseline(8)],
    ids=lambda e: type(e).__name__,
)
def test_bias_check_catches_sabotage(sabotaged: Estimator) -> None:
    assert not check_bias(sabotaged, draws=40_000, failure_rate=RATE).passed


def test_bias_check_counts_nan_as_failure() -> None:
    class Broken(LOORF):
        def combine(self, draw: Draw, values: Tensor) -> Tensor:
            return super().combine(draw, values) * torch.nan

    assert not check_bias(Broken(2), draws=100).passed


@pytest.mark.parametrize("name", COUPLINGS)
def test_couplings_hold_what_they_promise(name: str) -> None:
    report = check_coupling(coupling(name), counts=(2, 3, 4, 7), draws=40_000, failure_rate=RATE)
    assert report.passed, str(report)


@pytest.mark.parametrize("target", [-1.0, -0.25, 0.5])
def test_correlated_pairs_hold_what_they_promise(target: float) -> None:
    report = check_coupling(CorrelatedPair(target), counts=(2,), draws=40_000, failure_rate=RATE)
    assert report.passed, str(report)


class Shared(Systematic):
    """One permutation for all latents: every latent's law is right, but they depend on each other."""

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        rank = torch.rand(n, *logits.shape[:-1], 1, generator=generator, dtype=logits.dtype).argsort(0).argsort(0)
        ones = Systematic().sample(logits, n, generator).sum(0)
        return (rank < ones).to(logits.dtype)


class FirstOnes(Systematic):
    """Right number of ones, always on the first samples: not exchangeable."""

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return Systematic().sample(logits, n, generator).sort(0, descending=True).values


class ClaimsIndependence(Gaussian):
    def debias(self, logits: Tensor, n: int) -> Tensor:
        return torch.ones_like(logits)


class Jittered(Gaussian):
    """Too many ones by a little: what jitter on a covariance matrix does."""

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return super().sample(logits + 0.05, n, generator)


class HalfBits(Independent):
    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return super().sample(logits, n, generator) / 2


@pytest.mark.parametrize(
    ("sabotaged", "finding"),
    [
        (Shared(), "latents independent"),
        (FirstOnes(), "exchangeability"),
        (ClaimsIndependence(), "correlation"),
        (Jittered(), "marginals"),
        (HalfBits(), "samples"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_coupling_check_catches_sabotage(sabotaged: Coupling, finding: str) -> None:
    report = check_coupling(sabotaged, counts=(4,), draws=40_000, failure_rate=RATE)
    assert any(f.name.startswith(finding) and not f.passed for f in report.findings), str(report)


@pytest.mark.parametrize("n", [4, 9])
@pytest.mark.parametrize("name", ["independent", "dirichlet", "systematic"])
def test_sampled_counts_follow_the_closed_form(name: str, n: int) -> None:
    from arms.checks import score_limit

    phi = torch.tensor([0.0, 0.9, -1.4], dtype=torch.float64)
    law = coupling(name).count_law(phi, n)
    assert law is not None
    draws = 40_000
    counts = coupling(name).sample(phi.expand(draws, -1), n, torch.Generator().manual_seed(5)).sum(0)
    for s in range(n + 1):
        spread = (law[s] * (1 - law[s]) / draws).sqrt()
        frequency = (counts == s).double().mean(0)
        reliable = law[s] * draws > 30
        assert ((frequency - law[s]).abs() <= score_limit(3 * (n + 1), RATE) * spread)[reliable].all()
        assert (frequency == 0)[law[s] == 0].all()


def test_estimator_check_reports_every_fault() -> None:
    class Careless(LOORF):
        def draw(self, logits: Tensor, generator: Generator | None = None) -> Draw:
            return super().draw(logits)  # forgets the generator

        def combine(self, draw: Draw, values: Tensor) -> Tensor:
            return super().combine(draw, values) / torch.sigmoid(draw.logits)  # infinite where p = 0

    report = check_estimator(Careless, draws=20_000)
    failed = {finding.name.split(",")[0] for finding in report.findings if not finding.passed}
    assert failed == {"repeatable", "extreme logits", "unbiased"}
    assert "FAIL" in str(report)


def test_estimator_check_passes_a_correct_one() -> None:
    assert check_estimator(DisARM, draws=20_000).passed
