"""The importance-weighted bound: its algebra against loops, numerical range, the public functions.

Bias is in the generic tests.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import seeded
from torch import Tensor

import arms
from arms import ARMS, LOORF, VIMCO, Bits, ImportanceBound, OnBound, OneHot, Subset
from arms.checks.variance import SAME_FOR_BITS
from arms.estimate import draw_points, estimate, takes
from arms.estimators.bound.on_bound import slot_sums
from arms.estimators.bound.slots import others_of_each, replace_slots
from arms.estimators.bound.vimco import local_signals
from arms.objective import Options
from arms.targets import log_mean_exp

MULTI_SAMPLE = [name for name, make in arms.ESTIMATORS.items() if make(8).target.subtracts_log_q]


# --- The algebra of slots against loops ---------------------------------------------------------


def brute_signals(values: Tensor, baseline: str) -> Tensor:
    """VIMCO's local signals as the paper writes them, a loop over slots."""
    n, signals = len(values), []
    for k in range(n):
        others = torch.cat([values[:k], values[k + 1 :]])
        guess = others.mean(0) if baseline == "geometric" else others.exp().mean(0).log()
        guessed = torch.cat([others, guess.unsqueeze(0)])
        signals.append(values.logsumexp(0) - guessed.logsumexp(0))
    return torch.stack(signals)


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("baseline", ["geometric", "arithmetic"])
def test_vimco_signals_against_a_loop(n: int, baseline: str) -> None:
    values = 3 * torch.randn(n, 5, generator=seeded(), dtype=torch.float64)
    signals = local_signals(values, baseline)  # type: ignore[arg-type]
    torch.testing.assert_close(signals, brute_signals(values, baseline), rtol=0, atol=1e-13)


def brute_slot_sums(values: Tensor, bound_samples: int) -> Tensor:
    """sum_k f_{-k} at every fresh sample by building every replaced set, in float64."""
    bound, fresh = values[:bound_samples].double(), values[bound_samples:].double()
    rows = []
    for candidate in fresh:
        replaced = [
            torch.cat([bound[:k], bound[k + 1 :], candidate.unsqueeze(0)])
            for k in range(bound_samples)
        ]
        rows.append(torch.stack([log_mean_exp(one) for one in replaced]).sum(0))
    return torch.stack(rows)


def centered(table: Tensor) -> Tensor:
    return table - table.mean(0)


@pytest.mark.parametrize("bound_samples", [1, 2, 5])
def test_slot_sums_against_a_loop(bound_samples: int) -> None:
    values = 3 * torch.randn(bound_samples + 4, 5, generator=seeded(), dtype=torch.float64)
    # Far above the others: where these still count, and where they do not.
    values[bound_samples:, 0] = torch.tensor([5.0, 25, 33, 45])
    expected = centered(brute_slot_sums(values, bound_samples))
    found = centered(slot_sums(values, bound_samples, folded=False))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bound_samples", [1, 2, 5])
def test_folded_slot_sums_have_the_direct_term(bound_samples: int) -> None:
    """Folding subtracts each fresh sample's share in every slot."""
    values = 3 * torch.randn(bound_samples + 4, 5, generator=seeded(), dtype=torch.float64)
    bound, fresh = values[:bound_samples], values[bound_samples:]
    shares = torch.zeros_like(fresh)
    for k in range(bound_samples):
        for i, candidate in enumerate(fresh):
            slots = torch.cat([bound[:k], bound[k + 1 :], candidate.unsqueeze(0)])
            shares[i] += slots.softmax(0)[-1]
    expected = centered(slot_sums(values, bound_samples, folded=False) - shares)
    found = centered(slot_sums(values, bound_samples, folded=True))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", MULTI_SAMPLE)
def test_a_log_weight_of_nan_is_not_lost(name: str) -> None:
    for spoilt in range(6):

        def objective(b: Tensor, spoilt: int = spoilt) -> Tensor:
            return torch.where(torch.arange(len(b)) == spoilt, torch.nan, 0 * b.sum(-1))

        grad = arms.as_estimator(name, 6)(objective, torch.zeros(3), seeded(), validate=False).grad
        assert grad.isnan().any()


# --- Numerical range ----------------------------------------------------------------------------

