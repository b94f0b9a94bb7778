"""Weights for rewards: exact unbiasedness by enumeration, masks, and bad input."""

from itertools import combinations, product

import pytest
import torch
from torch import Tensor

import arms

LOGITS = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)
REWARDS = torch.tensor([0.2, 1.7, -0.6], dtype=torch.float64)
TARGETS = [
    *((n, arms.Expectation()) for n in range(2, 6)),
    *((n, arms.BestOf(k)) for n in range(2, 6) for k in range(1, n + 1)),
    *((n, arms.ImportanceBound()) for n in range(1, 6)),
]


def value_of(target: object, rewards: Tensor) -> Tensor:
    """Return the target at samples `[m, n]`, written independently of the weights."""
    if isinstance(target, arms.BestOf):
        return rewards[:, : target.k].amax(1)
    if isinstance(target, arms.ImportanceBound):
        return rewards.exp().mean(1).log()
    return rewards.mean(1)


def weigh_with_gaps(rewards: Tensor, target: object) -> Tensor:
    """Return the weights of rewards with masked samples between and after them."""
    n, groups = rewards.shape
    present = [2 * i for i in range(n)]
    filled = torch.full((2 * n + 1, groups), torch.nan, dtype=rewards.dtype)
    filled[present] = rewards
    return arms.weights(filled, target, mask=~filled.isnan())[present]  # type: ignore[arg-type]


def enumerate_gradients(
    n: int, target: object, weigh: object = arms.weights
) -> tuple[Tensor, Tensor]:
    """Return the exact gradient, and the expectation of the weighted scores."""
    outcomes = torch.tensor(list(product(range(3), repeat=n)))
    logits = LOGITS.clone().requires_grad_()
    log_probs = logits.log_softmax(0)[outcomes]
    probability = log_probs.sum(1).exp()
    exact = torch.autograd.grad(
        (probability * value_of(target, REWARDS[outcomes])).sum(), logits, retain_graph=True
    )[0]
    weights = weigh(REWARDS[outcomes].T, target).T  # type: ignore[operator]
    weighted = (probability.detach() * (weights * log_probs).sum(1)).sum()
    return exact, torch.autograd.grad(weighted, logits)[0]


@pytest.mark.parametrize("weigh", [arms.weights, weigh_with_gaps])
@pytest.mark.parametrize(("n", "target"), TARGETS, ids=str)
def test_weights_are_unbiased(n: int, target: object, weigh: object) -> None:
    exact, found = enumerate_gradients(n, target, weigh)
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


def divided_by_deviation(rewards: Tensor, _: object) -> Tensor:
    return (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-4) / len(rewards)


def with_own_maximum_in_the_baseline(rewards: Tensor, target: object) -> Tensor:
    found = arms.weights(rewards, target)  # type: ignore[arg-type]
    return found - found.mean(0)


@pytest.mark.parametrize(
    ("weigh", "target"),
    [
        (divided_by_deviation, arms.Expectation()),
        (with_own_maximum_in_the_baseline, arms.BestOf(2)),
        (lambda rewards, _: arms.weights(rewards, arms.BestOf(3)), arms.BestOf(2)),
        (
            lambda rewards, _: rewards.logsumexp(0) * torch.ones_like(rewards) - rewards,
            arms.ImportanceBound(),
        ),
    ],
)
def test_the_enumeration_catches_wrong_weights(weigh: object, target: object) -> None:
    exact, found = enumerate_gradients(4, target, weigh)
    assert (found - exact).abs().max() > 1e-3


