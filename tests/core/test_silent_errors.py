"""Inputs that could give a wrong number without an error: each is correct, or raises an error."""

import copy
import math
import pickle
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Ranks
from seeds import seeded
from torch import Tensor

import arms
from arms.checks import exact_gradient, score_limit
from arms.designs.couplings.copulas import order_pair_distribution
from arms.estimate import draw_points, takes
from arms.estimators.regression import SHORT, sum_of_others

WEIGHTS = torch.tensor([1.0, -2.0, 0.5])
DIFFERENTIATING = [
    name
    for name, make in arms.ESTIMATORS.items()
    if make(8).design.needs.derivatives and not make(8).target.subtracts_log_q
]


def curved(b: Tensor) -> Tensor:
    total = b @ WEIGHTS.to(b.dtype)
    return torch.sin(2 * total) + total.square()


def scores(grads: Tensor, truth: Tensor) -> Tensor:
    """The z-score of the mean over the first axis."""
    return (grads.double().mean(0) - truth) / (grads.double().std(0) / math.sqrt(len(grads)))


# --- Rows of very different size ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "neighbor"),
    [("arms-taylor", 9.0), ("double-cv", 9.0), ("midpoint", 10.0), ("midpoint-single", 10.0)],
)
def test_saturated_rows_do_not_bias_their_neighbors(estimator: str, neighbor: float) -> None:
    n = 8 if estimator.startswith("midpoint") else 4
    far = [neighbor, -neighbor, neighbor]
    base = torch.tensor([[0.3, -0.5, 1.0], far, far])
    logits = base.expand(200_000, 3, 3).clone().requires_grad_()
    arms.expectation(curved, logits, estimator, n, seeded()).sum().backward()
    assert logits.grad is not None
    truth = exact_gradient(curved, base[0].double())
    assert scores(logits.grad[:, 0], truth).abs().max() < score_limit(3, 1e-6)


@pytest.mark.parametrize("estimator", ["arms-taylor", "double-cv"])
def test_rows_of_another_scale_do_not_bias_each_other(estimator: str) -> None:
    base = torch.tensor([0.3, -0.5, 1.0])
    scale = torch.tensor([4000.0, 1.0, 1.0])
    logits = base.expand(200_000, 3, 3).clone().requires_grad_()
    arms.expectation(lambda b: scale * curved(b), logits, estimator, 4, seeded()).sum().backward()
    assert logits.grad is not None
    truth = 4000 * exact_gradient(curved, base.double())
    assert scores(logits.grad[:, 0], truth).abs().max() < score_limit(3, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("estimator", ["flips", "arms-taylor"])
def test_controls_that_are_rounding_errors_alone(
    estimator: str, d: int, dtype: torch.dtype
) -> None:
    """Quadratic f and even bits: in many rows, what is fitted would be a rounding error."""
    weights = torch.tensor([0.83, -1.37], dtype=dtype)[:d]
    grad = arms.as_estimator(estimator, 4)(
        lambda b: (b @ weights).square(), torch.zeros(400, 16, d, dtype=dtype), seeded()
    ).grad.double()
    truth = exact_gradient(lambda b: (b @ weights.double()).square(), torch.zeros(d).double())
    error = grad.mean((0, 1)) - truth
    assert (error.abs() < 6 * grad.mean(1).std(0) / 20 + 1e-5).all()
    assert grad.abs().max() < 10


@pytest.mark.parametrize("length", [1, 2, 5, SHORT, SHORT + 1])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_sum_of_others_does_not_depend_on_the_entry(length: int, dim: Any) -> None:
    shape = (length, 3) if dim == 0 else (3, length)
    tensor = torch.randn(shape, generator=seeded())
    expected = torch.stack([_sum_without(tensor, entry, dim) for entry in range(length)], dim)
    torch.testing.assert_close(sum_of_others(tensor, dim), expected, rtol=1e-5, atol=1e-5)
    huge = tensor.clone()
    huge.select(dim, 0).mul_(1e12)
    assert torch.equal(
        sum_of_others(huge, dim).select(dim, 0), sum_of_others(tensor, dim).select(dim, 0)
    )


def _sum_without(tensor: Tensor, entry: int, dim: int) -> Tensor:
    keep = [i for i in range(tensor.shape[dim]) if i != entry]
    return tensor.index_select(dim, torch.tensor(keep, dtype=torch.long)).sum(dim)


# --- Latents of a third kind --------------------------------------------------------------------


def order_cost(ranks: Tensor) -> Tensor:
    return 2 * ranks[..., 0] + ranks[..., 1] * ranks[..., 2]


THIRD_KIND = [
    arms.Reinforce(4),
    arms.LOORF(4),
    arms.UnorderedSet(3),
    arms.ExtraSample(arms.LOORF(3)),
]


@pytest.mark.parametrize("estimator", THIRD_KIND, ids=str)
def test_any_latent_gets_its_own_score(estimator: arms.Estimator) -> None:
    phi = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64)
    truth = exact_gradient(order_cost, Ranks(phi))
    grads = estimator(order_cost, Ranks(phi.expand(10_000, 3)), seeded()).grad
    assert scores(grads, truth).abs().max() < score_limit(3, 1e-6)


