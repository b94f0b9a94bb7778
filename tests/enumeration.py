"""Every joint state that an estimator can draw, with its probability: exact expectations instead of averages."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from arms import ARM, ARMS, ARTS, LOORF, Coupling, DisARM, Draw, Estimator, Exact, Independent, Reinforce
from arms.estimators.arts import CorrelatedPair


def expected_estimate(estimator: Estimator, objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The exact expectation of the estimate, for logits [d]."""
    draw, weights = every_draw(estimator, logits)
    return (weights.unsqueeze(-1) * estimator.combine(draw, objective(draw.samples))).sum(0)


def every_draw(estimator: Estimator, logits: Tensor) -> tuple[Draw, Tensor]:
    """A draw whose batch runs over all joint states [n, states, d], and the probability of each [states]."""
    match estimator:
        case Exact():
            return estimator.draw(logits.unsqueeze(0)), torch.ones(1, dtype=torch.float64)
        case Reinforce() | LOORF():
            per_latent = [patterns(Independent(), estimator.num_samples, phi) for phi in logits]
        case ARMS():
            per_latent = [patterns(estimator.coupling, estimator.num_samples, phi) for phi in logits]
        case ARTS() | DisARM():
            pair = CorrelatedPair(estimator.correlation if isinstance(estimator, ARTS) else -1.0)
            per_latent = [pairs(patterns(pair, 2, phi), estimator.num_samples // 2) for phi in logits]
        case ARM():
            per_latent = [pairs(uniform_cells(phi), estimator.num_samples // 2) for phi in logits]
        case _:
            raise AssertionError(f"no enumeration for {estimator}")
    joint = list(itertools.product(*per_latent))
    weights = torch.tensor([math.prod(weight for _, weight in state) for state in joint], dtype=torch.float64)
    columns = torch.tensor([[column for column, _ in state] for state in joint], dtype=torch.float64).permute(2, 0, 1)
    if isinstance(estimator, ARM):  # the last rows hold the mean of u in its cell: the estimate is linear in u
        samples, noise = columns[: estimator.num_samples], columns[estimator.num_samples :]
        return Draw(estimator, logits.expand(len(joint), -1), samples, noise), weights
    return Draw(estimator, logits.expand(len(joint), -1), columns), weights


Weighted = tuple[tuple[float, ...], float]


def patterns(coupling: Coupling, n: int, phi: Tensor) -> list[Weighted]:
    """All 2^n bit patterns of one latent; exchangeable, so each has its share of P(S = s)."""
    law = coupling.count_law(phi, n)
    assert law is not None
    return [(bits, law[sum(bits)].item() / math.comb(n, sum(bits))) for bits in itertools.product((0, 1), repeat=n)]


def uniform_cells(phi: Tensor) -> list[Weighted]:
    """The cells of u on which ARM's pair (b, b') is constant, each as (b, b', mean of u)."""
    p, not_p = torch.sigmoid(phi).item(), torch.sigmoid(-phi).item()
    edges = sorted({0.0, p, not_p, 1.0})
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    widths = [high - low for low, high in itertools.pairwise(edges)]
    return [((float(u < p), float(u >= not_p), u), width) for u, width in zip(middles, widths, strict=True)]


def pairs(cells: list[Weighted], count: int) -> list[Weighted]:
    """Independent repetitions of a pair, laid out as estimators do: all firsts, then all seconds, then all noise."""
    return [
        (
            tuple(value for row in zip(*(columns for columns, _ in chosen), strict=True) for value in row),
            math.prod(weight for _, weight in chosen),
        )
        for chosen in itertools.product(cells, repeat=count)
    ]
