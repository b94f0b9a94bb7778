"""Misuse of the public functions: each case is correct, or raises a helpful error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from instances import INSTANCES, Instance, Wave
from seeds import seeded
from torch import Generator, Tensor
from torch.autograd import forward_ad
from torch.distributions import Bernoulli as TorchBernoulli

import arms
from arms.checks import exact_gradient
from arms.designs import Draw, Independent, Needs
from arms.estimators import ALL_ESTIMATORS

BLACK_BOX = [
    name for name in arms.ESTIMATORS if not arms.as_estimator(name, 4).design.needs.derivatives
]
BOUND = [name for name in arms.ESTIMATORS if arms.as_estimator(name, 4).target.subtracts_log_q]
PLAIN = [name for name in BLACK_BOX if name not in BOUND]


def quadratic(b: Tensor) -> Tensor:
    return (b * torch.linspace(-1, 2, b.shape[-1], dtype=b.dtype)).sum(-1).square()


def function_of(name: str) -> Callable[..., Tensor]:
    return arms.importance_bound if name in BOUND else arms.expectation


# --- An objective that changes its samples ------------------------------------------------------


def spins(b: Tensor) -> Tensor:
    return b.mul_(2).sub_(1).sum(-1).square()


def numpy_spins(b: Tensor) -> Any:
    array = b.numpy()
    array *= 2
    array -= 1
    return array.sum(-1) ** 2


def one_entry(b: Tensor) -> Tensor:
    b[-1, ..., -1] = 7.0
    return b.sum(-1)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("objective", [spins, numpy_spins, one_entry])
@pytest.mark.parametrize("name", BLACK_BOX)
def test_objective_that_changes_its_samples(
    name: str, objective: Callable[[Tensor], Any], chunk: int | None
) -> None:
    for batch in ((), (1,), (5,)):
        logits = torch.full((*batch, 3), 0.3, requires_grad=True)
        with pytest.raises(
            ValueError,
            match="the objective modified its samples b in place, but the estimator still needs",
        ):
            function_of(name)(objective, logits, name, 4, seeded(), chunk=chunk)


@pytest.mark.parametrize("objective", [spins, one_entry])
@pytest.mark.parametrize("name", ["rebar", "relax"])
def test_differentiated_objective_that_changes_its_samples(
    name: str, objective: Callable[[Tensor], Tensor]
) -> None:
    with pytest.raises(
        ValueError,
        match="the objective modified its samples b in place, but the estimator still needs",
    ):
        arms.expectation(objective, torch.zeros(5, 3, requires_grad=True), name, 4)


@pytest.mark.parametrize("name", [*PLAIN, "rebar"])
def test_simulator_may_change_the_samples_of_a_draw(name: str) -> None:
    grads = []
    for spoil in (False, True):
        logits = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        draw = arms.draw(logits, name, 4, seeded())
        values = quadratic(draw.points)
        samples = draw.samples.numpy()
        if spoil:
            samples *= 2
            samples -= 1
        arms.attach(draw, values).sum().backward()
        assert logits.grad is not None
        grads.append(logits.grad)
    assert torch.equal(*grads)


# --- A large constant ---------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9])
def test_exact_keeps_its_digits_beside_a_large_constant(offset: float) -> None:
    weights = torch.tensor([-1.0, 0.5, 1.2, 2.0], dtype=torch.float64)
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0])

    def objective(b: Tensor) -> Tensor:
        return offset + 0.1 * (b.double() @ weights).square()

    truth = exact_gradient(lambda b: objective(b) - offset, logits.double())
    grad = exact_gradient(objective, logits)
    assert grad.dtype == torch.float32
    assert ((grad.double() - truth).abs() / truth.abs()).max() < (
        1e-6 if abs(offset) < 1e9 else 1e-4
    )


def test_variance_does_not_accuse_unbiased_estimators_beside_a_large_constant() -> None:
    weights = torch.tensor([-1.0, 0.5, 1.2, 2.0], dtype=torch.float64)
    table = arms.variance(
        lambda b: 1e6 + 0.1 * (b.double() @ weights).square(),
        torch.tensor([0.3, -1.2, 1.0, 0.0]),
        ["loorf", "disarm", "arms"],
        4,
        repeats=1000,
        generator=seeded(),
    )
    assert all(row.bias_score < table.score_limit for row in table.rows), str(table)


# --- Logits that change between draw and attach -------------------------------------------------


def add_in_place(logits: Tensor) -> None:
    with torch.no_grad():
        logits.add_(1.2)


def replace_data(logits: Tensor) -> None:
    logits.data = logits.data + 1.2


def add_to_data(logits: Tensor) -> None:
    logits.data.add_(1.2)


@pytest.mark.parametrize("change", [add_in_place, replace_data, add_to_data])
@pytest.mark.parametrize("name", [*BLACK_BOX, "rebar", "relax"])
def test_attach_after_the_logits_have_moved(name: str, change: Callable[[Tensor], None]) -> None:
    grads = []
    for moved in (False, True):
        logits = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        draw = arms.draw(logits, name, 4, seeded())
        values = quadratic(draw.points)
        if moved:
            change(logits)
        arms.attach(draw, values).sum().backward()
        assert logits.grad is not None
        grads.append(logits.grad)
    assert torch.equal(*grads)
    assert (grads[0] != 0).any()


# --- Forward mode and second derivatives --------------------------------------------------------

POINT = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)


def exactly(logits: Tensor) -> Tensor:
    return arms.expectation(quadratic, logits, "exact")


def test_forward_mode_is_the_gradient() -> None:
    truth = exact_gradient(quadratic, POINT)
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    value, tangent = torch.func.jvp(exactly, (POINT,), (direction,))  # type: ignore[misc]
    assert torch.equal(value, exactly(POINT))
    torch.testing.assert_close(tangent, truth @ direction, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.func.jacfwd(exactly)(POINT), truth, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.func.jacrev(exactly)(POINT), truth, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", [*PLAIN, "rebar", "relax"])
def test_forward_mode_and_reverse_mode_agree(name: str) -> None:
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    logits = POINT.clone().requires_grad_()
    (grad,) = torch.autograd.grad(arms.expectation(quadratic, logits, name, 4, seeded()), logits)
    with forward_ad.dual_level():
        value = arms.expectation(
            quadratic, forward_ad.make_dual(POINT, direction), name, 4, seeded()
        )
        tangent = forward_ad.unpack_dual(value).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, grad @ direction, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "name", ["rebar", "relax", "midpoint", "cross-paired", "double-cv", "rodeo", "arms-taylor"]
)
def test_derivatives_inside_function_transforms_are_refused(name: str) -> None:
    def value(phi: Tensor) -> Tensor:
        return arms.expectation(quadratic, phi, name, 4)

    transforms: list[Callable[[], object]] = [
        lambda: torch.func.grad(value)(POINT),
        lambda: torch.func.vmap(torch.func.grad(value), randomness="different")(
            POINT.expand(2, -1)
        ),
        lambda: torch.func.jvp(value, (POINT,), (POINT,)),
    ]
    for transform in transforms:
        with pytest.raises(
            ValueError,
            match=r"differentiates the objective, which is not possible inside torch.func.grad,",
        ):
            transform()


def test_forward_mode_of_categories_and_batches() -> None:
    logits = torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 2, 3)
    direction = torch.linspace(2, -1, 12, dtype=torch.float64).view(2, 2, 3)

    def objective(b: Tensor) -> Tensor:
        return quadratic(b).sum(-1)

    _, tangent = torch.func.jvp(  # type: ignore[misc]
        lambda phi: arms.expectation(objective, arms.OneHot(phi), "exact"), (logits,), (direction,)
    )
    expected = (exact_gradient(objective, arms.OneHot(logits)) * direction).sum((-1, -2))
    torch.testing.assert_close(tangent, expected, rtol=0, atol=1e-14)


def test_forward_mode_through_the_objective_too() -> None:
    """E[phi . b]: phi is in the distribution and in the objective.

    The derivative is d/dphi (phi p) = p + phi p (1 - p).
    """
    p = torch.sigmoid(POINT)
    found = torch.func.jacfwd(
        lambda phi: arms.expectation(lambda b: (b * phi).sum(-1), phi, "exact")
    )(POINT)
    torch.testing.assert_close(found, p + POINT * p * (1 - p), rtol=0, atol=1e-14)


def test_forward_mode_of_the_objective_alone() -> None:
    """The value is linear in the weights, so its tangent along them is itself."""
    logits, weights = torch.zeros(5, 3, requires_grad=True), torch.ones(3)

    def value(w: Tensor) -> Tensor:
        return arms.expectation(lambda b: b @ w, logits, "arms", 3, seeded())

    torch.testing.assert_close(*torch.func.jvp(value, (weights,), (weights,)))
    with forward_ad.dual_level():
        torch.testing.assert_close(
            *forward_ad.unpack_dual(value(forward_ad.make_dual(weights, weights)))
        )


def double_backward(value: Callable[[Tensor], Tensor]) -> None:
    logits = POINT.clone().requires_grad_()
    (grad,) = torch.autograd.grad(value(logits), logits, create_graph=True)
    grad.square().sum().backward()


def jvp_of_jvp(value: Callable[[Tensor], Tensor]) -> None:
    ones = torch.ones_like(POINT)
    torch.func.jvp(lambda x: torch.func.jvp(value, (x,), (ones,))[1], (POINT,), (ones,))


SECOND: dict[str, Callable[[Callable[[Tensor], Tensor]], object]] = {
    "create_graph": double_backward,
    "autograd hessian": lambda value: torch.autograd.functional.hessian(value, POINT),
    "grad of grad": lambda value: torch.func.grad(lambda x: torch.func.grad(value)(x).sum())(POINT),
    "jvp of grad": lambda value: torch.func.jvp(torch.func.grad(value), (POINT,), (POINT,)),
    "grad of jvp": lambda value: torch.func.grad(
        lambda x: torch.func.jvp(value, (x,), (POINT,))[1]
    )(POINT),
    "jvp of jvp": jvp_of_jvp,
    "hessian": lambda value: torch.func.hessian(value)(POINT),
    "jacrev of grad": lambda value: torch.func.jacrev(torch.func.grad(value))(POINT),
    "jacfwd of jacfwd": lambda value: torch.func.jacfwd(torch.func.jacfwd(value))(POINT),
}
TRANSFORMED = {
    "exact": list(SECOND),
    "arms": list(SECOND)[:6],  # the others are vmaps, which refuse all randomness
    "rebar": list(SECOND)[:2],  # and transforms refuse derivatives
}


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, ways in TRANSFORMED.items() for way in ways]
)
def test_second_derivatives_are_refused(name: str, way: str) -> None:
    def value(phi: Tensor) -> Tensor:
        return arms.expectation(lambda b: quadratic(b) + (b * phi).sum(-1), phi, name, 4)

    with pytest.raises(ValueError, match="second derivatives"):
        SECOND[way](value)


def test_create_graph_alone_does_no_harm() -> None:
    """The graph is kept, and other parts of the loss may be differentiated twice."""
    logits = POINT.clone().requires_grad_()
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = exactly(logits) + weight**3
    grad, other = torch.autograd.grad(value, (logits, weight), create_graph=True)
    torch.testing.assert_close(grad, exact_gradient(quadratic, POINT))
    assert torch.autograd.grad(other, weight)[0] == 12.0


# --- Log-weights without a graph ----------------------------------------------------------------


@pytest.mark.parametrize("name", BOUND)
def test_values_of_a_bound_need_no_graph(name: str) -> None:
    """The library computes log q, so a simulator's log p(x, b) gives the whole gradient."""
    logits = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    estimate = arms.as_estimator(name, 4)(quadratic, logits, seeded())
    draw = arms.draw(logits, name, 4, seeded())
    points = draw.points.detach().requires_grad_()
    values = quadratic(points)
    (derivatives,) = torch.autograd.grad(values.sum(), points)
    count = draw.estimator.design.needs.derivatives
    given = derivatives[len(points) - count :] if count else None
    value = arms.attach(draw, values.detach().numpy(), given)
    torch.testing.assert_close(value, estimate.value)
    (grad,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(grad, estimate.grad)


# --- NaN logits where nobody looks --------------------------------------------------------------

SOME_NAN = torch.tensor([[0.3, torch.nan, -0.5], [0.1, 0.2, 0.3]])


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_nan_logits_without_validation(name: str) -> None:
    logits = SOME_NAN.clone().requires_grad_()

    value = function_of(name)(quadratic, logits, name, 4, seeded(), validate=False)
    value[0].backward(retain_graph=True)
    assert value.isnan().tolist() == [True, False]
    assert logits.grad is not None
    assert logits.grad[0, 1].isnan()
    assert logits.grad[1].isfinite().all()


@pytest.mark.parametrize("name", BLACK_BOX)
def test_nan_logits_under_vmap(name: str) -> None:
    def value(phi: Tensor) -> Tensor:
        return function_of(name)(quadratic, phi, name, 4)

    grads, values = torch.func.vmap(torch.func.grad_and_value(value), randomness="different")(
        SOME_NAN
    )
    assert values.isnan().tolist() == [True, False]
    assert grads[0, 1].isnan()
    assert grads[1].isfinite().all()


# --- Probabilities outside [0, 1] ---------------------------------------------------------------


@pytest.mark.parametrize("wrong", [torch.nan, 1.5, -0.2])
def test_probabilities_outside_the_unit_interval(wrong: float) -> None:
    probs = torch.tensor([0.5, wrong])
    with pytest.raises(
        ValueError,
        match=r"logits contain NaN or do not define a distribution \(infinite logits are",
    ):
        arms.expectation(quadratic, TorchBernoulli(probs=probs, validate_args=False))


@pytest.mark.parametrize("row", [[torch.inf, 0.0, 0.0], [-torch.inf] * 3, [torch.nan, 0.0, 0.0]])
def test_categories_without_a_distribution(row: list[float]) -> None:
    with pytest.raises(ValueError, match="largest logit of a category must be finite"):
        arms.expectation(
            lambda b: b.sum((-1, -2)), arms.OneHot(torch.tensor([row, [0.0, 1.0, 2.0]])), "loorf", 4
        )


# --- Derivatives and parameters that are not finite ---------------------------------------------


def kinked(b: Tensor) -> Tensor:
    """Finite everywhere; its derivative at 0 and 1 is not."""
    return (b * (1 - b)).sqrt().sum(-1)


def spoilt(control: Wave) -> Wave:
    torch.nn.init.constant_(control.last, torch.nan)
    return control


@pytest.mark.parametrize(
    ("estimator", "objective", "words"),
    [
        (
            arms.REBAR(4),
            kinked,
            "the objective's derivative must be finite, got NaN or infinity: check the",
        ),
        (
            arms.RELAX(4),
            kinked,
            "the objective's derivative must be finite, got NaN or infinity: check the",
        ),
        (
            arms.REBAR(4, arms.Relaxation(scale=torch.nan)),
            quadratic,
            "check the parameters of RELAX",
        ),
        (
            arms.RELAX(4, arms.Relaxation(scale=torch.nan)),
            quadratic,
            "check the parameters of RELAX",
        ),
        (arms.RELAX(4, control=spoilt(Wave())), quadratic, "check the parameters of RELAX"),
        (arms.RELAX(4, None, control=spoilt(Wave())), quadratic, "check the parameters of RELAX"),
    ],
    ids=[
        "rebar derivative",
        "relax derivative",
        "rebar scale",
        "relax scale",
        "relax control",
        "relax control alone",
    ],
)
def test_derivatives_and_parameters_that_are_not_finite(
    estimator: arms.Estimator, objective: Callable[[Tensor], Tensor], words: str
) -> None:
    logits = torch.tensor([0.0, 30.0, -30.0], requires_grad=True)
    with pytest.raises(ValueError, match=words):
        arms.expectation(objective, logits, estimator, generator=seeded())
    with pytest.raises(ValueError, match=words):
        estimator(objective, logits, seeded())
    value = arms.expectation(objective, logits, estimator, generator=seeded(), validate=False)
    value.backward()
    assert not logits.grad.isfinite().all()  # type: ignore[union-attr]


def test_given_derivatives_that_are_not_finite() -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "rebar", 4)
    values = quadratic(draw.points)
    with pytest.raises(ValueError, match="derivatives must be finite, got NaN"):
        arms.attach(draw, values, torch.full((4, 5, 3), torch.nan))


