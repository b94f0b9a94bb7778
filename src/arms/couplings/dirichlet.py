"""The Dirichlet copula of the ARMS paper."""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.couplings.base import BinaryCoupling, flip, flip_counts, undo_pairs
from arms.couplings.orders import order_pair_law, order_samples
from arms.latents import Bernoulli, Latent, OneHot
from arms.noise import indicator, uniform


@dataclass(frozen=True)
class Dirichlet(BinaryCoupling):
    r"""The antithetic Dirichlet copula: b_i = 1 where (1 - d_i)^(n-1) < q for d ~ Dir(1, ..., 1).

    $$ P_{10} = q - \max(0,\; 2 q^{1/(n-1)} - 1)^{n-1} $$

    A Dirichlet vector is a vector of exponentials over its sum, so the test is e_i > t (e_1 + ... + e_n) with
    t = 1 - q^(1/(n-1)): no division, no power per sample. Flipping the bits where p > 1/2 is the paper's choice
    between its two copula samples. Of more than two categories the order is random: see `arms.couplings.orders`.

    >>> Dirichlet().debias(torch.zeros(1), n=2)  # the antithetic pair: max(p, 1 - p)
    tensor([0.5000])
    """

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli, OneHot)
    reference: ClassVar[str] = "Dimitriev & Zhou 2021"

    def sample(self, latent: Latent, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        if isinstance(latent, OneHot):
            if latent.logits.shape[-1] != 2:
                return order_samples(latent, n, generator)
            ones = self.sample(_as_bits(latent), n, generator)
            return torch.stack([1 - ones, ones], -1)
        phi = at_least_float32(latent.logits.detach())
        threshold = -torch.expm1(_log_smaller(phi) / (n - 1))
        minus_exponential = uniform(n, phi, generator).neg_().log1p_()  # finite: a uniform never reaches 1
        # Scaled before it is summed, so that a compiler does not make the threshold again for every sample.
        return flip(indicator((threshold * minus_exponential).sum(0) - minus_exponential), latent.logits)

    def undo(self, latent: Latent, n: int, r: Tensor) -> Tensor:
        if not isinstance(latent, OneHot):
            return super().undo(latent, n, r)
        if latent.logits.shape[-1] != 2:
            return undo_pairs(latent, order_pair_law(latent, n), r)
        return r * self.debias(at_least_float32(_as_bits(latent).logits), n).unsqueeze(-1)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        log_q = _log_smaller(phi)
        # log(2 q^(1/(n-1)) - 1), which is -inf once two cannot be one at a time
        log_root = torch.log1p((2 * torch.expm1(log_q / (n - 1))).clamp(min=-1))
        log_both = (n - 1) * log_root - log_q  # log P(b_j = 1 | b_i = 1)
        return (torch.expm1(log_q) / torch.expm1(log_both)).to(logits.dtype)

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 1, "n")
        q = torch.sigmoid(-logits.double().abs())
        columns = [_dirichlet_counts(value, n) for value in q.flatten().tolist()]
        law = torch.tensor(columns, dtype=torch.float64, device=logits.device).T.reshape(n + 1, *logits.shape)
        return flip_counts(law, logits)


def _as_bits(latent: OneHot) -> Bernoulli:
    """Return two categories as bits, 1 for the second of them."""
    first, second = at_least_float32(latent.logits).unbind(-1)
    return Bernoulli((second - first).to(latent.logits.dtype))


def _log_smaller(phi: Tensor) -> Tensor:
    """log min(p, 1-p); p = 0 stays finite here, so that differences of logarithms do."""
    return torch.sigmoid(-phi.abs()).log().clamp(min=torch.finfo(phi.dtype).min)


def _dirichlet_counts(q: float, n: int) -> list[float]:
    """P(S = k) = C(n, k) sum_j (-1)^j C(n-k, j) max(0, 1 - (k+j)t)^(n-1); the sum alternates, so it needs digits."""
    with localcontext() as context:
        context.prec = 40 + n
        t = 1 - (Decimal(q) ** (Decimal(1) / (n - 1)) if q > 0 else Decimal(0))
        power = [max(Decimal(0), 1 - m * t) ** (n - 1) for m in range(n + 1)]

        def exactly(k: int) -> float:
            terms = (math.comb(n - k, j) * power[k + j] * (-1) ** j for j in range(n - k + 1))
            return max(0.0, float(math.comb(n, k) * sum(terms)))

        return [exactly(k) for k in range(n + 1)]
