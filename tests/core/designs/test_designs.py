"""The draws of designs have the distribution that the designs list, which exact tests use."""

import pytest
import torch
from instances import INSTANCES, JOINT_LATENTS, parts
from seeds import seeded
from torch import Generator, Tensor

from arms import Bits, Estimator, Latent, OneHot
from arms.designs import (
    Coupled,
    Design,
    Dirichlet,
    Draw,
    Independent,
    Midpoints,
    Pairs,
    Perturbed,
    RelaxedPairs,
    SideBySide,
    Systematic,
    WithoutReplacement,
)
from arms.latents import Enumerable

DRAWS = 10_000
MOST_OUTCOMES = 3000
"""With more outcomes, these draws would say little about each of them."""
FEWEST_EXPECTED = 5.0
"""Outcomes that are expected less often are counted together."""
FAILURE_RATE = 1e-6 / 1000
"""The failure rate of one test; this file has fewer than a thousand."""

LATENTS: list[Latent] = [
    Bits(torch.tensor([0.4, -1.1], dtype=torch.float64)),
    OneHot(torch.tensor([[0.3, -0.5, 0.1], [0.8, 0.0, -1.0]], dtype=torch.float64)),
    *(JOINT_LATENTS[at] for at in (0, 2, 3)),
]


def designs() -> dict[str, Design]:
    """All designs of the instances without duplicates, including inner designs."""
    estimators: list[Estimator] = [one.estimator for one in INSTANCES]
    estimators += [part for one in estimators for part in parts(one)]
    return {repr(one.design): one.design for one in estimators}


def draws_samples(design: Design) -> bool:
    """Whether a design draws samples of one latent, and no relaxed points or parts of a batch."""
    inner = getattr(design, "inner", design)
    return not isinstance(inner, SideBySide) and (not isinstance(inner, Perturbed) or inner.hard)


DESIGNS = designs()
CASES = [
    pytest.param(design, latent, id=f"{name}, {type(latent).__name__}")
    for name, design in DESIGNS.items()
    for latent in LATENTS
    if design.takes(latent) and draws_samples(design)
]


def draws_of(design: Design) -> int:
    """Fewer draws of sets, whose weights are slow. They suffice for tests that must fail."""
    return DRAWS // 2 if design.weighted else DRAWS


def p_value(hits: Tensor, probabilities: Tensor) -> float:
    """Return the probability of counts at least this far from their expectation (chi-square)."""
    if bool(hits[probabilities <= 0].any()):
        return 0.0
    expected = probabilities * hits.sum()
    rare = expected < FEWEST_EXPECTED
    together = [(one[~rare], one[rare].sum().view(1)) for one in (hits, expected)]
    hits, expected = (torch.cat(one) for one in together)
    if expected[-1] < FEWEST_EXPECTED:  # too rare even together
        hits, expected = hits[:-1], expected[:-1]
    freedom = len(hits) - 1
    if freedom < 1:
        return 1.0
    statistic = ((hits - expected).square() / expected).sum()
    half = torch.tensor(freedom / 2, dtype=statistic.dtype)
    return float(torch.special.gammaincc(half, statistic / 2))


def as_rows(design: Design, draw: Draw) -> Tensor:
    """Return the points of every entry of a batch with one axis, flattened."""
    points = draw.points.flatten(2)  # [m, batch, event]
    if isinstance(getattr(design, "inner", design), WithoutReplacement):
        # Sets of states: their order is left open.
        first = len(points) - getattr(design, "inner", design).num_samples - draw.extra
        last = len(points) - draw.extra
        digits = 2.0 ** torch.arange(points.shape[-1], dtype=points.dtype)
        order = (points[first:last] @ digits).argsort(0).unsqueeze(-1)
        ordered = points[first:last].take_along_dim(order, 0)
        points = torch.cat([points[:first], ordered, points[last:]])
    return points.movedim(0, 1).flatten(1)


def agreement(design: Design, latent: Latent, drawn: Draw) -> float:
    """Return the p-value of draws, given all outcomes that a design lists."""
    outcomes = design.outcomes(latent)
    assert outcomes is not None
    stated, probabilities = outcomes
    assert stated.extra == drawn.extra
    listed = as_rows(design, Draw(latent, stated.points.squeeze(2), stated.extra))
    return compare(listed, probabilities, as_rows(design, drawn))


