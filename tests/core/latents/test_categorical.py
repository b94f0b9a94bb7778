"""Couplings and estimators for any number of categories, at any entropy."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from enumeration import exact_mean
from hypothesis import given
from hypothesis import strategies as st
from seeds import seeded
from torch import Generator, Tensor
from torch.distributions import Categorical, Distribution, Independent, OneHotCategorical

import arms
from arms import (
    ARMS,
    LOORF,
    Bits,
    DisARM,
    Estimator,
    Exact,
    LeaveOneOut,
    Midpoint,
    OneHot,
    Reinforce,
    ReinMax,
    StraightThrough,
    UnorderedSet,
)
from arms.checks import bias_finding, exact_gradient, findings, random_table, table_objective
from arms.checks.oracle import exact_target_gradient
from arms.designs import CategoryCoupling, Coupled, Dirichlet, Draw, Stratified, Systematic
from arms.designs.couplings.copulas import order_pair_distribution, undo_pairs
from arms.designs.pairs import Tree
from arms.latents import HasMean
from arms.latents.categories import one_hot

COUPLED: list[CategoryCoupling] = [Systematic(), Stratified()]


def latents(categories: int, variables: int) -> list[OneHot]:
    """From uniform to nearly certain, with n p whole, and with impossible categories."""
    row = torch.randn(variables, categories, generator=seeded(categories), dtype=torch.float64)
    whole = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625], dtype=torch.float64)[:categories].log()
    impossible = row.clone()
    impossible[0, 0] = -torch.inf
    every = [scale * row for scale in (0.0, 1.0, 3.0, 12.0)] + [whole.expand_as(row), impossible]
    return [OneHot(logits) for logits in every]


def bias(estimator: Estimator, latent: OneHot) -> float:
    objective = table_objective(2 * random_table(latent.count_states(), seeded(1)), latent)
    found = exact_mean(estimator, objective, latent)
    return (found - exact_gradient(objective, latent)).abs().max().item()


# --- Exact expectations ---------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", COUPLED, ids=str)
@pytest.mark.parametrize(
    ("categories", "variables", "n"),
    [
        (3, 2, 2),
        (3, 2, 3),
        (3, 2, 4),
        (4, 2, 2),
        (4, 2, 3),
        (5, 2, 2),
        (4, 1, 4),
        (5, 1, 5),
        (5, 1, 3),
        (2, 2, 5),
    ],
)
def test_coupled_samples_give_the_gradient(
    coupling: CategoryCoupling, categories: int, variables: int, n: int
) -> None:
    for latent in latents(categories, variables):
        assert bias(ARMS(n, coupling), latent) < 1e-12, latent


@pytest.mark.parametrize(
    "estimator",
    [
        ARMS(2, Dirichlet()),
        DisARM(2),
        DisARM(4),
        DisARM(2, tree="stick"),
        UnorderedSet(2),
        UnorderedSet(3),
        LOORF(3),
        Midpoint(4),
        Midpoint(2, Systematic()),
    ],
    ids=str,
)
@pytest.mark.parametrize(("categories", "variables"), [(3, 2), (4, 1), (5, 1)])
def test_others_give_the_gradient(estimator: Estimator, categories: int, variables: int) -> None:
    for latent in latents(categories, variables)[:-1]:
        assert bias(estimator, latent) < 1e-12, latent


class PairRatio(LeaveOneOut):
    """Each pair divided by its own probability, which is zero for some pairs of categories."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        latent, points, n = draw.latent, draw.points, self.design.num_samples
        assert isinstance(latent, HasMean)
        probs = latent.mean()
        outcomes = self.design.outcomes(OneHot(latent.logits.flatten(0, -3)[0][:1]))
        assert outcomes is not None
        first, second = (one[:, 0, 0] for one in outcomes[0].points[:2])
        table = torch.einsum("xa,xb,x->ab", first, second, outcomes[1])
        ratio = torch.where(table > 0, probs[..., :, None] * probs[..., None, :] / table, 0.0)
        total = torch.zeros_like(probs)
        for i, j in itertools.permutations(range(n), 2):
            weight = (points[i].unsqueeze(-1) * ratio * points[j].unsqueeze(-2)).sum((-1, -2))
            fall = (values[i] - values[j]).unsqueeze(-1) * weight
            total += fall.unsqueeze(-1) * (points[i] - points[j]) / 2
        return total / (n * (n - 1))


