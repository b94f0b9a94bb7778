"""Latents: distributions, scores, states, and accepted arguments."""

from collections.abc import Callable

import pytest
import torch
from instances import JOINT_LATENTS
from ranks import Ranks
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical, Distribution, OneHotCategorical
from torch.distributions import Independent as IndependentDistribution

import arms
from arms import Bits, Indices, Latent, OneHot, as_latent
from arms.checks import score_limit
from arms.estimate import takes
from arms.estimators import ALL_ESTIMATORS
from arms.latents import Enumerable, HasMean

LATENTS: list[Enumerable] = [
    Bits(torch.tensor([0.7, -1.3, 3.0], dtype=torch.float64)),
    OneHot(torch.tensor([[0.0, 0.5, -0.5], [4.0, -1.0, 0.0]], dtype=torch.float64)),
    *(latent for latent in JOINT_LATENTS if isinstance(latent, Enumerable)),
    Ranks(torch.tensor([0.7, -1.3, 3.0], dtype=torch.float64)),
]


@pytest.mark.parametrize("latent", LATENTS, ids=lambda one: type(one).__name__)
def test_states_are_all_there_is(latent: Enumerable) -> None:
    states = latent.states()
    probs = latent.log_prob(states).exp()
    assert len(states) == latent.count_states() == len({str(state) for state in states.tolist()})
    assert abs(probs.sum() - 1) < 1e-14
    if latent.has(HasMean):
        assert isinstance(latent, HasMean)
        mean = (latent.with_event_axes(probs) * states).sum(0)
        torch.testing.assert_close(mean, latent.mean(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("latent", LATENTS, ids=lambda one: type(one).__name__)
def test_score_is_the_gradient_of_log_prob(latent: Enumerable) -> None:
    states = latent.states()
    for state in states[latent.log_prob(states) > -torch.inf]:
        own = latent.with_logits(latent.logits.clone().requires_grad_())
        (grad,) = torch.autograd.grad(own.log_prob(state.unsqueeze(0)).sum(), own.logits)
        score = latent.score(state.unsqueeze(0)).squeeze(0)
        torch.testing.assert_close(score, grad, rtol=0, atol=1e-14)


@pytest.mark.parametrize("latent", LATENTS, ids=lambda one: type(one).__name__)
def test_covariance_is_that_of_the_states(latent: Enumerable) -> None:
    if not latent.has(HasMean):
        return
    assert isinstance(latent, HasMean)
    states = latent.states()
    vector = torch.linspace(-1, 2, latent.logits.numel()).to(latent.logits).view_as(latent.logits)
    off = states - latent.mean()
    weights = latent.log_prob(states).exp() * latent.sum_event(off * vector)
    expected = (latent.with_event_axes(weights) * off).sum(0)
    torch.testing.assert_close(latent.covariance_matvec(vector), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("latent", LATENTS, ids=lambda one: type(one).__name__)
def test_samples_have_the_distribution_of_the_states(latent: Enumerable) -> None:
    draws = 50_000
    samples = latent.sample(draws, torch.Generator().manual_seed(0))
    assert samples.shape == (draws, *latent.logits.shape)
    assert samples.dtype == latent.logits.dtype
    for state, prob in zip(latent.states(), latent.log_prob(latent.states()).exp(), strict=True):
        hits = (samples == state).flatten(1).all(1).double().mean()
        spread = (prob * (1 - prob) / draws).sqrt()
        assert (hits - prob).abs() <= score_limit(latent.count_states(), 1e-8) * spread


def test_scores_of_certain_choices_keep_their_digits() -> None:
    logits = torch.tensor([[20.0, 0.0, -1.0]])
    first = torch.tensor([[[1.0, 0.0, 0.0]]])
    wide = OneHot(logits.double()).score(first.double())
    torch.testing.assert_close(OneHot(logits).score(first).double(), wide, rtol=1e-5, atol=0)
    assert 0 < wide[0, 0, 0] < 1e-8


@pytest.mark.parametrize("impossible", [0, 1, 2])
def test_impossible_categories_are_ordinary(impossible: int) -> None:
    logits = torch.zeros(100, 2, 3)
    logits[..., impossible] = -torch.inf
    samples = OneHot(logits).sample(8, torch.Generator().manual_seed(0))
    assert (samples[..., impossible] == 0).all()
    assert (samples.sum(-1) == 1).all()
    assert OneHot(logits).log_prob(samples).isfinite().all()
    assert (OneHot(logits).score(samples)[..., impossible] == 0).all()


LOGITS = torch.linspace(-1, 1, 6).view(2, 3)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (lambda x: x, Bits),
        (Bits, Bits),
        (OneHot, OneHot),
        (lambda x: TorchBernoulli(logits=x), Bits),
        (lambda x: IndependentDistribution(TorchBernoulli(logits=x), 1), Bits),
        (lambda x: OneHotCategorical(logits=x), OneHot),
        (lambda x: IndependentDistribution(OneHotCategorical(logits=x), 1), OneHot),
        (lambda x: OneHotCategorical(probs=x.softmax(-1)), OneHot),
        (Indices, Indices),
        (lambda x: Categorical(logits=x), Indices),
    ],
)
def test_what_users_may_pass(
    given: Callable[[Tensor], Tensor | Latent | Distribution], kind: type[HasMean]
) -> None:
    latent = as_latent(given(LOGITS))
    assert type(latent) is kind
    torch.testing.assert_close(latent.mean(), kind(LOGITS).mean())
    logits, batch = LOGITS.clone().requires_grad_(), 2 - kind.event_dims
    arms.expectation(
        lambda b: b.double().flatten(1 + batch).sum(-1) ** 2, given(logits), "loorf", 4
    ).sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            lambda: Categorical(logits=LOGITS[0]),
            r"must have logits of shape \[\*batch, d, K\], got \[K\]: call .unsqueeze\(0\) on the",
        ),
        (
            lambda: OneHotCategorical(logits=LOGITS[0]),
            r"must have logits of shape \[\*batch, d, K\], got \[K\]: call .unsqueeze\(0\) on the",
        ),
        (lambda: OneHot(LOGITS[0]), r"\[\*batch, d, K\].*got shape \[3\]"),
        (
            lambda: OneHot(LOGITS.long()),
            r"logits must be floating-point numbers, got torch.int64: call .float\(\)",
        ),
    ],
)
def test_what_is_no_latent(given: Callable[[], Latent | Distribution], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_latent(given())


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_categories_are_taken_or_refused(name: str) -> None:
    estimator, latent = arms.as_estimator(name, 4), OneHot(LOGITS)
    if takes(estimator, latent):
        assert estimator(lambda b: b.sum((-1, -2)), latent).grad.shape == LOGITS.shape
        return
    wrapped = [arms.ExtraSample(estimator)] if estimator.target.size == 1 else []
    for refused in (estimator, *wrapped):
        with pytest.raises(
            ValueError,
            match=r"OneHot (does not have it|latents): use an estimator that accepts any",
        ):
            refused(lambda b: b.sum((-1, -2)), latent)


def test_certain_bits_keep_their_digits() -> None:
    found = Bits(torch.tensor([20.0])).score(torch.tensor([[0.0], [1.0]])).flatten()
    torch.testing.assert_close(found, torch.tensor([-1.0, 2.0612e-09]), rtol=1e-4, atol=0)
    covariance = Bits(torch.tensor([0.0, 40.0])).covariance_matvec(torch.ones(2))
    torch.testing.assert_close(covariance, torch.tensor([0.25, 4.2484e-18]), rtol=1e-4, atol=0)
