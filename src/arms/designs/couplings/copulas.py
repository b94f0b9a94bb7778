r"""The Dirichlet and the Gaussian copula of the ARMS paper.

Let d ~ Dir(1, ..., 1), u_i = (1 - d_i)^(n-1) and m = n - 1. The joint distribution of two of the
u_i is the copula (x^(1/m) + y^(1/m) - 1)_+^m. Categories are intervals of u, in some order. If this
order were fixed, two samples might never have two small neighboring categories. The order is
therefore drawn from K(K-1)/2 orders. Each pair of categories is first and last in one of these
orders, so that two samples can have these two categories.
"""

import itertools
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.base import BitCoupling, CategoryCoupling, flip, flip_counts
from arms.latents.categories import one_hot
from arms.random import indicator, normal, uniform

MOST_CATEGORIES = 32  # computing the distribution of a pair takes K^4 operations per latent


@dataclass(frozen=True)
class Dirichlet(BitCoupling, CategoryCoupling):
    r"""The antithetic Dirichlet copula: b_i = 1 where (1 - d_i)^(n-1) < q, with d ~ Dir(1, ..., 1).

    $$ P_{10} = q - \max(0,\; 2 q^{1/(n-1)} - 1)^{n-1} $$

    Here q = min(p, 1-p), the bits are flipped where p > 1/2, and P_10 is the probability that a
    given pair of samples is (1, 0). The paper chooses between two copula samples, which has the
    same effect as these flips. A Dirichlet vector is a vector of exponential variables e_1, ...,
    e_n, divided by their sum. Therefore b_i = 1 where e_i > t (e_1 + ... + e_n), with
    t = 1 - q^(1/(n-1)). This condition needs no division or power per sample. With K > 2
    categories, the order of the categories is random. The cost is then proportional to K^4, so use
    this coupling only to compare it with others.
    Reference: Dimitriev & Zhou 2021; for categories, "CARMS: Categorical-Antithetic-REINFORCE
    Multi-Sample Gradient Estimator", NeurIPS 2021.

    >>> Dirichlet().debias(torch.zeros(1), n=2)  # the antithetic pair: max(p, 1 - p)
    tensor([0.5000])
    """

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        threshold = -torch.expm1(_log_smaller(phi) / (n - 1))
        # The logarithm is finite, because uniform numbers are below 1.
        minus_exponential = uniform(n, phi, generator).neg_().log1p_()
        # With the product before the sum, compilers do not compute the threshold n times.
        total = (threshold * minus_exponential).sum(0)
        return flip(indicator(total - minus_exponential), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        log_q = _log_smaller(at_least_float32(logits.detach()))
        # log(2 q^(1/(n-1)) - 1), which is -inf if two samples cannot both be one
        log_root = torch.log1p((2 * torch.expm1(log_q / (n - 1))).clamp(min=-1))
        log_both = (n - 1) * log_root - log_q  # log P(b_j = 1 | b_i = 1)
        return (torch.expm1(log_q) / torch.expm1(log_both)).to(logits.dtype)

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 1, "n")
        q = torch.sigmoid(-logits.double().abs())
        columns = [_count_chances(value, n) for value in q.flatten().tolist()]
        counts = torch.tensor(columns, dtype=torch.float64, device=logits.device)
        return flip_counts(counts.T.reshape(n + 1, *logits.shape), logits)

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        n = as_count(n, 2, "n")
        if logits.shape[-1] == 2:
            ones = self.sample_bits(_as_bits(logits), n, generator)
            return torch.stack([1 - ones, ones], -1)
        probs = torch.softmax(at_least_float32(logits.detach()), -1)
        orders = torch.tensor(_orders(logits.shape[-1]), device=probs.device)
        which = (uniform(1, probs[..., 0], generator)[0] * len(orders)).long()
        order = orders[which.clamp(max=len(orders) - 1)]  # [*batch, d, K]
        ends = probs.gather(-1, order).cumsum(-1)
        ends = torch.where(ends >= ends[..., -1:], torch.inf, ends)
        exponential = -torch.log1p(-uniform(n, probs[..., 0], generator))
        u = (1 - exponential / exponential.sum(0)) ** (n - 1)
        place = torch.searchsorted(ends, u.movedim(0, -1).contiguous(), right=True)
        place = place.clamp(max=order.shape[-1] - 1)
        return one_hot(order.gather(-1, place).movedim(-1, 0), logits)

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        if logits.shape[-1] == 2:
            return grad * self.debias(at_least_float32(_as_bits(logits)), n).unsqueeze(-1)
        return undo_pairs(logits, order_pair_distribution(logits, n), grad)

    def category_probabilities(self, probs: list[float], n: int) -> list[float] | None:
        if n != 2:
            return None
        logits = torch.tensor(probs, dtype=torch.float64).log()
        chances: list[float] = order_pair_distribution(logits, n).flatten().tolist()
        return chances


