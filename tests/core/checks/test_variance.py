"""Variances against closed forms, and the table that compares estimators."""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from marks import slow
from seeds import seeded
from torch import Generator, Tensor, nn
from torch.distributions import Bernoulli, OneHotCategorical

import arms
from arms import ARMS, LOORF, REBAR, DisARM, LeaveOneOut
from arms.bench import toy
from arms.checks import VarianceRow, VarianceTable, score_limit, univariate_variance
from arms.designs import Design, Dirichlet, Draw, Gaussian, Independent, Needs, Systematic
from arms.estimators.registry import label
from arms.latents import HasMean

POINTS = torch.logit(torch.linspace(0.1, 0.9, 41, dtype=torch.float64))


@pytest.mark.parametrize("n", [2, 4, 6, 8, 10, 20, 50, 100])
def test_order_on_the_toy_problem(n: int) -> None:
    exact = {
        name: univariate_variance(arms.as_estimator(name, n), POINTS, 0.0, 1.0)
        for name in toy.ESTIMATORS
    }
    assert exact["arms-gaussian"] is None
    systematic, dirichlet, loorf, disarm, arm = (
        exact[k] for k in ("arms", "arms-dirichlet", "loorf", "disarm", "arm")
    )
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
        n,
        [*toy.ESTIMATORS, "reinforce", "exact"],
        points,
        replicas,
        torch.Generator().manual_seed(n),
    )
    assert {curve.estimator for curve in curves if curve.exact is None} == {"arms-gaussian"}
    for curve in curves:
        if curve.exact is not None:
            # The variance of a sample variance is at most (kurtosis - 1) var^2 / replicas. The
            # kurtosis of these bounded estimates stays under 60 on this grid.
            tolerance = score_limit(8 * points * 3) * (60 / replicas) ** 0.5 * curve.exact
            assert ((curve.measured - curve.exact).abs() <= tolerance + 1e-18).all(), (
                curve.estimator
            )


def test_closed_forms_tell_estimators_apart() -> None:
    """The tolerance above distinguishes different curves."""
    curves = toy.variance_curves(
        10, ["loorf", "arms-dirichlet", "arms"], 9, 20_000, torch.Generator().manual_seed(0)
    )
    for curve, other in ((0, 1), (1, 2), (0, 2)):
        exact = curves[other].exact
        assert exact is not None
        tolerance = score_limit(8 * 9 * 3) * (60 / 20_000) ** 0.5 * exact
        assert ((curves[curve].measured - exact).abs() > tolerance).any()


class Halved(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) / 2


class Through(arms.Estimator):
    """Biased, with little variance: df/db at the samples times p (1 - p)."""

    unbiased = False

    def __init__(self, num_samples: int) -> None:
        self.design = Independent(num_samples, differentiated=True)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert isinstance(draw.latent, HasMean)
        p = draw.latent.mean()
        return (derivatives * p * (1 - p)).mean(0)


class WithOneHalf(Design):
    """Independent samples, and one more point at 1/2, where the objective is differentiated."""

    @property
    def needs(self) -> Needs:
        return Needs(self.num_samples + 1, 1)

    def draw(self, latent: arms.Latent, generator: Generator | None) -> Draw:
        samples = latent.sample(self.num_samples, generator)
        return Draw(latent, torch.cat([samples, torch.full_like(samples[:1], 0.5)]), 1)


class HalfWay(Through):
    """The same with the derivative at 1/2: one more point, which is not a sample."""

    def __init__(self, num_samples: int) -> None:
        self.design = WithOneHalf(num_samples)


def quadratic(b: Tensor) -> Tensor:
    return (b.sum(-1) - 1.2).square()


# --- What is measured ---------------------------------------------------------------------------


def test_table_ranks_estimators_and_sees_bias() -> None:
    table = arms.variance(
        quadratic,
        torch.tensor([[0.3, -0.5, 1.0]]),
        ["reinforce", "loorf", "arms", "exact", Halved(Independent(4))],
        4,
        seeded(),
        repeats=2000,
    )
    rows = {row.estimator: row for row in table.rows}
    assert (
        rows["exact"].variance
        < rows["arms"].variance
        < rows["loorf"].variance
        < rows["reinforce"].variance
    )
    assert all(
        rows[name].bias_score < table.score_limit
        for name in ("reinforce", "loorf", "arms", "exact")
    )
    assert rows["Halved"].bias_score > table.score_limit
    assert "against enumeration" in str(table)


