"""What once gave wrong numbers without a word: each is right now, or refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from instances import INSTANCES, Instance, Wave
from torch import Generator, Tensor
from torch.autograd import forward_ad
from torch.distributions import Bernoulli as TorchBernoulli

import arms
from arms.checks import exact_gradient
from arms.estimators import ALL_ESTIMATORS
from arms.estimators.base import Slopes

BLACK_BOX = [name for name in arms.ESTIMATORS if arms.as_estimator(name, 4).slopes == "none"]
PLAIN = [name for name in BLACK_BOX if not arms.as_estimator(name, 4).target.direct]
BOUND = [name for name in arms.ESTIMATORS if arms.as_estimator(name, 4).target.direct]


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def quadratic(b: Tensor) -> Tensor:
    return (b * torch.linspace(-1, 2, b.shape[-1], dtype=b.dtype)).sum(-1).square()


def function_of(name: str) -> Callable[..., Tensor]:
    return arms.multi_sample_bound if name in BOUND else arms.expectation


def log_q(logits: Tensor, b: Tensor) -> Tensor:
    return arms.Bernoulli(logits).log_prob(b)


# --- 1. An objective that changes its samples -------------------------------------------------------------------------


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
def test_objective_that_changes_its_samples(name: str, objective: Callable[[Tensor], Any], chunk: int | None) -> None:
    for batch in ((), (1,), (5,)):
        logits = torch.full((*batch, 3), 0.3, requires_grad=True)
        with pytest.raises(ValueError, match="changed its samples in place"):
            function_of(name)(objective, logits, name, 4, seeded(), chunk=chunk)


@pytest.mark.parametrize("objective", [spins, one_entry])
@pytest.mark.parametrize("name", ["rebar", "relax"])
def test_differentiated_objective_that_changes_its_samples(name: str, objective: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="changed its samples in place"):
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


# --- 2. A large constant ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9])
def test_exact_keeps_its_digits_beside_a_large_constant(offset: float) -> None:
    weights = torch.tensor([-1.0, 0.5, 1.2, 2.0], dtype=torch.float64)
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0])

    def objective(b: Tensor) -> Tensor:
        return offset + 0.1 * (b.double() @ weights).square()

    truth = exact_gradient(lambda b: objective(b) - offset, logits.double())
    grad = exact_gradient(objective, logits)
    assert grad.dtype == torch.float32
    assert ((grad.double() - truth).abs() / truth.abs()).max() < (1e-6 if abs(offset) < 1e9 else 1e-4)


def test_variance_does_not_accuse_unbiased_estimators_beside_a_large_constant() -> None:
    weights = torch.tensor([-1.0, 0.5, 1.2, 2.0], dtype=torch.float64)
    table = arms.variance(
        lambda b: 1e6 + 0.1 * (b.double() @ weights).square(),
        torch.tensor([0.3, -1.2, 1.0, 0.0]),
        ["loorf", "disarm", "arms-s"],
        4,
        repeats=1000,
        generator=seeded(),
    )
    assert all(row.bias_score < table.score_limit for row in table.rows), str(table)


# --- 3. Logits that change between draw and attach --------------------------------------------------------------------


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
        if name in BOUND:
            # A graph that does not depend on where the logits are now: only the score part is looked at.
            values = values + 0 * logits.sum()
        if moved:
            change(logits)
        arms.attach(draw, values, validate=name not in BOUND).sum().backward()
        assert logits.grad is not None
        grads.append(logits.grad)
    assert torch.equal(*grads)
    assert (grads[0] != 0).any()


# --- 4. Forward mode and second derivatives ---------------------------------------------------------------------------

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
        value = arms.expectation(quadratic, forward_ad.make_dual(POINT, direction), name, 4, seeded())
        tangent = forward_ad.unpack_dual(value).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, grad @ direction, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["rebar", "relax", "midpoint", "repaired", "double-cv", "rodeo", "arms-s-taylor"])
def test_derivatives_inside_function_transforms_are_refused(name: str) -> None:
    def value(phi: Tensor) -> Tensor:
        return arms.expectation(quadratic, phi, name, 4)

    transforms: list[Callable[[], object]] = [
        lambda: torch.func.grad(value)(POINT),
        lambda: torch.func.vmap(torch.func.grad(value), randomness="different")(POINT.expand(2, -1)),
        lambda: torch.func.jvp(value, (POINT,), (POINT,)),
    ]
    for transform in transforms:
        with pytest.raises(ValueError, match=r"differentiates the objective by autograd, which torch\.func"):
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
    """E[phi . b]: phi in the law and in the objective, d/dphi (phi p) = p + phi p (1 - p)."""
    p = torch.sigmoid(POINT)
    found = torch.func.jacfwd(lambda phi: arms.expectation(lambda b: (b * phi).sum(-1), phi, "exact"))(POINT)
    torch.testing.assert_close(found, p + POINT * p * (1 - p), rtol=0, atol=1e-14)


def test_forward_mode_of_the_objective_alone() -> None:
    """The value is linear in the weights, so that its tangent along them is itself; the logits do not move."""
    logits, weights = torch.zeros(5, 3, requires_grad=True), torch.ones(3)

    def value(w: Tensor) -> Tensor:
        return arms.expectation(lambda b: b @ w, logits, "arms-s", 3, seeded())

    torch.testing.assert_close(*torch.func.jvp(value, (weights,), (weights,)))
    with forward_ad.dual_level():
        torch.testing.assert_close(*forward_ad.unpack_dual(value(forward_ad.make_dual(weights, weights))))


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
    "grad of jvp": lambda value: torch.func.grad(lambda x: torch.func.jvp(value, (x,), (POINT,))[1])(POINT),
    "jvp of jvp": jvp_of_jvp,
    "hessian": lambda value: torch.func.hessian(value)(POINT),
    "jacrev of grad": lambda value: torch.func.jacrev(torch.func.grad(value))(POINT),
    "jacfwd of jacfwd": lambda value: torch.func.jacfwd(torch.func.jacfwd(value))(POINT),
}
TRANSFORMED = {
    "exact": list(SECOND),
    "arms-s": list(SECOND)[:6],  # the others are vmaps, which refuse all randomness
    "rebar": list(SECOND)[:2],  # and transforms refuse slopes
}


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in TRANSFORMED.items() for way in ways])
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


# --- 6. Log-weights without a graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOUND)
def test_log_weights_without_a_graph_are_refused(name: str) -> None:
    logits = torch.zeros(5, 3, requires_grad=True)
    draw = arms.draw(logits, name, 4)
    with pytest.raises(ValueError, match=r"log-weights.*must carry the graph of log q"):
        arms.attach(
            draw,
            draw.points.detach().numpy().sum(-1),
            torch.zeros_like(draw.points[-draw.extra :]) if draw.extra else None,
        )
    with pytest.raises(ValueError, match=r"log-weights.*must carry the graph of log q"):
        arms.multi_sample_bound(lambda b: b.sum(-1) - log_q(logits.detach(), b), logits, name, 4)
    arms.attach(draw, draw.points.sum(-1) - log_q(logits, draw.points)).sum().backward()
    assert arms.multi_sample_bound(lambda b: b.sum(-1), logits.detach(), name, 4).shape == (5,)  # only the value


# --- 7. NaN logits where nobody looks ---------------------------------------------------------------------------------

SOME_NAN = torch.tensor([[0.3, torch.nan, -0.5], [0.1, 0.2, 0.3]])


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_nan_logits_without_validation(name: str) -> None:
    logits = SOME_NAN.clone().requires_grad_()

    def objective(b: Tensor) -> Tensor:
        return quadratic(b) - (log_q(logits, b) if name in BOUND else 0)

    value = function_of(name)(objective, logits, name, 4, seeded(), validate=False)
    value[0].backward(retain_graph=True)
    assert value.isnan().tolist() == [True, False]
    assert logits.grad is not None
    assert logits.grad[0, 1].isnan()
    assert logits.grad[1].isfinite().all()


@pytest.mark.parametrize("name", BLACK_BOX)
def test_nan_logits_under_vmap(name: str) -> None:
    def value(phi: Tensor) -> Tensor:
        def objective(b: Tensor) -> Tensor:
            return quadratic(b) - (log_q(phi, b) if name in BOUND else 0)

        return function_of(name)(objective, phi, name, 4)

    grads, values = torch.func.vmap(torch.func.grad_and_value(value), randomness="different")(SOME_NAN)
    assert values.isnan().tolist() == [True, False]
    assert grads[0, 1].isnan()
    assert grads[1].isfinite().all()


# --- 8. Probabilities outside [0, 1] ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [torch.nan, 1.5, -0.2])
def test_probabilities_outside_the_unit_interval(wrong: float) -> None:
    probs = torch.tensor([0.5, wrong])
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\]"):
        arms.expectation(quadratic, TorchBernoulli(probs=probs, validate_args=False))


@pytest.mark.parametrize("row", [[torch.inf, 0.0, 0.0], [-torch.inf] * 3, [torch.nan, 0.0, 0.0]])
def test_categories_without_a_law(row: list[float]) -> None:
    with pytest.raises(ValueError, match="largest must be finite"):
        arms.expectation(lambda b: b.sum((-1, -2)), arms.OneHot(torch.tensor([row, [0.0, 1.0, 2.0]])), "loorf", 4)


# --- 9. Slopes and parameters that are no numbers ---------------------------------------------------------------------


def kinked(b: Tensor) -> Tensor:
    """Finite everywhere, its slope at 0 and 1 is not."""
    return (b * (1 - b)).sqrt().sum(-1)


def spoilt(control: Wave) -> Wave:
    torch.nn.init.constant_(control.last, torch.nan)
    return control


@pytest.mark.parametrize(
    ("estimator", "objective", "words"),
    [
        (arms.REBAR(4), kinked, "derivative is NaN or infinite"),
        (arms.RELAX(4), kinked, "derivative is NaN or infinite"),
        (arms.REBAR(4, arms.Relaxation(scale=torch.nan)), quadratic, "look at the parameters of REBAR"),
        (arms.RELAX(4, arms.Relaxation(scale=torch.nan)), quadratic, "look at the parameters of RELAX"),
        (arms.RELAX(4, control=spoilt(Wave())), quadratic, "look at the parameters of RELAX"),
        (arms.RELAX(4, None, control=spoilt(Wave())), quadratic, "look at the parameters of RELAX"),
    ],
    ids=["rebar slope", "relax slope", "rebar scale", "relax scale", "relax control", "relax control alone"],
)
def test_slopes_and_parameters_that_are_no_numbers(
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


def test_given_slopes_that_are_no_numbers() -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "rebar", 4)
    values = quadratic(draw.points)
    with pytest.raises(ValueError, match="slopes must be finite, got NaN"):
        arms.attach(draw, values, torch.full((4, 5, 3), torch.nan))


@pytest.mark.parametrize(
    "slopes", [np.zeros((4, 5, 3)), [0.0], torch.zeros(4, 5, 3).long(), torch.zeros(4, 5, 3, dtype=torch.complex64)]
)
def test_given_slopes_of_another_type(slopes: object) -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "rebar", 4)
    with pytest.raises(ValueError, match="slopes must be a floating-point tensor of shape"):
        arms.attach(draw, quadratic(draw.points), slopes)  # type: ignore[arg-type]


# --- 10. A combine of another shape -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Misshapen(arms.LOORF):
    shape: tuple[int, ...] = ()

    def combine(self, draw: arms.Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return torch.ones(self.shape)


@pytest.mark.parametrize("shape", [(), (2,), (5, 1), (1, 2), (7, 5, 2)])
def test_combine_of_another_shape(shape: tuple[int, ...]) -> None:
    logits = torch.zeros(5, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"shape of the logits, \[5, 2\], got .*combine method of Misshapen"):
        arms.expectation(lambda b: b.sum(-1), logits, Misshapen(4, shape))
    draw = arms.draw(logits, Misshapen(4, shape))
    with pytest.raises(ValueError, match="combine method of Misshapen"):
        arms.attach(draw, draw.samples.sum(-1))


# --- 11. Probabilities below the grain of uniforms --------------------------------------------------------------------


def test_rare_bits_are_right_to_the_grain_of_uniforms() -> None:
    """A float32 uniform is a multiple of 2^-24, so that P(b = 1) is p rounded up to one: wrong by 6e-8 at the most."""
    draws, p = 2**25, torch.sigmoid(torch.tensor(-19.0)).item()
    ones = arms.Bernoulli(torch.full((draws,), -19.0)).sample(1, seeded()).sum().item()
    assert p < 2**-24
    assert ones / draws <= 6e-8 + 5.7 * (6e-8 / draws) ** 0.5
    exact = arms.Bernoulli(torch.full((1000, 2), 40.0, dtype=torch.float64)).sample(4, seeded())
    assert (exact == 1).all()


# --- 12. Complex values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", [one for one in INSTANCES if one.kind is arms.Bernoulli][::7], ids=str)
def test_complex_values(instance: Instance) -> None:
    estimator = instance.fitted(4)
    with pytest.raises(ValueError, match="must return real values, got complex"):
        estimator(lambda b: b.sum(-1).to(torch.complex64), torch.zeros(4, 3))
    draw = arms.draw(torch.zeros(3, requires_grad=True), "loorf", 4)
    with pytest.raises(ValueError, match="must return real values, got complex"):
        arms.attach(draw, draw.samples.sum(-1).to(torch.complex64))
    with pytest.raises(ValueError, match="must return real values, got complex"):
        arms.attach(draw, draw.samples.sum(-1).numpy() * 1j)


# --- What an estimator says of itself, and what it does ---------------------------------------------------------------


def test_points_changed_before_attach_are_noticed() -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), "arms-s", 4)
    draw.points.mul_(2)
    with pytest.raises(ValueError, match=r"draw\.points were changed in place.*change draw\.samples"):
        arms.attach(draw, draw.samples.sum(-1))


class Midpoints(arms.LOORF):
    """Draws points after its samples, and says nothing of them."""

    extra = 2

    @property
    def slopes(self) -> Slopes:
        return "extra"

    def draw(self, latent: arms.Latent, generator: Generator | None = None) -> arms.Draw:
        points = latent.sample(self.num_samples + self.extra, generator)
        return arms.Draw(self, latent, points, self.extra)


class NoMidpoints(Midpoints):
    extra = 0


@pytest.mark.parametrize("estimator", [Midpoints(4), NoMidpoints(4)], ids=lambda one: type(one).__name__)
def test_a_draw_that_is_not_what_its_estimator_says_is_refused(estimator: arms.Estimator) -> None:
    with pytest.raises(ValueError, match=r"says it makes 4 evaluations and 0 derivatives, .* its draw asks for"):
        estimator(lambda b: b.sum(-1), torch.zeros(5, 3))