@pytest.mark.parametrize("name", [*arms.ESTIMATORS, *arms.BIASED_ESTIMATORS])
def test_estimators_take_a_third_kind_or_refuse_it(name: str) -> None:
    """Estimators that need bits or categories must not treat other latents as bits."""
    estimator = arms.as_estimator(name, 6)
    latent = Ranks(torch.zeros(5, 3, dtype=torch.float64))
    for_any = {"reinforce", "loorf", "unordered-set", "exact", "reinforce-ms", "vimco", "loorf-ms"}
    assert takes(estimator, latent) == (name in for_any)
    if name in for_any:
        estimator(order_cost, latent, seeded())
    else:
        with pytest.raises(ValueError, match=r"Ranks (does not have it|latents): use an estimator"):
            estimator(order_cost, latent, seeded())


def test_distinct_states_of_a_third_kind_come_with_their_probabilities() -> None:
    phi = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64)
    drawn = draw_points(arms.UnorderedSet(2), Ranks(phi.expand(20_000, 3)), seeded())
    assert (drawn.points[0] != drawn.points[1]).any(-1).all()
    first = Ranks(phi).log_prob(Ranks(phi).states()).exp()
    found = torch.stack(
        [(drawn.points[0] == state).all(-1).double().mean() for state in Ranks(phi).states()]
    )
    assert ((found - first) / (first * (1 - first) / 20_000).sqrt()).abs().max() < score_limit(
        6, 1e-6
    )
    with pytest.raises(
        ValueError,
        match=r"most 65536 joint states can be enumerated, got logits of shape \[9\], which have",
    ):
        arms.UnorderedSet(2)(lambda r: r.sum(-1), Ranks(torch.zeros(9, dtype=torch.float64)))


# --- Values of the objective --------------------------------------------------------------------


