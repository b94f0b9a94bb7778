"""Control variates of independent samples: double-cv, its fitted coefficient, and RODEO."""

import math

import pytest
import torch
from instances import Wild
from seeds import seeded
from torch import Tensor

import arms
from arms import LOORF, RODEO, Bits, DoubleCV, Estimator, SteinControl
from arms.checks import exact_gradient, random_table, table_objective
from arms.designs import Draw
from arms.estimate import gradient
from arms.estimators.derivative.double_cv import linear_control
from arms.estimators.regression import PSEUDO_ROWS, subtract_fitted_control
from arms.latents import HasMean
from arms.objective import Options, evaluate

ROWS = torch.tensor([[0.4, -1.3], [1.1, 0.2]], dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# --- The coefficient of other rows, exactly -------------------------------------------------------


class SeesItsOwnRow(DoubleCV):
    """The coefficient from all rows, its own included."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert isinstance(draw.latent, HasMean)
        estimate = LOORF(self.num_samples).combine(draw, values)
        control = linear_control(draw.latent, draw.points, derivatives)
        along, square = ((one * control).sum((-1, -2), keepdim=True) for one in (estimate, control))
        return estimate - torch.where(square > 0, along / square, 0.0) * control


def mean_over_both_rows(estimator: Estimator, phi: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact mean over all joint draws of two rows, and the two gradients `[2, d]`.

    Each row has a table of its own.
    """
    d = phi.shape[-1]
    tables = [table_objective(2 * random_table(2**d, seeded(row))) for row in range(2)]
    outcomes = estimator.design.outcomes(Bits(phi.flatten()))  # both rows side by side
    assert outcomes is not None
    points, weights = outcomes[0].points.unflatten(-1, (2, d)).squeeze(2), outcomes[1]
    draw = Draw(Bits(phi.expand(len(weights), 2, d)), points)

    def objective(b: Tensor) -> Tensor:
        return torch.stack([table(b[..., row, :]) for row, table in enumerate(tables)], -1)

    found = gradient(estimator, draw, evaluate(estimator, objective, draw, Options()))
    truth = torch.stack(
        [exact_gradient(table, one) for table, one in zip(tables, phi, strict=True)]
    )
    return (weights.view(-1, 1, 1) * found).sum(0), truth


@pytest.mark.parametrize(("d", "n"), [(1, 2), (1, 3), (1, 4), (2, 2)])
def test_a_coefficient_from_other_rows_is_exactly_unbiased(d: int, n: int) -> None:
    found, truth = mean_over_both_rows(DoubleCV(n, coefficient=0.3), ROWS[:, :d])
    assert (found - truth).abs().max() < 1e-12


@pytest.mark.parametrize(("d", "n"), [(1, 2), (2, 2)])
def test_a_coefficient_that_sees_its_own_row_is_caught(d: int, n: int) -> None:
    found, truth = mean_over_both_rows(SeesItsOwnRow(n), ROWS[:, :d])
    assert (found - truth).abs().max() > 1e-3


# --- The coefficient itself -----------------------------------------------------------------------


def test_the_coefficient_is_that_of_the_formula() -> None:
    estimate, control, prior = normal(3, 5, 4), normal(3, 5, 4, seed=1), 0.7
    found = subtract_fitted_control(Bits(torch.zeros(3, 5, 4)), estimate, control, prior)
    for replica in range(3):
        for row in range(5):
            others = [other for other in range(5) if other != row]
            along = (estimate * control)[replica, others].sum()
            square = control.square()[replica, others].sum()
            pseudo = PSEUDO_ROWS * square / len(others)
            alpha = (along + prior * pseudo) / (square + pseudo)
            torch.testing.assert_close(
                found[replica, row], (estimate - alpha * control)[replica, row]
            )


@pytest.mark.parametrize("batch", [(), (1,), (3, 1)])
def test_without_other_rows_the_coefficient_is_the_prior(batch: tuple[int, ...]) -> None:
    estimate, control = normal(*batch, 4), normal(*batch, 4, seed=1)
    found = subtract_fitted_control(Bits(torch.zeros(*batch, 4)), estimate, control, 0.7)
    torch.testing.assert_close(found, estimate - 0.7 * control)


def test_where_the_control_is_zero_in_all_other_rows_the_coefficient_is_the_prior() -> None:
    estimate, control = normal(3, 4), normal(3, 4, seed=1)
    control[1:] = 0
    found = subtract_fitted_control(Bits(torch.zeros(3, 4)), estimate, control, 0.7)
    torch.testing.assert_close(found, estimate - 0.7 * control)


def test_a_lost_row_does_not_take_the_others_with_it() -> None:
    estimate, control = normal(3, 4), normal(3, 4, seed=1)
    estimate[1] = torch.nan
    found = subtract_fitted_control(Bits(torch.zeros(3, 4)), estimate, control, 0.7)
    assert found.isnan().any(-1).tolist() == [False, True, False]


def test_replicas_do_not_see_each_other() -> None:
    estimate, control = normal(3, 5, 4), normal(3, 5, 4, seed=1)
    latent = Bits(torch.zeros(3, 5, 4))
    before = subtract_fitted_control(latent, estimate, control, 1.0)
    estimate[0] *= 100
    after = subtract_fitted_control(latent, estimate, control, 1.0)
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[0], after[0])