class OneOrderForAll(Systematic):
    """Samples with the right counts, in the same order for all latents."""

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        samples = super().sample_categories(logits, n, generator)
        return one_hot(samples.argmax(-1).sort(0).values, logits)


class NoDebias(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return LOORF(self.design.num_samples).combine(draw, values)


def test_enumeration_catches_sabotage() -> None:
    # n p < 1, and fractions that add up to one
    quarters = OneHot(torch.zeros(1, 4, dtype=torch.float64))
    assert bias(PairRatio(Coupled(2, Systematic())), quarters) > 1e-3
    assert bias(NoDebias(Coupled(3, Systematic())), quarters) > 1e-3
    assert bias(NoDebias(Coupled(3, Stratified())), quarters) > 1e-3
    assert bias(ARMS(2, Systematic()), quarters) < 1e-12


def test_draws_catch_a_common_order() -> None:
    assert not bias_finding(ARMS(4, OneOrderForAll()), draws=20_000).passed


# --- The distribution of the draws ----------------------------------------------------------------


@pytest.mark.parametrize("coupling", [*COUPLED, Dirichlet()], ids=str)
@pytest.mark.parametrize(("categories", "n"), [(3, 2), (4, 4), (5, 3), (7, 5)])
def test_pairs_of_draws_have_the_distribution_that_is_undone(
    coupling: CategoryCoupling, categories: int, n: int
) -> None:
    """The matrix correction from the pairs of 200,000 draws is the closed form, up to noise."""
    logits = torch.randn(1, categories, generator=seeded(n), dtype=torch.float64)
    many = coupling.sample_categories(logits.expand(200_000, 1, categories), n, seeded(1))[:, :, 0]
    pairs = torch.einsum("xa,xb->ab", many[0], many[-1]) / many.shape[1]
    r = torch.randn(1, categories, generator=seeded(2), dtype=torch.float64)
    r -= r.mean(-1, keepdim=True)
    found = undo_pairs(logits, pairs.unsqueeze(0), r)
    assert (coupling.undo_categories(logits, n, r) - found).abs().max() < 0.05
    score = (many[0].mean(0) - logits.softmax(-1)) * math.sqrt(200_000) / 0.5
    assert score.abs().max() < 5


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=17),
    st.integers(2, 12),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_counts_are_within_one_of_their_mean(row: list[float], n: int, dtype: torch.dtype) -> None:
    latent = OneHot(torch.tensor([row], dtype=dtype))
    samples = Systematic().sample_categories(latent.logits, n, seeded())
    assert samples.dtype == dtype
    assert (samples.sum(-1) == 1).all()
    expected = n * latent.mean()
    counts = samples.float().sum(0)
    assert (counts >= (expected - 1e-4).floor()).all()
    assert (counts <= (expected + 1e-4).ceil()).all()


@pytest.mark.parametrize("n", [2, 3, 6])
def test_pairs_of_the_dirichlet_copula_by_its_corners(n: int) -> None:
    m, probs = n - 1, [0.4, 0.3, 0.2, 0.1]

    def below(x: float, y: float) -> float:
        return float(max(0.0, x ** (1 / m) + y ** (1 / m) - 1) ** m)

    orders = [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2], [1, 2, 3, 0], [1, 3, 0, 2], [1, 0, 2, 3]]
    orders += [[2, 3, 0, 1], [2, 0, 1, 3], [2, 1, 3, 0], [3, 0, 1, 2], [3, 1, 2, 0], [3, 2, 0, 1]]
    pairs = torch.zeros(4, 4, dtype=torch.float64)
    for order in (order for order in orders if order[0] < order[-1]):
        ends = [0.0, *itertools.accumulate(probs[k] for k in order)]
        for (i, a), (j, b) in itertools.product(enumerate(order), repeat=2):
            corners = below(ends[i + 1], ends[j + 1]) - below(ends[i], ends[j + 1])
            pairs[a, b] += (corners - below(ends[i + 1], ends[j]) + below(ends[i], ends[j])) / 6
    found = order_pair_distribution(torch.tensor([probs], dtype=torch.float64).log(), n)[0]
    assert (found - pairs).abs().max() < 1e-12
    assert (found.sum(-1) - torch.tensor(probs, dtype=torch.float64)).abs().max() < 1e-12


