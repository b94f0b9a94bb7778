"""Joint latents: several latents drawn together, with names."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from marks import slow
from seeds import seeded
from torch import Tensor
from torch.distributions import Categorical, OneHotCategorical

import arms
from arms import ARMS, LOORF, Bits, Indices, Joint, OneHot, Subset
from arms.checks import exact_gradient, expected_estimate, smooth_objective
from arms.checks.oracle import exact_target_gradient
from arms.estimate import takes
from arms.latents import (
    Binary,
    Choices,
    Couplable,
    Enumerable,
    ExchangeablePairs,
    HasMean,
    Relaxable,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def three_parts(*batch: int) -> dict[str, Any]:
    """Parts with events [3], [1, 4] and [5]."""
    return {
        "mask": random(*batch, 3, seed=1),
        "action": OneHot(random(*batch, 1, 4, seed=2)),
        "items": Subset(random(*batch, 5, seed=3), k=2),
    }


def cost(mask: Tensor, action: Tensor, items: Tensor) -> Tensor:
    chosen = action.squeeze(-2) @ torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=action.dtype)
    return (mask.sum(-1) - chosen).square() + items.cumsum(-1).square().mean(-1) * chosen


# --- What the objective and the caller receive ----------------------------------------------------


def test_the_objective_is_called_by_name_and_gradients_have_the_same_keys() -> None:
    seen: list[dict[str, torch.Size]] = []

    def objective(**parts: Tensor) -> Tensor:
        seen.append({name: part.shape for name, part in parts.items()})
        return cost(**parts)

    estimate = arms.LOORF(6)(objective, Joint(**three_parts(7)), seeded())
    assert seen == [{"mask": (6, 7, 3), "action": (6, 7, 1, 4), "items": (6, 7, 5)}]
    assert {name: grad.shape for name, grad in estimate.grad.items()} == {
        "mask": (7, 3),
        "action": (7, 1, 4),
        "items": (7, 5),
    }
    assert estimate.value.shape == (7,)


def test_samples_arrive_in_the_form_of_their_part() -> None:
    joint = Joint(
        mask=torch.zeros(5, 3),
        index=Categorical(logits=torch.zeros(5, 2, 4)),
        one_hot=OneHotCategorical(logits=torch.zeros(5, 2, 4)),
        items=Subset(torch.zeros(5, 6), k=4),
    )
    assert [type(part) for part in joint.parts.values()] == [Bits, Indices, OneHot, Subset]
    received = joint.to_objective(joint.sample(8, seeded()))
    assert received["index"].shape == (8, 5, 2)
    assert received["index"].dtype == torch.long
    assert torch.equal(received["one_hot"].sum(-1), torch.ones(8, 5, 2))
    assert torch.equal(received["items"].sum(-1), torch.full((8, 5), 4.0))


def test_gradients_reach_the_logits_of_every_part() -> None:
    leaves = {name: torch.zeros(5, 3, requires_grad=True) for name in ("a", "c")}
    parts: dict[str, Any] = {"a": leaves["a"], "c": OneHot(leaves["c"].unsqueeze(-2))}
    value = arms.expectation(
        lambda a, c: (a.sum(-1) - c[..., 0, 0]).square(), Joint(**parts), "arms", 4, seeded()
    )
    value.sum().backward()
    expected = ARMS(4)(lambda a, c: (a.sum(-1) - c[..., 0, 0]).square(), Joint(**parts), seeded())
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, expected.grad[name].view(5, 3))
        assert leaf.grad.any()


@pytest.mark.parametrize("name", ["self", "logits", "parts", "points", "latent", "generator"])
def test_any_name_will_do(name: str) -> None:
    joint = Joint(**{name: torch.zeros(5, 3)})
    grad = arms.LOORF(4)(lambda **parts: parts[name].sum(-1), joint).grad
    assert grad[name].shape == (5, 3)


def test_joint_latents_may_be_parts() -> None:
    """The inner latent arrives as a dictionary, and so does its gradient."""
    inner = Joint(a=random(5, 2), c=OneHot(random(5, 1, 3, seed=1)))
    nested = Joint(a=inner, d=random(5, 2, seed=2))
    flat = Joint(a=random(5, 2), c=OneHot(random(5, 1, 3, seed=1)), d=random(5, 2, seed=2))

    def objective(a: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return (a.sum(-1) + c[..., 0, 1] - d.prod(-1)).square()

    found = ARMS(4)(lambda a, d: objective(**a, d=d), nested, seeded())
    expected = ARMS(4)(objective, flat, seeded())
    assert torch.equal(found.value, expected.value)
    assert torch.equal(found.grad["a"]["a"], expected.grad["a"])
    assert torch.equal(found.grad["a"]["c"], expected.grad["c"])
    assert torch.equal(found.grad["d"], expected.grad["d"])
    assert nested.event_shape == flat.event_shape == (7,)
    relax = arms.RELAX(2)
    bits = Joint(x=Joint(y=torch.zeros(4, 2), z=torch.zeros(4, 1)))
    estimate = relax(lambda x: x["y"].prod(-1) * x["z"].sum(-1), bits, seeded())
    arms.variance_loss(estimate).backward()
    assert all(parameter.grad is not None for parameter in relax.parameters())


# --- The distribution ---------------------------------------------------------------------------


def test_log_prob_score_and_mean_are_those_of_the_parts() -> None:
    joint = Joint(**three_parts(7))
    samples = joint.sample(4, seeded())
    received = joint.to_objective(samples)
    parts = joint.parts
    expected = sum(part.log_prob(received[name]) for name, part in parts.items())
    torch.testing.assert_close(joint.log_prob(samples), expected)
    scores, means = joint.split_gradient(joint.score(samples)), joint.split_gradient(joint.mean())
    for name, part in parts.items():
        assert isinstance(part, HasMean)
        assert torch.equal(scores[name], part.score(received[name]))
        assert torch.equal(means[name], part.mean())


def test_a_joint_latent_has_what_all_of_its_parts_have() -> None:
    bits, categories, subset = torch.zeros(3), OneHot(torch.zeros(1, 3)), Subset(torch.zeros(3), 1)
    every = (Binary, Choices, Couplable, Enumerable, ExchangeablePairs, HasMean, Relaxable)
    for joint, missing in (
        (Joint(a=bits, c=bits), {Choices}),
        (Joint(a=bits, c=categories), {Binary, Choices}),
        (Joint(a=bits, c=subset), {Binary, Choices, Couplable, Relaxable}),
    ):
        assert {one for one in every if not joint.has(one)} == missing
    assert not Joint(a=bits, c=Indices(torch.zeros(1, 3))).differentiable


# --- Estimators ---------------------------------------------------------------------------------

SMALL = Joint(
    mask=torch.tensor([0.4], dtype=torch.float64),
    action=OneHot(torch.tensor([[0.3, -0.5, 0.1]], dtype=torch.float64)),
)
WITH_ITEMS = Joint(
    items=Subset(torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64), k=1),
    mask=torch.tensor([0.4], dtype=torch.float64),
)
ESTIMATORS = [
    arms.Reinforce(2),
    LOORF(2),
    ARMS(2),
    ARMS(3),
    ARMS(2, arms.designs.Dirichlet()),
    arms.DisARM(2),
    arms.DisARM(2, tree="stick"),
    arms.UnorderedSet(2),
    arms.Exact(),
    arms.Midpoint(2),
    arms.Midpoint(4),
    arms.DoubleCV(2),
    arms.WithTaylor(ARMS(2)),
    arms.VIMCO(2),
    arms.OnBound(LOORF(2), 1),
    arms.OnBound(ARMS(2), 1),
    arms.DisARMOnBound(2),
    arms.MidpointOnBound(2),
    arms.ExtraSample(LOORF(2)),
]
FITTING = [
    pytest.param(one, latent, id=f"{one}, {', '.join(latent.parts)}")
    for one in ESTIMATORS
    for latent in (SMALL, WITH_ITEMS)
    if takes(one, latent)
]


@pytest.mark.parametrize(("estimator", "latent"), FITTING)
def test_expected_estimate_is_the_gradient(estimator: arms.Estimator, latent: Joint) -> None:
    objective = smooth_objective(latent, seeded())
    found = expected_estimate(estimator, objective, latent)
    assert found is not None
    truth = exact_target_gradient(objective, latent, estimator.target)
    assert (found[0] - truth).abs().max() < 1e-12


ONE_LATENT = {
    "bits": Bits(random(5, 3)),
    "categories": OneHot(random(5, 2, 3)),
    "items": Subset(random(5, 4), k=2),
}


@pytest.mark.parametrize("name", ["loorf", "arms", "disarm", "midpoint", "st", "gumbel-softmax"])
@pytest.mark.parametrize("kind", ONE_LATENT)
def test_a_joint_latent_of_one_part_is_that_part(kind: str, name: str) -> None:
    latent, estimator = ONE_LATENT[kind], arms.as_estimator(name, 4)
    joint = Joint(b=latent)
    assert takes(estimator, latent) == takes(estimator, joint)
    if not takes(estimator, latent):
        return

    def objective(b: Tensor) -> Tensor:
        return latent.sum_event(b.cumsum(-1) * b.sum(-1, keepdim=True)).square()

    alone, together = (estimator(objective, one, seeded()) for one in (latent, joint))
    torch.testing.assert_close(together.grad["b"], alone.grad, rtol=0, atol=1e-13)
    assert torch.equal(together.value, alone.value)


def test_bits_in_two_parts_are_bits() -> None:
    logits, weights = random(5), random(5, seed=1)
    whole = exact_gradient(lambda b: (b @ weights).sin(), logits)
    joint = Joint(a=logits[:2], c=logits[2:])
    parts = arms.Exact()(lambda a, c: (torch.cat([a, c], -1) @ weights).sin(), joint).grad
    torch.testing.assert_close(torch.cat([parts["a"], parts["c"]]), whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_give_the_same_result(chunk: int) -> None:
    joint = Joint(**three_parts(7))
    whole = LOORF(6)(cost, joint, seeded())
    parts = LOORF(6)(cost, joint, seeded(), chunk=chunk)
    torch.testing.assert_close(parts.value, whole.value)
    for name, grad in whole.grad.items():
        torch.testing.assert_close(parts.grad[name], grad)


def test_importance_bound() -> None:
    """Log q is the sum over parts."""
    log_joint = smooth_objective(SMALL, seeded())
    bound = arms.importance_bound(log_joint, SMALL.expand(5), "vimco", 3, seeded())
    drawn = arms.draw(SMALL.expand(5), "vimco", 3, seeded())
    log_q = sum(part.log_prob(drawn.points[name]) for name, part in SMALL.expand(5).parts.items())
    log_weights = log_joint(**drawn.points) - log_q
    torch.testing.assert_close(bound, log_weights.logsumexp(0) - torch.tensor(3.0).log())
    rows = 20_000
    logits = SMALL.logits.expand(rows, -1).clone().requires_grad_()
    many = SMALL.with_logits(logits)
    arms.importance_bound(log_joint, many, "vimco", 3, seeded()).sum().backward()
    assert logits.grad is not None
    truth = exact_target_gradient(log_joint, SMALL, arms.ImportanceBound(3))
    error = logits.grad.std(0) / rows**0.5
    assert ((logits.grad.mean(0) - truth) / error).abs().max() < arms.checks.score_limit(4)


@pytest.mark.parametrize("name", ["loorf", "arms", "midpoint", "rebar"])
def test_two_steps_equal_one(name: str) -> None:
    parts = {"a": random(5, 3).requires_grad_(), "c": random(5, 2, seed=1).requires_grad_()}

    def objective(a: Tensor, c: Tensor) -> Tensor:
        return (a.sum(-1) - 2 * c.sum(-1)).square()

    one = arms.expectation(objective, Joint(**parts), name, 4, seeded())
    draw = arms.draw(Joint(**parts), name, 4, seeded())
    assert set(draw.points) == set(draw.samples) == {"a", "c"}
    two = arms.attach(draw, objective(**draw.points))
    torch.testing.assert_close(two, one)
    leaves = list(parts.values())
    for a, b in zip(
        torch.autograd.grad(one.sum(), leaves), torch.autograd.grad(two.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("root", ["arms", "loorf", "midpoint"])
def test_layers(root: str) -> None:
    """A joint latent as the first layer, and another one given it."""
    logits = {"a": random(5, 2).requires_grad_(), "c": random(5, 1, 3, seed=1).requires_grad_()}
    weights = random(5, 4, seed=2).requires_grad_()
    first = arms.draw(Joint(a=logits["a"], c=OneHot(logits["c"])), root, 4, seeded())
    seen = torch.cat([first.points["a"], first.points["c"].squeeze(-2)], -1) @ weights
    second = arms.draw(Joint(d=seen[..., :1], e=seen[..., 1:]), given=first, generator=seeded(1))
    terms = [
        first.points["a"].sum(-1).square() * first.points["c"][..., 0, 0],
        (second.points["d"].sum(-1) - second.points["e"].sum(-1)).square(),
    ]
    value = arms.attach([first, second], terms)
    grads = torch.autograd.grad(value.sum(), [*logits.values(), weights])
    assert all(grad.isfinite().all() and grad.any() for grad in grads)


def test_layers_are_unbiased() -> None:
    """The second layer's probability is known given the first, so the gradient is too."""
    rows = 50_000
    a, c = (random(rows, 1, seed=i).mul(0).requires_grad_() for i in (1, 2))
    first = arms.draw(Joint(a=a, c=c), "arms", 2, seeded())
    seen = 2 * first.samples["a"] - first.samples["c"]
    second = arms.draw(Joint(d=seen), given=first, generator=seeded(1))
    value = arms.attach([first, second], second.samples["d"].squeeze(-1))
    found = torch.autograd.grad(value.sum(), [a, c])
    one, zero, two, minus = (torch.sigmoid(torch.tensor(float(x))) for x in (1, 0, 2, -1))
    expected = (two + one - zero - minus) / 8, (minus + one - zero - two) / 8
    for grad, truth in zip(found, expected, strict=True):
        error = grad.std() / rows**0.5
        assert (grad.mean() - truth).abs() < arms.checks.score_limit(2) * error