def test_table_beyond_enumeration_compares_with_loorf() -> None:
    weights = torch.linspace(-1, 1, 30)
    table = arms.variance(
        lambda b: (b @ weights).square(), torch.zeros(2, 30), ["loorf", "arms"], 4, repeats=500
    )
    assert table.reference == "other draws of loorf"
    assert all(row.bias_score < table.score_limit for row in table.rows)


@pytest.mark.parametrize("logit", [pytest.param(-10.0, marks=slow), 5.0])
def test_nearly_certain_latents_are_left_out_of_the_bias_score(logit: float) -> None:
    names = [
        row.estimator
        for row in arms.variance(quadratic, torch.zeros(2), num_samples=8, repeats=2).rows
    ]
    table = arms.variance(
        lambda b: (b.sum(-1) - 0.3).square(),
        torch.tensor([0.0, logit]),
        [*names, Halved(Independent(8))],
        generator=seeded(),
        repeats=400,
    )
    assert table.unscored == 1
    assert "not tested for bias: 1" in str(table)
    suspicious = [row.estimator for row in table.rows if row.bias_score > table.score_limit]
    assert suspicious == ["Halved"]


def test_few_repeats_have_no_bias_score() -> None:
    table = arms.variance(lambda b: b.sum(-1), torch.zeros(3), ["loorf"], 100, repeats=5)
    assert math.isnan(table.rows[0].bias_score)
    assert table.unscored == 3


def test_one_sample_beyond_enumeration() -> None:
    table = arms.variance(lambda b: b.sum(-1), torch.zeros(12), num_samples=1, repeats=200)
    assert {row.estimator for row in table.rows} == {"flips", "reinforce"}


def test_score_limit_of_very_many_comparisons() -> None:
    assert score_limit(10**9) < score_limit(10**10) < score_limit(10**12) < 9


def test_measured_variance_is_that_of_the_closed_form() -> None:
    logits, repeats = torch.tensor([0.4]), 4000
    table = arms.variance(
        lambda b: b[..., 0], logits, ["loorf", "disarm"], 4, seeded(), repeats=repeats
    )
    for row in table.rows:
        exact = univariate_variance(arms.as_estimator(row.estimator, 4), logits.double(), 0.0, 1.0)
        assert exact is not None
        # As above: the kurtosis of these bounded estimates stays under 60.
        assert abs(row.variance / exact.item() - 1) < score_limit(2) * (60 / repeats) ** 0.5
        assert abs(row.variance - exact.item()) < score_limit(2) * row.variance_error


def test_the_standard_error_of_a_variance_is_its_spread() -> None:
    generator, tables = seeded(), 40
    rows = [
        arms.variance(quadratic, torch.zeros(3), "loorf", 4, generator, repeats=100).rows[0]
        for _ in range(tables)
    ]
    spread = torch.tensor([row.variance for row in rows]).std().item()
    ratio = spread / torch.tensor([row.variance_error for row in rows]).mean().item()
    assert 0.501 < ratio < 1.588, (
        "of normal variances, chi-square with 39 degrees of freedom, one in a million is outside"
    )


def test_two_estimates_have_no_standard_error() -> None:
    table = arms.variance(quadratic, torch.zeros(3), "loorf", repeats=2)
    assert math.isnan(table.rows[0].variance_error)
    assert str(table).splitlines()[1].split()[5] == "-"


def test_the_tail_is_the_share_of_the_largest_hundredth() -> None:
    rare, even = torch.logit(torch.tensor([0.005])), torch.zeros(1)
    both = torch.stack([rare, even])
    tails = {}
    for name, logits in (("rare", rare), ("even", even), ("both", both)):
        one = arms.variance(lambda b: b[..., 0], logits, "reinforce", 1, seeded(), repeats=2000)
        tails[name] = one.rows[0].tail
    assert tails["rare"] > 0.9  # one estimate is 1 - p, and the others are 0
    # Half of the estimates are 1/2 and the others 0, all as far from their mean, 1/4. It is not
    # known yet when the first of them are counted.
    assert abs(tails["even"] - 0.01) < 0.01
    assert abs(tails["both"] - (tails["rare"] + tails["even"]) / 2) < 0.05  # mean over rows