@pytest.mark.parametrize(
    "derivatives",
    [
        np.zeros((4, 5, 3)),
        [0.0],
        torch.zeros(4, 5, 3).long(),
        torch.zeros(4, 5, 3, dtype=torch.complex64),
    ],
)
def test_given_derivatives_of_another_type(derivatives: object) -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "rebar", 4)
    with pytest.raises(ValueError, match="derivatives must be a floating-point tensor of shape"):
        arms.attach(draw, quadratic(draw.points), derivatives)  # type: ignore[arg-type]


# --- A combine of another shape -----------------------------------------------------------------


@dataclass(frozen=True)
class Misshapen(arms.LeaveOneOut):
    shape: tuple[int, ...] = ()

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return torch.ones(self.shape)


@pytest.mark.parametrize("shape", [(), (2,), (5, 1), (1, 2), (7, 5, 2)])
def test_combine_of_another_shape(shape: tuple[int, ...]) -> None:
    logits = torch.zeros(5, 2, requires_grad=True)
    with pytest.raises(
        ValueError, match=r"Misshapen.combine must return the shape of the logits, \[5, 2\], got \["
    ):
        arms.expectation(lambda b: b.sum(-1), logits, Misshapen(Independent(4), shape))
    draw = arms.draw(logits, Misshapen(Independent(4), shape))
    with pytest.raises(
        ValueError, match=r"Misshapen.combine must return the shape of the logits, \[5, 2\], got \["
    ):
        arms.attach(draw, draw.samples.sum(-1))


