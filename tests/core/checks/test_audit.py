"""Audits of other functions: correct functions pass and wrong functions fail, at the declared rate."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gumbel_softmax, one_hot

import arms
from arms.checks import audit

# ---- Right


def leave_one_out(objective: Callable[[Tensor], Tensor], logits: Tensor, n: int = 4) -> Tensor:
    p = torch.sigmoid(logits.detach())
    b = torch.bernoulli(p.expand(n, *p.shape))
    f = objective(b)
    return ((f - f.mean(0)).unsqueeze(-1) * (b - p)).sum(0) / (n - 1)


def by_autograd(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """REINFORCE with a surrogate loss and `torch.distributions`."""
    q = torch.distributions.Bernoulli(logits=logits)
    b = q.sample()
    loss = (objective(b).detach() * q.log_prob(b).sum(-1)).sum()
    loss.backward()
    assert logits.grad is not None
    return logits.grad


def shared_noise(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """REINFORCE whose rows share the uniform numbers of the first row."""
    p = torch.sigmoid(logits.detach())
    b = (torch.rand(p.shape[-1]) < p).float()
    return objective(b).unsqueeze(-1) * (b - p)


def of_categories(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    q = torch.distributions.OneHotCategorical(logits=logits)
    b = q.sample((3,))
    f = objective(b)
    signal = (f - f.mean(0)).detach()[..., None, None]
    found: Tensor = (signal * (b - q.probs)).sum(0).detach() / 2
    return found


def in_numpy(rewards: Tensor) -> Any:
    r = rewards.numpy()
    return (r - r.mean(0)) / (len(r) - 1)


def best_of_three(rewards: Tensor) -> Tensor:
    return arms.weights(rewards, arms.BestOf(3))


RIGHT: list[tuple[Callable[..., Any], Any, dict[str, Any]]] = [
    (leave_one_out, "gradient", {}),
    (by_autograd, "gradient", {}),
    (shared_noise, "gradient", {}),
    (of_categories, "gradient", {"latent": "categories"}),
    (in_numpy, "weights", {}),
    (arms.weights, "weights", {"num_samples": 2}),
    (best_of_three, "weights", {"target": arms.BestOf(3)}),
]


@pytest.mark.parametrize(("function", "kind", "options"), RIGHT)
def test_a_right_function_shows_no_bias(
    function: Callable[..., Any], kind: Any, options: dict[str, Any]
) -> None:
    found = audit(function, kind, 20_000, **options)
    assert not found.biased, found
    assert found.verdict == "no bias seen"
    for row in found.rows:
        assert row.along == pytest.approx(1, abs=6 * row.bias_error)
        assert row.bias < 5 * row.bias_error


def test_the_variance_is_relative_to_loorf() -> None:
    found = audit(leave_one_out, "gradient")
    assert found.evaluations == 4
    assert found.reference == "LOORF with 4 samples"
    assert all(row.variance == pytest.approx(1, abs=0.06) for row in found.rows)
    found = audit(best_of_three, "weights", target=arms.BestOf(3))
    assert found.reference == "LOORF(best_of=3) with 8 samples"
    assert all(row.variance == pytest.approx(1, abs=0.06) for row in found.rows)


# ---- Wrong


def short(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The baseline is the mean of all samples, without a correction."""
    return leave_one_out(objective, logits) * 3 / 4


