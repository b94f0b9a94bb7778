"""The checks that users run on their own estimators: what they catch, and how often they raise a false alarm."""

import math

import pytest
import torch
from marks import slow
from ranks import Ranks
from sabotage import BROKEN

import arms
from arms.checks import check_bias, check_estimator
from arms.checks.bias import BINARY_LOGITS, problem_scores, special_problems
from arms.checks.estimator import COUNTS
from arms.checks.oracle import exact_target_gradient, smooth_objective
from arms.checks.verdicts import skew_corrected
from arms.estimators import controls

AT = {"OnePercentOfEight": 8, "WrongForManySamples": 12}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_estimators_are_caught(name: str) -> None:
    """At a number of samples that is tried by default; fewer of them save time."""
    assert AT.get(name, 2) in COUNTS
    report = check_estimator(BROKEN[name], draws=20_000, num_samples=[AT.get(name, 2)])
    assert not report.passed, str(report)
    assert report.verdict == "FAIL"


@pytest.mark.parametrize("name", ["arms-s-taylor", "double-cv"])
def test_a_sum_that_subtracts_is_caught_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding error of a row's own numbers must not choose its coefficient."""
    estimator = arms.as_estimator(name, 8)
    generator = torch.Generator().manual_seed(0)
    problems = [one for one in special_problems(estimator, generator) if one.name == "float32, unequal rows"]
    assert max(problem_scores(estimator, one, 50_000, generator).abs().max() for one in problems) < 5
    monkeypatch.setattr(controls, "sum_of_others", lambda tensor, dim: tensor.sum(dim, keepdim=True) - tensor)
    assert max(problem_scores(estimator, one, 100_000, generator).abs().max() for one in problems) > 6


def alarms(names: list[str], draws: int, seeds: range, failure_rate: float) -> int:
    return sum(
        not check_estimator(arms.ESTIMATORS[name], draws, failure_rate, seed=seed).passed
        for name in names
        for seed in seeds
    )


@slow
def test_false_alarms_come_as_often_as_declared() -> None:
    """Of 200 checks of correct estimators at a failure rate of 0.05, about 10 fail."""
    found = alarms(["loorf", "disarm", "arms-s", "midpoint"], 1000, range(50), 0.05)
    assert 4 <= found <= 16, found


def test_every_number_of_samples_can_be_asked_for() -> None:
    report = check_estimator(arms.LOORF, draws=1000, num_samples=[5, 2])
    assert report.subject == "LOORF, num_samples 2, 5"
    with pytest.raises(ValueError, match="num_samples of DisARM must be even"):
        check_estimator(arms.DisARM, draws=1000, num_samples=[3])
    with pytest.raises(ValueError, match="at least one number of samples, got none"):
        check_estimator(arms.LOORF, draws=1000, num_samples=[])


def test_any_latent_can_be_given() -> None:
    phi = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64)
    assert check_estimator(arms.LOORF, draws=2000, latents=[Ranks(phi)]).passed
    assert check_bias(arms.Unordered(3), draws=2000, latents=[Ranks(phi)]).passed

    class ScoreFromTheMean(arms.LOORF):
        def combine(self, draw: arms.Draw, values: torch.Tensor, slopes: torch.Tensor | None = None) -> torch.Tensor:
            score = draw.points - draw.points.mean(0)
            return (score * values.unsqueeze(-1)).mean(0)

    assert not check_estimator(ScoreFromTheMean, draws=2000, latents=[Ranks(phi)]).passed


def test_the_report_says_what_is_not_checked() -> None:
    lines = str(check_estimator(arms.REBAR, draws=1000, num_samples=[2])).splitlines()
    assert lines[-1].startswith("not checked: other numbers of samples; finite logits beyond ±10")
    assert "parameters other than the initial ones" in lines[-1]
    biased = check_estimator(arms.BIASED_ESTIMATORS["st"], draws=2000, num_samples=[2])
    assert any("marked biased" in note for note in biased.not_checked)


@pytest.mark.parametrize("name", ["loorf", "vimco"])
def test_what_cannot_happen_often_is_not_scored(name: str) -> None:
    """Some hundred draws see no bit of logit 10 flip: the estimate is then zero in all of them, and says nothing."""
    estimator = arms.as_estimator(name, 2)
    generator = torch.Generator().manual_seed(0)
    for problem in special_problems(estimator, generator):
        if problem.name.startswith("logits of"):
            assert problem_scores(estimator, problem, 100, generator).abs().max() < 6


def test_scores_of_rare_events_are_near_normal() -> None:
    """Plain z-scores of Poisson counts with mean 30 fall below -3 several times too often; corrected ones never do."""
    generator = torch.Generator().manual_seed(0)
    count, mean = 10_000, 30.0
    hits = torch.poisson(torch.full((1_000_000,), mean, dtype=torch.float64), generator=generator)
    p = hits / count
    third = p * (1 - p) * (1 - 2 * p)
    scores = skew_corrected(p - mean / count, p * (1 - p), third, count, 1e-12)
    plain = (p - mean / count) / (p * (1 - p) / count).sqrt()
    expected = math.erfc(3 / math.sqrt(2)) / 2
    assert (scores < -3).double().mean() / expected < 1.6
    assert 0.6 < (scores > 3).double().mean() / expected < 1.6
    assert (plain < -3).double().mean() / expected > 3


def test_gradients_by_enumeration_agree_with_the_exact_estimator() -> None:
    for row in (*BINARY_LOGITS, (math.inf, 0.7, -math.inf)):
        latent = arms.Bernoulli(torch.tensor(row, dtype=torch.float64))
        objective = smooth_objective(latent, torch.Generator().manual_seed(0))
        found = exact_target_gradient(objective, latent, arms.Expectation())
        torch.testing.assert_close(found, arms.checks.exact_gradient(objective, latent), rtol=0, atol=1e-13)