# --- Probabilities below the grain of uniforms --------------------------------------------------


def test_rare_bits_are_right_to_the_grain_of_uniforms() -> None:
    """A float32 uniform is a multiple of 2^-24, so P(b = 1) is p rounded up to such a multiple.

    It is wrong by 6e-8 at most.
    """
    draws, p = 2**25, torch.sigmoid(torch.tensor(-19.0)).item()
    ones = arms.Bits(torch.full((draws,), -19.0)).sample(1, seeded()).sum().item()
    assert p < 2**-24
    assert ones / draws <= 6e-8 + 5.7 * (6e-8 / draws) ** 0.5
    exact = arms.Bits(torch.full((1000, 2), 40.0, dtype=torch.float64)).sample(4, seeded())
    assert (exact == 1).all()


# --- Complex values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instance", [one for one in INSTANCES if one.kind is arms.Bits][::7], ids=str
)
def test_complex_values(instance: Instance) -> None:
    estimator = instance.fitted(4)
    with pytest.raises(
        ValueError,
        match=r"must return real floating-point numbers, got torch.complex64: return its .real",
    ):
        estimator(lambda b: b.sum(-1).to(torch.complex64), torch.zeros(4, 3))
    draw = arms.draw(torch.zeros(3, requires_grad=True), "loorf", 4)
    with pytest.raises(
        ValueError,
        match=r"must return real floating-point numbers, got torch.complex64: return its .real",
    ):
        arms.attach(draw, draw.samples.sum(-1).to(torch.complex64))
    with pytest.raises(
        ValueError,
        match=r"must return real floating-point numbers, got torch.complex64: return its .real",
    ):
        arms.attach(draw, draw.samples.sum(-1).numpy() * 1j)


