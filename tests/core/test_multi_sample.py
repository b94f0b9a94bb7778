"""The multi-sample bound: its algebra against loops, numerical range, the user's door; bias is in the generic tests."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

import arms
from arms.checks import random_table
from arms.checks.oracle import as_seen
from arms.checks.variance import SAME_OF_BITS
from arms.estimators import VIMCO, MultiSampleARMS, MultiSampleLOORF
from arms.estimators.disarm_ms import pair_differences
from arms.estimators.loorf_ms import slot_sums
from arms.estimators.multi_sample import MultiSample, others_of_each
from arms.estimators.pipeline import Options, evaluate, gradient
from arms.estimators.vimco import local_signals
from arms.latents import Bernoulli
from arms.targets import MultiSampleBound, log_mean_exp

MULTI_SAMPLE = [name for name, factory in arms.ESTIMATORS.items() if factory(8).target.direct]
PHI = torch.tensor([0.7, -1.3], dtype=torch.float64)
TABLE = 2 * random_table(4, Generator().manual_seed(1))


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def log_weight_of(objective: Callable[[Tensor], Tensor], logits: Tensor) -> Callable[[Tensor], Tensor]:
    return as_seen(objective, Bernoulli(logits), MultiSampleBound(1))


# --- The algebra of slots against loops -------------------------------------------------------------------------------


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
    """sum_k f_{-k} at every tried sample by building every replaced set, in float64."""
    bound, tried = values[:bound_samples].double(), values[bound_samples:].double()
    rows = []
    for candidate in tried:
        replaced = [torch.cat([bound[:k], bound[k + 1 :], candidate.unsqueeze(0)]) for k in range(bound_samples)]
        rows.append(torch.stack([log_mean_exp(one) for one in replaced]).sum(0))
    return torch.stack(rows)


def centred(table: Tensor) -> Tensor:
    return table - table.mean(0)


@pytest.mark.parametrize("bound_samples", [1, 2, 5])
def test_slot_sums_against_a_loop(bound_samples: int) -> None:
    values = 3 * torch.randn(bound_samples + 4, 5, generator=seeded(), dtype=torch.float64)
    values[bound_samples:, 0] = torch.tensor([5.0, 25, 33, 45])  # far above: where the others still count, and no more
    expected = centred(brute_slot_sums(values, bound_samples))
    torch.testing.assert_close(centred(slot_sums(values, bound_samples)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", MULTI_SAMPLE)
def test_a_log_weight_that_is_no_number_is_not_lost(name: str) -> None:
    for spoilt in range(6):

        def objective(b: Tensor) -> Tensor:
            return torch.where(torch.arange(len(b)) == spoilt, torch.nan, 0 * b.sum(-1))  # noqa: B023

        grad = arms.as_estimator(name, 6)(objective, torch.zeros(3), seeded(), validate=False).grad
        assert grad.isnan().any()


# --- Numerical range --------------------------------------------------------------------------------------------------

WEIGHTS = {
    "one dominates by 1e4": [1e4, 0.0, 1.0, 2.0, 0.5, 1e4, -1e4, 3.0],
    "a tried one dominates": [0.0, 1.0, 2.0, -3.0, 1e4, 0.0, 1.5, 2.0],
    "all far down": [-1e4, -1e4 + 1, -1e4 - 2, -1e4, -1e4 + 0.5, -1e4, -1e4 + 3, -1e4],
    "all far up": [1e8] * 8,
    "steps of 1e4": [k * 1e4 for k in range(8)],
    "equal": [-103.25] * 8,
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_gaps_in_float32_match_a_float64_loop(case: str) -> None:
    values = torch.tensor(WEIGHTS[case]).unsqueeze(-1)
    wide = values.double()
    pairs = wide.unflatten(0, (2, 4))
    rest = torch.stack([torch.cat([pairs[0][:k], pairs[0][k + 1 :]]).logsumexp(0) for k in range(4)])
    pair = (torch.logaddexp(rest, pairs[0]) - torch.logaddexp(rest, pairs[1])) / 2
    for found, expected in (
        (centred(slot_sums(values, 4)), centred(brute_slot_sums(values, 4))),
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
    assert abs(rest[0].item() - math.log1p(math.exp(-1))) < 1e-6  # log(total - w_0) is -inf in float32
    assert others_of_each(values[:1])[1].logsumexp(1).item() == -math.inf


@pytest.mark.parametrize("name", MULTI_SAMPLE)
def test_impossible_samples_are_sane(name: str) -> None:
    logits = torch.zeros(4, requires_grad=True)

    def log_weight(b: Tensor) -> Tensor:
        impossible = torch.arange(len(b)) == 1
        return torch.where(impossible, -torch.inf, (b - logits.sigmoid()).sum(-1))

    bound = arms.multi_sample_bound(log_weight, logits, name, 8, seeded(), validate=False)
    (grad,) = torch.autograd.grad(bound, logits)
    assert bound.isfinite()
    assert grad.isfinite().all()


@given(
    values=st.lists(st.floats(-50, 50), min_size=6, max_size=6),
    shift=st.floats(-1e3, 1e3),
    name=st.sampled_from([name for name in MULTI_SAMPLE if name != "reinforce-ms"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_score_part_ignores_the_scale_of_weights(values: list[float], shift: float, name: str) -> None:
    estimator = arms.as_estimator(name, 6)
    draw = estimator.draw(Bernoulli(torch.tensor([0.3, -0.8], dtype=torch.float64)), seeded())
    weights = torch.tensor(values, dtype=torch.float64)[torch.arange(len(draw.points)) % 6]
    slopes = 0.1 * draw.points[len(draw.points) - estimator.derivatives :] - 0.3 if draw.extra else None
    change = estimator.combine(draw, weights + shift, slopes) - estimator.combine(draw, weights, slopes)
    assert change.abs().max() < 1e-10


# --- The user's door --------------------------------------------------------------------------------------------------


def elbo_weight(logits: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
    return log_weight_of(lambda b: -(b @ weights - 1).square(), logits)


@pytest.mark.parametrize("name", MULTI_SAMPLE)
def test_bound_and_its_gradients(name: str) -> None:
    logits = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    weights = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    estimator = arms.as_estimator(name, 8)
    bound = arms.multi_sample_bound(elbo_weight(logits, weights), logits, estimator, generator=seeded())
    found = torch.autograd.grad(bound.sum(), (logits, weights))
    draw = arms.draw(logits, estimator, generator=seeded())
    log_weights = elbo_weight(logits, weights)(draw.points)
    assert isinstance(estimator, MultiSample)
    expected_bound = log_mean_exp(log_weights[: estimator.bound_samples])
    expected = torch.autograd.grad(expected_bound.sum(), (logits, weights), retain_graph=True)
    torch.testing.assert_close(bound, expected_bound)
    whole = evaluate(elbo_weight(logits, weights), draw, Options())
    torch.testing.assert_close(found[0], expected[0] + gradient(draw, whole).detach())
    torch.testing.assert_close(found[1], expected[1])
    two_step = torch.autograd.grad(arms.attach(draw, log_weights).sum(), logits)[0]
    assert torch.equal(two_step, found[0])


@pytest.mark.parametrize("name", MULTI_SAMPLE)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda logits: logits.detach(), "in whose graph these logits have no part"),
        (lambda logits: 0.5 * logits, "depend on these logits otherwise"),
    ],
)
def test_log_q_that_does_not_pass_its_gradient_is_refused(
    name: str, change: Callable[[Tensor], Tensor], words: str
) -> None:
    """Half of the gradient would be missing, silently: the rest of the log-weight has a graph too."""
    logits = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    weights = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    wrong = elbo_weight(change(logits), weights)
    with pytest.raises(ValueError, match=f"computed from the very tensor of logits.*not detached.*{words}"):
        arms.multi_sample_bound(wrong, logits, name, 8)
    draw = arms.draw(logits, name, 8)
    with pytest.raises(ValueError, match=words):
        arms.attach(draw, wrong(draw.points))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_right_log_weights_are_never_refused(dtype: torch.dtype) -> None:
    logits = torch.linspace(-30, 30, 1500).to(dtype).view(10, 50, 3).requires_grad_()
    for name in MULTI_SAMPLE:
        bound = arms.multi_sample_bound(elbo_weight(logits, torch.tensor([0.5, -1, 2]).to(dtype)), logits, name, 8)
        bound.sum().backward()
    extra = arms.ExtraSample(MultiSampleARMS(4, bound_samples=1))  # whose value is that of another sample
    arms.multi_sample_bound(elbo_weight(logits, torch.tensor([0.5, -1, 2]).to(dtype)), logits, extra).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_chunks_change_nothing() -> None:
    logits = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3).requires_grad_()
    weights = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    grads = [
        torch.autograd.grad(
            arms.multi_sample_bound(elbo_weight(logits, weights), logits, "arms-ms-d", 8, seeded(), chunk=chunk).sum(),
            logits,
        )[0]
        for chunk in (None, 3)
    ]
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["vimco", "disarm-ms", "arms-ms-s"])
def test_vmap_of_grad(name: str) -> None:
    weights = torch.tensor([0.5, -1.0, 2.0])

    def loss(logits: Tensor) -> Tensor:
        return arms.multi_sample_bound(elbo_weight(logits, weights), logits, name, 8)

    logits = torch.linspace(-1, 1, 15).view(5, 3)
    grads = torch.vmap(torch.func.grad(loss), randomness="different")(logits)
    assert grads.shape == logits.shape
    assert grads.isfinite().all()


@pytest.mark.parametrize("name", ["vimco", "arms-ms-d"])
def test_compiles_without_graph_breaks(name: str) -> None:
    weights = torch.tensor([0.5, -1.0, 2.0])

    def loss(logits: Tensor) -> Tensor:
        return arms.multi_sample_bound(elbo_weight(logits, weights), logits, name, 4).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    logits = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    torch.manual_seed(0)
    (grad,) = torch.autograd.grad(compiled(logits), logits)
    torch.manual_seed(0)
    torch.testing.assert_close(grad, torch.autograd.grad(loss(logits), logits)[0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, x: arms.expectation(f, x, "vimco"), "arms.multi_sample_bound"),
        (lambda f, x: arms.multi_sample_bound(f, x, "arms-s"), "arms.expectation"),
        (lambda f, x: arms.multi_sample_bound(f, x, "arms-ms-d", 5), "must be even.*try 6"),
        (lambda f, x: arms.multi_sample_bound(f, x, "arms-ms-d", 2), "integer >= 4"),
        (lambda f, x: arms.multi_sample_bound(f, x, "disarm-ms", 3), "must be even"),
        (lambda f, x: MultiSampleLOORF(3, bound_samples=2), "bound_samples=2 must be an integer >= 4"),
        (lambda f, x: MultiSampleARMS(4, bound_samples=0), "bound_samples .* >= 1"),
        (lambda f, x: MultiSampleARMS(4, coupling="systematic"), "methods sample and undo"),  # type: ignore[arg-type]
        (lambda f, x: VIMCO(4, baseline="harmonic"), "'geometric' or 'arithmetic'"),  # type: ignore[arg-type]
        (lambda f, x: arms.variance(f, x, ["vimco"], 4), "gradients of the expectation"),
    ],
)
def test_errors_that_help(call: Callable[[Callable[[Tensor], Tensor], Tensor], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(lambda b: b.sum(-1), torch.zeros(5, 3))


def test_bound_samples_of_the_registry() -> None:
    counts = {
        name: found.bound_samples
        for name in MULTI_SAMPLE
        if isinstance(found := arms.as_estimator(name, 8), MultiSample)
    }
    assert counts == {name: 8 if name in ("vimco", "reinforce-ms") else 4 for name in MULTI_SAMPLE}


def test_variances_are_compared_among_black_box_estimators_of_the_expectation() -> None:
    table = arms.variance(lambda b: b.detach().prod(-1), torch.zeros(2), num_samples=4, repeats=2)
    black_box = {name for name, make in arms.ESTIMATORS.items() if make(4).slopes == "none"}
    assert {row.estimator for row in table.rows} == black_box - {*MULTI_SAMPLE, *SAME_OF_BITS, "exact"}
