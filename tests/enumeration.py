"""Every joint state that an estimator can draw, with its probability: exact expectations instead of averages."""

import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from arms import (
    ARM,
    ARMS,
    ARTS,
    LOORF,
    RODEO,
    VIMCO,
    ARMSTaylor,
    Bernoulli,
    BinaryCoupling,
    Coupling,
    Dirichlet,
    DisARM,
    DoubleCV,
    Draw,
    Estimator,
    Exact,
    ExtraSample,
    GappedStraightThrough,
    Independent,
    Latent,
    Midpoint,
    MultiSampleARMS,
    MultiSampleDisARM,
    MultiSampleLOORF,
    MultiSampleMidpoint,
    MultiSampleReinforce,
    Reinforce,
    ReinMax,
    Repaired,
    SigmoidStraightThrough,
    Stacked,
    StraightThrough,
    Stratified,
    Systematic,
    TreeDisARM,
    Unordered,
)
from arms.checks.oracle import as_seen
from arms.couplings import CorrelatedPair
from arms.estimators.base import TensorObjective
from arms.estimators.pipeline import Options, evaluate, gradient


class Law(NamedTuple):
    """All that can happen to one latent."""

    columns: Tensor
    """`[rows, outcomes]`: a row per sample, bits or categories; rows of noise after them."""
    weights: Tensor
    """`[outcomes]`: their probabilities."""


def expected_estimate(estimator: Estimator, objective: TensorObjective, latent: Latent) -> Tensor:
    """The exact expectation of the whole estimate `[*event]`: of `combine`, and of the target's direct term if any."""
    draw, weights = every_draw(estimator, latent)
    target = estimator.target
    own = type(latent)(latent.logits.detach().expand(draw.points.shape[1:]).clone().requires_grad_(target.direct))
    found = evaluate(as_seen(objective, own, target), draw, Options())
    grad = gradient(draw, found).detach()
    if target.direct:
        (direct,) = torch.autograd.grad(draw.estimator.value(draw, found.values).sum(), own.logits)
        grad = grad + direct
    return (latent.with_event_axes(weights.unsqueeze(1)) * grad).sum((0, 1))


def every_draw(estimator: Estimator, latent: Latent) -> tuple[Draw, Tensor]:
    """A draw whose batch runs over all joint states `[m, states, 1, *event]`, and the probability of each `[states]`.

    Each state is the only row of its last batch axis: other rows are other draws, from which an estimator may learn.
    """
    match estimator:
        case Exact():
            return estimator.draw(_repeated(latent, 1)), torch.ones(1, dtype=torch.float64)
        case ExtraSample():
            return _with_extra_sample(estimator, latent)
        case Stacked():
            return _side_by_side(estimator, latent)
        case Unordered():
            return _every_set(estimator, latent)
    laws = [law_of(estimator, one) for one in _each_latent(latent)]
    columns, weights = joint(laws)
    many, rows = _repeated(latent, len(weights)), estimator.num_samples
    memory = (columns[rows:].unsqueeze(2),) if len(columns) > rows else ()
    samples = _as_samples(columns[:rows], latent)
    extra = extra_points(estimator, many, samples)
    return Draw(estimator, many, torch.cat([samples, extra]), len(extra), memory), weights


def extra_points(estimator: Estimator, latent: Latent, samples: Tensor) -> Tensor:
    """The points that an estimator evaluates beside its samples: none, for most."""
    match estimator:
        case Midpoint():
            first, second = samples.chunk(2)
            return (first + second)[: estimator.midpoints] / 2
        case MultiSampleMidpoint():
            first, second = samples[estimator.num_samples - 2 * estimator.derivatives :].chunk(2)
            return (first + second) / 2
        case ARMSTaylor():
            return latent.mean().unsqueeze(0)
        case _:
            return samples[:0]


INDEPENDENT = (
    *(Reinforce, LOORF, MultiSampleReinforce, VIMCO, MultiSampleLOORF, MultiSampleMidpoint, DoubleCV, RODEO),
    *(StraightThrough, SigmoidStraightThrough, GappedStraightThrough, ReinMax),
)


