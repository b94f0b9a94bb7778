"""Tier 4: couplings at every logit, against high-precision references and by property tests."""

from typing import ClassVar

import mpmath as mp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seeds import seeded
from torch import Tensor

from arms import ARMS, OnBound, OneHot
from arms.checks import bias_finding, findings
from arms.designs import (
    COUPLINGS,
    BitCoupling,
    Cyclic,
    Dirichlet,
    Gaussian,
    Systematic,
    as_coupling,
)

LOGITS = [
    0.0,
    1e-4,
    -0.1,
    0.5,
    1.0,
    -1.7,
    2.0,
    3.3,
    -5.0,
    8.0,
    10.0,
    14.0,
    -17.0,
    25.0,
    40.0,
    -60.0,
    80.0,
]
finite_logits = st.floats(-200, 200, allow_nan=False, width=32)
counts = st.sampled_from([2, 3, 4, 10, 100, 1000])
# Couplings whose correction is written out below; others are tested by enumeration and by draws.
WRITTEN_OUT = ("dirichlet", "gaussian", "stratified", "systematic")
names = st.sampled_from(WRITTEN_OUT)


def coupling(name: str) -> BitCoupling:
    found = COUPLINGS[name]()
    assert isinstance(found, BitCoupling)
    return found


def reference_debias(name: str, logit: float, n: int) -> mp.mpf:
    """q(1-q)/P10 with 60 digits, straight from the definitions."""
    q = 1 / (1 + mp.e ** abs(mp.mpf(logit)))
    if name == "dirichlet":
        both = max(mp.mpf(0), 2 * q ** (mp.mpf(1) / (n - 1)) - 1) ** (n - 1)
        return q * (1 - q) / (q - both)
    if name in ("systematic", "stratified"):  # of bits they are the same
        whole = mp.floor(n * q)
        part = n * q - whole
        pairs = (1 - part) * whole * (n - whole) + part * (whole + 1) * (n - whole - 1)
        return q * (1 - q) * n * (n - 1) / pairs
    if n == 2:
        return 1 - q
    h = mp.findroot(
        lambda z: mp.log(mp.erfc(-z / mp.sqrt(2)) / 2) - mp.log(q), 0.5 - mp.sqrt(-2 * mp.log(q))
    )
    a = mp.sqrt(mp.mpf(n) / (n - 2))
    owen = mp.quad(
        lambda x: mp.e ** (-h * h * (1 + x * x) / 2) / (1 + x * x), mp.linspace(0, a, 9)
    ) / (2 * mp.pi)
    return q * (1 - q) / (2 * owen)


@pytest.mark.parametrize("n", [2, 3, 4, 10, 100])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_debias_against_many_digits(name: str, n: int) -> None:
    with mp.workdps(60):
        logits = torch.tensor(LOGITS)  # numbers of float32, which float64 has too
        references = [reference_debias(name, logit, n) for logit in logits.tolist()]
        for dtype, tolerance in ((torch.float32, 3e-6), (torch.float64, 1e-13)):
            factors = coupling(name).debias(logits.to(dtype), n)
            for factor, reference in zip(factors.tolist(), references, strict=True):
                assert abs(factor / reference - 1) < tolerance


@given(
    names,
    finite_logits,
    counts,
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
)
def test_correlation_lies_between_its_bounds(
    name: str, logit: float, n: int, dtype: torch.dtype
) -> None:
    phi = torch.tensor([logit], dtype=dtype)
    debias = coupling(name).debias(phi, n)
    assert debias.isfinite().all()
    assert debias.dtype == dtype
    rho = coupling(name).correlation(phi.double(), n).item()
    p = torch.sigmoid(phi.double()).item()
    lowest = Systematic().correlation(phi.double(), n).item()
    assert -1 / (n - 1) - 1e-9 <= lowest <= rho + 1e-9
    assert rho <= 1e-9
    assert p in (0, 1) or rho >= -min(p / (1 - p), (1 - p) / p) - 1e-9


@given(names, finite_logits, counts)
def test_distribution_is_symmetric_in_p(name: str, logit: float, n: int) -> None:
    phi = torch.tensor([logit])
    assert torch.equal(coupling(name).debias(phi, n), coupling(name).debias(-phi, n))


