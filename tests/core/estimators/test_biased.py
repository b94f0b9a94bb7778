"""The biased baselines: exact means, objectives on which they are exact, published formulas."""

from collections.abc import Callable

import pytest
import torch
from enumeration import exact_mean
from instances import BIASED, parts
from seeds import seeded
from torch import Tensor

import arms
from arms import Bits, Estimator, GappedStraightThrough, GumbelSoftmax, ReinMax, StraightThrough
from arms.checks import exact_gradient, random_table, table_objective
from arms.designs import Draw
from arms.estimators.base import TensorObjective
from arms.latents import bits

PHI = torch.tensor([0.7, -1.3, 0.0], dtype=torch.float64)
LATENT = Bits(PHI)
P = torch.sigmoid(PHI)
V = P * (1 - P)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def error(estimator: Estimator, objective: TensorObjective, latent: Bits = LATENT) -> Tensor:
    """The exact bias, by enumeration."""
    return exact_mean(estimator, objective, latent) - exact_gradient(objective, latent)


def multilinear(b: Tensor) -> Tensor:
    return (1 + b * normal(3)).prod(-1) + b @ normal(3, seed=1)


def quadratic_in_each(b: Tensor) -> Tensor:
    return (1 + b * normal(3) + b.square() * normal(3, seed=1)).prod(-1)


# --- Exact means ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
def test_st_sigmoid_is_exact_where_the_objective_is_multilinear(n: int) -> None:
    assert error(StraightThrough(n, scaled=True), multilinear).abs().max() < 1e-14
    assert error(StraightThrough(n, scaled=True), quadratic_in_each).abs().max() > 1e-3


def test_bias_of_st_sigmoid_on_a_quadratic_form() -> None:
    """The derivative at one end of the step ignores only the curvature in the bit itself."""
    h = normal(3, 3)
    own = h.diagonal()
    assert (
        error(StraightThrough(1, scaled=True), lambda b: ((b @ h) * b).sum(-1))
        - V * own * (2 * P - 1)
    ).abs().max() < 1e-14


@pytest.mark.parametrize("n", [1, 2])
def test_reinmax_is_exact_where_the_objective_is_quadratic_in_each_bit(n: int) -> None:
    assert error(ReinMax(n), multilinear).abs().max() < 1e-14
    assert error(ReinMax(n), quadratic_in_each).abs().max() < 1e-14
    assert error(ReinMax(n, temperature=2.0), multilinear).abs().max() > 1e-2


def test_bias_of_reinmax_is_the_trapezoid_rules() -> None:
    """The derivatives of b^3 at both ends are 0 and 3, with mean 3/2; the step is 1."""
    assert (error(ReinMax(1), lambda b: b.pow(3).sum(-1)) - V / 2).abs().max() < 1e-15


def test_bias_of_st_is_the_missing_factor() -> None:
    weights = normal(3)
    assert (
        error(StraightThrough(1), lambda b: b @ weights) - weights * (1 - V)
    ).abs().max() < 1e-15


def test_bias_of_gapped_st_on_a_linear_objective() -> None:
    y = [torch.sigmoid((sign * PHI).clamp(min=1)) for sign in (-1, 1)]
    expected = (1 - P) * y[0] * (1 - y[0]) + P * y[1] * (1 - y[1]) - V
    assert (error(GappedStraightThrough(1), lambda b: b.sum(-1)) - expected).abs().max() < 1e-15
    assert expected.abs().max() > 1e-2


def draws_bits_alone(estimator: Estimator) -> bool:
    return not any(isinstance(part, GumbelSoftmax) for part in parts(estimator))


@pytest.mark.parametrize("one", [one for one in BIASED if draws_bits_alone(one)], ids=str)
def test_no_baseline_is_unbiased_on_a_curved_table(one: Estimator) -> None:
    curved = table_objective(2 * random_table(8, seeded(1)), LATENT)
    assert error(one, curved).abs().max() > 1e-2


def by_quadrature(
    estimator: GumbelSoftmax, objective: TensorObjective, phi: float, cells: int = 200_000
) -> float:
    """Return the mean over one latent's logistic noise.

    The midpoint rule is applied on either side of z = 0, where the bit jumps.
    """
    p = torch.sigmoid(torch.tensor(phi, dtype=torch.float64))
    u = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    z = phi + torch.cat([(1 - p) * u, 1 - p * u]).logit()
    weights = torch.cat([(1 - p).expand(cells), p.expand(cells)]) / cells
    z = z.view(1, -1, 1)
    relaxed = (z > 0).double() if estimator.hard else torch.sigmoid(z / estimator.temperature)
    latent = Bits(torch.full((2 * cells, 1), phi, dtype=torch.float64))
    points = relaxed.requires_grad_()
    (derivatives,) = torch.autograd.grad(objective(points).sum(), points)
    draw = Draw(latent, points.detach(), memory=z)
    grad = estimator.combine(draw, objective(points).detach(), derivatives)
    return float(weights @ grad.squeeze(-1))


