"""Samples that carry the straight-through gradient of a biased estimator."""

import math

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategorical
from torch.nn.functional import gumbel_softmax

import arms
from arms.estimate import takes

NAMES = list(arms.BIASED_ESTIMATORS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def latents(logits: Tensor) -> list[arms.Latent]:
    return [arms.Bits(logits), arms.OneHot(logits), arms.Subset(logits, 2)]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["bits", "categories", "subsets"])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_estimator(name: str, kind: int) -> None:
    logits, weights = random(7, 4).requires_grad_(), random(7, 4, seed=1)
    latent = latents(logits)[kind]
    estimator = arms.as_estimator(name, 1)
    if not takes(estimator, latent):
        with pytest.raises(ValueError, match="capability"):
            arms.sample(latent, name)
        return
    b = arms.sample(latent, name, seeded(3))
    assert b.shape == (7, 4)
    (found,) = torch.autograd.grad((b * weights).sum(-1).exp().sum(), logits)
    given = arms.OneHot(logits.unsqueeze(-2)) if kind == 1 else latent
    rows = weights.unsqueeze(-2) if kind == 1 else weights
    axes = (-1, -2) if kind == 1 else -1
    expected = estimator(lambda b: (b * rows).sum(axes).exp(), given, seeded(3))
    torch.testing.assert_close(found, expected.grad.view(7, 4))
    torch.testing.assert_close((b * weights).sum(-1).exp(), expected.values[0])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gumbel-softmax"])
def test_samples_are_hard(name: str) -> None:
    logits = random(500, 4).requires_grad_()
    bits = arms.sample(logits, name)
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    if takes(arms.as_estimator(name, 1), arms.OneHot(logits.unsqueeze(-2))):
        hot = arms.sample(OneHotCategorical(logits=logits), name)
        assert torch.equal(hot.sort(-1).values, torch.eye(4).double()[-1].expand(500, -1))


def test_gumbel_softmax_is_relaxed_and_its_hard_form_is_pytorchs() -> None:
    logits = random(50_000, 3).requires_grad_()
    relaxed = arms.sample(arms.OneHot(logits), "gumbel-softmax", temperature=0.7)
    torch.testing.assert_close(relaxed.sum(-1), torch.ones(50_000).double())
    assert relaxed.max(-1).values.min() < 0.5
    logits = logits.detach()[:1].expand(50_000, -1).clone().requires_grad_()
    weights = random(3, seed=4)
    ours = arms.sample(arms.OneHot(logits), "st-gumbel", seeded(), temperature=0.7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = gumbel_softmax(logits, 0.7, hard=True)
    one, other = (torch.autograd.grad((y @ weights).exp().sum(), logits)[0] for y in (ours, theirs))
    both = (one.var(0) + other.var(0)) / 50_000
    assert ((one.mean(0) - other.mean(0)) / both.sqrt()).abs().max() < 5


def test_temperature_is_a_number_or_the_estimators_own() -> None:
    logits = random(7, 4).requires_grad_()
    grads = []
    for given in (
        {"estimator": "reinmax", "temperature": 1.5},
        {"estimator": arms.ReinMax(1, temperature=1.5)},
        {"estimator": "reinmax"},
    ):
        b = arms.sample(logits, generator=seeded(), **given)
        grads.append(torch.autograd.grad(b.exp().prod(-1).sum(), logits)[0])
    assert torch.equal(grads[0], grads[1])
    assert not torch.equal(grads[0], grads[2])


def test_a_sample_without_a_gradient_is_plain() -> None:
    logits = torch.zeros(5, 3, requires_grad=True)
    with torch.no_grad():
        assert not arms.sample(logits, "reinmax").requires_grad
    assert not arms.sample(logits.detach(), "reinmax").requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_certain_bits_and_low_precision_have_finite_gradients(name: str) -> None:
    logits = torch.tensor([[math.inf, -math.inf, 0.3, -90.0]]).repeat(5, 1).requires_grad_()
    arms.sample(logits, name).square().sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    half = torch.zeros(5, 4, dtype=torch.bfloat16, requires_grad=True)
    b = arms.sample(half, name)
    assert b.dtype == torch.bfloat16
    b.square().sum().backward()
    assert half.grad is not None


def test_a_drop_in_works_inside_a_block_beside_recorded_sites() -> None:
    first, second = random(5, 3).requires_grad_(), random(5, 3, seed=1).requires_grad_()
    with arms.sampling(num_samples=4) as s:
        b = arms.sample(s.repeat(first))
        c = arms.sample(s.repeat(second), "reinmax")
        loss = (b * c).sum(-1).square()
    s.expectation(loss).sum().backward()
    assert first.grad is not None
    assert second.grad is not None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_drop_in_compiles_without_graph_breaks() -> None:
    torch._dynamo.reset()
    linear, weights = nn.Linear(4, 3), torch.arange(3.0)

    def loss(x: Tensor, name: str) -> Tensor:
        choice: Tensor = arms.sample(arms.OneHot(linear(x)), name)
        return (choice @ weights).square().mean()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    x = torch.randn(6, 4, generator=seeded())
    for name in ("reinmax", "st-gumbel"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            compiled(x, name).backward()
            found, linear.weight.grad = linear.weight.grad, None
            torch.manual_seed(1)
            loss(x, name).backward()
        assert found is not None
        torch.testing.assert_close(found, linear.weight.grad)
        linear.zero_grad()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"estimator": "arms"},
            "whose gradient flows through the sample, got arms, which is unbiased: pass it",
        ),
        (
            {"estimator": "relax"},
            "whose gradient flows through the sample, got relax, which is unbiased: pass it",
        ),
        (
            {"estimator": "st", "temperature": 0.5},
            "st has no temperature: remove the temperature argument",
        ),
        (
            {"estimator": "reinmax", "temperature": 0},
            "temperature must be a positive, finite number, got 0",
        ),
        (
            {"estimator": "rienmax"},
            r"there is no estimator named 'rienmax': did you mean reinmax or relax\? Otherwise",
        ),
        (
            {"estimator": arms.ReinMax(4)},
            "num_samples=1 cannot be combined with the estimator object",
        ),
        (
            {"estimator": arms.ReinMax(1), "temperature": 2.0},
            "temperature=2.0 cannot be combined with the estimator object",
        ),
    ],
)
def test_wrong_estimators_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arms.sample(torch.zeros(5, 3, requires_grad=True), **given)  # type: ignore[arg-type]


def test_indices_carry_no_gradient() -> None:
    with pytest.raises(ValueError, match="pass a OneHotCategorical"):
        arms.sample(Categorical(logits=torch.zeros(5, 3, requires_grad=True)), "reinmax")