def _as_bits(logits: Tensor) -> Tensor:
    first, second = at_least_float32(logits).unbind(-1)
    return (second - first).to(logits.dtype)


def _log_smaller(phi: Tensor) -> Tensor:
    """Return log min(p, 1-p) for logits `phi`.

    Where this would be -inf, return the lowest finite number, so that differences are finite.
    """
    return torch.sigmoid(-phi.abs()).log().clamp(min=torch.finfo(phi.dtype).min)


def _count_chances(q: float, n: int) -> list[float]:
    """Return, for k from 0 to n, the probability that exactly k of n coupled bits are 1.

    The coupling is `Dirichlet`, and each bit is 1 with probability q.

    By inclusion and exclusion, this is C(n, k) sum_j (-1)^j C(n-k, j) max(0, 1 - (k+j)t)^(n-1),
    with t = 1 - q^(1/(n-1)).
    """
    with localcontext() as context:
        context.prec = 40 + n  # the alternating sum loses digits
        t = 1 - (Decimal(q) ** (Decimal(1) / (n - 1)) if q > 0 else Decimal(0))
        power = [max(Decimal(0), 1 - m * t) ** (n - 1) for m in range(n + 1)]
        found = []
        for k in range(n + 1):
            terms = (math.comb(n - k, j) * power[k + j] * (-1) ** j for j in range(n - k + 1))
            found.append(max(0.0, float(math.comb(n, k) * sum(terms))))
        return found


def _orders(count: int) -> list[list[int]]:
    """Return K(K-1)/2 orders of K = `count` categories.

    Each pair of categories is first and last in one of these orders.
    """
    if count > MOST_CATEGORIES:
        what = f"the Dirichlet coupling accepts at most {MOST_CATEGORIES} categories, got {count}"
        raise ValueError(f"{what}: use arms, which has the systematic coupling")
    orders = []
    for first, shift in itertools.product(range(count), range(count - 1)):
        others = [(first + 1 + (shift + step) % (count - 1)) % count for step in range(count - 1)]
        orders += [[first, *others]] if first < others[-1] else []
    return orders or [[0]]


def undo_pairs(logits: Tensor, pair_distribution: Tensor, r: Tensor) -> Tensor:
    """Return the corrected estimate p (I - T + 1 p')^-1 (r / p). `Coupling` explains the formula.

    `r` is the leave-one-out estimate. `pair_distribution` `[*batch, d, K, K]` contains the
    probabilities P(z_i = a, z_j = b), which give T_ab = P(z_i = a, z_j = b) / p_a.
    """
    # Scaling by sqrt(p) on both sides makes the matrix nearly the identity, even for tiny p.
    side = torch.softmax(logits.detach().to(pair_distribution.dtype), -1).sqrt()
    sides = side.unsqueeze(-1) * side.unsqueeze(-2)
    possible = sides > 0
    ratio = torch.where(possible, pair_distribution / torch.where(possible, sides, 1.0), 0.0)
    matrix = torch.eye(r.shape[-1], dtype=side.dtype, device=side.device) - ratio + sides
    right = torch.where(side > 0, r.to(side.dtype) / torch.where(side > 0, side, 1.0), 0.0)
    found: Tensor = torch.linalg.solve(matrix, right)
    return (side * found).to(r.dtype)


def order_pair_distribution(logits: Tensor, n: int) -> Tensor:
    """Return P(z_i = a, z_j = b) for two of n samples of `Dirichlet`, `[*batch, d, K, K]`.

    The result is in float64, and is the mean over all orders of the categories.
    """
    probs = torch.softmax(logits.detach().double(), -1)
    orders = _orders(probs.shape[-1])
    total = probs.new_zeros(*probs.shape, probs.shape[-1])
    for order in orders:
        size = probs[..., order]
        start = torch.nn.functional.pad(size, (1, -1)).cumsum(-1)
        back = torch.tensor(order, device=probs.device).argsort()
        total = total + _rectangles(start, size, n - 1)[..., back, :][..., back]
    return total / len(orders)