def test_no_gradient_is_left_anywhere() -> None:
    weights = torch.randn(3, generator=seeded()).requires_grad_()
    logits = torch.zeros(2, 3, requires_grad=True)
    rebar = REBAR(4)
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            table = arms.variance(
                lambda b: (b @ weights).square(),
                Bernoulli(logits=logits),
                [Through(4), rebar, "loorf"],
                repeats=5,
            )
        assert {row.estimator: row.derivatives for row in table.rows} == {
            "Through": 4,
            "REBAR": 4,
            "loorf": 0,
        }
    assert weights.grad is None
    assert logits.grad is None
    assert all(parameter.grad is None for parameter in rebar.parameters())


class DifferentiableOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, b: Tensor) -> Tensor:
        return b.sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        assert not torch.is_grad_enabled(), "a second derivative was prepared"
        return grads[0].unsqueeze(-1).expand(*grads[0].shape, 3)


def test_nothing_learns_so_nothing_is_differentiated_twice() -> None:
    def objective(b: Tensor) -> Tensor:
        values: Tensor = DifferentiableOnce.apply(b)  # type: ignore[no-untyped-call]
        return values

    (row,) = arms.variance(objective, torch.zeros(3), "rebar", 4, repeats=2).rows
    assert row.derivatives == 4


# --- Categories ---------------------------------------------------------------------------------


def test_categories_are_compared_and_bias_is_seen() -> None:
    logits = torch.randn(2, 3, 4, generator=seeded())
    values = torch.randn(3, 4, generator=seeded(1))

    def objective(b: Tensor) -> Tensor:
        return (b * values).sum((-1, -2)).square()

    table = arms.variance(
        objective,
        OneHotCategorical(logits=logits),
        ["reinforce", "loorf", "exact", Halved(Independent(8))],
        8,
        seeded(),
    )
    rows = {row.estimator: row for row in table.rows}
    assert table.reference == "enumeration"
    assert rows["exact"].evaluations == 4**3
    assert all(
        rows[name].bias_score < table.score_limit for name in ("reinforce", "loorf", "exact")
    )
    assert rows["Halved"].bias_score > table.score_limit
    assert rows["exact"].variance == 0 < rows["loorf"].variance


def test_the_variance_of_categories_is_that_of_their_estimates() -> None:
    latent, n, repeats = arms.OneHot(torch.tensor([[0.5, 0.0, -1.0]])), 4, 4000
    weights = torch.tensor([1.0, -2.0, 0.5])

    def objective(b: Tensor) -> Tensor:
        return (b[..., 0, :] * weights).sum(-1)

    (row,) = arms.variance(objective, latent, "loorf", n, seeded(), repeats=repeats).rows
    many = arms.OneHot(latent.logits.expand(repeats, 1, 3))
    spread = LOORF(n)(objective, many, seeded(1)).grad.var(0).mean().item()
    assert abs(row.variance / spread - 1) < 5 * (2 * 60 / repeats) ** 0.5


def test_rare_categories_have_no_part_in_the_bias_score() -> None:
    logits = torch.tensor(
        [[0.0, 0.0, -12.0], [9.0, 0.0, 0.0]]
    )  # one rare category, and one that is nearly certain
    values = torch.tensor([[1.0, 2.0, 50.0], [0.0, 1.0, -1.0]])
    table = arms.variance(
        lambda b: (b * values).sum((-1, -2)).square(),
        arms.OneHot(logits),
        ["loorf", "reinforce", Halved(Independent(8))],
        generator=seeded(),
    )
    assert table.unscored == 4
    assert [row.estimator for row in table.rows if row.bias_score > table.score_limit] == ["Halved"]


def test_too_few_repeats_for_any_category() -> None:
    table = arms.variance(
        lambda b: b[..., 0].sum(-1), arms.OneHot(torch.zeros(2, 3)), "loorf", repeats=3
    )
    assert table.unscored == 6
    assert math.isnan(table.rows[0].bias_score)


def test_many_categories_are_compared_with_loorf() -> None:
    table = arms.variance(
        lambda b: b[..., 0].sum(-1), arms.OneHot(torch.zeros(7, 3)), "loorf", 4, repeats=200
    )
    assert table.reference == "other draws of loorf"
    assert table.rows[0].bias_score < table.score_limit


# --- Work ---------------------------------------------------------------------------------------


def test_arguments_come_in_the_order_of_expectation() -> None:
    order, other = (
        list(inspect.signature(f).parameters) for f in (arms.variance, arms.expectation)
    )
    assert order[:5] == ["objective", "logits", "estimators", "num_samples", "generator"]
    assert [name.rstrip("s") for name in order[:5]] == [name.rstrip("s") for name in other[:5]]