@given(st.integers(2, 9), st.integers(2, 8), st.integers(0, 1000))
def test_debias_of_the_tree_only_ever_shrinks(categories: int, n: int, seed: int) -> None:
    """In the norm weighted by 1/p, the factor lies between (n - 1)/n and 1."""
    logits = 3 * torch.randn(1, categories, generator=seeded(seed), dtype=torch.float64)
    side = logits.softmax(-1)[0].sqrt()
    # The rows are leave-one-out sums r, each of which adds up to zero.
    sums = (torch.eye(categories, dtype=torch.float64) - torch.outer(side, side)) * side
    many = logits.expand(categories, 1, -1)
    matrix = Systematic().undo_categories(many, n, sums.unsqueeze(1))[:, 0] / side
    assert (matrix - matrix.mT).abs().max() < 1e-9
    # The first is zero, for the direction that r does not have.
    factors = torch.linalg.eigvalsh(matrix)
    assert factors[1:].min() > (n - 1) / n - 1e-9
    assert factors.max() < 1 + 1e-9


def test_whole_expectations_of_one_latent_leave_no_variance() -> None:
    latent = OneHot(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log().expand(50, 1, 3))
    grad = ARMS(4)(
        lambda z: z[..., 0, :] @ torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64), latent
    ).grad
    assert (grad - grad[0]).abs().max() < 1e-14


# --- Identities -----------------------------------------------------------------------------------


TWO = torch.linspace(-8, 8, 6, dtype=torch.float64)


def as_pair(bits: Tensor) -> Tensor:
    return torch.stack([1 - bits, bits], -1)


@pytest.mark.parametrize(
    "estimator",
    [
        LOORF(4),
        *(
            ARMS(n, coupling)
            for coupling in (Systematic(), Stratified(), Dirichlet())
            for n in (2, 3, 5)
        ),
        DisARM(4),
        DisARM(4, tree="stick"),
        Reinforce(2),
    ],
    ids=str,
)
def test_two_categories_are_bits(estimator: Estimator) -> None:
    """Also for samples that cannot be drawn, at large logits."""
    n = estimator.design.num_samples
    bits = torch.bernoulli(torch.full((n, 30, 6), 0.5, dtype=torch.float64), generator=seeded())
    values = torch.randn(n, 30, generator=seeded(1), dtype=torch.float64)
    binary = Draw(Bits(TWO.expand(30, 6)), bits)
    pairs = Draw(OneHot(as_pair(TWO.sigmoid()).log().expand(30, 6, 2)), as_pair(bits))
    found, expected = (estimator.combine(draw, values) for draw in (pairs, binary))
    assert (found[..., 1] - expected).abs().max() < 1e-12
    assert (found[..., 0] + expected).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("one", "other"), [(ReinMax(3), ReinMax(3)), (StraightThrough(3), StraightThrough(3, True))]
)
def test_biased_ones_of_two_categories_are_those_of_bits(one: Estimator, other: Estimator) -> None:
    bits = torch.bernoulli(torch.full((3, 30, 6), 0.5, dtype=torch.float64), generator=seeded())
    derivatives = torch.randn(3, 30, 6, 2, generator=seeded(1), dtype=torch.float64)
    values = torch.zeros(3, 30, dtype=torch.float64)
    pairs = Draw(OneHot(as_pair(TWO.sigmoid()).log().expand(30, 6, 2)), as_pair(bits))
    found = one.combine(pairs, values, derivatives)
    binary = Draw(Bits(TWO.expand(30, 6)), bits)
    expected = other.combine(binary, values, derivatives[..., 1] - derivatives[..., 0])
    assert (found[..., 1] - expected).abs().max() < 1e-12


@pytest.mark.parametrize("tree", ["balanced", "stick"])
def test_independent_bits_with_those_not_reached_integrated_out_are_loorf(tree: Tree) -> None:
    estimator = DisARM(2, correlation=0.0, tree=tree)
    latent = OneHot(torch.randn(40, 3, 5, generator=seeded(), dtype=torch.float64))
    draw = estimator.design.draw(latent, seeded(1))
    values = torch.randn(2, 40, generator=seeded(2), dtype=torch.float64)
    assert (estimator.combine(draw, values) - LOORF(2).combine(draw, values)).abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(1, 5), (2, 3)])