def test_function_transforms() -> None:
    def value(phi: Tensor) -> Tensor:
        joint = Joint(a=phi[:2], c=OneHot(phi[2:].unsqueeze(0)))
        return arms.expectation(lambda a, c: a.sum(-1) * c[..., 0, 1], joint, "arms", 4)

    logits = random(7, 5)
    grads = torch.vmap(torch.func.grad(value), randomness="different")(logits)
    assert grads.shape == logits.shape
    assert grads.any()


def of_subset(phi: Tensor) -> Tensor:
    return arms.expectation(lambda b: b.cumsum(-1).sum(-1), Subset(phi, 2), "loorf", 4)


def of_joint(phi: Tensor) -> Tensor:
    joint = Joint(a=phi, c=OneHot(phi.unsqueeze(-2)), s=Subset(phi, 2))
    return arms.expectation(lambda a, c, s: (a * s).sum(-1) * c[..., 0, 0], joint, "loorf", 4)


@pytest.mark.parametrize("value", [pytest.param(of_subset, marks=slow), of_joint])
def test_compiles_as_one_graph(value: Callable[[Tensor], Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(value, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (compiled, value):
        logits = random(5, 4).requires_grad_()
        torch.manual_seed(0)
        grads.append(torch.autograd.grad(function(logits).sum(), logits)[0])
    torch.testing.assert_close(*grads, rtol=0, atol=1e-13)


def test_variances_can_be_compared() -> None:
    table = arms.variance(smooth_objective(SMALL, seeded()), SMALL, repeats=200)
    rows = {row.estimator for row in table.rows}
    assert {"loorf", "arms", "disarm", "midpoint"} <= rows
    assert table.reference == "enumeration"
    assert all(row.bias_score < table.score_limit for row in table.rows)


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Joint, r"needs at least one part, as in Joint\(mask=logits\), got none"),
        (
            lambda: Joint(a=torch.zeros(5, 3), c=torch.zeros(4, 3)),
            r"share one batch shape.*, got a with \[5\] .* on cpu, c with \[4\] .* on cpu",
        ),
        (
            lambda: Joint(a=torch.zeros(5, 3), c=OneHot(torch.zeros(5, 3))),
            r"share one batch shape.*, got a with \[5\] .* on cpu, c with \[\] .* on cpu",
        ),
        (
            lambda: Joint(a=torch.zeros(3), c=torch.zeros(3).double()),
            r"dtype and device, got a with \[\] torch.float32 on cpu, c with \[\] torch.float64 on cpu",
        ),
        (lambda: Joint(a=torch.tensor([0.0, torch.nan])), "logits contain NaN"),
        (lambda: Joint(a=[0.0, 1.0]), "logits must be a tensor"),  # type: ignore[arg-type]
    ],
)
def test_bad_parts(make: Callable[[], Joint], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("name", "joint", "words"),
    [
        (
            "arms",
            WITH_ITEMS,
            r"ARMS\(Systematic\(\)\) needs a latent with the capability Couplable, and the Subset",
        ),
        (
            "arms-gaussian",
            SMALL,
            r"the design Coupled\(num_samples=4, coupling=Gaussian\(\)\) cannot draw Joint",
        ),
        (
            "rebar",
            SMALL,
            "REBAR needs a latent with the capability Binary, and the OneHot in this Joint",
        ),
        (
            "midpoint",
            Joint(a=torch.zeros(3), c=Indices(torch.zeros(1, 3))),
            "category indices have no derivative",
        ),
    ],
)
def test_estimators_that_need_more_of_a_part(name: str, joint: Joint, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        arms.as_estimator(name, 4)(lambda **parts: torch.zeros(4), joint)


def test_an_objective_that_changes_a_part_in_place() -> None:
    def objective(mask: Tensor, action: Tensor, items: Tensor) -> Tensor:
        return cost(mask.mul_(2), action, items)

    with pytest.raises(
        ValueError,
        match="the objective modified its samples b in place, but the estimator still needs",
    ):
        arms.expectation(objective, Joint(**three_parts(7)), "loorf", 4)


def test_derivatives_of_a_joint_draw_may_be_a_dictionary() -> None:
    def gradients(as_dictionary: bool) -> tuple[Tensor, Tensor]:
        mask = torch.zeros(2, requires_grad=True)
        action = torch.zeros(1, 3, requires_grad=True)
        latent = arms.Joint(mask=arms.Bits(mask), action=arms.OneHot(action))
        drawn = arms.draw(latent, "midpoint", 4, torch.Generator().manual_seed(0))
        received = drawn.points
        values = received["mask"].sum(-1) * received["action"][..., 0, 1]
        if not as_dictionary:
            arms.attach(drawn, values).backward()
        else:
            given = {
                name: torch.autograd.grad(values.sum(), part, retain_graph=True)[0]
                for name, part in received.items()
            }
            arms.attach(drawn, values.detach(), given).backward()
        assert mask.grad is not None
        assert action.grad is not None
        return mask.grad, action.grad

    for own, given in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(own, given)


def test_a_dictionary_of_derivatives_names_all_parts() -> None:
    latent = arms.Joint(mask=torch.zeros(2), action=arms.OneHot(torch.zeros(1, 3)))
    drawn = arms.draw(latent, "midpoint", 4)
    with pytest.raises(ValueError, match="names of its parts as keys, mask, action, got mask"):
        arms.attach(drawn, torch.zeros(len(drawn.points["mask"])), {"mask": torch.zeros(1)})
