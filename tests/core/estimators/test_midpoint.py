"""The midpoint estimator: exact expectations on difficult functions, removed noise, and errors."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from enumeration import exact_mean
from torch import Tensor, nn

import arms
from arms import Bits, Midpoint, OneHot, Subset
from arms.checks import exact_gradient
from arms.designs import Dirichlet, Draw, Midpoints, Systematic
from arms.designs.midpoints import mean_of_siblings, mean_per_midpoint, repeat_per_pair
from arms.estimate import draw_points
from arms.estimators.base import TensorObjective
from arms.estimators.derivative.midpoint import cross_paired


def wild(d: int) -> TensorObjective:
    """Every order of interaction between d latents, defined everywhere between 0 and 1."""
    generator = torch.Generator().manual_seed(d)
    inner, outer = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((d, 5), (5,))
    )
    return lambda b: (
        nn.functional.softplus(1.5 * b @ inner) ** 1.5 @ outer + torch.sin(3 * b.sum(-1))
    )


@pytest.mark.parametrize("coupling", [None, Dirichlet(), Systematic()], ids=repr)
@pytest.mark.parametrize(
    "make",
    [partial(Midpoint, 2), partial(Midpoint, 4), partial(Midpoint, 6), partial(cross_paired, 4)],
)
def test_three_latents_of_a_wild_function(
    make: Callable[..., arms.Estimator], coupling: arms.designs.Coupling | None
) -> None:
    estimator = make(coupling=coupling)
    latent = Bits(torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64))
    error = exact_mean(estimator, wild(3), latent) - exact_gradient(wild(3), latent)
    assert error.abs().max() < 1e-12


@pytest.mark.parametrize("pairs", [1, 2])
def test_own_bits_with_the_coefficient_of_another_row(pairs: int) -> None:
    """Both rows are enumerated together, because each coefficient is fitted on the other row."""
    estimator = Midpoint(4 * pairs, pairs=pairs)
    logits = torch.tensor([[0.4], [-1.1]], dtype=torch.float64)
    (first, of_first), (second, of_second) = (all_outcomes(estimator, Bits(row)) for row in logits)
    at_first, at_second = torch.cartesian_prod(
        torch.arange(len(of_first)), torch.arange(len(of_second))
    ).T
    # [m, joint outcomes, 2 rows, 1]
    points = torch.cat([first.points[:, at_first], second.points[:, at_second]], 2)
    weights = of_first[at_first] * of_second[at_second]
    joint = Draw(Bits(logits.expand(len(weights), 2, 1)), points, extra=first.extra)
    scale = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        return scale * (3 * b[..., 0]).exp()  # its rows differ

    values, derivatives = differentiated(objective, points)
    needed = derivatives[len(points) - estimator.design.needs.derivatives :]
    grad = estimator.combine(joint, values, needed)
    truth = exact_gradient(objective, Bits(logits))
    assert ((weights.view(-1, 1, 1) * grad).sum(0) - truth).abs().max() < 1e-12
    plain = Midpoint(4 * pairs, pairs=pairs, own_bits=False)
    assert not torch.allclose(grad, plain.combine(joint, values, needed))


def all_outcomes(estimator: arms.Estimator, latent: arms.Latent) -> tuple[Draw, Tensor]:
    found = estimator.design.outcomes(latent)
    assert found is not None
    return found


def differentiated(objective: TensorObjective, points: Tensor) -> tuple[Tensor, Tensor]:
    leaf = points.detach().clone().requires_grad_()
    values = objective(leaf)
    (derivatives,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach(), derivatives


@pytest.mark.parametrize("kind", [Bits, OneHot])
def test_a_quadratic_makes_no_noise_except_through_the_latent_itself(
    kind: type[arms.Latent],
) -> None:
    """Given which variables differ, every draw of a pair gives the same estimate."""
    generator = torch.Generator().manual_seed(0)
    shape = (6,) if kind is Bits else (6, 3)
    size = math.prod(shape)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        flat = b.flatten(-2) if kind is OneHot else b
        return ((flat @ matrix) * flat).sum(-1) + flat.sum(-1)

    latent = kind(torch.randn(shape, generator=generator, dtype=torch.float64).expand(4000, *shape))
    one = Midpoint(2)(objective, latent, generator)
    estimator = Midpoint(4)
    drawn = draw_points(estimator, latent, generator)
    values, derivatives = differentiated(objective, drawn.points)
    # Both pairs have one midpoint: for a quadratic they must agree to rounding, whichever way round
    # they are.
    order = [1, 0, 3, 2, 4]
    swapped = Draw(latent, drawn.points[order], extra=1)
    assert torch.allclose(
        estimator.combine(drawn, values, derivatives),
        estimator.combine(swapped, values[order], derivatives[order]),
    )
    loorf = arms.LOORF(3)(objective, latent, generator).grad
    assert one.grad.var(0).sum() < loorf.var(0).sum()


def test_many_smooth_latents_have_a_fraction_of_the_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    first, last = torch.randn(100, 20, generator=generator), torch.randn(20, generator=generator)

    def objective(b: Tensor) -> Tensor:
        return torch.tanh(0.1 * (b @ first)) @ last

    logits = torch.randn(100, generator=generator).expand(2000, 100)
    variances = {
        name: arms.as_estimator(name, n)(objective, logits, generator).grad.var(0).sum().item()
        for name, n in (
            ("loorf", 6),
            ("midpoint", 4),
            ("midpoint-single", 4),
            ("cross-paired", 6),
            ("arms-taylor", 5),
        )
    }
    assert variances["midpoint"] < 0.2 * variances["loorf"]
    assert variances["midpoint-single"] < 0.1 * variances["loorf"]
    assert variances["cross-paired"] < 0.2 * variances["loorf"]
    assert variances["arms-taylor"] < 0.3 * variances["loorf"]


@pytest.mark.parametrize(("count", "midpoints"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_pairs_and_their_midpoints(count: int, midpoints: int) -> None:
    of_pairs = torch.randn(count, 2, dtype=torch.float64)
    for a in range(count):
        rest = [c for c in range(count) if c != a and c % midpoints == a % midpoints]
        if rest:
            assert torch.allclose(mean_of_siblings(of_pairs, midpoints)[a], of_pairs[rest].mean(0))
        group = [c for c in range(count) if c % midpoints == a % midpoints]
        means = repeat_per_pair(mean_per_midpoint(of_pairs, midpoints), count)
        assert torch.allclose(means[a], of_pairs[group].mean(0))


@pytest.mark.parametrize("n", [2, 4, 6, 10, 12])
def test_all_pairs_of_a_midpoint_have_it(n: int) -> None:
    design = Midpoint(n).design
    assert isinstance(design, Midpoints)
    for latent in (
        Bits(torch.linspace(-1, 1, 8).expand(50, 8)),
        OneHot(torch.zeros(50, 3, 4)),
        Subset(torch.linspace(-1, 1, 8).expand(50, 8), 3),
    ):
        points = design.draw(latent, torch.Generator().manual_seed(n)).points
        first, second, middle = points.split([n // 2, n // 2, design.midpoints])
        assert torch.equal((first + second) / 2, repeat_per_pair(middle, n // 2))
        assert bool(((first == 0) | (first == 1)).all())
        if isinstance(latent, OneHot):
            assert bool((first.sum(-1) == 1).all())
        if isinstance(latent, Subset):
            assert bool((first.sum(-1) == 3).all())
        assert (first[0] != second[0]).any()
        assert design.needs.evaluations == n + design.midpoints == len(points)


def test_exchanged_pairs_keep_the_distribution() -> None:
    latent = Bits(torch.tensor([0.0, 1.5, -3.0]).expand(200_000, 3))
    samples = draw_points(Midpoint(6), latent, torch.Generator().manual_seed(0)).points[:6]
    p = torch.sigmoid(latent.logits[0])
    score = (samples.mean(1) - p) / (p * (1 - p) / 200_000).sqrt()
    assert score.abs().max() < 4.8  # 18 scores: once in a hundred thousand


# --- What it refuses ----------------------------------------------------------------------------


def normalized(b: Tensor) -> Tensor:
    hidden = nn.functional.batch_norm(
        (b * torch.arange(1.0, 4)).flatten(0, -2), None, None, training=True
    )
    return hidden.square().sum(-1).view(b.shape[:-1])


@pytest.mark.parametrize(
    "name", ["midpoint", "midpoint-single", "cross-paired", "arms-taylor", "rebar", "double-cv"]
)
@pytest.mark.parametrize(
    "objective",
    [
        normalized,
        lambda b: b.square().sum(-1) - b.square().sum(-1).mean(-1, keepdim=True),  # over the rows
        lambda b: b.square().sum(-1) * b.sum((0, -1)),  # over the samples
    ],
    ids=["batch normalization", "rows", "samples"],
)
def test_values_that_mix_rows_are_refused(name: str, objective: TensorObjective) -> None:
    logits = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
    with pytest.raises(ValueError, match="must not depend on other samples or on other rows"):
        arms.expectation(objective, logits, name, 4)


@pytest.mark.parametrize("name", ["midpoint", "midpoint-single", "cross-paired", "arms-taylor"])
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)])
def test_values_that_mix_no_rows_are_accepted(name: str, batch: tuple[int, ...]) -> None:
    logits = torch.linspace(-1, 1, 3).expand(*batch, 3).clone().requires_grad_()
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))
    with torch.autocast("cpu", torch.bfloat16):  # rounding mixes nothing
        value = arms.expectation(lambda b: network(b).squeeze(-1), logits, name, 4)
    value.sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", ["midpoint", "midpoint-single", "cross-paired", "arms-taylor"])
@pytest.mark.parametrize(
    "objective",
    [
        lambda b: torch.from_numpy(b.detach().numpy().sum(-1)),
        lambda b: torch.arange(3.0)[b.long().sum(-1) % 3],
    ],
)
def test_black_boxes_are_refused(name: str, objective: TensorObjective) -> None:
    with pytest.raises(ValueError, match="finds no path from the objective's values"):
        arms.expectation(objective, torch.zeros(5, 3, requires_grad=True), name, 4)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pairs must be|pairs without midpoints must be"):
        Midpoint(4, pairs=0)
    with pytest.raises(ValueError, match="even"):
        Midpoint(3)
    with pytest.raises(ValueError, match="coupling must be a BitCoupling"):
        Midpoint(4, "systematic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4"):
        cross_paired(2)


def test_infinite_logits_have_no_gradient() -> None:
    logits = torch.tensor([math.inf, -math.inf, 0.0, 300.0], requires_grad=True)
    arms.expectation(lambda b: b.sum(-1) ** 3, logits, "midpoint", 8).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[[0, 1, 3]].eq(0).all()
