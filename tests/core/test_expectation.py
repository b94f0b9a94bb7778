"""The public functions: values, gradients, shapes, dtypes, transforms."""

import copy
import math
import tempfile
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from instances import BITS, INSTANCES, Instance, parts
from marks import slow
from seeds import seeded
from torch import Generator, Tensor
from torch.distributions import Bernoulli
from torch.distributions import Independent as IndependentDistribution

import arms
from arms.checks import exact_gradient, score_limit
from arms.estimate import draw_points

NAMES = ["reinforce", "loorf", "arm", "disarm", "arms-dirichlet", "arms-gaussian", "arms"]


def quadratic(b: Tensor) -> Tensor:
    weights = torch.linspace(-1, 2, b.shape[-1], dtype=b.dtype)
    return (b * weights).sum(-1).square()


def evenly(
    instance: Instance, batch: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float32
) -> arms.Latent:
    """A latent of the instance's kind, logits attached."""
    event = (4,) if instance.kind is arms.Bits else (2, 3)
    count = math.prod(batch) * math.prod(event)
    return instance.kind(
        torch.linspace(-2, 2, count, dtype=dtype).view(*batch, *event).requires_grad_()
    )


def surrogate(
    instance: Instance,
    objective: Callable[[Tensor], Tensor],
    latent: arms.Latent,
    generator: Generator | None = None,
) -> Tensor:
    """The public function for the instance's target."""
    estimator = instance.fitted(len(latent.logits))
    of_bound = estimator.target.subtracts_log_q
    function = arms.importance_bound if of_bound else arms.expectation
    return function(objective, latent, estimator, None, generator)


def weighted(weights: Tensor) -> Callable[[Tensor], Tensor]:
    """A smooth objective of both kinds of samples, weights [4] or [2, 3]."""
    return lambda b: (b * weights.to(b)).sum(tuple(range(-weights.ndim, 0))).square()


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_value_and_gradients_are_the_estimates(instance: Instance) -> None:
    """The gradient of the logits comes from the estimator, and all other gradients from autograd."""
    latent = evenly(instance)
    weights = (
        torch.linspace(-1, 2, latent.logits[0].numel()).view_as(latent.logits[0]).requires_grad_()
    )
    scale = torch.tensor([1.0, 2.0, -3.0, 0.5])
    value = surrogate(instance, weighted(weights), latent, seeded())
    found = torch.autograd.grad((value * scale).sum(), (latent.logits, weights))
    estimate = instance.fitted(4)(weighted(weights), latent, seeded())
    assert torch.equal(value, estimate.value)
    (own,) = torch.autograd.grad((estimate.value * scale).sum(), weights)
    torch.testing.assert_close(found[0], latent.with_event_axes(scale) * estimate.grad.detach())
    torch.testing.assert_close(found[1], own)
    assert (found[0] != 0).any()


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_value_is_made_of_the_samples(instance: Instance) -> None:
    latent = evenly(instance)
    weights = torch.linspace(-1, 2, latent.logits[0].numel()).view_as(latent.logits[0])
    estimator = instance.fitted(4)
    estimate = estimator(weighted(weights), latent, seeded())
    drawn = arms.draw(latent, estimator, generator=seeded())
    values = weighted(weights)(drawn.samples)
    if estimator.target.subtracts_log_q:
        values = values - latent.log_prob(drawn.samples).detach()
    torch.testing.assert_close(estimate.values, values)
    match estimator:
        case arms.ExtraSample():
            expected = values[0]
        case arms.UnorderedSet():
            assert drawn.drawn.weights is not None
            expected = (drawn.drawn.weights.to(values.dtype) * values).sum(0)
        case arms.Exact():
            expected = (latent.log_prob(drawn.samples).exp() * values).sum(0)
        case _:
            expected = estimator.target.value(values)
            assert torch.equal(estimate.value, estimator.target.value(estimate.values))
    torch.testing.assert_close(estimate.value, expected)


