"""Tiers 2 and 3: statistical tests with a declared failure rate, and proof that they can fail."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from instances import ENUMERABLE, INSTANCES, Instance, Wave
from marks import slow
from sabotage import SEEN_BY_DRAWS, MarkedLOORF, MarkedStraightThrough, StraightThrough
from torch import Generator, Tensor, nn

import arms
from arms import (
    ARMS,
    LOORF,
    REBAR,
    RELAX,
    VIMCO,
    Bits,
    DisARMOnBound,
    Latent,
    LeaveOneOut,
    OnBound,
    Reinforce,
    Relaxation,
)
from arms.checks import bias_finding, findings, score_limit
from arms.designs import (
    COUPLINGS,
    BitCoupling,
    CorrelatedPair,
    Dirichlet,
    Draw,
    Gaussian,
    Independent,
    Systematic,
)
from arms.estimators import ALL_ESTIMATORS
from arms.estimators.base import set_design
from arms.estimators.derivative import relax
from arms.estimators.derivative.relax import combine_relaxed

TESTS = 300  # statistical tests in this file, at most
RATE = 1e-6 / TESTS
DRAWS = 20_000  # enough to see every sabotaged estimator

LARGE = [
    *(ARMS(12, coupling) for coupling in (Systematic(), Gaussian())),
    LOORF(12),
    *(VIMCO(5, baseline) for baseline in ("geometric", "none")),
    DisARMOnBound(10),
    OnBound(LOORF(5), 5),
    *(OnBound(ARMS(5, coupling), 5) for coupling in (Dirichlet(), Gaussian(), Systematic())),
]
# bias_finding tries bits and categories, so each estimator is tested once.
DISTINCT = {one.name or repr(one.estimator): one for one in [*INSTANCES, *map(Instance, LARGE)]}
EXACTLY_TESTED = {one.name or repr(one.estimator) for one in ENUMERABLE}


SLOW = ("UnorderedSet(num_samples=3)", "ExtraSample(inner=UnorderedSet(num_samples=2))")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow) if name in SLOW else name for name in DISTINCT], ids=str
)
def test_unbiased(name: str) -> None:
    """With fewer draws where an exact test sees much smaller errors."""
    draws = DRAWS // 4 if name in EXACTLY_TESTED else DRAWS
    finding = bias_finding(DISTINCT[name].fitted(draws), draws=draws, failure_rate=RATE)
    assert finding.passed, finding.figure


# --- The power to see bias ------------------------------------------------------------------------


@pytest.mark.parametrize("sabotaged", SEEN_BY_DRAWS, ids=str)
def test_bias_check_catches_sabotage(sabotaged: arms.Estimator) -> None:
    finding = bias_finding(sabotaged, draws=DRAWS, failure_rate=RATE)
    assert not finding.passed
    assert finding.verdict == "FAIL"


def test_bias_check_counts_nan_as_failure() -> None:
    class Broken(LeaveOneOut):
        def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
            return super().combine(draw, values) * torch.nan

    assert not bias_finding(Broken(Independent(2)), draws=100).passed


def product_of_averages(
    phi: Tensor, samples: Tensor, values: Tensor, control: Tensor, derivative: Tensor, path: Tensor
) -> Tensor:
    """The released code's estimate."""
    free, conditional = derivative.chunk(2)
    difference = (values - control.chunk(2)[1]).mean(0)
    score = (samples - phi.sigmoid()).mean(0)
    return difference.unsqueeze(-1) * score + (free - conditional * path).mean(0)


def no_score(
    phi: Tensor, samples: Tensor, values: Tensor, control: Tensor, derivative: Tensor, path: Tensor
) -> Tensor:
    """The control c is not subtracted from f."""
    return combine_relaxed(phi, samples, values, 0 * control, derivative, path)


def unconditional(
    phi: Tensor, samples: Tensor, values: Tensor, control: Tensor, derivative: Tensor, path: Tensor
) -> Tensor:
    """z~ differentiated as if it were z."""
    return combine_relaxed(phi, samples, values, control, derivative, torch.ones_like(path))


def test_bias_check_sees_sabotaged_control_variates(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = RELAX(4, Relaxation(temperature=0.7), control=Wave())
    assert bias_finding(estimator, draws=40_000).passed
    for sabotage in (product_of_averages, no_score, unconditional):
        monkeypatch.setattr(relax, "combine_relaxed", sabotage)
        assert not bias_finding(estimator, draws=40_000).passed, sabotage


def test_one_sample_has_no_average_to_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relax, "combine_relaxed", product_of_averages)
    assert bias_finding(REBAR(2), draws=10_000).passed


