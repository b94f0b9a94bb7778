"""The Gaussian copula of the ARMS paper."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.designs.couplings.base import BitCoupling, flip
from arms.random import indicator, normal


@dataclass(frozen=True)
class Gaussian(BitCoupling):
    r"""The antithetic Gaussian copula: b_i = 1 where x_i < h, x of correlation -1/(n-1).

    Centering n independent normals and scaling by sqrt(n/(n-1)) gives exactly that correlation.

    $$ P_{10} = 2\,T(h, a), \qquad h = \Phi^{-1}(q), \quad a = \sqrt{n/(n-2)}, \quad
       T = \text{Owen's T} $$

    With e^(-h^2/2) taken out of both sides, q / P_10 = (pi/2) erfcx(|h|/sqrt 2) / I(h, a), where
    I = int_0^a e^(-h^2 x^2 / 2) / (1 + x^2) dx. Both sides stay of order one in any tail.
    Reference: Dimitriev & Zhou 2021.

    >>> Gaussian().debias(torch.zeros(1), n=2)  # the antithetic pair: max(p, 1 - p)
    tensor([0.5000])
    """

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        threshold = torch.special.ndtri(torch.sigmoid(-phi.abs())) * math.sqrt((n - 1) / n)
        x = normal(n, phi, generator)
        return flip(indicator(threshold + x.mean(0) - x), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        larger = torch.sigmoid(phi.abs())
        if n == 2:  # a is infinite: P10 = q
            return larger.to(logits.dtype)
        nodes, furthest = _owen_quadrature(n, phi.dtype)
        # Beyond `furthest` the ratio q / P10 is 1 to the last bit: the clamp only removes -inf.
        h = torch.special.ndtri(torch.sigmoid(-phi.abs())).clamp(min=-furthest)
        exponent = -0.5 * h.square()
        integral = torch.zeros_like(h)
        for square, weight in nodes:
            integral = integral + weight * torch.exp(exponent * square)
        # erfcx(x) = e^(x^2) erfc(x). At these |h| the product is safe, and ten times as fast.
        tail: Tensor = (math.pi / 2) * torch.erfc(h * -math.sqrt(0.5)) * torch.exp(-exponent)
        return (larger * (tail / integral)).to(logits.dtype)


def _owen_quadrature(n: int, dtype: torch.dtype) -> tuple[list[tuple[float, float]], float]:
    """Return Gauss-Legendre (x^2, weight / (1 + x^2)) on [0, a], and the largest |h|."""
    # Errors of 3e-14 and 1e-7, at every n and h.
    reach, unit_nodes = (8.3, _NODES[20]) if dtype == torch.float64 else (5.6, _NODES[10])
    a = math.sqrt(n / (n - 2))
    return [((a * x) ** 2, a * weight / (1 + (a * x) ** 2)) for x, weight in unit_nodes], reach / a


def _unit_nodes(count: int) -> list[tuple[float, float]]:
    x, weight = np.polynomial.legendre.leggauss(count)
    return list(zip(((x + 1) / 2).tolist(), (weight / 2).tolist(), strict=True))


_NODES = {count: _unit_nodes(count) for count in (10, 20)}
