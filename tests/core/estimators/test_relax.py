"""REBAR and RELAX: the exact mean by quadrature, the conditional draw, parameters, errors."""

from collections.abc import Callable

import pytest
import torch
from instances import RELAXED, Wave
from seeds import seeded
from torch import Tensor, nn

import arms
from arms.checks import exact_gradient, random_table, table_objective
from arms.designs.pairs import latent_points
from arms.estimators import (
    ALL_ESTIMATORS,
    REBAR,
    RELAX,
    Estimator,
    Relaxation,
    relax_control,
    variance_loss,
)
from arms.estimators.base import Learnable
from arms.estimators.derivative.relax import AdditiveControl, combine_relaxed
from arms.latents import Bits


def quadratic(b: Tensor) -> Tensor:
    return (b * torch.arange(1, b.shape[-1] + 1, dtype=b.dtype)).sum(-1).square() / 5


@pytest.mark.parametrize("phi", [-3.0, -1.1, 0.0, 2.3])
def test_expected_gradient_of_one_latent_by_quadrature(phi: float) -> None:
    """The expectation over the bit is a sum, over the noise of z and z~ a trapezoid rule.

    The integrand is analytic, so the rule converges fast.
    """
    logits = torch.tensor([phi], dtype=torch.float64)
    noise = torch.linspace(-45, 45, 3601, dtype=torch.float64)
    weights = (
        noise.sigmoid() * (-noise).sigmoid() * (noise[1] - noise[0]) * len(noise)
    )  # combine takes the mean
    f, relaxation = (
        table_objective(torch.tensor([0.4, 2.0], dtype=torch.float64)),
        Relaxation(0.8, 1.3).double(),
    )
    total = torch.zeros(1, dtype=torch.float64)
    for bit in (0.0, 1.0):
        samples = torch.full((len(noise), 1), bit, dtype=torch.float64)
        z, path = latent_points(logits, samples, noise.view(-1, 1).expand(2, -1, 1))
        z.requires_grad_()
        control = relaxation.scale * f(relaxation(z)) + torch.sin(z).sum(-1)
        (derivative,) = torch.autograd.grad(control.sum(), z)
        weighted = (
            weights.repeat(2) * control.detach(),
            weights.repeat(2).unsqueeze(-1) * derivative,
        )
        grad = combine_relaxed(logits, samples, weights * f(samples), *weighted, path)
        total = total + torch.sigmoid(logits if bit else -logits) * grad
    assert (total - exact_gradient(f, logits)).abs().max() < 1e-12


# --- The draw -----------------------------------------------------------------------------------