def curve(b: Tensor) -> Tensor:
    return torch.sin(3 * b).sum(-1) + b.square().sum(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("phi", [-1.3, 0.0, 2.0])
def test_gumbel_softmax_is_the_gradient_of_the_relaxed_mean(phi: float, temperature: float) -> None:
    grid = torch.linspace(
        -60, 60, 120_001, dtype=torch.float64
    )  # of z; the density carries phi, and the gradient
    logit = torch.tensor(phi, dtype=torch.float64, requires_grad=True)
    density = torch.sigmoid(grid - logit) * torch.sigmoid(logit - grid)
    mean = torch.trapezoid(density * curve(torch.sigmoid(grid / temperature).unsqueeze(-1)), grid)
    (relaxed,) = torch.autograd.grad(mean, logit)
    assert by_quadrature(GumbelSoftmax(1, temperature), curve, phi) == pytest.approx(
        relaxed.item(), abs=1e-8
    )
    truth = exact_gradient(curve, torch.tensor([phi], dtype=torch.float64)).item()
    assert abs(relaxed.item() - truth) > 1e-2


def test_mean_of_st_gumbel() -> None:
    """At phi = 0 and tau = 1 the relaxed bit is uniform; its factor has mean 1/12 on each side."""
    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64, requires_grad=True)
    (at_ends,) = torch.autograd.grad(curve(ends).sum(), ends)
    found = by_quadrature(GumbelSoftmax(1, 1.0, hard=True), curve, 0.0)
    assert found == pytest.approx(at_ends.sum().item() / 12, abs=1e-9)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("phi", [-1.3, 0.0, 2.0])
def test_draws_have_the_mean_of_the_quadrature(hard: bool, phi: float) -> None:
    draws = 200_000
    estimator = GumbelSoftmax(1, hard=hard)
    grads = estimator(curve, torch.full((draws, 1), phi, dtype=torch.float64), seeded()).grad
    score = (grads.mean() - by_quadrature(estimator, curve, phi)) / (grads.std() / draws**0.5)
    assert abs(score) < 5.5  # once in 2e7


# --- The published formulas -----------------------------------------------------------------------


def moved_softmax(logits: Tensor, chosen: int, gap: float, temperature: float) -> Tensor:
    """Raise the chosen logit to the largest, and lower the others to a gap below it."""
    fixed = logits.detach()
    largest = fixed.max()
    moves = [
        largest - one if k == chosen else -(one + gap - largest).clamp(min=0)
        for k, one in enumerate(fixed)
    ]
    return torch.softmax((logits + torch.stack(moves)) / temperature, -1)


def factor(estimator: Estimator, latent: Bits, point: Tensor) -> Tensor:
    """Return the estimate for a derivative of one at a single sample `[1, d]`."""
    draw = Draw(latent, point)
    return estimator.combine(draw, torch.zeros(1, dtype=point.dtype), torch.ones_like(point))


@pytest.mark.parametrize("bit", [0, 1])
@pytest.mark.parametrize("phi", [-2.5, -0.4, 0.0, 0.4, 2.5])
def test_gapped_st_is_that_of_two_categories(phi: float, bit: int) -> None:
    for temperature, gap in ((1.0, 1.0), (0.5, 0.3)):
        logit = torch.tensor(phi, dtype=torch.float64, requires_grad=True)
        soft = moved_softmax(torch.stack([torch.zeros_like(logit), logit]), bit, gap, temperature)
        (expected,) = torch.autograd.grad(soft[1], logit)
        estimator = GappedStraightThrough(1, temperature, gap)
        point = torch.tensor([[float(bit)]], dtype=torch.float64)
        found = factor(estimator, Bits(logit.detach().view(1)), point)
        torch.testing.assert_close(found.squeeze(), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("bit", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_reinmax_is_that_of_two_categories(temperature: float, bit: float) -> None:
    point = torch.full_like(PHI, bit)
    q = (torch.sigmoid(PHI / temperature) + point) / 2
    found = factor(ReinMax(1, temperature), LATENT, point.unsqueeze(0))
    torch.testing.assert_close(found, 2 * q * (1 - q) - V / 2, rtol=1e-12, atol=1e-15)
    if temperature == 1.0:
        torch.testing.assert_close(found, (point - P).abs() / 2, rtol=1e-14, atol=0)


# --- What is drawn --------------------------------------------------------------------------------


def test_gumbel_softmax_has_relaxed_points_where_others_have_samples() -> None:
    logits = torch.zeros(500, 3, dtype=torch.float64)
    draw = arms.draw(logits, GumbelSoftmax(4), generator=seeded())
    assert ((draw.samples > 0) & (draw.samples < 1)).all()
    found = GumbelSoftmax(4)(lambda b: b.sum(-1), logits, seeded())
    torch.testing.assert_close(found.values, draw.samples.sum(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hard", [False, True])
def test_the_rarest_uniform_changes_no_certain_bit(
    hard: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for noise in (0.0, 1 - torch.finfo(dtype).eps / 2):
        monkeypatch.setattr(
            bits, "uniform", lambda n, like, _, u=noise: like.new_full((n, *like.shape), u)
        )
        certain = torch.tensor([200.0, torch.inf, -200.0, -torch.inf], dtype=dtype)
        latent = Bits(certain if dtype == torch.float32 else 5 * certain)
        draw = GumbelSoftmax(1, hard=hard).design.draw(latent, None)
        assert draw.points.flatten().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: GumbelSoftmax(2, temperature=0.0),
            r"temperature must be a positive, finite number, got 0\.0",
        ),
        (
            lambda: GumbelSoftmax(2, temperature=-1.0, hard=True),
            r"temperature must be a positive, finite number, got -1\.0",
        ),
        (
            lambda: ReinMax(2, temperature=torch.inf),
            r"temperature must be a positive, finite number, got inf",
        ),
        (
            lambda: ReinMax(2, temperature="warm"),  # type: ignore[arg-type]
            r"temperature must be a positive, finite number, got 'warm'",
        ),
        (lambda: GappedStraightThrough(2, gap=0), r"gap must be a positive, finite number, got 0"),
        (lambda: GumbelSoftmax(0), r"num_samples of GumbelSoftmax must be an integer >= 1, got 0"),
        (
            lambda: arms.as_estimator("straight"),
            r"choose one of .*arms.*, or one of the biased estimators st, st-sigmoid, .*reinmax",
        ),
    ],
)
def test_errors_that_help(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
