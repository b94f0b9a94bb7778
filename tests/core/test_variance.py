"""Tier 5: claims about variance, against closed forms."""

import math

import pytest
import torch

import arms
from arms.bench import toy
from arms.checks import VarianceRow, VarianceTable, score_limit, univariate_variance
from arms.checks.variance import COMPARED

POINTS = torch.logit(torch.linspace(0.1, 0.9, 41, dtype=torch.float64))


@pytest.mark.parametrize("n", [2, 4, 6, 8, 10, 20, 50, 100])
def test_order_on_the_toy_problem(n: int) -> None:
    exact = {name: univariate_variance(arms.as_estimator(name, n), POINTS, 0.0, 1.0) for name in toy.ESTIMATORS}
    assert exact["arms-n"] is None
    systematic, dirichlet, loorf, disarm, arm = (exact[k] for k in ("arms-s", "arms-d", "loorf", "disarm", "arm"))
    assert systematic is not None
    assert dirichlet is not None
    assert loorf is not None
    assert disarm is not None
    assert arm is not None
    slack = 1e-12
    assert (systematic <= dirichlet + slack).all()
    assert (dirichlet <= loorf + slack).all()
    assert (disarm <= arm + slack).all()
    assert systematic.mean() < 0.5 * loorf.mean()


@pytest.mark.parametrize("n", [2, 4, 10])
def test_measured_variance_agrees_with_closed_form(n: int) -> None:
    replicas, points = 20_000, 9
    curves = toy.variance_curves(
        n, [*toy.ESTIMATORS, "reinforce", "arts"], points, replicas, torch.Generator().manual_seed(n)
    )
    assert {curve.estimator for curve in curves if curve.exact is None} == {"arms-n"}
    for curve in curves:
        if curve.exact is not None:
            # Var of a sample variance is at most (kurtosis - 1) var^2 / replicas; kurtosis of these bounded
            # estimates stays under 60 on this grid.
            tolerance = score_limit(8 * points * 3) * (60 / replicas) ** 0.5 * curve.exact
            assert ((curve.measured - curve.exact).abs() <= tolerance + 1e-18).all(), curve.estimator


def test_closed_forms_tell_estimators_apart() -> None:
    """The tolerance above is not so wide that any curve would pass for any other."""
    curves = toy.variance_curves(10, ["loorf", "arms-d", "arms-s"], 9, 20_000, torch.Generator().manual_seed(0))
    for curve, other in ((0, 1), (1, 2), (0, 2)):
        exact = curves[other].exact
        assert exact is not None
        tolerance = score_limit(8 * 9 * 3) * (60 / 20_000) ** 0.5 * exact
        assert ((curves[curve].measured - exact).abs() > tolerance).any()


class Halved(arms.LOORF):
    def combine(self, draw: arms.Draw, values: torch.Tensor, slopes: torch.Tensor | None = None) -> torch.Tensor:
        return super().combine(draw, values) / 2


def test_table_ranks_estimators_and_sees_bias() -> None:
    table = arms.variance(
        lambda b: (b.sum(-1) - 1.2).square(),
        torch.tensor([[0.3, -0.5, 1.0]]),
        4,
        ["reinforce", "loorf", "arms-s", "exact", Halved(4)],
        repeats=2000,
        generator=torch.Generator().manual_seed(0),
    )
    rows = {row.estimator: row for row in table.rows}
    assert rows["exact"].variance < rows["arms-s"].variance < rows["loorf"].variance < rows["reinforce"].variance
    assert all(rows[name].bias_score < table.score_limit for name in ("reinforce", "loorf", "arms-s", "exact"))
    assert rows["Halved"].bias_score > table.score_limit
    assert "against enumeration" in str(table)


def test_table_beyond_enumeration_compares_with_loorf() -> None:
    weights = torch.linspace(-1, 1, 30)
    table = arms.variance(lambda b: (b @ weights).square(), torch.zeros(2, 30), 4, ["loorf", "arms-s"], repeats=500)
    assert table.reference == "other draws of loorf"
    assert all(row.bias_score < table.score_limit for row in table.rows)


@pytest.mark.parametrize("logit", [-10.0, 5.0])
def test_nearly_certain_latents_are_left_out_of_the_bias_score(logit: float) -> None:
    table = arms.variance(
        lambda b: (b.sum(-1) - 0.3).square(),
        torch.tensor([0.0, logit]),
        8,
        [*COMPARED, Halved(8)],
        generator=torch.Generator().manual_seed(0),
    )
    assert table.left_out == 1
    assert "left out of it: 1" in str(table)
    suspicious = [row.estimator for row in table.rows if row.bias_score > table.score_limit]
    assert suspicious == ["Halved"]


def test_few_repeats_have_no_bias_score() -> None:
    table = arms.variance(lambda b: b.sum(-1), torch.zeros(3), 100, ["loorf"], repeats=5)
    assert math.isnan(table.rows[0].bias_score)
    assert table.left_out == 3


def test_ratio_to_a_variance_of_zero() -> None:
    rows = tuple(VarianceRow(name, 2, variance, 0.0, 0.0) for name, variance in (("a", 0.0), ("b", 0.0), ("c", 0.5)))
    lines = str(VarianceTable(rows, "enumeration", 5.0)).splitlines()
    assert [line.split()[3] for line in lines[1:4]] == ["1.000", "1.000", "inf"]


def test_one_sample_beyond_enumeration() -> None:
    (row,) = arms.variance(lambda b: b.sum(-1), torch.zeros(12), num_samples=1, repeats=200).rows
    assert row.estimator == "reinforce"


def test_score_limit_of_very_many_comparisons() -> None:
    assert score_limit(10**9) < score_limit(10**10) < score_limit(10**12) < 9


def test_odd_budgets_leave_out_what_needs_pairs() -> None:
    table = arms.variance(lambda b: b.sum(-1), torch.zeros(3), num_samples=3, repeats=5)
    names = {row.estimator for row in table.rows}
    assert {"loorf", "arms-s", "reinforce"} <= names
    assert not names & {"arm", "disarm", "arts"}