WEIGHTS = {
    "one dominates by 1e4": [1e4, 0.0, 1.0, 2.0, 0.5, 1e4, -1e4, 3.0],
    "a fresh one dominates": [0.0, 1.0, 2.0, -3.0, 1e4, 0.0, 1.5, 2.0],
    "all far down": [-1e4, -1e4 + 1, -1e4 - 2, -1e4, -1e4 + 0.5, -1e4, -1e4 + 3, -1e4],
    "all far up": [1e8] * 8,
    "steps of 1e4": [k * 1e4 for k in range(8)],
    "equal": [-103.25] * 8,
}


def pair_differences(values: Tensor) -> Tensor:
    """Half the change of each slot's function from its first sample to its partner."""
    pairs = torch.stack(values.chunk(2))
    top, others = others_of_each(pairs[0])
    bounds = replace_slots(others, pairs - top)
    return (bounds[0] - bounds[1]) / 2


@pytest.mark.parametrize("case", WEIGHTS)
def test_gaps_in_float32_match_a_float64_loop(case: str) -> None:
    values = torch.tensor(WEIGHTS[case]).unsqueeze(-1)
    wide = values.double()
    pairs = wide.unflatten(0, (2, 4))
    rest = torch.stack(
        [torch.cat([pairs[0][:k], pairs[0][k + 1 :]]).logsumexp(0) for k in range(4)]
    )
    pair = (torch.logaddexp(rest, pairs[0]) - torch.logaddexp(rest, pairs[1])) / 2
    for found, expected in (
        (centered(slot_sums(values, 4, False)), centered(brute_slot_sums(values, 4))),
        (local_signals(values, "geometric"), brute_signals(wide, "geometric")),
        (pair_differences(values), pair),
        (log_mean_exp(values), log_mean_exp(wide)),
    ):
        scale = expected.abs().max().clamp(min=1.0)
        assert found.isfinite().all()
        assert ((found.double() - expected).abs() / scale).max() < 1e-6


def test_small_signals_keep_their_digits_beside_a_dominating_weight() -> None:
    values = torch.tensor([0.0, -30.0, -31.0, -29.0])
    expected = brute_signals(values.double().unsqueeze(-1), "geometric").squeeze(-1)[1:]
    signals = local_signals(values, "geometric")[1:].double()
    assert expected.abs().max() < 1e-8
    assert (signals / expected - 1).abs().max() < 1e-5


def test_leaving_out_the_dominating_weight_loses_nothing() -> None:
    values = torch.tensor([50.0, 0.0, -1.0])
    top, others = others_of_each(values)
    rest = top + others.logsumexp(1)
    # log(total - w_0) is -inf in float32.
    assert abs(rest[0].item() - math.log1p(math.exp(-1))) < 1e-6
    assert others_of_each(values[:1])[1].logsumexp(1).item() == -math.inf


@pytest.mark.parametrize("name", MULTI_SAMPLE)
def test_impossible_samples_are_sane(name: str) -> None:
    logits = torch.zeros(4, requires_grad=True)

    def log_joint(b: Tensor) -> Tensor:
        impossible = torch.arange(len(b)) == 1
        return torch.where(impossible, -torch.inf, (b - 0.3).sum(-1))

    bound = arms.importance_bound(log_joint, logits, name, 8, seeded(), validate=False)
    (grad,) = torch.autograd.grad(bound, logits)
    assert bound.isfinite()
    assert grad.isfinite().all()