@pytest.mark.parametrize("one", ["loorf", LOORF(4)], ids=str)
def test_one_estimator_needs_no_list(one: str | arms.Estimator) -> None:
    (row,) = arms.variance(quadratic, torch.zeros(3), one, repeats=2).rows
    assert row.num_samples == (8 if isinstance(one, str) else 4)


@pytest.mark.parametrize("name", ["loorf", "rebar", "relax", "exact", "disarm"])
def test_work_is_what_the_objective_sees(name: str) -> None:
    seen, differentiated = set(), set()

    def objective(b: Tensor) -> Tensor:
        values = quadratic(b)
        if len(b) != 2**3 or name == "exact":  # the reference enumerates
            seen.add(len(b))
            differentiated.add(values.requires_grad)
        return values

    (row,) = arms.variance(objective, torch.zeros(3), name, 4, repeats=3).rows
    assert seen == {row.evaluations}
    assert differentiated == {row.derivatives > 0}
    assert row.num_samples == (None if name == "exact" else 4)


def test_columns_of_work() -> None:
    table = arms.variance(quadratic, torch.zeros(3), ["rebar", "exact", "loorf"], 4, repeats=2)
    cells = {line.split()[0]: line.split() for line in str(table).splitlines()}
    assert cells["estimator"][1:4] == ["n", "evals", "derivs"]
    assert cells["loorf"][1:4] == ["4", "4", "0"]
    assert cells["exact"][1:4] == ["-", "8", "0"]
    assert cells["rebar"][1:5] == ["(untrained)", "4", "6", "4"]


@pytest.mark.parametrize(
    ("evaluations", "found"),
    [
        (8, {"loorf": (8, 8), "disarm": (8, 8), "rebar": (4, 6)}),
        (9, {"loorf": (9, 9), "disarm": (8, 8), "rebar": (6, 9)}),
        (3, {"loorf": (3, 3), "disarm": (2, 2), "rebar": (2, 3)}),
    ],
)
def test_equal_work(evaluations: int, found: dict[str, tuple[int, int]]) -> None:
    table = arms.variance(
        quadratic, torch.zeros(3), list(found), evaluations=evaluations, repeats=2
    )
    assert {row.estimator: (row.num_samples, row.evaluations) for row in table.rows} == found


def test_objects_keep_their_own_number_of_samples() -> None:
    table = arms.variance(quadratic, torch.zeros(3), [LOORF(20), "loorf"], evaluations=4, repeats=2)
    assert {row.estimator: row.num_samples for row in table.rows} == {"LOORF": 20, "loorf": 4}


def test_time_is_that_of_one_estimate_with_its_objective() -> None:
    def slow(b: Tensor) -> Tensor:
        time.sleep(0.01)
        return quadratic(b)

    (row,) = arms.variance(slow, torch.zeros(3), "loorf", repeats=5).rows
    assert 10 <= row.milliseconds < 40
    assert row.variance_time == row.variance * row.milliseconds
    (quick,) = arms.variance(quadratic, torch.zeros(3), "loorf", repeats=5).rows
    assert quick.milliseconds < 10


def test_a_slow_first_call_does_not_count() -> None:
    combined = []

    class SlowAtFirst(LeaveOneOut):
        def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
            combined.append(len(values))
            if len(combined) == 1:
                time.sleep(0.5)
            return super().combine(draw, values)

    (row,) = arms.variance(quadratic, torch.zeros(3), SlowAtFirst(Independent(4)), repeats=2).rows
    assert len(combined) == 3  # the first, and then the same draws for variance and time
    assert row.milliseconds < 200


# --- Who is compared ----------------------------------------------------------------------------


def test_everybody_is_in_the_table_or_left_out_with_a_reason() -> None:
    table = arms.variance(quadratic, torch.zeros(3), repeats=2)
    rows = {row.estimator for row in table.rows}
    assert not rows & set(table.left_out)
    assert rows | set(table.left_out) == set(arms.ESTIMATORS)
    assert {"loorf", "arms", "disarm"} <= rows
    assert (
        table.left_out["rebar"]
        == table.left_out["relax"]
        == "they have parameters: train estimator objects and pass these"
    )
    assert table.left_out["exact"] == "enumeration of all states"
    assert table.left_out["vimco"] == table.left_out["arms-ms"] == "another target"
    lines = str(table).splitlines()
    assert (
        "left out: rebar, relax, rodeo (they have parameters: train estimator objects and pass these)"
        in lines
    )
    assert "left out: exact (enumeration of all states)" in lines
    assert lines[-1].endswith("(another target)")
    assert "left out" not in str(arms.variance(quadratic, torch.zeros(3), "loorf", repeats=2))