def law_of(estimator: Estimator, latent: Latent) -> Law:
    """What an estimator draws of a single latent, logits [1] or [1, K]."""
    n = estimator.num_samples
    if isinstance(estimator, INDEPENDENT) and not isinstance(estimator, MultiSampleARMS):
        return coupled(Independent(), n, latent)
    match estimator:
        case MultiSampleARMS():
            bound = estimator.bound_samples
            return product(coupled(Independent(), bound, latent), coupled(estimator.coupling, n - bound, latent))
        case ARMS():
            return coupled(estimator.coupling, n, latent)
        case ARTS():
            return pairs(coupled(CorrelatedPair(estimator.correlation), 2, latent), n // 2)
        case DisARM() | MultiSampleDisARM():
            return pairs(coupled(CorrelatedPair(), 2, latent), n // 2)
        case TreeDisARM():
            return pairs(tree_bits(estimator, latent), n // 2)
        case ARM():
            return pairs(uniform_cells(latent), n // 2)
        case Midpoint() | Repaired():
            return repaired(coupled(estimator.coupling, 2 * estimator.midpoints, latent), n // 2)
        case _:
            raise AssertionError(f"no enumeration for {estimator}")


def coupled(coupling: Coupling, n: int, latent: Latent) -> Law:
    """All outcomes of n samples: bits, exchangeable, have their share of P(S = s)."""
    k = 2 if isinstance(latent, Bernoulli) else latent.logits.shape[-1]
    columns = torch.tensor(list(itertools.product(range(k), repeat=n)), dtype=torch.float64).T
    if isinstance(latent, Bernoulli):
        assert isinstance(coupling, BinaryCoupling)
        law = coupling.count_law(latent.logits, n)
        assert law is not None
        share = law.squeeze(-1) / torch.tensor([math.comb(n, s) for s in range(n + 1)], dtype=torch.float64)
        return Law(columns, share[columns.sum(0).long()])
    probs = torch.softmax(latent.logits[0], -1).tolist()
    match coupling:
        case Independent():
            chances = [math.prod(probs[k] for k in z) for z in itertools.product(range(k), repeat=n)]
        case Stratified():
            chances = strata_chances(probs, n)
        case Systematic():
            chances = tree_chances(probs, n)
        case Dirichlet():
            chances = pair_chances(probs)
        case _:
            raise AssertionError(f"no enumeration for {coupling}")
    return Law(columns, torch.tensor(chances, dtype=torch.float64))


def tree_chances(probs: list[float], n: int) -> list[float]:
    """Of all n categories in order: counts shared down a tree, as a recursion, and a random order."""
    width = 1 << (len(probs) - 1).bit_length()

    def part(low: int, high: int) -> float:
        if high - low == 1:
            return n * probs[low] % 1 if low < len(probs) else 0.0
        both = part(low, (low + high) // 2) + part((low + high) // 2, high)
        return both - (both >= 1)

    def counts(low: int, high: int, extra: int) -> list[tuple[float, tuple[int, ...]]]:
        if high - low == 1:
            return [(1.0, (int(n * probs[low]) + extra,) if low < len(probs) else ())]
        middle = (low + high) // 2
        left, right = part(low, middle), part(middle, high)
        if left + right < 1:
            splits = [(left / (left + right), 1, 0), (right / (left + right), 0, 1)] if extra else [(1.0, 0, 0)]
        else:
            rest = 2 - left - right
            splits = [(1.0, 1, 1)] if extra else [((1 - left) / rest, 0, 1), ((1 - right) / rest, 1, 0)]
        return [
            (chance * one * other, first + second)
            for chance, of_left, of_right in splits
            if chance > 0
            for one, first in counts(low, middle, of_left)
            for other, second in counts(middle, high, of_right)
        ]

    law = {found: 0.0 for _, found in counts(0, width, round(part(0, width)))}
    for chance, found in counts(0, width, round(part(0, width))):
        law[found] += chance
    orders = {found: math.factorial(n) / math.prod(map(math.factorial, found)) for found in law}
    seen = (tuple(z.count(k) for k in range(len(probs))) for z in itertools.product(range(len(probs)), repeat=n))
    return [law[found] / orders[found] if found in law else 0.0 for found in seen]


def strata_chances(probs: list[float], n: int) -> list[float]:
    """Of all n categories in order: one from each stratum of the distribution function, in any order."""
    ends = [0.0, *itertools.accumulate(probs)]
    ends[-1] = 1.0
    of_stratum = [
        [max(0.0, n * (min(ends[k + 1], (s + 1) / n) - max(ends[k], s / n))) for k in range(len(probs))]
        for s in range(n)
    ]
    orders = list(itertools.permutations(range(n)))
    return [
        sum(math.prod(of_stratum[s][k] for s, k in zip(order, z, strict=True)) for order in orders) / len(orders)
        for z in itertools.product(range(len(probs)), repeat=n)
    ]


def pair_chances(probs: list[float]) -> list[float]:
    """Of two categories in order: those at u and at 1 - u, over orders in which each pair is first and last once."""
    count = len(probs)
    rotations = [
        [first, *(others[shift:] + others[:shift])]
        for first in range(count)
        for others in [[(first + step) % count for step in range(1, count)]]
        for shift in range(count - 1)
    ]
    orders = [order for order in rotations if order[0] < order[-1]]
    chances = dict.fromkeys(itertools.product(range(count), repeat=2), 0.0)
    for order in orders:
        ends = [0.0, *itertools.accumulate(probs[k] for k in order)]
        ends[-1] = 1.0
        for (i, a), (j, b) in itertools.product(enumerate(order), repeat=2):
            overlap = min(ends[i + 1], 1 - ends[j]) - max(ends[i], 1 - ends[j + 1])
            chances[a, b] += max(0.0, overlap) / len(orders)
    return list(chances.values())


def tree_bits(estimator: TreeDisARM, latent: Latent) -> Law:
    """All pairs of categories of one latent whose bits are pairs of that correlation, by following each tree."""
    pair = CorrelatedPair(estimator.correlation)
    if isinstance(latent, Bernoulli):
        return coupled(pair, 2, latent)
    probs = torch.softmax(latent.logits[0], -1).tolist()
    chances = {(a, b): 0.0 for a in range(len(probs)) for b in range(len(probs))}

    def split(start: int, end: int) -> int:
        return start + 1 if estimator.tree == "stick" else (start + end) // 2

    def bits(start: int, end: int) -> list[float]:  # P of (0, 0), (1, 1), (1, 0), (0, 1); a one leads to the start
        middle = split(start, end)
        theta = math.log(sum(probs[start:middle]) / sum(probs[middle:end]))
        none, one, both = pair.count_law(torch.tensor([theta], dtype=torch.float64), 2).flatten().tolist()
        return [none, both, one / 2, one / 2]

    def single(start: int, end: int) -> dict[int, float]:
        total = sum(probs[start:end])
        return {k: probs[k] / total for k in range(start, end)}

    def follow(start: int, end: int, chance: float) -> None:
        if end - start == 1:
            chances[start, start] += chance
            return
        middle = split(start, end)
        none, both, first, second = bits(start, end)
        follow(start, middle, chance * both)
        follow(middle, end, chance * none)
        ones, zeros = single(start, middle), single(middle, end)
        for (a, of_a), (b, of_b) in itertools.product(ones.items(), zeros.items()):
            chances[a, b] += chance * first * of_a * of_b  # once apart, the two are independent
            chances[b, a] += chance * second * of_a * of_b

    follow(0, len(probs), 1.0)
    columns = torch.tensor(list(chances), dtype=torch.float64).T
    return Law(columns, torch.tensor(list(chances.values()), dtype=torch.float64))


def _every_set(estimator: Unordered, latent: Latent) -> tuple[Draw, Tensor]:
    """Every set of n joint states, with the probability that these are the ones drawn, in whatever order."""
    states = latent.states()
    probs = latent.log_prob(states).exp()
    sets = torch.tensor(list(itertools.combinations(range(len(states)), estimator.num_samples)))
    chances = torch.zeros(len(sets), dtype=torch.float64)
    for order in itertools.permutations(range(estimator.num_samples)) if len(sets) > 1 else ():
        left, chance = torch.ones_like(chances), torch.ones_like(chances)
        for one in sets[:, order].T:
            chance, left = chance * probs[one] / left, left - probs[one]
        chances += chance
    chances = chances if len(sets) > 1 else torch.ones_like(chances)
    return estimator.weighted(_repeated(latent, len(sets)), states[sets].transpose(0, 1).unsqueeze(2)), chances


def uniform_cells(latent: Latent) -> Law:
    """The cells of u on which ARM's pair (b, b') is constant, each with the mean of u: the estimate is linear in u."""
    p, not_p = torch.sigmoid(latent.logits).item(), torch.sigmoid(-latent.logits).item()
    cells = list(itertools.pairwise(sorted({0.0, p, not_p, 1.0})))
    u = torch.tensor([(low + high) / 2 for low, high in cells], dtype=torch.float64)
    widths = torch.tensor([high - low for low, high in cells], dtype=torch.float64)
    return Law(torch.stack([(u < p).double(), (u >= not_p).double(), u]), widths)


def product(*laws: Law) -> Law:
    """Independent draws from several laws, one below the other."""
    chosen = _combinations([len(law.weights) for law in laws])
    columns = torch.cat([law.columns[:, at] for law, at in zip(laws, chosen.T, strict=True)])
    return Law(columns, _weights(laws, chosen))


def pairs(law: Law, count: int) -> Law:
    """Independent repetitions of a pair, laid out as estimators do: all firsts, then all seconds, then all noise."""
    columns, weights = product(*[law] * count)
    return Law(columns.unflatten(0, (count, -1)).transpose(0, 1).flatten(0, 1), weights)


def repaired(law: Law, count: int) -> Law:
    """Pairs of coupled samples, first halves then second ones, and further pairs that exchange theirs half the time."""
    midpoints = len(law.columns) // 2
    columns, weights = product(
        law, *[Law(torch.tensor([[0.0, 1.0]]).double(), torch.tensor([0.5, 0.5]).double())] * (count - midpoints)
    )
    first, second, exchange = columns.tensor_split([midpoints, 2 * midpoints])
    of_pair = torch.arange(midpoints, count) % midpoints
    more = [
        torch.where(exchange > 0, other[of_pair], own[of_pair]) for own, other in ((first, second), (second, first))
    ]
    return Law(torch.cat([first, more[0], second, more[1]]), weights)


def joint(laws: list[Law]) -> tuple[Tensor, Tensor]:
    """Independent latents side by side: `[rows, states, d]` and `[states]`."""
    chosen = _combinations([len(law.weights) for law in laws])
    columns = torch.stack([law.columns[:, at] for law, at in zip(laws, chosen.T, strict=True)], -1)
    return columns, _weights(laws, chosen)


def _combinations(sizes: list[int]) -> Tensor:
    return torch.cartesian_prod(*map(torch.arange, sizes)).view(-1, len(sizes))


def _weights(laws: list[Law] | tuple[Law, ...], chosen: Tensor) -> Tensor:
    return torch.stack([law.weights[at] for law, at in zip(laws, chosen.T, strict=True)]).prod(0)


def _each_latent(latent: Latent) -> list[Latent]:
    return [replace(latent, logits=part) for part in latent.logits.split(1)]


def _repeated(latent: Latent, count: int) -> Latent:
    return replace(latent, logits=latent.logits.expand(count, 1, *latent.logits.shape))


def _as_samples(columns: Tensor, latent: Latent) -> Tensor:
    columns = columns.unsqueeze(2)
    if isinstance(latent, Bernoulli):
        return columns
    return torch.nn.functional.one_hot(columns.long(), latent.logits.shape[-1]).double()


def _with_extra_sample(estimator: ExtraSample, latent: Latent) -> tuple[Draw, Tensor]:
    """Every draw of the inner estimator, each beside some extra sample: whichever it is, it must not matter."""
    inner, weights = every_draw(estimator.inner, latent)
    states = latent.states()
    extra = states[torch.arange(len(weights)) % len(states)].unsqueeze(1)
    points = torch.cat([extra.unsqueeze(0), inner.points])
    return Draw(ExtraSample(inner.estimator), inner.latent, points, inner.extra, (inner,)), weights


def _side_by_side(estimator: Stacked, latent: Latent) -> tuple[Draw, Tensor]:
    """Every draw of each part, an equal share of the weight for each."""
    draws, weights = zip(*(every_draw(inner, latent) for inner in estimator.inners), strict=True)
    wide = Stacked(estimator.inners, [len(one) for one in weights])
    points = torch.cat([draw.points for draw in draws], 1)
    return Draw(wide, _repeated(latent, points.shape[1]), points, draws[0].extra, draws), torch.cat(weights) / len(
        draws
    )