# --- Labels, tested both ways ---------------------------------------------------------------------


def test_a_biased_estimator_under_its_true_label_passes_as_biased() -> None:
    finding = bias_finding(MarkedStraightThrough(4), draws=20_000)
    assert finding.passed
    assert finding.verdict == "biased"
    assert not bias_finding(StraightThrough(4), draws=20_000).passed


def test_an_unbiased_estimator_labeled_as_biased_fails() -> None:
    finding = bias_finding(MarkedLOORF(4), draws=20_000)
    assert not finding.passed
    assert finding.verdict == "FAIL"
    assert "but no bias found" in finding.figure


def test_a_label_goes_through_wrappers() -> None:
    wrapped = arms.ExtraSample(MarkedStraightThrough(2))
    assert not wrapped.unbiased
    assert bias_finding(wrapped, draws=20_000).verdict == "biased"
    assert not arms.Stacked([MarkedStraightThrough(2), StraightThrough(2)], [1, 1]).unbiased
    assert not bias_finding(arms.ExtraSample(StraightThrough(2)), draws=20_000).passed


def test_report_on_a_biased_estimator_never_reads_as_all_passed() -> None:
    report = findings(MarkedStraightThrough, draws=5_000)
    assert report.passed, str(report)
    assert report.verdict == "biased"
    lines = str(report).splitlines()
    assert lines[0].endswith(": biased")
    assert (
        sum("biased, n = " in line and " biased " in line.split("n = ")[1] for line in lines) == 6
    )
    wrong = findings(StraightThrough, draws=5_000, num_samples=[2])
    assert not wrong.passed
    assert str(wrong).splitlines()[0].endswith(": FAIL")


# --- Parameters of an estimator's own -------------------------------------------------------------


@dataclass(frozen=True)
class Remembering(Independent):
    """Independent samples that keep a parameter in their memory."""

    baseline: nn.Parameter | None = None

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        assert self.baseline is not None
        return Draw(latent, rows, memory=self.baseline * 1)


@dataclass(frozen=True)
class LearntBaseline(Reinforce):
    """REINFORCE minus a learned constant, which goes through the draw or straight into combine."""

    baseline: nn.Parameter = field(
        default_factory=lambda: nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
    )
    remembered: bool = False

    def __post_init__(self) -> None:
        set_design(self, Remembering(self.num_samples, baseline=self.baseline))

    def parameters(self) -> Iterator[nn.Parameter]:
        yield self.baseline

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        centered = values - (draw.memory if self.remembered else self.baseline)
        return (draw.latent.with_event_axes(centered) * draw.latent.score(draw.points)).mean(0)


@pytest.mark.parametrize("remembered", [False, True])
def test_an_estimators_own_parameter_learns(remembered: bool) -> None:
    estimator = LearntBaseline(1, remembered=remembered)
    logits = torch.tensor([0.4, -0.9], dtype=torch.float64).expand(5000, 2).clone().requires_grad_()
    weights = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def objective(b: Tensor) -> Tensor:
        return 3 + b @ weights

    found = estimator(objective, logits, torch.Generator().manual_seed(0))
    loss = arms.variance_loss(found)
    loss.backward()
    latent = Bits(logits.detach())
    samples = estimator.design.draw(latent, torch.Generator().manual_seed(0)).points
    scores = latent.score(samples).square().sum(-1)
    expected = (-2 * objective(samples) * scores).mean().detach()
    assert estimator.baseline.grad is not None
    torch.testing.assert_close(estimator.baseline.grad, expected)
    assert logits.grad is None
    assert weights.grad is None
    with torch.no_grad():
        assert not estimator(objective, logits).grad.requires_grad
        estimator.baseline.sub_(estimator.baseline.grad)
    assert (
        arms.variance_loss(estimator(objective, logits, torch.Generator().manual_seed(1)))
        < 0.5 * loss
    )
    assert bias_finding(estimator, draws=20_000, failure_rate=RATE).passed


def test_a_value_is_not_attached_to_the_estimators_parameters() -> None:
    estimator = LearntBaseline(2)
    logits = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    arms.expectation(lambda b: b.sum(-1), logits, estimator).sum().backward()
    assert logits.grad is not None
    assert estimator.baseline.grad is None


