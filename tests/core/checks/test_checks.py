"""The checks that users run on their own estimators: detected errors and false alarms."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from marks import slow
from ranks import Ranks
from sabotage import BROKEN

import arms
from arms.checks import bias, bias_finding, findings
from arms.checks.bias import BITS, Problem, problem_scores, special_problems
from arms.checks.estimator import COUNTS
from arms.checks.oracle import exact_target_gradient, smooth_objective
from arms.checks.verdicts import skew_corrected
from arms.designs import Draw, Independent
from arms.estimators import regression

# With eight samples, bits with logit ±7 change often enough for draws to show an error there.
AT = {"OnePercentOfEight": 8, "WrongForManySamples": 12, "WrongInTheTail": 8}
SEEN_BY_ENUMERATION_ALONE = {"SmallConstant"}
"""Wrong only at |logit| of about 14, in events too rare for draws."""
DRAWS = {"ThreePercent": 20_000, "WrongBeyondThree": 20_000}
"""The number of draws that detect the error, if 10,000 do not."""
SEEN_IN_SINGLE_ROWS = {"BatchBaseline", "WrongWithoutBatch"}


def problems_in_batches(*arguments: Any) -> Iterator[Problem]:
    """The problems of the check without those that need one call per estimate, which are slow."""
    return (one for one in special_problems(*arguments) if not one.separate)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_estimators_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a default number of samples. A single one saves time."""
    assert AT.get(name, 2) in COUNTS
    if name not in SEEN_IN_SINGLE_ROWS:
        monkeypatch.setattr(bias, "special_problems", problems_in_batches)
    draws, counts = DRAWS.get(name, 10_000), [AT.get(name, 2)]
    report = findings(BROKEN[name], draws=draws, num_samples=counts)
    assert not report.passed, str(report)
    assert report.verdict == "FAIL"
    exact = [one for one in report.findings if one.name.startswith("exact expectation")]
    if name in SEEN_BY_ENUMERATION_ALONE:
        assert [one for one in report.findings if not one.passed] == exact
    else:
        # Draws catch it too: continuous noise cannot be enumerated.
        assert any(not one.passed for one in report.findings if one not in exact), str(report)


@pytest.mark.parametrize("name", ["arms-taylor", "double-cv"])
def test_a_sum_that_subtracts_is_caught_in_float32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding errors of a row's own numbers must not affect its coefficient."""
    estimator = arms.as_estimator(name, 8)
    generator = torch.Generator().manual_seed(0)
    problems = [
        one for one in special_problems(estimator, generator) if one.name == "float32, unequal rows"
    ]
    assert (
        max(problem_scores(estimator, one, 50_000, generator).abs().max() for one in problems) < 5
    )
    monkeypatch.setattr(
        regression, "sum_of_others", lambda tensor, dim: tensor.sum(dim, keepdim=True) - tensor
    )
    assert (
        max(problem_scores(estimator, one, 100_000, generator).abs().max() for one in problems) > 6
    )


def alarms(names: list[str], draws: int, seeds: range, failure_rate: float) -> int:
    return sum(
        not findings(arms.ESTIMATORS[name], draws, failure_rate, seed=seed).passed
        for name in names
        for seed in seeds
    )


@slow
def test_false_alarms_come_as_often_as_declared() -> None:
    """Of 200 checks of correct estimators at a failure rate of 0.05, about 10 fail."""
    found = alarms(["loorf", "disarm", "arms", "midpoint"], 1000, range(50), 0.05)
    assert 4 <= found <= 16, found


def test_every_number_of_samples_can_be_asked_for() -> None:
    report = findings(arms.LOORF, draws=1000, num_samples=[5, 2])
    assert report.subject == "LOORF, num_samples 2, 5"
    with pytest.raises(ValueError, match="num_samples of DisARM must be even"):
        findings(arms.DisARM, draws=1000, num_samples=[3])
    with pytest.raises(ValueError, match="a list of one or more integers, got"):
        findings(arms.LOORF, draws=1000, num_samples=[])


def test_any_latent_can_be_given() -> None:
    phi = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64)
    assert findings(arms.LOORF, draws=2000, latents=[Ranks(phi)]).passed
    assert bias_finding(arms.UnorderedSet(3), draws=2000, latents=[Ranks(phi)]).passed

    class ScoreFromTheMean(arms.LeaveOneOut):
        def combine(
            self, draw: Draw, values: torch.Tensor, derivatives: torch.Tensor | None = None
        ) -> torch.Tensor:
            score = draw.points - draw.points.mean(0)
            return (score * values.unsqueeze(-1)).mean(0)

    def wrong(n: int) -> ScoreFromTheMean:
        return ScoreFromTheMean(Independent(n))

    assert not findings(wrong, draws=2000, latents=[Ranks(phi)]).passed


def test_the_report_says_what_is_not_checked() -> None:
    lines = str(findings(arms.REBAR, draws=1000, num_samples=[2])).splitlines()
    assert lines[-1].startswith("not checked: other numbers of samples; finite logits beyond ±10")
    assert "parameters other than the initial ones" in lines[-1]
    biased = findings(arms.BIASED_ESTIMATORS["st"], draws=2000, num_samples=[2])
    assert any("labeled biased" in note for note in biased.not_checked)


@pytest.mark.parametrize("name", ["loorf", "vimco"])
def test_what_cannot_happen_often_is_not_scored(name: str) -> None:
    """No bit with logit 10 changes in some hundred draws, so estimates of zero say nothing."""
    estimator = arms.as_estimator(name, 2)
    generator = torch.Generator().manual_seed(0)
    for problem in special_problems(estimator, generator):
        if problem.name.startswith("logits of"):
            assert problem_scores(estimator, problem, 100, generator).abs().max() < 6


def test_scores_of_rare_events_are_near_normal() -> None:
    """Plain z-scores of Poisson counts with mean 30 fall below -3 several times too often.

    Corrected ones do not.
    """
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
    for row in (*BITS.moderate, (math.inf, 0.7, -math.inf)):
        latent = arms.Bits(torch.tensor(row, dtype=torch.float64))
        objective = smooth_objective(latent, torch.Generator().manual_seed(0))
        found = exact_target_gradient(objective, latent, arms.Expectation())
        torch.testing.assert_close(
            found, arms.checks.exact_gradient(objective, latent), rtol=0, atol=1e-13
        )