def test_odd_budgets_leave_out_what_needs_pairs() -> None:
    table = arms.variance(lambda b: b.sum(-1), torch.zeros(3), num_samples=3, repeats=5)
    assert {"loorf", "arms", "reinforce"} <= {row.estimator for row in table.rows}
    assert {
        name
        for name, why in table.left_out.items()
        if why == "cannot draw 3 samples of this latent"
    } == {*("arm", "disarm", "midpoint", "midpoint-single", "cross-paired")}


def test_small_budgets_leave_out_what_needs_more() -> None:
    table = arms.variance(quadratic, torch.zeros(3), num_samples=1, repeats=2)
    assert (
        table.left_out["loorf"] == table.left_out["arms"] == "cannot draw 1 samples of this latent"
    )
    table = arms.variance(quadratic, torch.zeros(3), evaluations=1, repeats=2)
    assert (
        table.left_out["loorf"]
        == table.left_out["disarm"]
        == "cannot draw 1 samples of this latent"
    )
    assert [row.estimator for row in table.rows] == ["reinforce"]


def test_categories_leave_out_what_takes_bits() -> None:
    table = arms.variance(lambda b: b[..., 0].sum(-1), arms.OneHot(torch.zeros(2, 3)), repeats=2)
    with_derivatives = {"flips", "midpoint", "midpoint-single", "cross-paired", "double-cv"}
    coupled = {
        "arms",
        "arms-dirichlet",
        "arms-stratified",
        "arms-taylor",
        "disarm",
        "disarm-stick",
        "unordered-set",
    }
    assert {row.estimator for row in table.rows} == {
        "reinforce",
        "loorf",
        *coupled,
        *with_derivatives,
    }
    assert table.left_out["arms-gaussian"] == table.left_out["rebar"] == "not for OneHot latents"


def test_indices_leave_out_what_needs_derivatives() -> None:
    latent = arms.Indices(torch.zeros(2, 3))
    table = arms.variance(lambda z: (z[..., 0] == 1).float(), latent, repeats=2)
    assert {"loorf", "arms", "unordered-set"} <= {row.estimator for row in table.rows}
    assert table.left_out["midpoint"] == "Indices latents have no df/db"


def test_sets_of_all_states_and_more_are_left_out() -> None:
    table = arms.variance(quadratic, torch.zeros(2), num_samples=8, repeats=2)
    assert table.left_out["unordered-set"] == "cannot draw 8 samples of this latent"


def by_numpy(b: Tensor) -> Tensor:
    return torch.from_numpy(b.numpy().sum(-1))


def by_table(b: Tensor) -> Tensor:
    return torch.arange(2.0)[b[..., 0].long()]


def by_root(b: Tensor) -> Tensor:
    return b.sqrt().sum(-1)  # its derivative at 0 is infinite


def by_step(b: Tensor) -> Tensor:
    return torch.heaviside(b - 0.3, b).sum(-1)  # of which PyTorch knows no derivative


def by_igamma(b: Tensor) -> Tensor:
    return torch.igamma(b + 1, b + 1).sum(-1)  # likewise, in other words


def on_bits_alone(b: Tensor) -> Tensor:
    log_probs: Tensor = Bernoulli(logits=torch.zeros(3), validate_args=True).log_prob(b)
    return log_probs.sum(-1)