def test_conditional_draw_is_the_textbook_one() -> None:
    """Given b, u is uniform above or below 1 - p, and z = phi + logit(u)."""
    phi = torch.linspace(-4, 4, 9, dtype=torch.float64).requires_grad_()
    v = torch.rand(9, generator=seeded(), dtype=torch.float64)
    p = phi.sigmoid()
    for bit, u, noise in ((1.0, (1 - p) + v * p, v.logit()), (0.0, v * (1 - p), (1 - v).logit())):
        expected = phi + u.logit()
        z, path = latent_points(
            phi.detach(), torch.full((1, 9), bit, dtype=torch.float64), noise.expand(2, 1, 9)
        )
        torch.testing.assert_close(z[0], expected.detach(), rtol=0, atol=1e-12)
        (derivative,) = torch.autograd.grad(expected.sum(), phi, retain_graph=True)
        torch.testing.assert_close(path[0], derivative, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_are_finite_and_on_their_side_at_any_logit(dtype: torch.dtype) -> None:
    far = torch.tensor([0.0, 1.0, 20.0, 90.0, 200.0, torch.inf], dtype=dtype)
    logits = torch.cat([far, -far])
    noise = (
        torch.tensor([-torch.inf, -30.0, -1.0, 0.0, 15.0, 36.0], dtype=dtype)
        .view(-1, 1)
        .expand(2, 6, 12)
    )
    for bit in (0.0, 1.0):
        z, path = latent_points(logits, torch.full((6, 12), bit, dtype=dtype), noise)
        assert z.isfinite().all()
        assert ((z >= 0) if bit else (z <= 0)).all()
        assert ((path >= 0) & (path <= 1)).all()


@pytest.mark.parametrize("name", [name for name in RELAXED if name.endswith("n = 4")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_certain_latents_have_no_gradient(name: str, dtype: torch.dtype) -> None:
    estimator = RELAXED[name]
    logits = torch.tensor([0.5, 200.0, -torch.inf, torch.inf], dtype=dtype).expand(500, 4)
    grad = estimator(quadratic, logits, seeded()).grad
    assert grad.isfinite().all()
    assert (grad[:, 1:] == 0).all()
    assert (grad[:, 0] != 0).any()
    loss = variance_loss(arms.Estimate(grad, grad[..., 0], grad))
    assert all(
        part.isfinite().all() for part in torch.autograd.grad(loss, list(estimator.parameters()))
    )


# --- Parameters ---------------------------------------------------------------------------------


def test_estimate_reaches_its_own_parameters_and_nothing_else() -> None:
    estimator = RELAX(4, control=relax_control(3))
    logits, weights = torch.zeros(5, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    estimate = estimator(lambda b: (b @ weights).square() - (b * logits).sum(-1), logits, seeded())
    torch.autograd.backward(variance_loss(estimate))
    assert logits.grad is None
    assert weights.grad is None
    assert all(parameter.grad is not None for parameter in estimator.parameters())
    assert len(list(estimator.parameters())) == 6
    with torch.no_grad():
        assert not estimator(lambda b: (b @ weights).square(), logits, seeded()).grad.requires_grad


def test_value_and_variance_loss_go_backward_together_or_the_loss_first() -> None:
    """Both use a single evaluation of the objective."""
    found = []
    for together in (True, False):
        estimator = RELAX(4, control=Wave())
        weights = torch.ones(3, requires_grad=True)
        estimate = estimator(lambda b, w=weights: (b @ w).square(), torch.zeros(5, 3), seeded())
        if together:
            (estimate.value.sum() + variance_loss(estimate)).backward()
        else:
            variance_loss(estimate).backward()
            assert weights.grad is None
            estimate.value.sum().backward()
        found.append([weights.grad, *(parameter.grad for parameter in estimator.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_estimate_is_detached_when_nothing_learns() -> None:
    estimator = REBAR(4, Relaxation().requires_grad_(False))
    assert not estimator(quadratic, torch.zeros(3), seeded()).grad.requires_grad


def test_variance_loss_has_the_derivative_of_finite_differences() -> None:
    logits = torch.tensor([[0.3, -0.8, 1.5], [-2.0, 0.1, 0.6]], dtype=torch.float64)
    estimator = RELAX(4, Relaxation(temperature=0.7).double(), Wave())
    f = table_objective(random_table(8, seeded(3)))

    def loss() -> Tensor:
        return variance_loss(estimator(f, logits, seeded()))

    parameters = list(estimator.parameters())
    grads, step = torch.autograd.grad(loss(), parameters), 1e-6
    for parameter, grad in zip(parameters, grads, strict=True):
        entry, derivative = parameter.data.view(-1)[:1], grad.flatten()[0]
        entry += step
        above = loss().item()
        entry -= 2 * step
        below = loss().item()
        entry += step
        assert abs((above - below) / (2 * step) - derivative.item()) < 1e-6 * max(
            1.0, abs(derivative.item())
        )


def test_learning_lowers_the_variance_and_keeps_the_mean() -> None:
    logits = torch.tensor([0.3, -0.8, 1.5]).expand(200, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        estimator = RELAX(2, control=relax_control(3, hidden=16))
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.02)
    generator, losses = seeded(), []
    for _ in range(150):
        loss = variance_loss(estimator(quadratic, logits, generator))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    grad = estimator(quadratic, logits[:1].expand(50_000, 3), generator).grad.detach()
    score = (grad.mean(0) - exact_gradient(quadratic, logits[0])) / (grad.std(0) / len(grad) ** 0.5)
    assert score.abs().max() < arms.checks.score_limit(3)


def test_additive_control_serves_any_number_of_latents() -> None:
    control = AdditiveControl()
    assert (control(torch.randn(4, 7, 3, generator=seeded())) == 0).all()
    nn.init.ones_(control.bends)
    for d in (1, 5):
        z = torch.randn(4, 7, d, generator=seeded(), dtype=torch.float64)
        torch.testing.assert_close(
            control(z), sum((control(z[..., i : i + 1]) for i in range(d)), torch.zeros(4, 7))
        )


def test_replicas_have_their_own_controls_and_share_the_context() -> None:
    logits, x = torch.zeros(5, 7, 3), torch.randn(5, 7, 2, generator=seeded())
    estimator = RELAX(4).prepare(logits.shape, x.shape, seeded())
    again = RELAX(4).prepare(logits.shape, x.shape, seeded())
    assert all(
        torch.equal(a, b) for a, b in zip(estimator.parameters(), again.parameters(), strict=True)
    )
    estimate = estimator(quadratic, Bits(logits, x), seeded())
    assert estimate.values.shape == (2, 5, 7)
    per_replica = estimate.grad.square().sum(-1).mean(-1)
    parameters = list(estimator.parameters())
    assert len(parameters) == 6
    for grad in torch.autograd.grad(per_replica[2], parameters):
        assert (grad[2] != 0).any()
        assert (grad[[0, 1, 3, 4]] == 0).all()


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_estimators_with_parameters_can_be_prepared_for_replicas(name: str) -> None:
    estimator = arms.as_estimator(name, 4)
    assert isinstance(estimator, Learnable) == any(True for _ in estimator.parameters())
    if isinstance(estimator, Learnable):
        prepared = estimator.prepare(torch.Size([5, 7, 3]), torch.Size([5, 7, 2]), seeded())
        assert all(len(parameter) == 5 for parameter in prepared.parameters())


def test_control_with_a_context() -> None:
    control = relax_control(3, context=2)
    latent = Bits(torch.zeros(5, 3), torch.ones(5, 2))
    assert RELAX(4, control=control)(quadratic, latent).grad.shape == (5, 3)
    with pytest.raises(ValueError, match=r"arms.Bits\(logits, x\)"):
        RELAX(4, control=control)(quadratic, torch.zeros(5, 3))


def test_context_is_seen_by_the_control() -> None:
    estimator = RELAX(4, relaxation=None, control=relax_control(3, context=2))
    grads = [
        estimator(quadratic, Bits(torch.zeros(5, 3), x), seeded()).grad
        for x in (torch.ones(5, 2), torch.zeros(5, 2))
    ]
    assert not torch.equal(*grads)


# --- The public functions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", [REBAR(4), RELAX(4, control=relax_control(3))], ids=["rebar", "relax"]
)
@pytest.mark.parametrize("chunk", [None, 1])
def test_expectation(estimator: Estimator, chunk: int | None) -> None:
    logits, weights = (
        torch.linspace(-1, 1, 15).view(5, 3).requires_grad_(),
        torch.ones(3, requires_grad=True),
    )

    def objective(b: Tensor) -> Tensor:
        return (b @ weights).square()

    value = arms.expectation(objective, logits, estimator, generator=seeded(), chunk=chunk)
    found = torch.autograd.grad(value.sum(), (logits, weights))
    estimate = estimator(objective, logits, seeded())
    torch.testing.assert_close(value, estimate.values.mean(0))
    torch.testing.assert_close(found[0], estimate.grad)
    torch.testing.assert_close(
        found[1], torch.autograd.grad(estimate.values.mean(0).sum(), weights)[0]
    )


def hard_with_weights(weights: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda b: (b > 0.5).to(b.dtype) @ weights


@pytest.mark.parametrize("name", ["rebar", "relax"])
@pytest.mark.parametrize(
    "objective",
    [
        lambda b: torch.as_tensor(b.numpy().sum(-1)),
        lambda b: b.detach().sum(-1),
        hard_with_weights(torch.ones(3, requires_grad=True)),
    ],
    ids=["numpy", "detached", "thresholds"],
)
def test_black_boxes_are_refused(name: str, objective: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="needs the derivative df/db"):
        arms.expectation(objective, torch.zeros(5, 3, requires_grad=True), name, 4)
    with pytest.raises(ValueError, match="needs the derivative df/db"):
        arms.as_estimator(name, 4)(objective, torch.zeros(5, 3))
    # If nobody can ask for the gradient, the value needs no derivatives.
    assert arms.expectation(objective, torch.zeros(5, 3), name, 4).shape == (5,)


def test_network_alone_takes_a_black_box() -> None:
    estimator = RELAX(4, relaxation=None, control=relax_control(3))
    estimate = estimator(lambda b: torch.as_tensor(b.numpy().sum(-1)), torch.zeros(5, 3))
    assert estimate.grad.requires_grad


def attached(objective: Callable[[Tensor], Tensor], derivatives: Tensor | None = None) -> Tensor:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "rebar", 4)
    return arms.attach(draw, objective(draw.points), derivatives)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attached(lambda points: points.detach().sum(-1)), "needs the derivative df/db"),
        (
            lambda: attached(lambda points: points.sum(-1), torch.zeros(2, 5, 3)),
            r"derivatives must be .* of shape \[4, 5, 3\]",
        ),
        (lambda: RELAX(3), "must be even"),
        (lambda: Relaxation(temperature=0.0), "temperature must be a positive, finite number"),
        (
            lambda: RELAX(2, control=nn.Identity())(quadratic, torch.zeros(5, 3)),
            "control must return one value",
        ),
        (
            lambda: arms.expectation(quadratic, torch.full((3,), torch.nan), "relax"),
            "logits contain NaN",
        ),
    ],
)
def test_errors_that_help(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_making_an_estimator_draws_nothing() -> None:
    state = torch.get_rng_state()
    made = [factory(8) for factory in ALL_ESTIMATORS.values()]
    assert torch.equal(state, torch.get_rng_state())
    learning = {type(one) for one in made if list(one.parameters())}
    assert learning == {RELAX, arms.RODEO}