def test_the_set_of_all_states_is_exact(shape: tuple[int, int]) -> None:
    latent = OneHot(2 * torch.randn(4, *shape, generator=seeded(), dtype=torch.float64))
    objective = table_objective(random_table(latent.count_states(), seeded(1)), latent)
    found = UnorderedSet(latent.count_states())(objective, latent)
    exact = Exact()(objective, latent)
    assert (found.grad - exact.grad).abs().max() < 1e-12
    assert (found.value - exact.value).abs().max() < 1e-12


def test_the_set_of_all_states_keeps_the_digits_of_rare_ones() -> None:
    latent = OneHot(torch.tensor([[0.0, -14.0, -20.0]], dtype=torch.float64))
    objective = table_objective(random_table(3, seeded(1)), latent)
    found = UnorderedSet(3)(objective, latent).grad
    torch.testing.assert_close(found, exact_gradient(objective, latent), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "name",
    ["reinforce", "loorf", "arms", "arms-stratified", "arms-dirichlet", "disarm", "disarm-stick"],
)
def test_rows_add_up_to_nothing(name: str) -> None:
    latent = OneHot(3 * torch.randn(50, 4, 6, generator=seeded(), dtype=torch.float64))
    grad = arms.as_estimator(name, 4)(
        lambda z: z.cumsum(-1).prod(-1).sum(-1), latent, seeded(1)
    ).grad
    assert grad.sum(-1).abs().max() < 1e-12
    assert grad.abs().max() > 0.01


# --- Hard inputs ----------------------------------------------------------------------------------