def offset_count(b: Tensor) -> Tensor:
    return (b.long() * torch.tensor([1, 2, 4])).sum(-1) + 2_000_000_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "objective",
    [
        offset_count,
        lambda b: offset_count(b).tolist(),
        lambda b: [float(value) for value in offset_count(b)],
        lambda b: list(offset_count(b)),
        lambda b: offset_count(b).numpy(),
    ],
    ids=["integers", "list of integers", "list of floats", "list of tensors", "numpy"],
)
def test_large_values_keep_their_digits(objective: Any, dtype: torch.dtype) -> None:
    grad = arms.Exact()(objective, torch.zeros(3, dtype=dtype)).grad
    torch.testing.assert_close(grad, torch.tensor([0.25, 0.5, 1.0], dtype=dtype), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (
            lambda b: np.ma.masked_array(b.sum(-1).numpy(), mask=True),
            r"the objective must return an ordinary array, got a masked array: call .filled\(0.0\)",
        ),
        (
            lambda b: b.sum(-1).to_sparse(),
            "ordinary, dense tensor, got a tensor of layout torch.sparse_coo",
        ),
        (
            lambda b: b.sum(-1).to(torch.float8_e4m3fn),
            r"must return real floating-point numbers, got torch.float8_e4m3fn: call .float\(\)",
        ),
        (lambda b: b.sum(-1).to("meta"), "got a tensor on the meta device"),
    ],
    ids=["masked", "sparse", "float8", "meta"],
)
def test_values_that_are_no_numbers(objective: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        arms.expectation(objective, torch.zeros(4, 3), "loorf", 4)
    draw = arms.draw(torch.zeros(4, 3, requires_grad=True), "loorf", 4)
    with pytest.raises(ValueError, match=words):
        arms.attach(draw, objective(draw.samples))


def test_logits_on_the_meta_device() -> None:
    with pytest.raises(
        ValueError,
        match="logits must be an ordinary dense tensor, got a tensor on the meta device,",
    ):
        arms.expectation(lambda b: b.sum(-1), torch.zeros(4, 3, device="meta"))


# --- Objectives that mix rows, or change their points -------------------------------------------


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("name", DIFFERENTIATING)
def test_values_that_depend_on_other_rows(name: str, distance: int) -> None:
    def mixed(b: Tensor) -> Tensor:
        total = b @ WEIGHTS
        return (total * total.roll(distance, -1)).square()

    logits = torch.linspace(-1, 1, 6 * distance).view(2 * distance, 3).requires_grad_()
    with pytest.raises(
        ValueError,
        match="the objective's value at one sample must not depend on other samples or on",
    ):
        arms.expectation(mixed, logits, name, 4, seeded())


@pytest.mark.parametrize("name", DIFFERENTIATING)
def test_two_rows_or_two_samples_that_depend_on_each_other(name: str) -> None:
    for rows, axis in ((2, -1), (1, 0)):
        logits = torch.zeros(rows, 3, requires_grad=True)
        with pytest.raises(
            ValueError,
            match="the objective's value at one sample must not depend on other samples or on",
        ):
            arms.expectation(
                lambda b, axis=axis: (b @ WEIGHTS).flip(axis) ** 3, logits, name, 4, seeded()
            )


@pytest.mark.filterwarnings("ignore:.* uses small differences between values")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", DIFFERENTIATING)
def test_independent_rows_are_accepted_in_every_precision(name: str, dtype: torch.dtype) -> None:
    weights = torch.linspace(-1, 1, 20).to(dtype)
    logits = torch.linspace(-3, 3, 1000).view(50, 20).to(dtype).requires_grad_()
    arms.expectation(lambda b: (b @ weights).tanh(), logits, name, 8, seeded()).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def change_data(b: Tensor) -> Tensor:
    found = ((2 * b - 1) @ WEIGHTS).square().sin()
    b.data.mul_(2).sub_(1)
    return found


def change_detached(b: Tensor) -> Tensor:
    found = (b @ WEIGHTS).square().sin()
    b.detach().numpy()[...] = 0.5
    return found


@pytest.mark.parametrize("objective", [change_data, change_detached])
@pytest.mark.parametrize("name", [*DIFFERENTIATING, "arms"])
def test_changes_that_autograd_does_not_see(name: str, objective: Any) -> None:
    with pytest.raises(
        ValueError,
        match="the objective modified its samples b in place, but the estimator still needs",
    ):
        arms.expectation(objective, torch.zeros(5, 3, requires_grad=True), name, 4, seeded())


@pytest.mark.parametrize("name", ["loorf", "midpoint"])
def test_points_changed_behind_a_draw(name: str) -> None:
    draw = arms.draw(torch.zeros(5, 3, requires_grad=True), name, 8)
    values = curved(draw.points)
    draw.points.detach().numpy()[...] = 1 - draw.points.detach().numpy()
    with pytest.raises(
        ValueError,
        match=r"draw.points was modified in place after the draw: modify draw.samples instead,",
    ):
        arms.attach(draw, values)


@pytest.mark.parametrize("name", ["loorf", "arms", "disarm", "unordered-set", "midpoint"])
def test_copies_of_a_draw_are_draws(name: str) -> None:
    logits = torch.zeros(5, 3, requires_grad=True)
    draw = arms.draw(logits, name, 4, seeded())
    copies = [copy.deepcopy(draw), pickle.loads(pickle.dumps(draw))]
    arms.attach(draw, curved(draw.points)).sum().backward()
    assert logits.grad is not None
    for other in copies:
        arms.attach(other, curved(other.points)).sum().backward()
        assert other.given is not None
        assert torch.equal(other.given.logits.grad, logits.grad)


# --- Autocast, and dtypes that differ -----------------------------------------------------------


@pytest.mark.parametrize("name", ["disarm-stick", "disarm", "arms", "arms-stratified", "loorf"])
def test_categories_under_autocast_are_one_hot(name: str) -> None:
    logits = torch.zeros(20, 1, 300, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draw = arms.draw(arms.OneHot(logits), name, 4, seeded())
        value = arms.expectation(
            lambda z: z[..., 0, :7].sum(-1), arms.OneHot(logits), name, 4, seeded()
        )
    assert torch.equal(draw.samples.sum(-1), torch.ones(4, 20, 1))
    value.sum().backward()
    assert logits.grad is not None
    plain = arms.as_estimator(name, 4)(
        lambda z: z[..., 0, :7].sum(-1), arms.OneHot(logits.detach()), seeded()
    ).grad
    assert torch.equal(logits.grad, plain)


@pytest.mark.parametrize("values", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["disarm", "disarm-stick"])
def test_trees_take_values_of_any_precision(name: str, values: torch.dtype) -> None:
    logits = torch.zeros(2, 3, 4, requires_grad=True)
    draw = arms.draw(arms.Indices(logits), name, 4, seeded())
    arms.attach(draw, draw.samples.sum(-1).to(values)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


# --- Many samples, rare states, no latents ------------------------------------------------------


@pytest.mark.parametrize("n", [46, 300])
def test_the_dirichlet_coupling_of_categories_with_many_samples(n: int) -> None:
    latent = arms.OneHot(torch.tensor([[0.3, -0.5, 1.0, -torch.inf]], dtype=torch.float64))
    pairs = order_pair_distribution(latent.logits, n)
    torch.testing.assert_close(pairs.sum(-1), latent.mean(), rtol=0, atol=1e-13)
    truth = exact_gradient(lambda z: z[..., 0, 0] + 2 * z[..., 0, 1], latent)
    many = arms.OneHot(latent.logits.expand(2_000, 1, 4))
    grads = arms.ARMS(n, arms.designs.Dirichlet())(
        lambda z: z[..., 0, 0] + 2 * z[..., 0, 1], many, seeded()
    ).grad
    assert scores(grads[..., :3], truth[..., :3]).abs().max() < score_limit(3, 1e-6)


@pytest.mark.parametrize("tail", [(-14.0, -15.0, -15.5), (-18.0, -19.0, -19.0)])
def test_sets_with_rare_states_in_float32(tail: tuple[float, ...]) -> None:
    logits = torch.tensor([[0.0, *tail]])
    last = torch.tensor([0.0, 0.0, 0.0, 1e6])
    many = arms.OneHot(logits.expand(5_000, 1, 4))
    grads = arms.UnorderedSet(3)(lambda z: (z * last).sum((-1, -2)), many, seeded()).grad[..., 3]
    wide = arms.OneHot(logits.double().expand(5_000, 1, 4))
    right = arms.UnorderedSet(3)(lambda z: (z * last).sum((-1, -2)), wide, seeded(1)).grad[..., 3]
    error = (grads.double().var() / len(grads) + right.var() / len(right)).sqrt()
    assert (grads.double().mean() - right.mean()).abs() / error < score_limit(1, 1e-6)


WITHOUT_LATENTS = [
    name for name, make in arms.ESTIMATORS.items() if not make(8).target.subtracts_log_q
]


def test_a_latent_follows_its_logits() -> None:
    """Also after the logits were modified in place, and after a caller modified a mean."""
    logits = torch.zeros(3)
    latent = arms.Bits(logits)
    with torch.inference_mode():
        latent.sample(1, seeded())
    latent.mean().zero_()
    latent.uncertainty()
    weights = torch.ones(3, requires_grad=True)
    (latent.mean() * weights).sum().backward()
    assert weights.grad is not None
    assert (weights.grad == 0.5).all()
    logits.fill_(30.0)
    assert (latent.sample(100, seeded()) == 1).all()
    assert (latent.uncertainty() < 1e-9).all()


@pytest.mark.parametrize("name", WITHOUT_LATENTS)
def test_no_latents_at_all(name: str) -> None:
    if name == "unordered-set":
        with pytest.raises(
            ValueError, match="samples are drawn without replacement, got 4: use exact instead"
        ):
            arms.expectation(lambda b: b.sum(-1), torch.zeros(4, 0, requires_grad=True), name, 4)
        return
    logits = torch.zeros(4, 0, requires_grad=True)
    arms.expectation(lambda b: b.sum(-1), logits, name, 4).sum().backward()
    assert logits.grad is not None
    assert logits.grad.shape == (4, 0)


@pytest.mark.parametrize("name", ["flips", "midpoint", "arms"])
def test_a_joint_latent_with_an_empty_part(name: str) -> None:
    """The gradient of the other part is the same as alone."""

    def grad(empty: bool) -> Tensor:
        logits = torch.zeros(4, 2, 3, requires_grad=True)
        parts = {"mask": torch.zeros(4, 0)} if empty else {}
        joint = arms.Joint(**parts, action=arms.OneHot(logits), last=torch.zeros(4, 1))

        def objective(action: Tensor, last: Tensor, **mask: Tensor) -> Tensor:
            return action.flatten(-2).cumsum(-1).square().sum(-1) + last.sum(-1)

        arms.expectation(objective, joint, name, 4, seeded()).sum().backward()
        assert logits.grad is not None
        return logits.grad

    assert torch.equal(grad(empty=True), grad(empty=False))


def test_every_order_of_three_items_is_a_state() -> None:
    states = {tuple(state) for state in Ranks(torch.zeros(3)).states().tolist()}
    assert states == {tuple(map(float, order)) for order in permutations(range(3))}