@pytest.mark.parametrize(
    ("objective", "through", "half_way"),
    [
        (quadratic, True, True),
        (by_numpy, False, False),
        (by_table, False, False),
        (by_step, False, False),
        (by_igamma, False, False),
        (by_root, False, True),
        (on_bits_alone, True, False),
    ],
)
def test_estimators_with_derivatives_are_compared_if_the_objective_has_them(
    objective: Callable[[Tensor], Tensor],
    through: bool,
    half_way: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(arms.ESTIMATORS, "through", Through)
    monkeypatch.setitem(arms.ESTIMATORS, "half-way", HalfWay)
    table = arms.variance(objective, torch.zeros(3), num_samples=4, generator=seeded(), repeats=2)
    rows = {row.estimator for row in table.rows}
    assert "loorf" in rows
    assert ("through" in rows, "half-way" in rows) == (through, half_way)
    why = "the objective has no df/db at their points"
    left_out = {name for name, reason in table.left_out.items() if reason == why}
    assert left_out & {"through", "half-way"} == {"through", "half-way"} - rows
    assert ("cross-paired" in rows) == through
    if not through:
        with pytest.raises(
            ValueError,
            match=r"Through needs the derivative df/db|derivative must be finite, got NaN or inf",
        ):
            arms.variance(objective, torch.zeros(3), ["through"], repeats=2)


def test_an_objective_that_fails_everywhere_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arms.ESTIMATORS, "through", Through)
    with pytest.raises(ValueError, match=r"one value per sample, shape \[8\], got \[8, 3\]"):
        arms.variance(lambda b: b, torch.zeros(3), repeats=2)


# --- What the table says ------------------------------------------------------------------------


def test_biased_rows_come_last_and_set_no_standard() -> None:
    table = arms.variance(
        quadratic,
        torch.zeros(3),
        [Through(8), "reinforce", HalfWay(8), "loorf"],
        generator=seeded(),
        repeats=200,
    )
    names = [row.estimator for row in table.rows]
    assert names[:2] == ["loorf", "reinforce"]
    assert set(names[2:]) == {"Through", "HalfWay"}
    variances = {row.estimator: row.variance for row in table.rows}
    assert variances["Through"] < variances["loorf"] < variances["reinforce"]
    assert [row.unbiased for row in table.rows] == [True, True, False, False]
    lines = str(table).splitlines()
    assert lines[1].split()[7] == "1.000*"
    assert [line.split()[1] for line in lines[3:5]] == ["(biased)", "(biased)"]
    ratio = variances["Through"] / variances["loorf"]
    assert f" {ratio:.3f} " in next(line for line in lines if line.startswith("Through (biased)"))
    assert str(table).count("(biased)") == 2


def test_biased_rows_alone_have_no_ratios() -> None:
    lines = str(arms.variance(quadratic, torch.zeros(3), Through(8), repeats=2)).splitlines()
    cells = lines[1].split()
    assert (cells[8], cells[-1]) == ("-", "-")