def marginal_agreement(latent: Latent, samples: Tensor) -> float:
    """Return the p-value of samples `[draws, *event]`, each of which should follow the latent."""
    assert isinstance(latent, Enumerable)
    states = latent.states()
    return compare(states.flatten(1), latent.log_prob(states).exp(), samples.flatten(1))


def compare(listed: Tensor, probabilities: Tensor, drawn: Tensor) -> float:
    """Return the p-value of drawn rows, given all possible rows and their probabilities."""
    both = torch.cat([listed, drawn]).round(decimals=9) + 0.0  # no negative zeros
    numbers: dict[bytes, int] = {}  # of rows by their bytes, which is faster than torch.unique
    rows = both.detach().numpy().view(f"V{both[0].nbytes}").ravel().tolist()
    which = torch.tensor([numbers.setdefault(row, len(numbers)) for row in rows])
    of_listed, of_drawn = which.tensor_split([len(listed)])
    size = len(numbers)
    chances = torch.zeros(size, dtype=torch.float64).index_add(0, of_listed, probabilities)
    return p_value(torch.bincount(of_drawn, minlength=size).double(), chances)


def is_listed(design: Design, latent: Latent) -> bool:
    """Whether a design lists its outcomes, and there are few."""
    assert isinstance(latent, Enumerable)
    if latent.count_states() ** design.num_samples > 20 * MOST_OUTCOMES:
        return False
    outcomes = design.outcomes(latent)
    return outcomes is not None and len(outcomes[1]) <= MOST_OUTCOMES


@pytest.mark.parametrize(("design", "latent"), CASES)
def test_draws_have_the_distribution_that_is_stated(design: Design, latent: Latent) -> None:
    """If the outcomes cannot be listed, every single sample has the distribution of the latent."""
    # Alone in its batch: what a design flips may depend on the logits of other rows.
    drawn = design.draw(latent.expand(draws_of(design), 1), seeded())
    if is_listed(design, latent):
        assert agreement(design, latent, drawn) > FAILURE_RATE
    else:
        assert not design.weighted
        assert min(marginal_agreement(latent, one) for one in drawn.samples) > FAILURE_RATE


def test_every_discrete_design_is_listed_somewhere() -> None:
    listed = {
        type(design)
        for design in DESIGNS.values()
        for latent in LATENTS
        if design.takes(latent) and is_listed(design, latent)
    }
    continuous = {Perturbed, RelaxedPairs, SideBySide}
    assert listed == {type(design) for design in DESIGNS.values()} - continuous


# --- The power to see other distributions ---------------------------------------------------------


class NeverExchanged(Midpoints):
    """Further pairs that repeat the first ones."""

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        first, second = latent.sample(2, generator)
        more = self.num_samples // 2
        return torch.cat([first.expand(more, *first.shape), second.expand(more, *second.shape)])


class Sorted(Independent):
    """Variables that depend on each other."""

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return super().draw_rows(latent, generator).sort(-1).values


@pytest.mark.parametrize("latent", LATENTS, ids=lambda one: type(one).__name__)
def test_a_small_change_of_a_logit_is_seen(latent: Latent) -> None:
    changed = latent.logits.clone()
    changed.view(-1)[0] += 0.25
    drawn = Independent(2).draw(latent.with_logits(changed).expand(DRAWS), seeded())
    assert agreement(Independent(2), latent, drawn) < FAILURE_RATE
    assert marginal_agreement(latent, drawn.samples[0]) < FAILURE_RATE


@pytest.mark.parametrize(
    ("stated", "sabotaged", "latent"),
    [
        (Coupled(3, Systematic()), Independent(3), LATENTS[0]),
        (Coupled(3, Systematic()), Independent(3), LATENTS[1]),
        (Coupled(2, Dirichlet()), Coupled(2, Systematic()), LATENTS[1]),
        (Pairs(2), Pairs(2, correlation=-0.4), LATENTS[0]),
        (Midpoints(4), NeverExchanged(4), LATENTS[0]),
        (Midpoints(4), NeverExchanged(4), LATENTS[2]),
        (Independent(2), Sorted(2), LATENTS[0]),
        (WithoutReplacement(2), Independent(2), LATENTS[2]),
    ],
    ids=str,
)
def test_another_design_is_seen(stated: Design, sabotaged: Design, latent: Latent) -> None:
    drawn = sabotaged.draw(latent.expand(draws_of(stated)), seeded())
    assert agreement(stated, latent, drawn) < FAILURE_RATE