# --- Couplings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUPLINGS)
def test_couplings_hold_what_they_promise(name: str) -> None:
    report = findings(COUPLINGS[name](), num_samples=(2, 3, 4, 7), draws=40_000, failure_rate=RATE)
    assert report.passed, str(report)


@pytest.mark.parametrize("target", [-1.0, -0.25, 0.5])
def test_correlated_pairs_hold_what_they_promise(target: float) -> None:
    report = findings(CorrelatedPair(target), num_samples=(2,), draws=40_000, failure_rate=RATE)
    assert report.passed, str(report)


class Shared(Systematic):
    """One permutation for all latents, which then depend on each other."""

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        rank = (
            torch.rand(n, *logits.shape[:-1], 1, generator=generator, dtype=logits.dtype)
            .argsort(0)
            .argsort(0)
        )
        ones = super().sample_bits(logits, n, generator).sum(0)
        return (rank < ones).to(logits.dtype)


class FirstOnes(Systematic):
    """The number of ones is right, but they are always the first samples, which is not exchangeable."""

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return super().sample_bits(logits, n, generator).sort(0, descending=True).values


class ClaimsIndependence(Gaussian):
    def debias(self, logits: Tensor, n: int) -> Tensor:
        return torch.ones_like(logits)


class Jittered(Gaussian):
    """Slightly too many ones, as from jitter on a covariance matrix."""

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return super().sample_bits(logits + 0.07, n, generator)


class HalfBits(Systematic):
    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        return super().sample_bits(logits, n, generator) / 2


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
def test_coupling_check_catches_sabotage(sabotaged: BitCoupling, finding: str) -> None:
    report = findings(sabotaged, num_samples=(4,), draws=50_000, failure_rate=RATE)
    assert any(f.name.startswith(finding) and not f.passed for f in report.findings), str(report)


@pytest.mark.parametrize("n", [4, 9])
@pytest.mark.parametrize("name", ["dirichlet", "systematic"])
def test_sampled_counts_follow_the_closed_form(name: str, n: int) -> None:
    phi = torch.tensor([0.0, 0.9, -1.4], dtype=torch.float64)
    coupling = COUPLINGS[name]()
    assert isinstance(coupling, BitCoupling)
    found = coupling.count_distribution(phi, n)
    assert found is not None
    draws, generator = 40_000, torch.Generator().manual_seed(5)
    counts = coupling.sample_bits(phi.expand(draws, -1), n, generator).sum(0)
    limit = score_limit(3 * (n + 1), RATE)
    for s, probability in enumerate(found):
        spread = (probability * (1 - probability) / draws).sqrt()
        frequency = (counts == s).double().mean(0)
        reliable = probability * draws > 30
        assert ((frequency - probability).abs() <= limit * spread)[reliable].all()
        assert (frequency == 0)[probability == 0].all()


# --- The whole check of an estimator --------------------------------------------------------------


QUICKLY_CHECKED = ("loorf", "arms", "midpoint", "vimco", "st")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICKLY_CHECKED else pytest.param(name, marks=slow)
        for name in ALL_ESTIMATORS
    ],
)
def test_contract(name: str) -> None:
    report = findings(ALL_ESTIMATORS[name], draws=2_000, failure_rate=RATE)
    assert report.passed, str(report)
    assert report.verdict == ("biased" if name in arms.BIASED_ESTIMATORS else "pass")


def test_estimator_check_reports_every_fault() -> None:
    class Forgetful(Independent):
        def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
            return super().draw_rows(latent, None)

    class Careless(LeaveOneOut):
        def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
            infinite = torch.where(draw.latent.logits == -torch.inf, torch.inf, 2.0)
            return super().combine(draw, values) * infinite

    def careless(n: int) -> Careless:
        return Careless(Forgetful(n))

    report = findings(careless, draws=20_000, num_samples=[2])
    failed = {finding.name.split(",")[0] for finding in report.findings if not finding.passed}
    of_both = {
        f"{name}{of_kind}"
        for name in ("repeatable", "extreme logits")
        for of_kind in ("", " of categories")
    }
    expected = {"exact expectation", "unbiased", "infinite logits", "single rows"}
    assert failed >= {*of_both, *expected}
    assert "FAIL" in str(report)
