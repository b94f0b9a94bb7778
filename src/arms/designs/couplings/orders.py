r"""The Dirichlet copula of K categories: inverse distribution functions in a random order.

With u_i = (1 - d_i)^(n-1), d ~ Dir(1, ..., 1), two samples have the copula
(x^(1/m) + y^(1/m) - 1)_+^m, m = n - 1. In a fixed order of the categories, two small neighbors may
never occur together. In K(K-1)/2 orders every pair of categories is first and last once, and does.
The distribution of two samples is the mean over the orders of rectangles of the copula, K^4 of
them, so this coupling is meant for comparison.
Reference: Dimitriev & Zhou, "CARMS: Categorical-Antithetic-REINFORCE Multi-Sample Gradient
Estimator", NeurIPS 2021.
"""

import itertools

import numpy as np
import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.latents.categories import one_hot
from arms.random import uniform

MOST_CATEGORIES = 32
"""The distribution of a pair takes K^4 operations per latent."""


def order_samples(logits: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw n one-hot samples `[n, *batch, d, K]`, each latent in one of the orders."""
    probs = torch.softmax(at_least_float32(logits.detach()), -1)
    orders = torch.tensor(_orders(_check_categories(probs)), device=probs.device)
    which = (
        (uniform(1, probs[..., 0], generator)[0] * len(orders)).long().clamp(max=len(orders) - 1)
    )
    order = orders[which]  # [*batch, d, K]
    ends = probs.gather(-1, order).cumsum(-1)
    ends = torch.where(ends >= ends[..., -1:], torch.inf, ends)
    exponential = -torch.log1p(-uniform(n, probs[..., 0], generator))
    u = (1 - exponential / exponential.sum(0)) ** (n - 1)
    place = torch.searchsorted(ends, u.movedim(0, -1).contiguous(), right=True).clamp(
        max=order.shape[-1] - 1
    )
    return one_hot(order.gather(-1, place).movedim(-1, 0), logits)


def order_pair_distribution(logits: Tensor, n: int) -> Tensor:
    """Return P(z_i = a, z_j = b) for i != j `[*batch, d, K, K]`, in float64."""
    probs = torch.softmax(logits.detach().double(), -1)
    orders = _orders(_check_categories(probs))
    total = torch.zeros(*probs.shape, probs.shape[-1], dtype=probs.dtype, device=probs.device)
    for order in orders:
        size = probs[..., order]
        start = torch.nn.functional.pad(size, (1, -1)).cumsum(-1)
        place = torch.tensor(order, device=probs.device)
        back = place.argsort()
        total = total + _rectangles(start, size, n - 1)[..., back, :][..., back]
    return total / len(orders)


def _check_categories(probs: Tensor) -> int:
    count = probs.shape[-1]
    if count > MOST_CATEGORIES:
        raise ValueError(
            f"the Dirichlet coupling takes at most {MOST_CATEGORIES} categories, because its pairs "
            f"cost K^4, got {count}: use the systematic coupling (`arms`), which costs K"
        )
    return count


def _orders(count: int) -> list[list[int]]:
    """Return K(K-1)/2 orders in which every pair of categories is first and last once: rotations of the others."""
    if count == 1:
        return [[0]]
    orders = []
    for first in range(count):
        others = [(first + step) % count for step in range(1, count)]
        for shift in range(count - 1):
            order = [first, *others[shift:], *others[:shift]]
            orders += [order] if order[0] < order[-1] else []
    return orders


def _rectangles(start: Tensor, size: Tensor, m: int) -> Tensor:
    """Return the copula's mass on [start_a, start_a + size_a] x [start_b, start_b + size_b], `[..., K, K]`.

    The mass is a difference of m-th powers at four corners. It equals the integral over the first width of
    m ((x + b)^(m-1) - x^(m-1)), where x is the base of the power and b the second width. All terms of that integral
    are positive, so small categories keep their digits. The integrand is a polynomial of degree m - 1, for which
    Gauss-Legendre quadrature with m/2 nodes is exact.
    """
    if m == 1:  # the antithetic pair, y = 1 - x: the length of an overlap
        low, high = start.unsqueeze(-1), (start + size).unsqueeze(-1)
        other_low, other_high = 1 - (start + size).unsqueeze(-2), 1 - start.unsqueeze(-2)
        return (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0)
    root = start ** (1 / m)
    tiny = torch.finfo(start.dtype).tiny
    width = torch.where(
        start > 0,
        root * torch.expm1(torch.log1p(size / start.clamp(min=tiny)) / m),
        size ** (1 / m),
    )
    corner = root.unsqueeze(-1) + root.unsqueeze(-2) - 1
    a, b = (one.expand_as(corner) for one in (width.unsqueeze(-1), width.unsqueeze(-2)))
    inside = torch.zeros_like(corner)
    for node, weight in zip(*np.polynomial.legendre.leggauss((m + 1) // 2), strict=True):
        x = torch.addcmul(corner, a, torch.full_like(a, (node + 1) / 2)).clamp(min=tiny)
        inside = inside - weight / 2 * m * a * (x + b) ** (m - 1) * torch.expm1(
            (1 - m) * torch.log1p(b / x)
        )
    # The lower corner lies outside the support: what is left of the four terms.
    top, first, second = (
        (corner + a + b).clamp(min=0),
        (corner + a).clamp(min=0),
        (corner + b).clamp(min=0),
    )
    outside = top**m - first**m - second**m
    return torch.where(corner >= 0, inside, outside).clamp(min=0)


def pair_probabilities(probs: list[float]) -> list[float]:
    """Return the probability of every pair of categories, at u and 1 - u in each of the orders.

    A direct computation for n = 2, for exact tests.
    """
    count = len(probs)
    orders = _orders(count)
    chances = dict.fromkeys(itertools.product(range(count), repeat=2), 0.0)
    for order in orders:
        ends = [0.0, *itertools.accumulate(probs[k] for k in order)]
        ends[-1] = 1.0
        for (i, a), (j, b) in itertools.product(enumerate(order), repeat=2):
            overlap = min(ends[i + 1], 1 - ends[j]) - max(ends[i], 1 - ends[j + 1])
            chances[a, b] += max(0.0, overlap) / len(orders)
    return list(chances.values())