def test_half_precision_is_widened() -> None:
    estimate, control = normal(5, 4).bfloat16(), normal(5, 4, seed=1).bfloat16()
    assert (
        subtract_fitted_control(Bits(torch.zeros(5, 4)), estimate, control, 1.0).dtype
        == torch.float32
    )


# --- What it is good for --------------------------------------------------------------------------


def smooth(b: Tensor) -> Tensor:
    weights = torch.linspace(-1, 2, b.shape[-1], dtype=b.dtype)
    return torch.nn.functional.softplus(b @ weights) * 3 + (b @ weights.flip(0)).sin()


def total_variance(estimator: Estimator, draws: int = 4000) -> float:
    latent = Bits(torch.linspace(-1.5, 1.5, 12, dtype=torch.float64).expand(draws, 12))
    return float(estimator(smooth, latent, seeded()).grad.detach().var(0).sum())


@pytest.mark.parametrize("n", [2, 4])
def test_double_cv_has_less_variance_than_loorf_on_a_smooth_objective(n: int) -> None:
    assert total_variance(DoubleCV(n)) < 0.6 * total_variance(LOORF(n))


def test_useless_derivatives_cost_next_to_nothing_among_many_rows() -> None:
    """If derivatives say nothing about differences, the fitted coefficient is close to zero."""
    latent = Bits(torch.zeros(4000, 6, dtype=torch.float64))

    def misleading(b: Tensor) -> Tensor:
        wave = (2 * math.pi * b).sin().sum(-1) / 10  # zero at the bits; its derivative is not
        return b.prod(-1) + wave

    plain, controlled = (
        one(misleading, latent, seeded()).grad.var(0).sum() for one in (LOORF(4), DoubleCV(4))
    )
    alone = Bits(latent.logits.unsqueeze(1))
    assert controlled < 1.02 * plain
    assert DoubleCV(4)(misleading, alone, seeded()).grad.var(0).sum() > 2 * plain


# --- RODEO ----------------------------------------------------------------------------------------


def test_rodeo_starts_as_loorf() -> None:
    latent = Bits(torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4))
    one, other = (estimator(smooth, latent, seeded()).grad for estimator in (RODEO(3), LOORF(3)))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def by_definition(
    control: Wild, samples: Tensor, p: Tensor, values: Tensor, derivatives: Tensor
) -> Tensor:
    """RODEO of samples [n, d], every flipped point built as such."""
    n, d = samples.shape

    def h(x: Tensor, i: int) -> Tensor:
        others = [j for j in range(n) if j != i]
        said = [
            control((derivatives[j] @ (x - samples[j])).view(1), values[j].view(1)) for j in others
        ]
        return torch.cat(said).mean(0)

    def stein(i: int) -> tuple[Tensor, Tensor]:
        x, scalar, vector = samples[i], torch.zeros((), dtype=p.dtype), torch.zeros_like(p)
        for k in range(d):
            flipped = x.clone()
            flipped[k] = 1 - x[k]
            weight = (x[k] - p[k]).abs() / d
            scalar = scalar + weight * (h(flipped, i)[0] - h(x, i)[0])
            vector = vector + weight * (h(flipped, i)[1] * (flipped - p) - h(x, i)[1] * (x - p))
        return scalar, vector

    scalars, vectors = zip(*(stein(i) for i in range(n)), strict=True)
    corrected = values + torch.stack(scalars)
    baseline = (corrected.sum() - corrected) / (n - 1)
    return ((values - baseline).unsqueeze(-1) * (samples - p)).mean(0) + torch.stack(vectors).mean(
        0
    )


@pytest.mark.parametrize("n", [2, 4])
def test_rodeo_is_its_definition(n: int) -> None:
    phi = torch.tensor([0.4, -1.3, 0.9], dtype=torch.float64)
    estimator, latent = RODEO(n, control=Wild()), Bits(phi)
    draw = estimator.design.draw(latent, seeded(1))
    found = evaluate(estimator, table_objective(random_table(8, seeded())), draw, Options())
    assert found.derivatives is not None
    values, derivatives = found.values.detach(), found.derivatives.detach()
    expected = by_definition(Wild(), draw.points, torch.sigmoid(phi), values, derivatives)
    torch.testing.assert_close(
        estimator.combine(draw, values, derivatives), expected, rtol=0, atol=1e-13
    )


def test_rodeo_learns() -> None:
    estimator = RODEO(4)
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.01)
    logits, generator = torch.linspace(-1.5, 1.5, 12).expand(100, 12), seeded(3)
    for _ in range(150):
        optimizer.zero_grad()
        arms.variance_loss(estimator(smooth, logits, generator)).backward()
        optimizer.step()
    assert total_variance(estimator) < 0.7 * total_variance(LOORF(4))


def test_replicas_of_rodeo_learn_apart() -> None:
    estimator = RODEO(3, SteinControl(5)).prepare(
        torch.Size([4, 7, 3]), torch.Size([4, 7, 2]), seeded()
    )
    assert all(len(parameter) == 4 for parameter in estimator.parameters())
    assert isinstance(estimator.control, SteinControl)
    assert estimator.control.hidden == 5
    torch.nn.init.ones_(estimator.control.scales)
    found = estimator(smooth, torch.linspace(-1, 1, 84).view(4, 7, 3), seeded())
    per_replica = found.grad.square().sum(-1).mean(-1)
    for grad in torch.autograd.grad(per_replica[2], list(estimator.parameters())):
        assert (grad[2] != 0).any()
        assert (grad[[0, 1, 3]] == 0).all()
