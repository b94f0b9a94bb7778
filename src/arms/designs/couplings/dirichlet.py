"""The Dirichlet copula of the ARMS paper."""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.couplings.base import BitCoupling, CategoryCoupling, flip, flip_counts, undo_pairs
from arms.designs.couplings.orders import order_pair_distribution, order_samples, pair_probabilities
from arms.random import indicator, uniform


@dataclass(frozen=True)
class Dirichlet(BitCoupling, CategoryCoupling):
    r"""The antithetic Dirichlet copula: b_i = 1 where (1 - d_i)^(n-1) < q for d ~ Dir(1, ..., 1).

    $$ P_{10} = q - \max(0,\; 2 q^{1/(n-1)} - 1)^{n-1} $$

    A Dirichlet vector is a vector of exponentials divided by its sum, so the test is
    e_i > t (e_1 + ... + e_n) with t = 1 - q^(1/(n-1)): no division, no power per sample. Flipping
    the bits where p > 1/2 is the paper's choice between its two copula samples. With more than two
    categories, their order is random: see `arms.designs.couplings.orders`.
    Reference: Dimitriev & Zhou 2021.

    >>> Dirichlet().debias(torch.zeros(1), n=2)  # the antithetic pair: max(p, 1 - p)
    tensor([0.5000])
    """

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        threshold = -torch.expm1(_log_smaller(phi) / (n - 1))
        minus_exponential = uniform(n, phi, generator).neg_().log1p_()  # a uniform is below 1
        # Scaled before the sum, so that a compiler does not compute the threshold n times.
        total = (threshold * minus_exponential).sum(0)
        return flip(indicator(total - minus_exponential), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        log_q = _log_smaller(phi)
        # log(2 q^(1/(n-1)) - 1), which is -inf once two samples cannot both be one
        log_root = torch.log1p((2 * torch.expm1(log_q / (n - 1))).clamp(min=-1))
        log_both = (n - 1) * log_root - log_q  # log P(b_j = 1 | b_i = 1)
        return (torch.expm1(log_q) / torch.expm1(log_both)).to(logits.dtype)

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 1, "n")
        q = torch.sigmoid(-logits.double().abs())
        columns = [_dirichlet_counts(value, n) for value in q.flatten().tolist()]
        counts = torch.tensor(columns, dtype=torch.float64, device=logits.device)
        return flip_counts(counts.T.reshape(n + 1, *logits.shape), logits)

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        n = as_count(n, 2, "n")
        if logits.shape[-1] != 2:
            return order_samples(logits, n, generator)
        ones = self.sample_bits(_as_bits(logits), n, generator)
        return torch.stack([1 - ones, ones], -1)

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        if logits.shape[-1] != 2:
            return undo_pairs(logits, order_pair_distribution(logits, n), grad)
        return grad * self.debias(at_least_float32(_as_bits(logits)), n).unsqueeze(-1)

    def category_probabilities(self, probs: list[float], n: int) -> list[float] | None:
        return pair_probabilities(probs) if n == 2 else None


def _as_bits(logits: Tensor) -> Tensor:
    """Return the logits of two categories as logits of bits, 1 for the second category."""
    first, second = at_least_float32(logits).unbind(-1)
    return (second - first).to(logits.dtype)


def _log_smaller(phi: Tensor) -> Tensor:
    """Return log min(p, 1-p), finite also at p = 0, so that differences of logarithms are."""
    return torch.sigmoid(-phi.abs()).log().clamp(min=torch.finfo(phi.dtype).min)


def _dirichlet_counts(q: float, n: int) -> list[float]:
    """Return P(S = k) = C(n, k) sum_j (-1)^j C(n-k, j) max(0, 1 - (k+j)t)^(n-1).

    The sum alternates, so it is computed with many digits.
    """
    with localcontext() as context:
        context.prec = 40 + n
        t = 1 - (Decimal(q) ** (Decimal(1) / (n - 1)) if q > 0 else Decimal(0))
        power = [max(Decimal(0), 1 - m * t) ** (n - 1) for m in range(n + 1)]

        def exactly(k: int) -> float:
            terms = (math.comb(n - k, j) * power[k + j] * (-1) ** j for j in range(n - k + 1))
            return max(0.0, float(math.comb(n, k) * sum(terms)))

        return [exactly(k) for k in range(n + 1)]