@pytest.mark.parametrize("name", NAMES)
def test_objective_parameters_get_autograds_gradient(name: str) -> None:
    logits, weights = torch.zeros(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    value = arms.expectation(lambda b: (b @ weights).square(), logits, name, 4, seeded())
    value.sum().backward()
    samples = arms.draw(logits, name, 4, seeded()).samples
    expected = (2 * (samples @ weights.detach()).unsqueeze(-1) * samples).mean(0).sum(0)
    assert torch.allclose(weights.grad, expected)  # type: ignore[arg-type]


def test_logits_inside_the_objective_keep_their_own_gradient() -> None:
    logits = torch.tensor([0.3, -0.8], dtype=torch.float64, requires_grad=True)
    # E[phi . b] with phi in the distribution and in the objective has the derivative
    # d/dphi (phi p) = p + phi p (1 - p).
    arms.expectation(lambda b: (b * logits).sum(-1), logits, "exact").backward()
    p = torch.sigmoid(logits.detach())
    assert torch.allclose(logits.grad, p + logits.detach() * p * (1 - p))  # type: ignore[arg-type]


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_two_steps_equal_one(instance: Instance) -> None:
    """`attach` with the values at the points gives what one step gives.

    Derivatives are taken from the graph of the values, or passed.
    """
    latent, estimator = evenly(instance), instance.fitted(4)
    weights = torch.linspace(-1, 2, latent.logits[0].numel()).view_as(latent.logits[0])
    objective = weighted(weights)
    value = surrogate(instance, objective, latent, seeded())
    (one,) = torch.autograd.grad(value.sum(), latent.logits)
    draw = arms.draw(latent, estimator, generator=seeded())
    attached = arms.attach(draw, objective(draw.points))
    (two,) = torch.autograd.grad(attached.sum(), latent.logits)
    torch.testing.assert_close(attached, value)
    torch.testing.assert_close(two, one)
    if count := estimator.design.needs.derivatives:
        points = draw.points.detach().requires_grad_()
        values = objective(points)
        (derivatives,) = torch.autograd.grad(values.sum(), points)
        given = arms.attach(draw, values.detach(), derivatives[len(points) - count :])
        torch.testing.assert_close(torch.autograd.grad(given.sum(), latent.logits)[0], one)


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_with_a_simulator_equal_one(name: str) -> None:
    one, two = (torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_() for _ in range(2))
    arms.expectation(quadratic, one, name, 6, seeded()).sum().backward()
    draw = arms.draw(two, name, 6, seeded())
    costs = quadratic(draw.samples).numpy()
    arms.attach(draw, costs).sum().backward()
    assert torch.equal(one.grad, two.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_black_box_objective(name: str) -> None:
    def simulator(b: Tensor) -> npt.NDArray[np.floating]:
        return np.asarray(np.round(b.numpy().sum(-1) ** 2))

    logits = torch.zeros(3, 4, requires_grad=True)
    arms.expectation(simulator, logits, name, 4, seeded()).sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_any_batch_shape(instance: Instance) -> None:
    stacked = len(parts(instance.estimator))
    for batch in ((), (1,), (5,), (2, 3), (0,)):
        if stacked > 1 and stacked > (*batch, 0)[0]:
            continue  # fewer entries than stacked estimators
        latent = evenly(instance, batch)
        value = surrogate(instance, weighted(torch.ones(latent.event_shape)), latent)
        assert value.shape == batch
        value.sum().backward()
        assert latent.logits.grad is not None
        assert latent.logits.grad.shape == latent.logits.shape


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_same_generator_same_bits_and_inputs_stay(instance: Instance) -> None:
    latent, state = evenly(instance), torch.get_rng_state()
    before = latent.logits.detach().clone()
    estimator = instance.fitted(4)
    one, other = (
        estimator(lambda b: latent.sum_event(b).square(), latent, seeded()) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(latent.logits.detach(), before)
    assert torch.equal(state, torch.get_rng_state())


@given(st.integers(0, 6))
def test_batch_entries_do_not_see_each_other(row: int) -> None:
    logits = torch.linspace(-2, 2, 28).reshape(7, 4)
    for name in NAMES:
        estimator = arms.as_estimator(name, 4)
        draw = draw_points(estimator, arms.Bits(logits), seeded())
        values = quadratic(draw.samples)
        changed = values.clone()
        others = torch.arange(7) != row
        changed[:, others] += 100.0
        assert torch.equal(
            estimator.combine(draw, values)[row], estimator.combine(draw, changed)[row]
        )


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.filterwarnings("ignore:.* uses small differences between values")
@pytest.mark.parametrize("instance", BITS, ids=str)
def test_dtypes_and_extreme_logits(instance: Instance) -> None:
    for dtype in DTYPES:
        check_extreme_bits(instance, dtype)


def check_extreme_bits(instance: Instance, dtype: torch.dtype) -> None:
    row = torch.tensor([0.0, 5.0, -20.0, 88.0, -200.0, torch.inf, -torch.inf, 1e-3])
    logits = row.to(dtype).expand(20, -1).clone().requires_grad_()
    value = surrogate(instance, quadratic, arms.Bits(logits), seeded())
    value.sum().backward()
    # A bound contains log q, which is not left to half precision.
    of_bound = instance.estimator.target.subtracts_log_q
    assert value.dtype == (torch.promote_types(dtype, torch.float32) if of_bound else dtype)
    grad = logits.grad
    assert grad is not None
    assert grad.dtype == dtype
    assert grad.isfinite().all()
    if not any(has_own_scale(part) for part in parts(instance.estimator)):
        # Exactly 0 except in float64, where p is 1e-87, or 1e-58 at a temperature of 1.5.
        assert grad[:, 4].double().abs().max() < 1e-57
    assert (grad[:, 5:7] == 0).all()


def has_own_scale(estimator: arms.Estimator) -> bool:
    """Whether the estimate is not in proportion to p (1 - p): it is zero only if p is 0 or 1."""
    plain = isinstance(estimator, arms.StraightThrough) and not estimator.scaled
    return plain or isinstance(estimator, arms.ARM | arms.RELAX)


@pytest.mark.filterwarnings("ignore:.* uses small differences between values")
@pytest.mark.parametrize("instance", [one for one in INSTANCES if one.kind is arms.OneHot], ids=str)
def test_dtypes_and_extreme_logits_of_categories(instance: Instance) -> None:
    for dtype in DTYPES:
        check_extreme_categories(instance, dtype)


def check_extreme_categories(instance: Instance, dtype: torch.dtype) -> None:
    rows = torch.tensor(
        [[0.0, 20.0, -200.0], [-torch.inf, 1.0, 3e4], [5.0, -torch.inf, -torch.inf]]
    )
    logits = rows.to(dtype).expand(20, -1, -1).clone().requires_grad_()
    value = surrogate(instance, lambda b: quadratic(b).sum(-1), arms.OneHot(logits), seeded())
    value.sum().backward()
    grad = logits.grad
    assert grad is not None
    assert grad.dtype == dtype
    assert grad.isfinite().all()
    assert (grad[:, 1:] == 0).all()
    # The probability outside a set of states is known up to the rounding of 1. A temperature widens
    # the tail.
    rounded = any(isinstance(part, arms.UnorderedSet) for part in parts(instance.estimator))
    assert grad[:, 0, 2].double().abs().max() < (1e-12 if rounded else 1e-60)


def test_large_gradients_of_half_precision_logits_leave_the_value_alone() -> None:
    logits = torch.full((50, 200), 2.0, dtype=torch.float16, requires_grad=True)
    value = arms.expectation(lambda b: 3000 * b.float().sum(-1), logits, "arms", 4, seeded())
    value.sum().backward()
    assert logits.grad.isfinite().all()  # type: ignore[union-attr]
    assert torch.equal(
        value, 3000 * arms.draw(logits, "arms", 4, seeded()).samples.float().sum(-1).mean(0)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_integer_values_are_not_rounded_to_half_precision(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, dtype=dtype, requires_grad=True)
    drawn = arms.draw(logits, "loorf", 4, seeded())
    rewards = torch.tensor([100_001, 100_003, 100_002, 100_000])
    arms.attach(drawn, rewards).backward()
    expected = drawn.estimator.combine(drawn.drawn, rewards.float()).to(dtype)
    assert arms.attach(drawn, rewards) == 100_001.5
    assert torch.equal(logits.grad, expected)  # type: ignore[arg-type]


@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=6), st.sampled_from(NAMES))
def test_finite_for_any_logits(logits: list[float], name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        phi = torch.tensor(logits, dtype=dtype, requires_grad=True)
        arms.expectation(quadratic, phi, name, 4, seeded()).backward()
        assert phi.grad.isfinite().all()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: Bernoulli(logits=logits),
        lambda logits: IndependentDistribution(Bernoulli(logits=logits), 1),
        lambda logits: Bernoulli(probs=torch.sigmoid(logits)),
    ],
)
def test_torch_distributions_are_logits_too(wrap: Callable[[Tensor], Bernoulli]) -> None:
    plain, wrapped = (
        torch.linspace(-2, 2, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
        for _ in range(2)
    )
    arms.expectation(quadratic, plain, "arms", 4, seeded()).sum().backward()
    arms.expectation(quadratic, wrap(wrapped), "arms", 4, seeded()).sum().backward()
    assert torch.allclose(plain.grad, wrapped.grad, atol=1e-12)  # type: ignore[arg-type]


def test_using_a_distribution_does_not_change_its_logits() -> None:
    logits = torch.tensor([18.0, -3.0])
    distribution = Bernoulli(logits=logits)
    distribution.sample()
    assert torch.equal(arms.draw(distribution).logits, logits)
    expanded = distribution.expand((2, 2))
    expanded.sample()
    assert torch.equal(arms.draw(expanded).logits, logits.expand(2, 2))


def test_using_the_logits_of_a_distribution_does_not_change_its_probabilities() -> None:
    distribution = Bernoulli(probs=torch.tensor([0.0, 1.0])).expand((2,))
    assert distribution.logits.isfinite().all()
    assert torch.equal(arms.draw(distribution).logits, torch.tensor([-torch.inf, torch.inf]))


def test_probabilities_of_zero_and_one_are_ordinary() -> None:
    probs = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
    draw = arms.draw(Bernoulli(probs=probs), "arms", 4)
    assert torch.equal(draw.samples[:, [0, 2]], torch.tensor([0.0, 1.0]).expand(4, 2))
    arms.attach(draw, quadratic(draw.samples)).backward()
    assert probs.grad.isfinite().all()  # type: ignore[union-attr]
    assert probs.grad[1] != 0  # type: ignore[index]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_give_the_same_result(chunk: int) -> None:
    results = []
    for size in (None, chunk):
        logits, weights = torch.zeros(5, 4, requires_grad=True), torch.ones(4, requires_grad=True)
        value = arms.expectation(
            lambda b, w=weights: (b @ w).square(), logits, "arms-dirichlet", 8, seeded(), chunk=size
        )
        value.sum().backward()
        results.append((value.detach(), logits.grad, weights.grad))
    for whole, sliced in zip(*results, strict=True):
        assert torch.allclose(whole, sliced, atol=1e-6)


def test_chunks_keep_less_for_backward() -> None:
    kept = []
    for chunk in (None, 1):
        total = [0]

        def archive(tensor: Tensor, total: list[int] = total) -> Tensor:
            total[0] += tensor.numel()
            return tensor

        weights = torch.ones(4, 100, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(archive, lambda tensor: tensor):
            arms.expectation(
                lambda b, w=weights: torch.tanh(b @ w).square().sum(-1),
                torch.zeros(50, 4, requires_grad=True),
                "loorf",
                16,
                chunk=chunk,
            )
        kept.append(total[0])
    assert kept[1] < kept[0] / 10


def test_no_grad_gives_the_value_only() -> None:
    logits = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        value = arms.expectation(quadratic, logits, "arms", 4, seeded())
    assert not value.requires_grad
    assert torch.equal(value, arms.expectation(quadratic, logits, "arms", 4, seeded()).detach())


def test_gradient_accumulates() -> None:
    logits = torch.zeros(3, requires_grad=True)
    grads = [arms.as_estimator("arms", 4)(quadratic, logits, seeded(seed)).grad for seed in (1, 2)]
    for seed in (1, 2):
        arms.expectation(quadratic, logits, "arms", 4, seeded(seed)).backward()
    assert torch.allclose(logits.grad, grads[0] + grads[1])  # type: ignore[arg-type]


def test_autocast_does_not_touch_the_estimate() -> None:
    layer, x = torch.nn.Linear(6, 4), torch.randn(5, 6, generator=seeded())
    decoder = torch.nn.Linear(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(x)
        value = arms.expectation(
            lambda b: decoder(b).square().sum(-1), logits, "arms-gaussian", 8, seeded()
        )
    assert logits.dtype == torch.bfloat16
    value.float().mean().backward()
    assert layer.weight.grad.isfinite().all()  # type: ignore[union-attr]
    values = torch.randn(8, 5, generator=seeded())
    draw = arms.draw(logits.detach(), "arms-gaussian", 8, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = draw.estimator.combine(draw.drawn, values)
    assert torch.equal(inside, draw.estimator.combine(draw.drawn, values))


@pytest.mark.parametrize("name", NAMES)
def test_vmap_of_grad(name: str) -> None:
    logits = torch.linspace(-1, 1, 2000 * 2, dtype=torch.float64).reshape(
        2000, 2
    ) * 0 + torch.tensor([0.5, -0.5])

    def value(phi: Tensor) -> Tensor:
        return arms.expectation(quadratic, phi, name, 4)

    torch.manual_seed(0)
    grads = torch.func.vmap(torch.func.grad(value), randomness="different")(logits)
    assert grads.shape == logits.shape
    spread = grads.std(0) / len(grads) ** 0.5
    truth = exact_gradient(quadratic, logits[0])
    assert ((grads.mean(0) - truth).abs() <= score_limit(2 * len(NAMES)) * spread + 1e-9).all()


@pytest.mark.parametrize(
    "name",
    [
        "disarm",
        "arms",
        pytest.param("arms-dirichlet", marks=slow),
        pytest.param("arms-gaussian", marks=slow),
    ],
)
def test_compiles_as_one_graph(name: str) -> None:
    torch.compiler.reset()
    weights = torch.linspace(-1, 1, 3)

    def value(phi: Tensor) -> Tensor:
        return arms.expectation(lambda b: (b @ weights).square(), phi, name, 4)

    compiled = torch.compile(value, fullgraph=True, backend="aot_eager")
    eager_logits, logits = (
        torch.linspace(-2, 2, 15).reshape(5, 3).requires_grad_() for _ in range(2)
    )
    torch.manual_seed(0)
    expected = value(eager_logits)
    torch.manual_seed(0)
    result = compiled(logits)
    expected.sum().backward()
    result.sum().backward()
    assert torch.allclose(result, expected)
    assert torch.allclose(logits.grad, eager_logits.grad, atol=1e-6)  # type: ignore[arg-type]
    assert compiled(torch.zeros(4, 3)).shape == (4,), (
        "a second batch size, such as the last batch's"
    )
    assert compiled(torch.zeros(7, 3)).shape == (7,)


@pytest.mark.skipif(
    " " in tempfile.gettempdir(), reason="PyTorch's C++ compiler takes no folder with spaces"
)
def test_compiles_to_machine_code() -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        lambda phi: arms.expectation(quadratic, phi, "arms", 4), fullgraph=True
    )
    logits = torch.zeros(500, 3, requires_grad=True)
    torch.manual_seed(0)
    compiled(logits).sum().backward()
    grad = logits.grad
    assert grad is not None
    spread = grad.std(0) / len(grad) ** 0.5
    assert (
        (grad.mean(0) - exact_gradient(quadratic, torch.zeros(3))).abs()
        <= score_limit(3) * spread + 1e-6
    ).all()


def test_estimators_are_values() -> None:
    assert arms.as_estimator("arms", 4) == arms.ARMS(4, coupling=arms.designs.Systematic())
    assert arms.as_estimator(arms.LOORF(3)) == arms.LOORF(3)
    assert copy.deepcopy(arms.ARMS(4)) == arms.ARMS(4)


def test_default_budget_is_eight() -> None:
    assert arms.draw(torch.zeros(2)).samples.shape == (8, 2)