def _rectangles(start: Tensor, size: Tensor, m: int) -> Tensor:
    """Return the probability that two samples have categories a and b, `[..., K, K]`.

    Each category is an interval that begins at `start` and has the length `size`. Two categories
    form a rectangle, and its probability is given by the copula of the module docstring, where m is
    n - 1. This probability is a difference of m-th powers at the four corners. It equals the
    integral of m ((x + s)^(m-1) - x^(m-1)) over the first side, where s is the length of the second
    side. All terms of the integral are positive, so small probabilities are accurate.
    Gauss-Legendre quadrature with m/2 nodes is exact.
    """
    if m == 1:  # for an antithetic pair, y = 1 - x, and the result is the length of an overlap
        end = start + size
        high = torch.minimum(end.unsqueeze(-1), 1 - start.unsqueeze(-2))
        return (high - torch.maximum(start.unsqueeze(-1), 1 - end.unsqueeze(-2))).clamp(min=0)
    root = start ** (1 / m)
    tiny = torch.finfo(start.dtype).tiny
    growth = root * torch.expm1(torch.log1p(size / start.clamp(min=tiny)) / m)
    width = torch.where(start > 0, growth, size ** (1 / m))
    corner = root.unsqueeze(-1) + root.unsqueeze(-2) - 1
    a, b = (one.expand_as(corner) for one in (width.unsqueeze(-1), width.unsqueeze(-2)))
    inside = torch.zeros_like(corner)
    for node, weight in zip(*np.polynomial.legendre.leggauss((m + 1) // 2), strict=True):
        x = torch.addcmul(corner, a, torch.full_like(a, (node + 1) / 2)).clamp(min=tiny)
        ratio = torch.expm1((1 - m) * torch.log1p(b / x))
        inside = inside - weight / 2 * m * a * (x + b) ** (m - 1) * ratio
    # If the lower corner lies outside of the support, only the other three terms remain.
    top, first, second = (one.clamp(min=0) ** m for one in (corner + a + b, corner + a, corner + b))
    return torch.where(corner >= 0, inside, top - first - second).clamp(min=0)


@dataclass(frozen=True)
class Gaussian(BitCoupling):
    r"""The antithetic Gaussian copula: b_i = 1 if x_i < h, for normal x_i correlated by -1/(n-1).

    $$ P_{10} = 2\,T(h, a), \qquad h = \Phi^{-1}(q), \quad a = \sqrt{n/(n-2)}, \quad
       T = \text{Owen's T} $$

    Here q = min(p, 1-p), the bits are flipped where p > 1/2, and P_10 is the probability that a
    given pair of samples is (1, 0). Both q and P_10 contain the factor e^(-h^2/2), which cancels in
    q / P_10 = (pi/2) erfcx(|h|/sqrt 2) / I(h, a) with I = int_0^a e^(-h^2 x^2 / 2) / (1 + x^2) dx.
    The numerator and the denominator of the right-hand side have order one at every p.
    Reference: Dimitriev & Zhou 2021.

    >>> Gaussian().debias(torch.zeros(1), n=2)  # the antithetic pair: max(p, 1 - p)
    tensor([0.5000])
    """

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        threshold = torch.special.ndtri(torch.sigmoid(-phi.abs())) * math.sqrt((n - 1) / n)
        x = normal(n, phi, generator)  # subtracting the mean gives the correlation -1/(n-1)
        return flip(indicator(threshold + x.mean(0) - x), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        larger = torch.sigmoid(phi.abs())
        if n == 2:  # a is infinite: P10 = q
            return larger.to(logits.dtype)
        nodes, furthest = _owen_quadrature(n, phi.dtype)
        # Beyond `furthest`, the ratio q / P10 is 1 in this dtype. The clamp only removes -inf.
        h = torch.special.ndtri(torch.sigmoid(-phi.abs())).clamp(min=-furthest)
        exponent = -0.5 * h.square()
        integral = torch.zeros_like(h)
        for square, weight in nodes:
            integral = integral + weight * torch.exp(exponent * square)
        # erfcx(x) = e^(x^2) erfc(x). The product is accurate for these h, and ten times as fast.
        tail: Tensor = (math.pi / 2) * torch.erfc(h * -math.sqrt(0.5)) * torch.exp(-exponent)
        return (larger * (tail / integral)).to(logits.dtype)


def _owen_quadrature(n: int, dtype: torch.dtype) -> tuple[list[tuple[float, float]], float]:
    """Return a quadrature for the integral I(h, a) in the docstring of `Gaussian`.

    Also return the largest |h| for which the quadrature is accurate. The quadrature is a list of
    pairs: the square of a node x in [0, a], and a weight. The weights contain the factor
    1 / (1 + x^2).
    """
    # The errors are at most 3e-14 in float64 and 1e-7 in float32, at every n and h.
    reach, nodes = (8.3, _NODES[20]) if dtype == torch.float64 else (5.6, _NODES[10])
    half = math.sqrt(n / (n - 2)) / 2
    squares = [((half * (x + 1)) ** 2, weight) for x, weight in nodes]
    return [(square, half * weight / (1 + square)) for square, weight in squares], reach / half / 2


_NODES = {n: np.transpose(np.polynomial.legendre.leggauss(n)).tolist() for n in (10, 20)}