def own_reward_in_baseline(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The baseline is the mean over the batch, which contains the row itself."""
    p = torch.sigmoid(logits.detach())
    b = torch.bernoulli(p)
    f = objective(b)
    return (f - f[:4].mean()).unsqueeze(-1) * (b - p)


def without_log_prob_of_absent(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The score includes only bits that are 1."""
    p = torch.sigmoid(logits.detach())
    b = torch.bernoulli(p)
    return objective(b).unsqueeze(-1) * b * (1 - p)


def divided_by_deviation(rewards: Tensor) -> Tensor:
    return (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-4) / len(rewards)


def centered_best(rewards: Tensor) -> Tensor:
    found = best_of_three(rewards)
    return found - found.mean(0)


def straight_through(logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    index = torch.distributions.Categorical(probs=p.detach()).sample()
    return one_hot(index, p.shape[-1]) + p - p.detach()


def hard_gumbel(logits: Tensor) -> Tensor:
    return gumbel_softmax(logits, hard=True)


WRONG: list[tuple[Callable[..., Any], Any, dict[str, Any]]] = [
    (short, "gradient", {}),
    (own_reward_in_baseline, "gradient", {"draws": 2000}),
    (without_log_prob_of_absent, "gradient", {}),
    (divided_by_deviation, "weights", {}),
    (centered_best, "weights", {"target": arms.BestOf(3)}),
    (best_of_three, "weights", {}),
    (straight_through, "sample", {}),
    (hard_gumbel, "sample", {}),
]


@pytest.mark.parametrize(("function", "kind", "options"), WRONG)
def test_a_wrong_function_is_called_biased(
    function: Callable[..., Any], kind: Any, options: dict[str, Any]
) -> None:
    found = audit(function, kind, **{"draws": 20_000, **options})
    assert found.biased, found
    assert "biased" in str(found).splitlines()[0]


def test_parts_along_and_across_the_gradient() -> None:
    for row in audit(short, "gradient").rows:
        assert row.along == pytest.approx(0.75, abs=0.02)
        assert row.across < 0.02
        assert row.bias == pytest.approx(math.hypot(row.along - 1, row.across), abs=1e-6)


# ---- What hardly ever varies


def mean_over_rows(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    return leave_one_out(objective, logits).mean(0, keepdim=True).expand_as(logits)


def of_the_next_row(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    return leave_one_out(objective, logits).roll(1, 0)


@pytest.mark.parametrize("function", [mean_over_rows, of_the_next_row])
def test_a_function_that_mixes_rows_is_called_biased(function: Callable[..., Any]) -> None:
    found = audit(function, "gradient", 20_000)
    *same, last = found.rows
    assert found.verdict == "biased"
    assert max(row.largest_score for row in same) < found.limit  # all rows alike: nothing to see
    assert (last.mixed, [row.mixed for row in same]) == (True, [False] * len(same))
    assert last.bias > 0.9


def test_the_baseline_may_come_from_other_rows() -> None:
    def batch_baseline(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        p = torch.sigmoid(logits.detach())
        b = torch.bernoulli(p)
        f = objective(b)
        others = (f.sum() - f) / (len(f) - 1)
        return (f - others).unsqueeze(-1) * (b - p)

    assert audit(batch_baseline, "gradient", 20_000).verdict == "no bias seen"


def rarely(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Unbiased, but zero in all but one of a million rows."""
    kept = (torch.rand(logits.shape[0], 1) < 1e-6).float() * 1e6
    return leave_one_out(objective, logits) * kept


def seeds_itself(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    torch.manual_seed(0)
    return leave_one_out(objective, logits)


def no_gradient(_: object, logits: Tensor) -> Tensor:
    return torch.zeros_like(logits)


def rare_alarm(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """All calls except one return zero, and the standard error from one call is meaningless."""
    rare_alarm.calls += 1  # type: ignore[attr-defined]
    here = 1e-3 if rare_alarm.calls % 500 == 1 else 0.0  # type: ignore[attr-defined]
    return here * leave_one_out(objective, logits)


@pytest.mark.parametrize("function", [rarely, seeds_itself, no_gradient, rare_alarm])
def test_what_hardly_varies_is_not_called_biased_with_certainty(
    function: Callable[..., Any],
) -> None:
    rare_alarm.calls = 0  # type: ignore[attr-defined]
    found = audit(function, "gradient", 20_000)
    assert found.biased  # so that a test of your own fails
    assert not found.varied
    assert found.verdict == "wrong mean, but the estimates hardly varied"
    assert "does the function set a seed, or is its result almost always zero?" in str(found)


def test_a_bias_of_one_logit_is_certain_although_another_never_varies() -> None:
    def half_zero(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        return short(objective, logits) * torch.tensor([0.0, 1.0, 1.0])

    found = audit(half_zero, "gradient", 20_000)
    assert found.varied
    assert found.verdict == "biased"
    assert "set a seed" not in str(found)


def test_an_exact_gradient_never_varies_and_is_right() -> None:
    def exact(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        rows = arms.Bits(logits)
        points = rows.states().view(8, 1, 3).expand(8, *logits.shape)
        value = (rows.log_prob(points).exp() * objective(points)).sum()
        return torch.autograd.grad(value, logits)[0]

    found = audit(exact, "gradient", 2000)
    assert found.varied
    assert found.verdict == "no bias seen"


def test_an_audit_uses_one_thread_and_restores_the_number() -> None:
    before, seen = torch.get_num_threads(), set()

    def counted(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        return leave_one_out(objective, logits)

    torch.set_num_threads(2)
    try:
        audit(counted, "gradient", 1000)
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="out of luck"):
            audit(raises, "gradient", 1000)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {1}


# ---- The declared rate of false alarms


@pytest.mark.slow
def test_five_in_a_hundred_audits_of_right_functions_end_in_biased() -> None:
    """200 audits of right functions of every kind, at a rate of 0.05: 10 alarms, give or take 6."""
    alarms = sum(
        audit(function, kind, 2000, 0.05, seed=seed, **options).biased
        for seed in range(40)
        for function, kind, options in (*RIGHT[:4], RIGHT[6])
    )
    assert 4 <= alarms <= 16


# ---- One row at a time, other latents, seeds


def test_a_function_that_takes_no_batch() -> None:
    def single(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        assert logits.shape == (3,)
        return leave_one_out(objective, logits)

    assert not audit(single, "gradient", 2000, batched=False).biased
    assert not audit(arms.weights, "weights", 2000, batched=False).biased


def test_a_latent_of_your_own() -> None:
    latent = arms.Subset(torch.tensor([0.4, -0.6, 1.0, 0.1]), k=2)

    def reinforce(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        rows = arms.Subset(logits.detach(), k=2)
        b = rows.sample(1)[0]
        return objective(b).unsqueeze(-1) * rows.score(b)

    found = audit(reinforce, "gradient", 20_000, latent=latent)
    assert not found.biased, found
    assert [row.problem for row in found.rows] == [
        "Subset 1",
        "Subset 2",
        "Subset 1, rows of f and -f",
    ]


def test_an_audit_can_be_repeated_and_leaves_the_generators_alone() -> None:
    def noisy(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        p = torch.sigmoid(logits.detach())
        uniform = np.random.rand(*p.shape) * (1 if random.random() < 2 else 0)  # noqa: NPY002
        b = (torch.as_tensor(uniform) < p).float()
        return objective(b).unsqueeze(-1) * (b - p)

    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index] # noqa: NPY002
    first, second = (audit(noisy, "gradient", 2000, seed=5) for _ in range(2))
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index] # noqa: NPY002
    assert first == second
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]
    assert audit(noisy, "gradient", 2000, seed=6) != first


# ---- Errors


def raises(*_: object) -> Tensor:
    raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    ("function", "kind", "options", "message"),
    [
        (raises, "gradient", {}, r"the function \(function\(objective, logits\) .* out of luck"),
        (lambda _: 1.0, "gradient", {}, "raised TypeError"),
        (
            lambda f, x: x[..., :2],
            "gradient",
            {},
            r"returned shape \[200, 2\] instead of \[200, 3\]",
        ),
        (lambda f, x: None, "gradient", {}, "but it returned NoneType"),
        (
            lambda f, x: x * torch.nan,
            "gradient",
            {},
            "the gradient that the audited function returns must be finite, got NaN or infinity",
        ),
        (
            lambda f, x: f(x[..., :1]),
            "gradient",
            {},
            r"must be called with points \[..., 200, 3\], got shape \[200, 1\]",
        ),
        (
            lambda x: x.detach(),
            "sample",
            {},
            "the returned samples must depend on the logits through autograd, but no",
        ),
        (lambda x: (x, x), "sample", {}, "must be function.* but it returned tuple"),
        (lambda r: r.sum(0), "weights", {}, r"returned shape \[200\] instead of \[8, 200\]"),
        (
            lambda r: r / 0,
            "weights",
            {},
            "the weights that the audited function returns must be finite, got NaN or infinity",
        ),
        (3, "weights", {}, "-> weights of the rewards' shape, got int"),
        (
            short,
            "slope",
            {},
            "there is no kind named 'slope': choose one of sample, gradient, weights",
        ),
        (short, "gradient", {"latent": "dice"}, 'latent must be "bits", "categories" or a latent'),
        (short, "gradient", {"latent": arms.Bits(torch.zeros(2, 3))}, "no batch axes"),
        (
            short,
            "gradient",
            {"target": arms.ImportanceBound(2)},
            r"be arms.Expectation\(\) or arms.BestOf\(k\), got ImportanceBound\(samples=2\)",
        ),
        (
            hard_gumbel,
            "sample",
            {"target": arms.BestOf(2)},
            r"the target for kind='sample' must be arms.Expectation\(\), got BestOf\(k=2\)",
        ),
        (arms.weights, "weights", {"target": arms.BestOf(9)}, "num_samples of at least 9, got 8"),
        (arms.weights, "weights", {"num_samples": 1}, "num_samples must be an integer >= 2"),
        (arms.weights, "weights", {"failure_rate": 1.0}, "failure_rate must be a float between"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    function: Any, kind: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        audit(function, kind, **options)