@given(
    names,
    st.lists(finite_logits, min_size=1, max_size=5),
    counts,
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_samples_are_bits_and_inputs_stay(
    name: str, logits: list[float], n: int, dtype: torch.dtype
) -> None:
    phi = torch.tensor(logits, dtype=dtype, requires_grad=True)
    before = phi.detach().clone()
    samples = coupling(name).sample_bits(phi, n, torch.Generator().manual_seed(0))
    again = coupling(name).sample_bits(phi, n, torch.Generator().manual_seed(0))
    assert samples.shape == (n, len(logits))
    assert samples.dtype == dtype
    assert not samples.requires_grad
    assert ((samples == 0) | (samples == 1)).all()
    assert torch.equal(samples, again)
    assert torch.equal(phi.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [2, 3, 1000])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_certain_latents_never_change(name: str, n: int, dtype: torch.dtype) -> None:
    phi = torch.tensor([torch.inf, -torch.inf, 900, -900], dtype=dtype).expand(200, -1)
    samples = coupling(name).sample_bits(phi, n, torch.Generator().manual_seed(0))
    assert torch.equal(samples, (phi > 0).to(dtype).expand_as(samples))
    assert (coupling(name).debias(phi, n) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("n", [2, 5, 8])
def test_systematic_puts_out_one_of_two_counts(n: int) -> None:
    phi = torch.linspace(-4, 4, 33).expand(300, -1)
    ones = Systematic().sample_bits(phi, n, torch.Generator().manual_seed(0)).sum(0)
    expected = n * torch.sigmoid(phi)
    assert ((ones - expected).abs() < 1 + 1e-5).all()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_cyclic_bits_come_up_as_often_as_they_say(n: int) -> None:
    """By chance, any of the limits is exceeded once in a million runs."""
    logits, draws = torch.tensor([-4.0, -0.7, 0.0, 0.3, 2.0, torch.inf]), 40_000
    samples = Cyclic().sample_bits(logits.expand(draws, -1), n, seeded())
    code = (samples * 2.0 ** torch.arange(n - 1, -1, -1).view(-1, 1, 1)).sum(0).long()
    found = torch.nn.functional.one_hot(code, 2**n).sum(0).T / draws
    chances = Cyclic().bit_probabilities(logits, n)
    assert chances is not None
    errors = (chances * (1 - chances) / draws).sqrt()
    torch.testing.assert_close(chances.sum(0), torch.ones(6, dtype=torch.float64))
    assert ((found - chances).abs() <= 6 * errors + 1e-6).all()
    in_any_order = Systematic().bit_probabilities(logits, n)
    assert in_any_order is not None
    same = torch.allclose(in_any_order, chances)
    assert same == (n != 4)  # of two or three, a rotation is any order; more than four are in any


def test_lowest_correlation_is_systematics_and_touches_the_bound() -> None:
    phi = torch.linspace(-3, 3, 101, dtype=torch.float64)
    for n in (3, 5, 10):
        lowest = Systematic().correlation(phi, n)
        assert (lowest <= Dirichlet().correlation(phi, n) + 1e-12).all()
        assert (lowest <= Gaussian().correlation(phi, n) + 1e-12).all()
        expected = n * torch.sigmoid(phi)
        smallest = (expected - expected.floor()) * (
            1 - expected + expected.floor()
        )  # Var of an integer of that mean
        single = torch.sigmoid(phi) * torch.sigmoid(-phi)
        bound = (smallest / (n * single) - 1) / (n - 1)
        assert (lowest - bound).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["dirichlet", "gaussian", "systematic"])
def test_coupling_of_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="n must be an integer >= 2, got 1"):
        coupling(name).sample_bits(torch.zeros(2), 1)
    with pytest.raises(ValueError, match="n must be an integer >= 2, got 1"):
        coupling(name).debias(torch.zeros(2), 1)


def test_unknown_coupling_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="there is no coupling named 'copula': choose one of dirichlet, gaussian,"
    ):
        as_coupling("copula")
    for name, factory in COUPLINGS.items():
        assert as_coupling(name) == factory()
    assert as_coupling(Gaussian()) == Gaussian()


def test_couplings_of_bits_refuse_categories() -> None:
    for estimator in (ARMS(4, Gaussian()), OnBound(ARMS(2, Gaussian()), 2)):
        with pytest.raises(ValueError, match=r"Gaussian\(\)\).* cannot draw OneHot latents"):
            estimator(lambda b: b.sum((-1, -2)), OneHot(torch.zeros(2, 3)))


class Swapped(BitCoupling):
    """Dirichlet up to one half, independent beyond: a legal mixture."""

    def sample_bits(
        self, logits: torch.Tensor, n: int, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        free = torch.rand(n, *logits.shape, generator=generator, dtype=logits.dtype)
        coupled = Dirichlet().sample_bits(logits, n, generator)
        return torch.where(logits > 0, (free < torch.sigmoid(logits)).to(logits.dtype), coupled)

    def debias(self, logits: torch.Tensor, n: int) -> torch.Tensor:
        return torch.where(logits > 0, 1.0, Dirichlet().debias(logits, n))


class Undone(BitCoupling):
    """The same with a method that undoes it, without a factor."""

    def sample_bits(
        self, logits: torch.Tensor, n: int, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        return Swapped().sample_bits(logits, n, generator)

    def undo_bits(self, logits: torch.Tensor, n: int, grad: torch.Tensor) -> torch.Tensor:
        return torch.where(logits > 0, grad, Dirichlet().undo_bits(logits, n, grad))


def test_a_users_own_coupling_needs_only_two_methods() -> None:
    assert Swapped().correlation(torch.tensor([1.0, 0.0]), 3)[0] == 0
    assert bias_finding(ARMS(3, Swapped()), draws=20_000).passed
    assert bias_finding(ARMS(3, Undone()), draws=20_000).passed


class WrongCounts(Systematic):
    """States the counts of independent samples."""

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        ones = torch.arange(n + 1, dtype=torch.float64).view(-1, *[1] * logits.ndim)
        found: Tensor = torch.distributions.Binomial(n, logits=logits.double()).log_prob(ones)
        return found.exp()


class OnlyEven(Systematic):
    """A coupling that takes an even number of samples."""

    even_samples: ClassVar[bool] = True


def test_a_wrong_distribution_of_counts_is_found() -> None:
    found = findings(WrongCounts(), draws=5000)
    wrong = [finding.name for finding in found.findings if not finding.passed]
    assert wrong == ["counts, n = 2", "counts, n = 3", "counts, n = 5"]


def test_couplings_of_even_numbers_are_checked_at_even_numbers() -> None:
    names = [finding.name for finding in findings(OnlyEven(), draws=1000).findings]
    assert [name for name in names if name.startswith("counts")] == [
        "counts, n = 2",
        "counts, n = 4",
        "counts, n = 6",
    ]