# --- What a design says of itself, and what it does ---------------------------------------------


def test_points_changed_before_attach_are_noticed() -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "arms", 4)
    draw.points.mul_(2)
    with pytest.raises(
        ValueError,
        match=r"draw.points was modified in place after the draw: modify draw.samples instead,",
    ):
        arms.attach(draw, draw.samples.sum(-1))


class MorePoints(Independent):
    """Draws two points after its samples, which `needs` does not mention."""

    def draw(self, latent: arms.Latent, generator: Generator | None) -> Draw:
        return Draw(latent, latent.sample(self.num_samples + 2, generator), extra=2)


class FewerPoints(Independent):
    """Draws fewer points than it differentiates."""

    @property
    def needs(self) -> Needs:
        return Needs(self.num_samples, self.num_samples + 1)


class OtherPoints(Independent):
    """Draws points of another shape."""

    def draw(self, latent: arms.Latent, generator: Generator | None) -> Draw:
        return Draw(latent, latent.sample(self.num_samples, generator).squeeze(-1))


@pytest.mark.parametrize(
    ("design", "words"),
    [
        (
            MorePoints(4),
            r"the design MorePoints drew 6 points, which contradicts its Needs\(evaluations=4,",
        ),
        (FewerPoints(4), "the design FewerPoints drew 4 points, which contradicts its"),
        (OtherPoints(4), r"OtherPoints must draw points \[m, 5, 1\], got \[4, 5\]"),
    ],
    ids=["more", "fewer", "other"],
)
def test_a_draw_that_is_not_what_its_design_says_is_refused(
    design: Independent, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        arms.LeaveOneOut(design)(lambda b: b.sum(-1), torch.zeros(5, 1))