@given(
    values=st.lists(st.floats(-50, 50), min_size=6, max_size=6),
    shift=st.floats(-1e3, 1e3),
    name=st.sampled_from([name for name in MULTI_SAMPLE if name != "reinforce-ms"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_gradient_ignores_the_scale_of_weights(
    values: list[float], shift: float, name: str
) -> None:
    estimator = arms.as_estimator(name, 6)
    latent = Bits(torch.tensor([0.3, -0.8], dtype=torch.float64))
    draw = draw_points(estimator, latent, seeded())
    weights = torch.tensor(values, dtype=torch.float64)[torch.arange(len(draw.points)) % 6]
    needed = estimator.design.needs.derivatives
    derivatives = 0.1 * draw.points[len(draw.points) - needed :] - 0.3 if needed else None
    shifted = estimator.combine(draw, weights + shift, derivatives)
    assert (shifted - estimator.combine(draw, weights, derivatives)).abs().max() < 1e-10


# --- The public functions -----------------------------------------------------------------------


def joint_of(weights: Tensor) -> Callable[[Tensor], Tensor]:
    """log p(x, b) of a model with these parameters, for samples with any event axes."""
    return lambda b: -((b * weights).flatten(b.ndim - weights.ndim).sum(-1) - 1).square()


LATENTS: list[arms.Latent] = [
    Bits(torch.linspace(-1, 1, 15).view(5, 3)),
    OneHot(torch.linspace(-1, 1, 30).view(5, 2, 3)),
    Subset(torch.linspace(-1, 1, 30).view(5, 6), 2),
]
ON_LATENTS = [
    pytest.param(name, latent, id=f"{name}, {type(latent).__name__}")
    for name in MULTI_SAMPLE
    for latent in LATENTS
    if takes(arms.as_estimator(name, 8), latent)
]


@pytest.mark.parametrize(("name", "latent"), ON_LATENTS)
def test_bound_and_its_gradients(name: str, latent: arms.Latent) -> None:
    """Log q is subtracted from log p(x, b); the model's gradient is autograd's."""
    estimator = arms.as_estimator(name, 8)
    logits = latent.logits.clone().requires_grad_()
    weights = torch.linspace(-1, 2, logits[0].numel()).view_as(logits[0]).requires_grad_()
    own, log_joint = latent.with_logits(logits), joint_of(weights)
    bound = arms.importance_bound(log_joint, own, estimator, generator=seeded())
    found = torch.autograd.grad(bound.sum(), (logits, weights))
    drawn = arms.draw(own, estimator, generator=seeded())
    samples, count = drawn.samples, estimator.target.size
    log_weights = log_joint(samples) - latent.log_prob(samples)
    torch.testing.assert_close(bound, log_mean_exp(log_weights[:count]))
    (expected,) = torch.autograd.grad(log_mean_exp(log_weights[:count]).sum(), weights)
    torch.testing.assert_close(found[1], expected)
    whole = estimator(log_joint, latent, seeded())
    torch.testing.assert_close(found[0], whole.grad)
    torch.testing.assert_close(whole.values, log_weights)
    two_steps = arms.attach(drawn, log_joint(drawn.points))
    torch.testing.assert_close(two_steps, bound)
    assert torch.equal(torch.autograd.grad(two_steps.sum(), logits)[0], found[0])


@pytest.mark.parametrize("name", MULTI_SAMPLE)
def test_objective_with_log_q_inside_is_the_same(name: str) -> None:
    """`Options.log_weights` is for models that know log q themselves, at constant logits."""
    latent, estimator = LATENTS[0], arms.as_estimator(name, 8)
    weights = torch.tensor([0.5, -1.0, 2.0])

    def log_weight(b: Tensor) -> Tensor:
        return joint_of(weights)(b) - latent.log_prob(b)

    options = Options(log_weights=True)
    found = estimate(estimator, log_weight, latent, seeded(), options)
    expected = estimate(estimator, joint_of(weights), latent, seeded())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:.* uses small differences between values")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_and_extreme_logits(dtype: torch.dtype) -> None:
    logits = torch.linspace(-30, 30, 1500).to(dtype).view(10, 50, 3).requires_grad_()
    log_joint = joint_of(torch.tensor([0.5, -1, 2]).to(dtype))
    for name in MULTI_SAMPLE:
        arms.importance_bound(log_joint, logits, name, 8).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_chunks_change_nothing() -> None:
    logits = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3).requires_grad_()
    weights = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    grads = [
        torch.autograd.grad(
            arms.importance_bound(
                joint_of(weights), logits, "arms-ms-dirichlet", 8, seeded(), chunk=chunk
            ).sum(),
            logits,
        )[0]
        for chunk in (None, 3)
    ]
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["vimco", "disarm-ms", "arms-ms"])
def test_vmap_of_grad(name: str) -> None:
    weights = torch.tensor([0.5, -1.0, 2.0])

    def loss(logits: Tensor) -> Tensor:
        return arms.importance_bound(joint_of(weights), logits, name, 8)

    logits = torch.linspace(-1, 1, 15).view(5, 3)
    grads = torch.vmap(torch.func.grad(loss), randomness="different")(logits)
    assert grads.shape == logits.shape
    assert grads.isfinite().all()


@pytest.mark.parametrize("name", ["vimco", "arms-ms-dirichlet"])
def test_compiles_without_graph_breaks(name: str) -> None:
    weights = torch.tensor([0.5, -1.0, 2.0])

    def loss(logits: Tensor) -> Tensor:
        return arms.importance_bound(joint_of(weights), logits, name, 4).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    logits = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    torch.manual_seed(0)
    (grad,) = torch.autograd.grad(compiled(logits), logits)
    torch.manual_seed(0)
    torch.testing.assert_close(grad, torch.autograd.grad(loss(logits), logits)[0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, x: arms.expectation(f, x, "vimco"), "arms.importance_bound"),
        (lambda f, x: arms.importance_bound(f, x, "arms"), "arms.expectation"),
        (lambda f, x: arms.importance_bound(f, x, "arms-ms-dirichlet", 5), "must be even.*try 6"),
        (lambda f, x: arms.importance_bound(f, x, "arms-ms-dirichlet", 2), "integer >= 4"),
        (lambda f, x: arms.importance_bound(f, x, "disarm-ms", 3), "must be even"),
        (lambda f, x: OnBound(LOORF(2), 0), "bound_samples must be an integer >= 1, got 0"),
        (
            lambda f, x: OnBound(arms.Midpoint(4), 2),
            "OnBound needs an inner estimator of the expectation that uses only values",
        ),
        (lambda f, x: OnBound(VIMCO(4), 2), "such as arms.ARMS"),
        (
            lambda f, x: OnBound(arms.Exact(), 2),
            "OnBound needs an inner estimator of the expectation that uses only values",
        ),
        (lambda f, x: VIMCO(4, baseline="harmonic"), "'geometric', 'arithmetic', 'none'"),  # type: ignore[arg-type]
        (lambda f, x: arms.variance(f, x, ["vimco"], 4), "the gradient of an expectation"),
    ],
)
def test_errors_that_help(
    call: Callable[[Callable[[Tensor], Tensor], Tensor], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call(lambda b: b.sum(-1), torch.zeros(5, 3))


def test_bound_samples_of_the_registry() -> None:
    counts = {name: arms.as_estimator(name, 8).target.size for name in MULTI_SAMPLE}
    expected = dict.fromkeys(MULTI_SAMPLE, 4) | dict.fromkeys(
        ("vimco", "flips-ms", "reinforce-ms"), 8
    )
    # Two of three samples make pairs, so that 8 leave 4 for the bound.
    assert counts == expected


def test_with_one_sample_the_bound_is_the_expectation_of_the_log_weight() -> None:
    """OnBound(inner, 1) is the inner estimator, for log w."""
    latent, log_joint = LATENTS[0], joint_of(torch.tensor([0.5, -1.0, 2.0]))
    for inner in (LOORF(3), ARMS(4)):
        draw = draw_points(OnBound(inner, 1), latent, seeded())
        values = log_joint(draw.points) - latent.log_prob(draw.points)
        found = OnBound(inner, 1).combine(draw, values)
        torch.testing.assert_close(found, inner.combine(draw.memory, values[1:]))
    assert OnBound(LOORF(3), 1).target == ImportanceBound(1)


def test_variances_are_compared_among_black_box_estimators_of_the_expectation() -> None:
    table = arms.variance(lambda b: b.detach().prod(-1), torch.zeros(2), num_samples=4, repeats=2)
    black_box = {
        name for name, make in arms.ESTIMATORS.items() if not make(4).design.needs.derivatives
    }
    left_out = {*MULTI_SAMPLE, *SAME_FOR_BITS, "exact"}
    assert {row.estimator for row in table.rows} == black_box - left_out


def test_log_mean_exp_of_large_weights() -> None:
    found = log_mean_exp(torch.tensor([0.0, 10_000.0]))
    torch.testing.assert_close(found, torch.tensor(9999.3066))
