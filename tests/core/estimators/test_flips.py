"""Flips: exact expectations with coefficients from other rows, the choice of flips, and errors."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sabotage import ChainedCoefficients, NoLawAtInfinity, with_design
from seeds import seeded
from torch import Generator, Tensor

import arms
from arms import Bits, Estimator, Flips, FlipsOnBound, Indices, Joint, Latent, OneHot, Subset
from arms.checks.oracle import exact_target_gradient, smooth_objective
from arms.designs import Dirichlet, Draw, WithFlips
from arms.estimate import draw_points
from arms.estimators.base import TensorObjective
from arms.estimators.regression import fit_two_controls
from arms.latents import Neighbors
from arms.layers import reason_not_first_layer
from arms.objective import Options, evaluate

INF = math.inf


def wide(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


TWO_ROWS: dict[str, Neighbors] = {
    "bits": Bits(wide((0.4, -0.8), (1.2, 0.3))),
    "far": Bits(wide((4.0, -6.0), (0.1, 2.0))),
    "infinite": Bits(wide((INF, 0.7), (-0.5, 1.1))),
    "categories": OneHot(wide(((0.0, 0.5, -0.5),), ((1.0, -INF, -1.0),))),
    "joint": Joint(mask=wide((0.4,), (-1.0,)), action=OneHot(wide(((0.3, -0.5),), ((0.1, 1.0),)))),
}


def expected_of_two_rows(estimator: Estimator, objective: TensorObjective, both: Latent) -> Tensor:
    """Return the exact mean `[2, *event]`, over all pairs of outcomes of two rows."""
    design = estimator.design
    assert isinstance(design, WithFlips)
    assert isinstance(both, Neighbors)
    distribution, rows = design.distribution(both), []
    for index, logits in enumerate(both.logits):
        found = design.outcomes_of_row(both.with_logits(logits), distribution[index])
        assert found is not None
        draw, chance = found
        kept = chance > 0
        rows.append((draw.points[:, kept], draw.memory[:, kept], chance[kept]))
    first, second = torch.cartesian_prod(*(torch.arange(len(chance)) for _, _, chance in rows)).T
    points, memory = (
        torch.cat([rows[0][part][:, first], rows[1][part][:, second]], 2) for part in (0, 1)
    )
    chance = rows[0][2][first] * rows[1][2][second]
    draw = Draw(both.expand(len(chance)), points, extra=design.flips, memory=memory)
    options = Options(checks="cheap")
    values, derivatives, _ = evaluate(estimator, objective, draw, options)
    grad = estimator.combine(draw, values.detach(), derivatives)
    return (chance.view(-1, *[1] * both.logits.ndim) * grad).sum(0)


def bias_of_two_rows(estimator: Estimator, both: Latent) -> float:
    objective = smooth_objective(both.with_logits(both.logits[0]), seeded(3))
    truth = torch.stack(
        [
            exact_target_gradient(objective, both.with_logits(one), estimator.target)
            for one in both.logits
        ]
    )
    return (expected_of_two_rows(estimator, objective, both) - truth).abs().max().item()


@pytest.mark.parametrize("kind", TWO_ROWS)
@pytest.mark.parametrize(
    "estimator",
    [
        Flips(2, safe=False),
        Flips(2, safe=True),
        Flips(1, safe=True),
        Flips(2, flips=2, safe=True),
        Flips(2, safe=True, coupling=None),
        Flips(2, safe=True, coupling=Dirichlet()),
        FlipsOnBound(2),
        FlipsOnBound(1, 2),
    ],
    ids=str,
)
def test_exact_with_what_two_rows_learn_from_each_other(estimator: Estimator, kind: str) -> None:
    assert bias_of_two_rows(estimator, TWO_ROWS[kind]) < 1e-12


def test_three_bound_samples_with_the_curvature_of_another_row() -> None:
    assert bias_of_two_rows(FlipsOnBound(3), Bits(wide((0.4,), (1.2,)))) < 1e-12


@pytest.mark.parametrize("estimator", [Flips(2), FlipsOnBound(2)], ids=str)
def test_no_batch_is_a_batch_of_one_row(estimator: Estimator) -> None:
    """Coefficients from other rows must not depend on this row."""
    logits, objective = torch.tensor([0.4, -0.8, 1.2]), network(3, torch.tanh)
    alone, row = (estimator(objective, one, seeded()).grad for one in (logits, logits[None]))
    torch.testing.assert_close(alone, row[0])


@pytest.mark.parametrize(
    ("sabotaged", "kind"),
    [
        (ChainedCoefficients(2, flips=1), "bits"),
        (with_design(Flips(2), NoLawAtInfinity), "infinite"),
        (with_design(FlipsOnBound(2), NoLawAtInfinity), "infinite"),
    ],
    ids=str,
)
def test_enumeration_of_two_rows_catches_sabotage(sabotaged: Estimator, kind: str) -> None:
    assert bias_of_two_rows(sabotaged, TWO_ROWS[kind]) > 1e-4


def test_the_safe_form_is_for_eight_rows_and_more() -> None:
    objective = network(6, torch.relu)
    for rows, safe in ((7, False), (8, True)):
        logits = torch.randn(rows, 6, generator=seeded(), dtype=torch.float64)
        estimators = [Flips(4, safe=one) for one in (None, safe, not safe)]
        default, same, other = (one(objective, logits, seeded()).grad for one in estimators)
        assert torch.equal(default, same)
        assert not torch.allclose(default, other)


# --- What is flipped ------------------------------------------------------------------------------


def law_of(latent: Neighbors) -> Tensor:
    distribution = WithFlips(4).distribution(latent).double()
    return distribution / distribution.sum(-1, keepdim=True)


def test_one_row_is_flipped_where_its_bits_are_undecided() -> None:
    phi = wide((0.0, 2.0, -30.0, INF))
    distribution = law_of(Bits(phi))
    v = torch.sigmoid(phi) * torch.sigmoid(-phi)
    torch.testing.assert_close(distribution, v / v.sum())
    torch.testing.assert_close(law_of(Bits(phi[0])), distribution[0])


def test_the_batch_decides_what_is_flipped() -> None:
    """A latent with varying logits is flipped most, and every latent has at least 0.23 of its share."""
    phi = torch.tensor([0.1, 0.1, 3.0]) * torch.randn(50, 3, generator=seeded())
    own, distribution = (law_of(Bits(one)) for one in (phi.unsqueeze(1), phi))
    ratio = distribution / own.squeeze(1)
    assert (ratio[:, 2] > 2 * ratio[:, 0]).all()
    assert ratio.min() > 0.23
    assert (distribution.sum(-1) - 1).abs().max() < 1e-12


def test_two_categories_in_one_row_are_flipped_as_bits_are() -> None:
    phi = torch.randn(5, generator=seeded(), dtype=torch.float64)
    categories = OneHot(torch.stack([torch.zeros_like(phi), phi], -1))
    torch.testing.assert_close(law_of(Bits(phi)), law_of(categories))


@pytest.mark.parametrize("kind", [Bits, OneHot])
def test_a_flip_changes_one_variable(kind: type[Latent]) -> None:
    """Also for 100,000 latents in float32, whose cumulative sum is too coarse for a single latent."""
    logits = torch.randn(2, 50_000, 2 if kind is OneHot else 1, generator=seeded())
    latent = OneHot(logits) if kind is OneHot else Bits(logits.squeeze(-1).repeat(1, 2))
    draw = draw_points(Flips(4), latent, seeded())
    changed = (draw.points[4:] != draw.points[:2]).flatten(2).sum(-1)
    assert (changed == (2 if kind is OneHot else 1)).all()


def test_two_comparisons_with_a_float32_sum_choose_none_or_two() -> None:
    """An error that `WithFlips` must avoid: intervals overlap or have gaps at their edges."""
    weights = torch.rand(100_000, generator=seeded())
    total = weights.cumsum(0)
    at = total[:-1:200].unsqueeze(-1)
    chosen = ((at >= total - weights) & (at < total)).sum(-1)
    assert (chosen != 1).any()


def test_flips_follow_their_law() -> None:
    phi = torch.tensor([0.5, -2.0, 1.0, INF])
    latent, m = Bits(phi.expand(40_000, 1, 4)), 2
    draw = draw_points(Flips(4, flips=m), latent, seeded())
    changed = (draw.points[4:] != draw.points[:m]).double().mean((0, 1)).squeeze(0)
    distribution = law_of(Bits(phi))
    error = (distribution * (1 - distribution) / 40_000).sqrt().clamp(min=1e-9)
    assert ((changed - distribution).abs() / error).max() < 5


def test_nothing_is_flipped_where_all_is_certain() -> None:
    for latent in (Bits(torch.tensor([[INF, -INF]])), OneHot(torch.tensor([[[0.0, -INF]]]))):
        draw = draw_points(Flips(2), latent, seeded())
        assert torch.equal(draw.points[2], draw.points[0])
        found = Flips(2)(lambda b: b.flatten(2).sum(-1).exp(), latent, seeded())
        assert (found.grad == 0).all()


def test_a_budget_is_split_two_to_one() -> None:
    for evaluations, n, m in ((2, 1, 1), (3, 2, 1), (6, 4, 2), (7, 5, 2), (15, 10, 5)):
        found = arms.as_estimator("flips", evaluations=evaluations)
        assert found == Flips(n, flips=m)
        assert found.design.needs.evaluations == evaluations
    assert arms.as_estimator("flips", evaluations=8, flips=3) == Flips(5, flips=3)


# --- Variance -------------------------------------------------------------------------------------


def network(d: int, unit: Any, steepness: float = 1.0) -> TensorObjective:
    inner = torch.randn(d, 20, generator=seeded(), dtype=torch.float64) * steepness / d**0.5
    outer = torch.randn(20, generator=seeded(1), dtype=torch.float64)
    return lambda b: unit(b.double() @ inner + 0.5) @ outer


def total_variance(estimator: Estimator, objective: TensorObjective, logits: Tensor) -> float:
    """The variance over 100 draws, each with a separate batch of rows."""
    with torch.no_grad():
        found = estimator(objective, logits.expand(100, *logits.shape), seeded()).grad
    return float(found.var(0).sum())


def test_smooth_objectives_have_a_fraction_of_the_variance_of_midpoints() -> None:
    logits = torch.randn(16, 50, generator=seeded(), dtype=torch.float64)
    flips = total_variance(Flips(4), network(50, torch.tanh), logits)
    midpoint = total_variance(arms.Midpoint(4), network(50, torch.tanh), logits)
    assert flips < midpoint / 3


@pytest.mark.parametrize(
    "objective",
    [lambda b: network(12, torch.tanh)(b**10), network(12, torch.tanh, 20.0)],
    ids=["nothing between 0 and 1", "steep"],
)
def test_where_derivatives_mislead_the_safe_form_falls_back_on_values(
    objective: TensorObjective,
) -> None:
    logits = torch.randn(64, 12, generator=seeded(), dtype=torch.float64)
    loorf = total_variance(arms.LOORF(6), objective, logits)
    assert total_variance(Flips(4), objective, logits) < 1.4 * loorf
    assert total_variance(Flips(4, safe=False), objective, logits) > 3 * loorf


def test_eight_rows_in_which_few_flips_say_anything() -> None:
    """Rows with estimate 0, whose flips had no effect, must not count as rows without variance."""
    table = torch.randn(2**8, generator=seeded(), dtype=torch.float64)
    powers = 2 ** torch.arange(8, dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        return table[(b[..., :8].detach() @ powers).round().long()] + 0 * b.sum(-1)

    logits = torch.randn(8, 50, generator=seeded(1), dtype=torch.float64)
    batch = logits.expand(400, 8, 50)
    with torch.no_grad():
        flips, loorf = (
            float(one(objective, batch, seeded()).grad.var(0).sum())
            for one in (Flips(4), arms.LOORF(6))
        )
    assert flips < 2.2 * loorf


# --- What is refused ------------------------------------------------------------------------------


def test_rows_that_found_nothing_leave_the_choice_to_values() -> None:
    latent, nothing, values = Bits(torch.zeros(8, 3)), torch.zeros(8, 3), torch.ones(8, 3)
    estimate = nothing.clone()
    estimate[0] = 1.0  # all other rows see this, and it sees rows of zero only
    one, other = fit_two_controls(latent, estimate, nothing, estimate - values / 2)
    assert not one.any()
    assert 0.9 < other[0] < 1
    assert (other[1:] > 1.5).all()


def test_a_black_box_is_refused_with_advice() -> None:
    def black_box(b: Tensor) -> Any:
        return np.asarray(b.detach()).sum(-1)

    with pytest.raises(ValueError, match=r"Flips needs the derivative df/db.*or use arms"):
        Flips(2)(black_box, torch.zeros(3))


def test_category_indices_are_refused_with_advice() -> None:
    with pytest.raises(
        ValueError, match="pass a OneHotCategorical instead of a Categorical, or use arms or loorf"
    ):
        Flips(2)(lambda b: b.double().sum(-1), Indices(torch.zeros(3, 2)))


def test_subsets_have_no_neighbors() -> None:
    with pytest.raises(ValueError, match=r"needs a latent with the capability Neighbors.*loorf"):
        Flips(2)(lambda b: b.sum(-1), Subset(torch.zeros(3), k=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_in_half_precision_are_warned_of(dtype: torch.dtype) -> None:
    def objective(b: Tensor) -> Tensor:
        return b.sum(-1).to(dtype)

    for estimator in (Flips(2), FlipsOnBound(2), arms.ExtraSample(Flips(2))):
        with pytest.warns(
            UserWarning, match=r"sum in float32 inside the objective, as in terms.float\(\).sum"
        ):
            estimator(objective, torch.zeros(3), seeded())


@pytest.mark.parametrize("options", [{"flips": 0}, {"flips": 1.5}, {"num_samples": 0}, {"safe": 3}])
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Flips(**{"num_samples": 4, **options})


def test_flips_do_not_serve_the_first_of_several_layers() -> None:
    for estimator in (Flips(4), arms.ExtraSample(Flips(4))):
        assert "not samples" in reason_not_first_layer(estimator)
    assert not reason_not_first_layer(arms.Midpoint(4))


def test_a_row_of_nan_spoils_no_other() -> None:
    logits = torch.randn(10, 4, generator=seeded())
    logits[3] = torch.nan

    def objective(b: Tensor) -> Tensor:
        return b.sum(-1).square()

    found = Flips(4)(objective, logits, Generator().manual_seed(0), validate=False).grad
    assert found[3].isnan().all()
    assert found[[0, 1, 2, *range(4, 10)]].isfinite().all()