def test_the_tail_is_that_of_the_deviations_from_the_mean() -> None:
    logits, repeats = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.1, -0.2]]), 4000
    (row,) = arms.variance(quadratic, logits, "loorf", 4, seeded(), repeats=repeats).rows
    grad = LOORF(4)(quadratic, logits.expand(repeats, 2, 3), seeded(1)).grad
    squares = (grad - grad.mean(0)).square().sum(-1).sort(0, descending=True).values
    share = (squares[: repeats // 100].sum(0) / squares.sum(0)).mean().item()
    assert abs(row.tail / share - 1) < 0.15  # of forty draws that deviate about equally
    assert share > 0.03


def test_few_estimates_and_those_without_variance_have_no_tail() -> None:
    few = arms.variance(quadratic, torch.zeros(3), "loorf", repeats=99)
    certain = arms.variance(quadratic, torch.zeros(3), "exact", repeats=100)
    for table in (few, certain):
        assert math.isnan(table.rows[0].tail)
        assert str(table).splitlines()[1].split()[6] == "-"


def row(
    name: str, variance: float, milliseconds: float = 1.0, unbiased: bool = True
) -> VarianceRow:
    return VarianceRow(name, 2, 2, 0, variance, 0.0, milliseconds, unbiased)


def test_ratio_to_a_variance_of_zero() -> None:
    rows = (row("a", 0.0), row("b", 0.0), row("c", 0.5))
    lines = str(VarianceTable(rows, "enumeration", 5.0)).splitlines()
    assert [line.split()[7] for line in lines[1:4]] == ["1.000*", "1.000*", "inf"]


def test_the_lowest_of_each_kind_is_marked() -> None:
    rows = (row("a", 1.0, 8.0), row("b", 2.0, 2.0), row("c", 0.5, 0.1, unbiased=False))
    cells = [
        line.split() for line in str(VarianceTable(rows, "enumeration", 5.0)).splitlines()[1:4]
    ]
    assert [line[7] for line in cells[:2]] == ["1.000*", "2.000"]
    assert [line[-2:] for line in cells[:2]] == [["8", "2.000"], ["4", "1.000*"]]
    assert cells[2][-1] == "0.013"


def test_it_fits_a_terminal_and_loses_no_name() -> None:
    names = ["loorf", "ARMS(OwnCouplingOfAVeryLongName(strength=0.123456789)) #1", "x" * 60]
    rows = tuple(
        VarianceRow(
            name, 10**4, 65536, 65536, 1.2345e-105, 12345.678, 123456.789, False, True, 1.0, 0.5
        )
        for name in names
    )
    reasons = {
        **{f"estimator-{i}": "another target" for i in range(30)},
        "exact": "enumeration of all states",
    }
    text = str(VarianceTable(rows, "other draws of loorf", 5.0, 10**6, reasons))
    assert max(map(len, text.splitlines())) <= 100
    for name in (*names, *reasons):
        assert name in text


def test_notebooks_show_the_same_figures() -> None:
    table = arms.variance(quadratic, torch.zeros(3), ["loorf", Through(8)], repeats=2)
    page = table._repr_html_()
    assert page.count("<tr>") == 3
    assert "<th>derivs</th><th>variance</th>" in page
    assert f"<td>loorf</td><td>8</td><td>8</td><td>0</td><td>{table.rows[0].variance:.4g}" in page
    assert "<td>Through (biased)</td><td>8</td><td>8</td><td>8</td>" in page
    assert "against enumeration" in page
    hostile = VarianceTable((row("<b>", 1.0),), "<i>", 5.0, left_out={"a": "<u>"})._repr_html_()
    assert not any(tag in hostile for tag in ("<b>", "<i>", "<u>"))


def test_named_ones_with_parameters_are_untrained() -> None:
    table = arms.variance(quadratic, torch.zeros(3), ["rebar", REBAR(8), "loorf"], repeats=2)
    assert {row.title for row in table.rows} == {"rebar (untrained)", "REBAR", "loorf"}
    assert "rebar (untrained)" in str(table)


# --- Labels of objects --------------------------------------------------------------------------


class OwnCoupling(Systematic):
    __repr__ = object.__repr__


@dataclass(frozen=True)
class Fancy(LeaveOneOut):
    strength: float = 0.5
    rule: Callable[[Tensor], Tensor] = torch.sigmoid
    network: nn.Module = field(default_factory=lambda: nn.Linear(2, 2))
    scale: Tensor = field(default_factory=lambda: torch.ones(()))

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(())


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (LOORF(4), "LOORF"),
        (ARMS(4), "ARMS(Systematic())"),
        (ARMS(4, Dirichlet()), "ARMS(Dirichlet())"),
        (ARMS(4, OwnCoupling()), "ARMS(OwnCoupling())"),
        (DisARM(4), "DisARM"),
        (DisARM(4, correlation=-0.5), "DisARM(correlation=-0.5)"),
        (arms.OnBound(LOORF(2), 2), "OnBound(LOORF, bound_samples=2)"),
        (REBAR(4), "REBAR"),
        (arms.RELAX(4, control=arms.relax_control(3)), "RELAX(control=HiddenControl)"),
        (arms.RELAX(4, None), "RELAX(relaxation=None)"),
        (arms.ExtraSample(ARMS(4, Gaussian())), "ExtraSample(ARMS(Gaussian()))"),
        (
            arms.Stacked([LOORF(4), ARMS(4)], [1, 2]),
            "Stacked(inners=(LOORF, ARMS(Systematic())), widths=(1, 2))",
        ),
        (
            Fancy(Independent(4), 0.25, torch.tanh),
            "Fancy(strength=0.25, rule=tanh, network=Linear)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_labels_say_what_tells_objects_apart(one: arms.Estimator, expected: str) -> None:
    state = torch.get_rng_state()
    assert label(one) == expected
    assert torch.equal(state, torch.get_rng_state())


def test_labels_are_short() -> None:
    nested: arms.Estimator = ARMS(4)
    for _ in range(9):
        nested = arms.ExtraSample(nested)
    assert len(label(nested)) <= 60


def test_alike_objects_are_numbered() -> None:
    table = arms.variance(quadratic, torch.zeros(3), [LOORF(2), ARMS(4), LOORF(8)], repeats=50)
    numbers = {row.estimator: row.num_samples for row in table.rows}
    assert numbers == {"LOORF #1": 2, "ARMS(Systematic())": 4, "LOORF #2": 8}