UNBIASED = [
    "reinforce",
    "loorf",
    "arms",
    "arms-stratified",
    "arms-dirichlet",
    "disarm",
    "disarm-stick",
    "unordered-set",
    "midpoint",
]
BIASED = ["st", "st-gumbel", "reinmax", "gumbel-softmax"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
def test_impossible_certain_and_extreme_categories(name: str, dtype: torch.dtype) -> None:
    rows = torch.tensor(
        [
            [0.0, -torch.inf, 1.0, -torch.inf, 0.5],
            [-torch.inf, -torch.inf, 3.0, -torch.inf, -torch.inf],
            [60.0, -60.0, 0.0, 59.0, -30.0],
            [1e4, -1e4, 0.0, 1e4, -80.0],
            [-99.0, -100.0, 0.0, -101.0, -103.0],
        ],
        dtype=dtype,
    )
    latent = OneHot(rows.expand(20, 5, 5))
    if name not in BIASED:
        points = arms.as_estimator(name, 4).design.draw(latent, seeded()).samples
        if name != "unordered-set":  # which fills up with impossible states, of weight zero
            assert (points[..., 0, :, :][..., 0, [1, 3]] == 0).all()
    found = arms.as_estimator(name, 4)(
        lambda z: (z * z.new_tensor(range(5))).sum((-1, -2)), latent, seeded(1)
    )
    assert found.grad.isfinite().all()
    assert (found.grad[:, 0, [1, 3]].abs() < 1e-6).all()
    assert (found.grad[:, 1].abs() < 1e-6).all()


@pytest.mark.parametrize("name", UNBIASED)
def test_a_single_category_has_no_gradient(name: str) -> None:
    if name == "unordered-set":
        with pytest.raises(
            ValueError, match="samples are drawn without replacement, got 4: use exact instead"
        ):
            arms.as_estimator(name, 4)(lambda z: z.sum((-1, -2)), OneHot(torch.zeros(7, 2, 1)))
        return
    assert (
        arms.as_estimator(name, 4)(lambda z: z.sum((-1, -2)), OneHot(torch.zeros(7, 2, 1))).grad
        == 0
    ).all()


@pytest.mark.parametrize("name", ["loorf", "arms", "arms-stratified"])
def test_a_hundred_thousand_categories(name: str) -> None:
    logits = torch.randn(2, 1, 100_000, generator=seeded()).requires_grad_()
    value = arms.expectation(
        lambda z: z[..., 0].float().log1p(), Categorical(logits=logits), name, 8, seeded(1)
    )
    value.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() > 0


@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
def test_logits_that_are_nan_leave_the_other_rows_alone(name: str) -> None:
    """As with a diverged replica among others."""
    logits = torch.randn(4, 2, 3, generator=seeded())
    logits[1, 0, 2] = torch.nan
    found = arms.as_estimator(name, 4)(
        lambda z: z.cumsum(-1).sum((-1, -2)), OneHot(logits), seeded(1), validate=False
    )
    assert found.grad[[0, 2, 3]].isfinite().all()
    assert found.grad[1].isnan().any()
    assert found.value[1].isnan()


def test_single_precision_keeps_its_digits() -> None:
    logits = 60 * torch.rand(500, 1, 9, generator=seeded(), dtype=torch.float64)
    r = torch.randn(500, 1, 9, generator=seeded(1), dtype=torch.float64) * logits.softmax(-1)
    r -= logits.softmax(-1) * r.sum(-1, keepdim=True)
    for coupling in COUPLED:
        exact = coupling.undo_categories(logits, 4, r)
        rough = coupling.undo_categories(logits.float(), 4, r.float())
        assert (rough - exact).abs().max() < 1e-5


def test_the_dirichlet_copula_refuses_many_categories() -> None:
    with pytest.raises(
        ValueError, match="coupling accepts at most 32 categories, got 33: use arms, which has the"
    ):
        ARMS(4, Dirichlet())(lambda z: z.sum((-1, -2)), OneHot(torch.zeros(1, 33)))


# --- What a user hands in -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        lambda phi: Categorical(logits=phi),
        lambda phi: Independent(Categorical(logits=phi), 1),
        arms.Indices,
    ],
)
@pytest.mark.parametrize(
    "name", ["loorf", "arms", "arms-stratified", "unordered-set", "disarm", "exact"]
)
def test_indices(given: Callable[[Tensor], Distribution], name: str) -> None:
    phi = torch.randn(5, 2, 3, generator=seeded()).requires_grad_()
    table = torch.randn(3, 3, generator=seeded(1))

    def by_index(z: Tensor) -> Tensor:
        assert z.dtype == torch.int64
        assert z.shape[1:] == (5, 2)
        return table[z[..., 0], z[..., 1]]

    def by_one_hot(z: Tensor) -> Tensor:
        return torch.einsum("...a,ab,...b->...", z[..., 0, :], table, z[..., 1, :])

    value = arms.expectation(by_index, given(phi), name, 4, seeded(2))
    (grad,) = torch.autograd.grad(value.sum(), phi)
    (expected,) = torch.autograd.grad(
        arms.expectation(by_one_hot, OneHot(phi), name, 4, seeded(2)).sum(), phi
    )
    assert value.shape == (5,)
    assert (grad - expected).abs().max() < 1e-6
    drawn = arms.draw(given(phi), name, 4, seeded(2))
    attached = arms.attach(drawn, by_index(drawn.samples))
    assert (torch.autograd.grad(attached.sum(), phi)[0] - expected).abs().max() < 1e-6


def test_indices_in_chunks_and_in_a_bound() -> None:
    phi = torch.zeros(5, 2, 3, requires_grad=True)
    latent = Categorical(logits=phi)
    whole, parts = (
        arms.expectation(lambda z: z.sum(-1) ** 2, latent, "arms", 4, seeded(), chunk=chunk)
        for chunk in (None, 3)
    )
    assert torch.equal(whole, parts)
    bound = arms.importance_bound(lambda z: z.sum(-1).float(), latent, "arms-ms", 8, seeded())
    bound.sum().backward()
    assert phi.grad is not None


def test_indices_have_no_derivatives() -> None:
    with pytest.raises(
        ValueError,
        match=r"Midpoint differentiates .* category indices have no derivative: pass a OneHotCat",
    ):
        arms.expectation(
            lambda z: z.sum(-1).float(), Categorical(logits=torch.zeros(2, 3)), "midpoint", 4
        )


@pytest.mark.parametrize("kind", [Categorical, OneHotCategorical])
def test_probabilities_of_zero_stay_zero(kind: type[Categorical | OneHotCategorical]) -> None:
    probs = torch.tensor([[0.5, 0.0, 0.5]], requires_grad=True)
    latent = arms.as_latent(kind(probs=probs))
    assert isinstance(latent, HasMean)
    assert latent.mean()[0, 1] == 0
    arms.expectation(lambda z: z.flatten(1).sum(-1).float(), latent, "arms", 4, seeded()).backward()
    assert probs.grad is not None
    assert probs.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["vimco", "loorf-ms", "arms-ms"])