@pytest.mark.parametrize(("n", "target"), TARGETS, ids=str)
def test_masked_samples_do_not_exist(n: int, target: object) -> None:
    """Ragged groups get the weights of the same groups alone, wherever the gaps are."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n + 2, 3, generator=generator, dtype=torch.float64)
    mask = torch.zeros(n + 2, 3, dtype=torch.bool)
    for group, chosen in enumerate([list(range(n)), list(range(2, n + 2)), []]):
        mask[chosen, group] = True
    filled = torch.where(mask, rows, torch.nan)
    found = arms.weights(filled, target, mask=mask)  # type: ignore[arg-type]
    for group in range(3):
        present = mask[:, group]
        assert (found[~present, group] == 0).all()
        if present.any():
            alone = arms.weights(rows[present, group], target)  # type: ignore[arg-type]
            torch.testing.assert_close(found[present, group], alone, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("target", [arms.Expectation(), arms.BestOf(3), arms.ImportanceBound()])
def test_a_common_offset_costs_no_digits(target: object) -> None:
    rewards = torch.tensor([0.0, 3.0, 1.0, 7.0, 2.0])
    plain = arms.weights(rewards, target)  # type: ignore[arg-type]
    shifted = arms.weights(rewards + 2**20, target)  # type: ignore[arg-type]
    torch.testing.assert_close(shifted, plain, rtol=1e-5, atol=1e-6)


def test_ties_share_nothing() -> None:
    assert arms.weights(torch.ones(6, 2), arms.BestOf(3)).eq(0).all()
    assert arms.weights(torch.ones(6, 2)).eq(0).all()


def test_many_samples_do_not_overflow() -> None:
    found = arms.weights(torch.arange(2000.0), arms.BestOf(1000))
    assert found.isfinite().all()
    assert found.sum() > 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.bfloat16])
def test_rewards_of_any_type(dtype: torch.dtype) -> None:
    rewards = torch.tensor([1, 0, 0, 1]).to(dtype)
    found = arms.weights(rewards, arms.BestOf(2))
    assert found.dtype == (dtype if dtype.is_floating_point else torch.float32)
    torch.testing.assert_close(found.float(), torch.tensor([1 / 3, 0, 0, 1 / 3]), atol=2e-3, rtol=0)


@pytest.mark.parametrize("target", [arms.Expectation(), arms.BestOf(2), arms.BestOf(3)])
def test_large_integers_keep_their_differences(target: object) -> None:
    """The differences vanish in float32, where integers above 2^24 are rounded."""
    rewards = torch.tensor([0, 3, 1, 2])
    plain = arms.weights(rewards, target)  # type: ignore[arg-type]
    for offset in (10**8, -(2**50)):
        found = arms.weights(rewards + offset, target)  # type: ignore[arg-type]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("target", [arms.Expectation(), arms.BestOf(3), arms.ImportanceBound()])
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 30_000.0), (torch.float32, 3e37), (torch.float64, 1e307)]
)
def test_large_rewards_have_finite_weights(target: object, dtype: torch.dtype, size: float) -> None:
    rewards = torch.tensor([size, -size, size, 0.0, -size], dtype=dtype)
    mask = torch.tensor([True, True, False, True, True])
    for options in ({}, {"mask": mask}):
        found = arms.weights(rewards, target, **options)  # type: ignore[arg-type]
        assert found.isfinite().all()
        assert found[0] > 0
    with pytest.raises(ValueError, match="rewards and their differences must be at most"):
        arms.weights(rewards * 2, target)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rewards and their differences must be at most"):
        arms.weights(rewards * 2, target, mask=mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [arms.Expectation(), arms.BestOf(3), arms.ImportanceBound()])
@pytest.mark.parametrize("shape", [(4, 0), (4, 2, 0)])
def test_no_groups_have_no_weights(target: object, shape: tuple[int, ...]) -> None:
    rewards = torch.zeros(shape)
    for mask in (None, torch.zeros(shape, dtype=torch.bool)):
        assert arms.weights(rewards, target, mask=mask).shape == shape  # type: ignore[arg-type]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("target", [arms.Expectation(), arms.BestOf(3), arms.ImportanceBound()])
def test_weights_under_vmap_and_compile(target: object, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(5, 6, 4, generator=generator)
    mask = torch.rand(5, 6, 4, generator=generator) < 0.6
    mask[:, :3], mask[:, :, 0] = True, False  # enough samples, or none
    masks = [(mask,), (mask[0],)] if masked else [(), ()]

    def weigh(rewards: Tensor, mask: Tensor | None = None) -> Tensor:
        return arms.weights(rewards, target, mask=mask)  # type: ignore[arg-type]

    found = torch.vmap(weigh)(rewards, *masks[0])
    alone = [weigh(rewards[i], *(one[i] for one in masks[0])) for i in range(5)]
    torch.testing.assert_close(found, torch.stack(alone))
    if masked:  # with the same rewards for every mask
        found = torch.vmap(weigh, (None, 0))(rewards[0], mask)
        alone = [weigh(rewards[0], mask[i]) for i in range(5)]
        torch.testing.assert_close(found, torch.stack(alone))
    compiled = torch.compile(weigh, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(rewards[0], *masks[1]), weigh(rewards[0], *masks[1]))


@pytest.mark.parametrize(("n", "target"), [(0, None), (1, None), (3, arms.BestOf(5))])
def test_too_few_samples_are_refused_under_vmap_and_compile(
    n: int, target: arms.BestOf | None
) -> None:
    """Too few samples are detected by the shape. Without this check, the weights would be NaN."""

    def weigh(rewards: Tensor) -> Tensor:
        return arms.weights(rewards, target)

    torch.compiler.reset()
    for transformed in (torch.vmap(weigh, 1, 1), torch.compile(weigh, backend="eager")):
        with pytest.raises(ValueError, match=rf"samples per group, got {n}: draw more"):
            transformed(torch.ones(n, 4))


def test_many_samples_in_groups_of_different_sizes() -> None:
    """Their binomial coefficients are far beyond the largest float."""
    rewards = torch.randn(1500, 3, generator=torch.Generator().manual_seed(0)).double()
    mask = torch.arange(1500).unsqueeze(1) < torch.tensor([1500, 1400, 0])
    found = arms.weights(rewards, arms.BestOf(700), mask=mask)
    for group, size in enumerate([1500, 1400]):
        alone = arms.weights(rewards[:size, group], arms.BestOf(700))
        torch.testing.assert_close(found[:size, group], alone, rtol=1e-10, atol=0)
    assert (found[~mask] == 0).all()


def test_weights_carry_no_gradient_and_leave_the_rewards_alone() -> None:
    rewards = torch.randn(4, 3, requires_grad=True)
    before = rewards.detach().clone()
    assert not arms.weights(rewards, arms.BestOf(2)).requires_grad
    assert rewards.equal(before)


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        ([1.0, 2.0], {}, "rewards must be a tensor, got list"),
        (torch.tensor(1.0), {}, r"of shape \[n, \*groups\]"),
        (torch.ones(3, dtype=torch.complex64), {}, "must be real numbers"),
        (torch.tensor([1.0, torch.nan]), {}, "rewards must be finite, got nan"),
        (torch.tensor([1.0, torch.inf]), {}, "rewards must be finite, got inf"),
        (torch.tensor([1.0, -torch.inf]), {}, "rewards must be finite, got -inf"),
        (torch.ones(1, 5), {}, "at least 2 samples per group, got 1: draw more samples"),
        (torch.ones(0, 5), {}, "at least 2 samples per group, got 0"),
        (torch.ones(3), {"target": arms.BestOf(4)}, "needs at least 4 samples per group, got 3"),
        (torch.ones(3), {"target": arms.Expectation(2)}, r"target must be Expectation\(\)"),
        (torch.ones(3), {"target": "best"}, r"target must be Expectation\(\), BestOf"),
        (
            torch.ones(3),
            {"target": arms.ImportanceBound(2)},
            r"must be the group size 3, got 2: write ImportanceBound\(\)",
        ),
        (
            torch.eye(3).to_sparse(),
            {},
            "rewards must be an ordinary dense tensor, got a tensor of layout torch.sparse_coo",
        ),
        (
            torch.eye(3, device="meta"),
            {},
            "rewards must be an ordinary dense tensor, got a tensor on the meta device,",
        ),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            {"target": arms.ImportanceBound()},
            "rewards must be an ordinary dense tensor, got a nested tensor",
        ),
        (torch.ones(3).to(torch.float8_e5m2), {}, r"float8_e5m2: call .float\(\)"),
        (torch.tensor([3e38, -3e38, 0.0]), {}, "must be at most .* got -3e.38 to 3e.38: divide"),
        (torch.tensor([2**60, 2**60 + 100]), {}, r"must be at most 9\.01e\+15"),
        (torch.ones(3), {"mask": torch.ones(3)}, "mask must be a boolean tensor"),
        (
            torch.ones(3),
            {"mask": torch.ones(3, dtype=torch.bool, device="meta")},
            "mask must be an ordinary dense tensor, got a tensor on the meta device,",
        ),
        (torch.ones(3), {"mask": torch.ones(2, dtype=torch.bool)}, r"shape \[3\], got torch.bool"),
        (
            torch.ones(3),
            {"mask": torch.tensor([True, False, False])},
            "needs at least 2 samples per group, got 1: draw more samples, or mask out",
        ),
    ],
)
def test_bad_input_is_refused(rewards: Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arms.weights(rewards, **options)  # type: ignore[arg-type]


# ---- The best of k as a target of latents


def test_loorf_estimates_the_best_of_k() -> None:
    """The gradient and the value of `expectation` are those of the estimator, which is exact."""
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]

    def objective(b: Tensor) -> Tensor:
        return (b @ torch.tensor([1.0, -2.0, 0.5], dtype=b.dtype)).square()

    best = arms.expectation(objective, logits, "loorf", 6, seeds[0], target=arms.BestOf(3))
    found = arms.LOORF(6, arms.BestOf(3))(objective, logits.detach(), seeds[1])
    (grad,) = torch.autograd.grad(best.sum(), logits)
    assert torch.equal(grad, found.grad)
    assert torch.equal(best.detach(), found.value)
    subsets = [found.values[list(one)].amax(0) for one in combinations(range(6), 3)]
    torch.testing.assert_close(found.value, torch.stack(subsets).mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in range(2, 5) for k in range(1, n + 1)])
@pytest.mark.parametrize("kind", [arms.Bits, arms.OneHot, arms.Subset])
def test_the_best_of_k_is_unbiased(n: int, k: int, kind: object) -> None:
    logits = LOGITS.view(1, 3) if kind is arms.OneHot else LOGITS
    latent = kind(logits)  # type: ignore[operator]
    objective = arms.checks.smooth_objective(latent, torch.Generator().manual_seed(1))
    estimator = arms.LOORF(n, arms.BestOf(k))
    found = arms.checks.expected_estimate(estimator, objective, latent)
    assert found is not None
    leaf = logits.clone().requires_grad_()
    value = arms.checks.exact_value(objective, kind(leaf), arms.BestOf(k))  # type: ignore[operator]
    (exact,) = torch.autograd.grad(value, leaf)
    assert exact.abs().max() > 1e-4
    torch.testing.assert_close(found[0], exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], value.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "target", "message"),
    [
        ("arms", arms.BestOf(2), r"ARMS.* estimates the expectation, not the best of 2: use loorf"),
        ("reinforce", arms.BestOf(2), "not the best of 2: use loorf"),
        ("midpoint", arms.BestOf(2), "not the best of 2: use loorf"),
        (
            "loorf",
            arms.BestOf(9),
            r"BestOf\(k=9\) needs at least 9 samples, got 8: increase num_samples",
        ),
        (
            "loorf",
            arms.ImportanceBound(2),
            "LOORF estimates the expectation, not the 2-sample bound: use an estimator of",
        ),
        ("loorf", "best", r"target must be arms.Expectation\(\) or arms.BestOf\(k\), got 'best'"),
        (
            arms.LOORF(4, arms.BestOf(2)),
            arms.Expectation(),
            "estimates the best of 2, not the expect",
        ),
    ],
)
def test_other_estimators_refuse_it(estimator: object, target: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arms.expectation(lambda b: b.sum(-1), torch.zeros(3), estimator, target=target)  # type: ignore[arg-type]


def test_the_best_of_coupled_samples_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"best_of=2 needs independent samples, got Coupled\(num_samples=4,"
    ):
        arms.LeaveOneOut(arms.ARMS(4).design, best_of=2)
    with pytest.raises(ValueError, match=r"target must be arms.Expectation\(\) or arms.BestOf"):
        arms.LOORF(4, arms.ImportanceBound(2))


def test_k_must_be_positive() -> None:
    with pytest.raises(ValueError, match="k of BestOf must be an integer >= 1, got 0"):
        arms.BestOf(0)


def test_a_bound_without_its_size_is_only_for_weights() -> None:
    with pytest.raises(ValueError, match="the bound needs its number of samples K"):
        arms.ImportanceBound().num_attached(3)
