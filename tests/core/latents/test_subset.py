"""Subsets of exactly k items: the distribution against brute force, speed, errors."""

import itertools
import math
import time
from collections.abc import Callable

import pytest
import torch
from seeds import seeded
from torch import Tensor

import arms
from arms import Subset
from arms.checks import exact_gradient, score_limit

INF = torch.inf
LOGITS = {
    "one item": [0.7],
    "three items": [0.3, -1.2, 2.0],
    "equal": [0.4] * 5,
    "far apart": [30.0, -30.0, 0.2, 29.5, -30.0, 30.0],
    "eight items": [0.3, -1.2, 2.0, 0.1, -0.4, 1.1, -2.5, 0.9],
    "a certain item": [0.3, INF, -0.4, 1.0],
    "an impossible item": [0.3, -INF, -0.4, 1.0],
    "certain and impossible": [INF, 30.0, -INF, -30.0, INF, 0.0, -INF],
}
CASES = [
    pytest.param(torch.tensor(row, dtype=torch.float64), k, id=f"{name}, k = {k}")
    for name, row in LOGITS.items()
    for k in range(row.count(INF), len(row) - row.count(-INF) + 1)
]


def brute_force(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return all subsets `[states, d]` and their probabilities, from exact sums of exponentials."""
    d = len(logits)
    states, energies = [], []
    for chosen in itertools.combinations(range(d), k):
        left_out = set(range(d)) - set(chosen)
        if any(logits[i] == -INF for i in chosen) or any(logits[i] == INF for i in left_out):
            energy = -INF
        else:
            energy = math.fsum(logits[i].item() for i in chosen if logits[i].isfinite())
        states.append([float(i in chosen) for i in range(d)])
        energies.append(energy)
    top = max(energies)
    weights = [math.exp(energy - top) for energy in energies]
    total = math.fsum(weights)
    probabilities = [weight / total for weight in weights]
    return torch.tensor(states, dtype=torch.float64).view(-1, d), torch.tensor(
        probabilities, dtype=torch.float64
    )


@pytest.mark.parametrize(("logits", "k"), CASES)
def test_log_prob_is_that_of_brute_force(logits: Tensor, k: int) -> None:
    latent = Subset(logits, k)
    states, probabilities = brute_force(logits, k)
    assert torch.equal(latent.states(), states)
    assert latent.count_states() == len(states)
    torch.testing.assert_close(latent.log_prob(states).exp(), probabilities, rtol=1e-12, atol=0)
    assert torch.equal(latent.log_prob(states) == -INF, probabilities == 0)


@pytest.mark.parametrize(("logits", "k"), CASES)
def test_mean_score_and_covariance_are_those_of_brute_force(logits: Tensor, k: int) -> None:
    latent = Subset(logits, k)
    states, probabilities = brute_force(logits, k)
    mean = probabilities @ states
    left_out = probabilities @ (1 - states)  # 1 - mean would lose its digits
    torch.testing.assert_close(latent.mean(), mean, rtol=1e-12, atol=0)
    score = torch.where(states > 0, left_out, -mean)
    torch.testing.assert_close(latent.score(states), score, rtol=1e-12, atol=0)
    covariance = (states - mean).T @ (probabilities.unsqueeze(-1) * (states - mean))
    found = latent.covariance_matvec(torch.eye(len(logits), dtype=torch.float64))
    torch.testing.assert_close(found, covariance, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("logits", "k"), CASES)
def test_first_and_second_derivatives_of_log_prob(logits: Tensor, k: int) -> None:
    """The gradient is the score, and the Hessian is minus the covariance."""
    states, probabilities = brute_force(logits, k)
    state = states[probabilities.argmax()].unsqueeze(0)

    def log_prob(phi: Tensor) -> Tensor:
        return Subset(phi, k).log_prob(state).squeeze(0)

    latent = Subset(logits, k)
    (gradient,) = torch.autograd.grad(log_prob(phi := logits.clone().requires_grad_()), phi)
    torch.testing.assert_close(gradient, latent.score(state)[0], rtol=0, atol=1e-14)
    hessian = torch.autograd.functional.hessian(log_prob, logits)
    covariance = latent.covariance_matvec(torch.eye(len(logits), dtype=torch.float64))
    torch.testing.assert_close(hessian, -covariance, rtol=0, atol=1e-12)
    forward = torch.func.jacfwd(log_prob)(logits)
    torch.testing.assert_close(forward, gradient, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("logits", "k"), CASES)
def test_splits_of_the_sampler_have_the_distribution_of_brute_force(logits: Tensor, k: int) -> None:
    """A sample is a chain of splits. The product of their probabilities is exact."""
    latent, draws = Subset(logits, k), 20_000
    states, probabilities = brute_force(logits, k)
    samples = latent.sample(draws, seeded())
    assert torch.equal(samples.sum(-1), torch.full((draws,), float(k), dtype=torch.float64))
    assert bool(((samples == 0) | (samples == 1)).all())
    shares = latent._tree[1]
    for state, probability in zip(states, probabilities, strict=True):
        width = 1 << (len(logits) - 1).bit_length()
        counts, chance = torch.nn.functional.pad(state, (0, width - len(state))).long(), 1.0
        for share in shares:
            left, right = counts[0::2], counts[1::2]
            nodes = torch.arange(len(left))
            chance *= share[nodes, (left + right).clamp(max=share.shape[1] - 1), left].prod().item()
            counts = left + right
        assert abs(chance - probability.item()) <= 1e-12
        hits = (samples == state).all(-1).double().mean()
        spread = (probability * (1 - probability) / draws).sqrt()
        limit = score_limit(len(states), 1e-8) * spread
        assert (hits - probability).abs() <= limit + 1 / draws * (0 < probability < 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([30.0, -30.0, 0.25, INF, -INF, 8.0]).to(dtype)
    latent, wide = Subset(logits, 3), Subset(logits.double(), 3)
    samples = latent.sample(100, seeded())
    assert samples.dtype == dtype
    assert latent.score(samples).dtype == latent.mean().dtype == torch.float32
    for found, expected in (
        (latent.mean(), wide.mean()),
        (latent.score(samples), wide.score(samples)),
        (latent.log_prob(samples), wide.log_prob(samples.double())),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_batches_are_rows() -> None:
    logits = torch.randn(2, 3, 5, generator=seeded(), dtype=torch.float64)
    latent, samples = Subset(logits, 2), Subset(logits, 2).sample(4, seeded())
    assert samples.shape == (4, 2, 3, 5)
    vector = torch.randn(4, 2, 3, 5, generator=seeded(1), dtype=torch.float64)
    for i, j in itertools.product(range(2), range(3)):
        row = Subset(logits[i, j], 2)
        torch.testing.assert_close(
            latent.log_prob(samples)[:, i, j], row.log_prob(samples[:, i, j])
        )
        torch.testing.assert_close(latent.mean()[i, j], row.mean())
        torch.testing.assert_close(
            latent.covariance_matvec(vector)[:, i, j], row.covariance_matvec(vector[:, i, j])
        )


def test_a_thousand_items_take_milliseconds_per_row() -> None:
    logits = torch.randn(20, 1000, generator=seeded())
    Subset(logits, 10).sample(1, seeded())
    begun = time.perf_counter()
    samples = Subset(logits, 10).sample(8, seeded())
    seconds = time.perf_counter() - begun
    assert torch.equal(samples.sum(-1), torch.full((8, 20), 10.0))
    assert seconds / 20 < 0.02, "of a busy machine; it takes 2 ms or less"


def test_many_items_have_the_right_frequencies() -> None:
    logits = torch.linspace(-3, 3, 100, dtype=torch.float64)
    latent, draws = Subset(logits, 40), 20_000
    mean = latent.mean()
    assert abs(mean.sum().item() - 40) < 1e-11
    found = latent.sample(draws, seeded()).mean(0)
    spread = (mean * (1 - mean) / draws).sqrt()
    assert ((found - mean).abs() / spread).max() < score_limit(100, 1e-6)


ESTIMATORS = [
    arms.Reinforce(2),
    arms.LOORF(2),
    arms.LOORF(3),
    arms.UnorderedSet(2),
    arms.Exact(),
    arms.Midpoint(2),
    arms.Midpoint(4),
    arms.DoubleCV(2),
    arms.WithTaylor(arms.LOORF(2)),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_expected_estimate_is_the_gradient(estimator: arms.Estimator) -> None:
    latent = Subset(torch.tensor([0.3, -1.2, INF, 0.8], dtype=torch.float64), k=2)
    objective = arms.checks.smooth_objective(latent, seeded())
    found = arms.checks.expected_estimate(estimator, objective, latent)
    assert found is not None
    assert (found[0] - exact_gradient(objective, latent)).abs().max() < 1e-12


def test_one_item_is_a_choice_and_the_others_are_its_complement() -> None:
    """With k = 1 a subset is a choice. Its complement has k = d - 1 and negative logits."""
    logits = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    one = exact_gradient(lambda b: (b @ weights).square(), Subset(logits, 1))
    choice = exact_gradient(
        lambda b: (b.squeeze(-2) @ weights).square(), arms.OneHot(logits.unsqueeze(0))
    )
    torch.testing.assert_close(one, choice.squeeze(0), rtol=0, atol=1e-14)
    rest = exact_gradient(lambda b: ((1 - b) @ weights).square(), Subset(-logits, 2))
    torch.testing.assert_close(one, -rest, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["loorf", "midpoint", "arms-taylor"])
def test_value_and_gradient_for_backward(name: str) -> None:
    logits = torch.randn(5, 6, generator=seeded()).requires_grad_()
    estimator = arms.WithTaylor(arms.LOORF(4)) if name == "arms-taylor" else name
    value = arms.expectation(lambda b: b.cumsum(-1).square().sum(-1), Subset(logits, 3), estimator)
    value.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    # Adding a constant to all logits changes nothing, so on average the gradient sums to zero. The
    # scores of leave-one-out do so exactly.
    if name == "loorf":
        assert logits.grad.sum(-1).abs().max() < 1e-4


def test_importance_bound_of_subsets() -> None:
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64)
    weights = torch.tensor([0.5, -1.0, 2.0, 0.2], dtype=torch.float64)
    latent = Subset(logits, 2)
    found = arms.checks.expected_estimate(arms.VIMCO(2), lambda b: b @ weights, latent)
    assert found is not None
    phi = logits.clone().requires_grad_()
    target = arms.ImportanceBound(2)
    bound = arms.checks.exact_value(lambda b: b @ weights, Subset(phi, 2), target)
    torch.testing.assert_close(found[1], bound.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0], *torch.autograd.grad(bound, phi), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["loorf", "vimco"])
def test_function_transforms(name: str) -> None:
    function = arms.importance_bound if name == "vimco" else arms.expectation

    def value(phi: Tensor) -> Tensor:
        return function(lambda b: b.cumsum(-1).sum(-1), Subset(phi, 2), name, 4)

    logits = torch.randn(7, 5, generator=seeded())
    grads = torch.vmap(torch.func.grad(value), randomness="different")(logits)
    assert grads.shape == logits.shape
    assert grads.isfinite().all()
    assert grads.any()


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Subset(torch.zeros(3), 4),
            "k of a subset must be at most 3, the number of items, got 4",
        ),
        (lambda: Subset(torch.zeros(5, 3), -1), "k of a subset must be an integer >= 0, got -1"),
        (lambda: Subset(torch.zeros(3), 1.5), "k of a subset must be an integer >= 0, got 1.5"),  # type: ignore[arg-type]
        (lambda: Subset(torch.zeros(3), True), "k of a subset must be an integer >= 0, got True"),
        (
            lambda: Subset(torch.tensor(0.0), 1),
            r"logits must have shape \[\*batch, d\], got a scalar: call .unsqueeze\(0\)",
        ),
        (
            lambda: Subset(torch.zeros(3).long(), 1),
            r"logits must be floating-point numbers, got torch.int64: call .float\(\)",
        ),
        (lambda: Subset([0.0, 1.0], 1), "logits must be a tensor.* got list"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Callable[[], Subset], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([torch.nan, 0.0, 0.0], "NaN"),
        ([INF, INF, INF], r"at most k logits may be \+inf"),
        ([-INF, -INF, 0.0], "at least k must be above -inf"),
    ],
)
def test_logits_that_define_no_distribution(row: list[float], words: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], row], requires_grad=True)
    with pytest.raises(ValueError, match=words):
        arms.expectation(lambda b: b.sum(-1), Subset(logits, 2), "loorf", 4)
    value = arms.expectation(
        lambda b: b.cumsum(-1).sum(-1), Subset(logits, 2), "loorf", 4, validate=False
    )
    assert value.isnan().tolist() == [False, True]
    value.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isnan().any(-1).tolist() == [False, True]


@pytest.mark.parametrize("name", ["arms", "disarm", "gumbel-softmax", "st-sigmoid", "rebar"])
def test_estimators_that_need_more_of_a_latent(name: str) -> None:
    latent, estimator = Subset(torch.zeros(5, 4), 2), arms.as_estimator(name, 4)
    if name == "st-sigmoid":  # it needs a covariance, which a subset has
        assert estimator(lambda b: b.sum(-1), latent).grad.shape == (5, 4)
        return
    with pytest.raises(ValueError, match=r"Subset does not have.*such as loorf"):
        estimator(lambda b: b.sum(-1), latent)