@pytest.mark.parametrize("kind", [Categorical, OneHotCategorical, arms.Indices, OneHot])
def test_bound_of_every_form_of_categories(
    estimator: str, kind: Callable[..., Distribution | arms.Latent]
) -> None:
    """The library subtracts log q, whatever form the categories have."""
    one = torch.randn(1, 1, 3, generator=seeded(), dtype=torch.float64)
    phi = one.expand(4000, 1, 3).clone().requires_grad_()
    q = kind(logits=phi)
    table = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64)

    def log_joint(z: Tensor) -> Tensor:
        return table[(z.argmax(-1) if z.is_floating_point() else z)[..., 0]]

    arms.importance_bound(log_joint, q, estimator, 4, seeded(1)).sum().backward()
    assert phi.grad is not None
    target = arms.as_estimator(estimator, 4).target
    expected = exact_target_gradient(lambda z: z[..., 0, :] @ table, OneHot(one[0]), target)
    spread = phi.grad.std(0) / math.sqrt(4000)
    assert ((phi.grad.mean(0) - expected).abs() < 5 * spread + 1e-12).all()


def test_log_prob_of_indices() -> None:
    latent = arms.Indices(torch.randn(8, 1, 5, generator=seeded()))
    z = latent.to_objective(latent.sample(8, seeded(1)))
    expected = Categorical(logits=latent.logits).log_prob(z).sum(-1)
    torch.testing.assert_close(latent.log_prob(z), expected)
    torch.testing.assert_close(latent.score(z), latent.score(one_hot(z, latent.logits)))
    with pytest.raises(
        ValueError, match=r"one-hot \[..., 1, 5\], or integer indices \[..., 1\], got \[8, 8\]"
    ):
        latent.log_prob(z[..., 0])


@pytest.mark.parametrize("row", [[torch.inf, 0.0, 0.0], [-torch.inf] * 3])
@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
def test_logits_without_a_distribution_show(name: str, row: list[float]) -> None:
    latent = OneHot(torch.tensor([[row], [[0.0, 1.0, 2.0]]]))
    found = arms.as_estimator(name, 2)(
        lambda z: z.cumsum(-1).sum((-1, -2)), latent, seeded(), validate=False
    )
    assert found.value.isnan().tolist() == [True, False]
    assert found.grad.isnan().any(-1).any(-1).tolist() == [True, False]


@pytest.mark.parametrize(
    "name", ["loorf", "arms", "arms-stratified", "arms-dirichlet", "unordered-set", "disarm"]
)
def test_vmap(name: str) -> None:
    logits = torch.randn(5, 2, 3, generator=seeded())

    def value(phi: Tensor) -> Tensor:
        return arms.expectation(lambda z: z.cumsum(-1).sum((-1, -2)), OneHot(phi), name, 4)

    grads = torch.func.vmap(torch.func.grad(value), randomness="different")(logits)
    assert grads.shape == logits.shape
    assert grads.isfinite().all()
    assert grads.abs().max() > 0
    closed = torch.func.vmap(lambda scale: scale * value(logits[0]), randomness="different")(
        torch.ones(4)
    )
    assert closed.shape == (4,)


def test_no_categories_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"logits must have at least one category on the last axis, got shape \[2, 0\]",
    ):
        arms.expectation(lambda z: z.sum((-1, -2)), OneHot(torch.zeros(2, 0)), "loorf", 2)


class DoubledUndo(Systematic):
    """Right for bits, wrong for categories."""

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        return 2 * grad


def test_the_check_of_couplings_looks_at_categories() -> None:
    verdict = findings(DoubledUndo(), num_samples=(3,), draws=20_000)
    assert {finding.name for finding in verdict.findings if not finding.passed} == {
        "correction, n = 3"
    }
    assert findings(Systematic(), num_samples=(3,), draws=20_000).passed


def test_the_check_of_estimators_looks_at_categories() -> None:
    verdict = findings(DisARM, draws=1000, num_samples=[2])
    assert verdict.passed
    assert "extreme logits of categories, float32" in {finding.name for finding in verdict.findings}
