r"""Couplings: n exchangeable Bernoulli(p) variables for every latent, as negatively correlated as the law allows.

An estimator needs two things of a coupling: a draw, and the factor 1/(1 - rho) that undoes its correlation,

$$ \frac{1}{1-\rho} = \frac{q(1-q)}{P_{10}}, \quad P_{10} = P(b_i = 1, b_j = 0), \quad q = \min(p, 1-p). $$

Everything is computed at q <= 1/2 and the bits are flipped where p > 1/2: the law is symmetric in p <-> 1-p,
and no logit, however large, cancels or overflows. Dirichlet and Gaussian are the two copulas of
Dimitriev & Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", ICML 2021.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from arms.arguments import as_count, widen


class Coupling(ABC):
    """n mutually dependent, exchangeable Bernoulli(sigmoid(logits)) samples; latents stay independent of each other."""

    reference: ClassVar[str] = ""
    """Where the coupling was first published."""

    @abstractmethod
    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        """Draw `[n, *logits.shape]` zeros and ones in the dtype of `logits`."""

    @abstractmethod
    def debias(self, logits: Tensor, n: int) -> Tensor:
        """Return 1/(1 - rho) for every latent, finite at every logit."""

    def correlation(self, logits: Tensor, n: int) -> Tensor:
        """Return rho, the common correlation of two of the n samples."""
        return 1 - 1 / self.debias(logits, n)

    def count_law(self, logits: Tensor, n: int) -> Tensor | None:
        """Return P(b_1 + ... + b_n = s) as `[n + 1, *logits.shape]` in float64, or None if no form is known."""
        return None


@dataclass(frozen=True)
class Independent(Coupling):
    """n independent samples, rho = 0: what REINFORCE and LOORF draw.

    >>> Independent().debias(torch.zeros(2), n=4)
    tensor([1., 1.])
    """

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 1, "n")
        probs = torch.sigmoid(widen(logits.detach()))
        return step(probs - uniform(n, probs, generator)).to(logits.dtype)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        return torch.ones_like(logits.detach())

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        one, zero = torch.sigmoid(logits.double()), torch.sigmoid(-logits.double())
        law = torch.ones(1, *logits.shape, dtype=torch.float64, device=logits.device)
        edge = torch.zeros_like(law)
        for _ in range(n):
            law = torch.cat([law, edge]) * zero + torch.cat([edge, law]) * one
        return law


@dataclass(frozen=True)
class Dirichlet(Coupling):
    r"""The antithetic Dirichlet copula: b_i = 1 where (1 - d_i)^(n-1) < q for d ~ Dir(1, ..., 1).

    $$ P_{10} = q - \max(0,\; 2 q^{1/(n-1)} - 1)^{n-1} $$

    A Dirichlet vector is a vector of exponentials over its sum, so the test is e_i > t (e_1 + ... + e_n) with
    t = 1 - q^(1/(n-1)): no division, no power per sample. Flipping the bits where p > 1/2 is the paper's choice
    between its two copula samples.

    >>> Dirichlet().debias(torch.zeros(1), n=2)  # the antithetic pair: max(p, 1 - p)
    tensor([0.5000])
    """

    reference: ClassVar[str] = "Dimitriev & Zhou 2021"

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = widen(logits.detach())
        threshold = -torch.expm1(_log_smaller(phi) / (n - 1))
        minus_exponential = uniform(n, phi, generator).neg_().log1p_()  # finite: a uniform never reaches 1
        # Scaled before it is summed, so that a compiler does not make the threshold again for every sample.
        return flip(step((threshold * minus_exponential).sum(0) - minus_exponential), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = widen(logits.detach())
        log_q = _log_smaller(phi)
        # log(2 q^(1/(n-1)) - 1), which is -inf once two cannot be one at a time
        log_root = torch.log1p((2 * torch.expm1(log_q / (n - 1))).clamp(min=-1))
        log_both = (n - 1) * log_root - log_q  # log P(b_j = 1 | b_i = 1)
        return (torch.expm1(log_q) / torch.expm1(log_both)).to(logits.dtype)

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        q = torch.sigmoid(-logits.double().abs())
        columns = [_dirichlet_counts(value, n) for value in q.flatten().tolist()]
        law = torch.tensor(columns, dtype=torch.float64, device=logits.device).T.reshape(n + 1, *logits.shape)
        return _flip_counts(law, logits)


@dataclass(frozen=True)
class Gaussian(Coupling):
    r"""The antithetic Gaussian copula: b_i = 1 where x_i < h = Phi^-1(q), for normals of correlation -1/(n-1).

    Centring n independent normals and scaling by sqrt(n/(n-1)) gives exactly that correlation.

    $$ P_{10} = 2\,T(h, a), \qquad a = \sqrt{n/(n-2)}, \qquad T = \text{Owen's T} $$

    With e^(-h^2/2) taken out of both sides, q / P_10 = (pi/2) erfcx(|h|/sqrt 2) / I(h, a), where
    I = int_0^a e^(-h^2 x^2 / 2) / (1 + x^2) dx; both sides stay of order one in any tail.

    >>> Gaussian().debias(torch.zeros(1), n=2)  # the antithetic pair again
    tensor([0.5000])
    """

    reference: ClassVar[str] = "Dimitriev & Zhou 2021"

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = widen(logits.detach())
        threshold = torch.special.ndtri(torch.sigmoid(-phi.abs())) * math.sqrt((n - 1) / n)
        normal = torch.randn(n, *phi.shape, **drawn_from(generator), dtype=phi.dtype, device=phi.device)
        return flip(step(threshold + normal.mean(0) - normal), logits)

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = widen(logits.detach())
        larger = torch.sigmoid(phi.abs())
        if n == 2:  # a is infinite: P10 = q
            return larger.to(logits.dtype)
        nodes, furthest = _owen_quadrature(n, phi.dtype)
        # Beyond `furthest` the ratio q / P10 is 1 to the last bit, so the clamp changes nothing but -inf.
        h = torch.special.ndtri(torch.sigmoid(-phi.abs())).clamp(min=-furthest)
        exponent = -0.5 * h.square()
        integral = torch.zeros_like(h)
        for square, weight in nodes:
            integral = integral + weight * torch.exp(exponent * square)
        # erfcx(x) = e^(x^2) erfc(x); |h| is small enough by now for the product, which is ten times as fast on a CPU
        ratio: Tensor = (math.pi / 2) * torch.erfc(h * -math.sqrt(0.5)) * torch.exp(-exponent) / integral
        return (larger * ratio).to(logits.dtype)


@dataclass(frozen=True)
class Systematic(Coupling):
    r"""The smallest correlation there is: S = floor(nq) or floor(nq) + 1 ones on a random subset of the n samples.

    $$ P_{10} = \frac{E[S(n-S)]}{n(n-1)}, \qquad E[S] = nq $$

    No integer-valued sum of mean nq has a smaller variance, so no n exchangeable Bernoulli(q) have a smaller rho.

    >>> Systematic().correlation(torch.zeros(1), n=4)  # two ones and two zeros, always
    tensor([-0.3333])
    """

    reference: ClassVar[str] = "this project"

    def sample(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = widen(logits.detach())
        noise = uniform(n, phi, generator)
        whole, part = _systematic_counts(phi, n)
        left = whole + step(part - noise[0])
        ones = []
        for i in range(1, n):  # selection sampling: the next is a one with probability ones left / samples left
            chosen = step(torch.sub(left, noise[i], alpha=n - i + 1))
            left = left - chosen
            ones.append(chosen)
        return flip(torch.stack([*ones, left]), logits)  # the last has no choice

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = widen(logits.detach())
        whole, part = _systematic_counts(phi, n)
        pairs = whole * (n - whole) + part * (n - 1 - 2 * whole)  # E[S(n-S)]
        # q / P10 = nq (n-1) / pairs is 1 where q underflows to zero, as it is wherever nq < 1
        ratio = ((whole + part) * (n - 1) / pairs).nan_to_num(nan=1.0)
        return (torch.sigmoid(phi.abs()) * ratio).to(logits.dtype)

    def count_law(self, logits: Tensor, n: int) -> Tensor:
        whole, part = _systematic_counts(logits.double(), n)
        counts = torch.arange(n + 1, dtype=torch.float64, device=logits.device).view(-1, *[1] * logits.ndim)
        law = torch.where(counts == whole, 1 - part, torch.where(counts == whole + 1, part, 0.0))
        return _flip_counts(law, logits)


COUPLINGS: Mapping[str, Callable[[], Coupling]] = {
    "independent": Independent,
    "dirichlet": Dirichlet,
    "gaussian": Gaussian,
    "systematic": Systematic,
}


def coupling(name: str) -> Coupling:
    """Return the coupling of that name.

    >>> coupling("systematic")
    Systematic()
    """
    if name not in COUPLINGS:
        raise ValueError(f"no coupling is called {name!r}: choose one of {', '.join(COUPLINGS)}")
    return COUPLINGS[name]()


def uniform(n: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw `[n, *like.shape]` uniforms on [0, 1), in the dtype of `like`."""
    return torch.rand(n, *like.shape, **drawn_from(generator), dtype=like.dtype, device=like.device)


def drawn_from(generator: Generator | None) -> dict[str, Any]:
    """Return the generator as a keyword, or none at all: a compiler that is told of None takes one batch size only."""
    return {} if generator is None else {"generator": generator}


def step(x: Tensor) -> Tensor:
    """Return 1 where x > 0 and 0 elsewhere, in the dtype of x: by way of bool it takes three times as long on a CPU."""
    if torch.compiler.is_compiling():
        return (x > 0).to(x.dtype)
    return x.sign().relu_()


def flip(samples: Tensor, logits: Tensor) -> Tensor:
    """Turn samples of min(p, 1-p), overwritten, into samples of p, in the dtype of the logits."""
    return samples.sub_(step(logits.detach())).abs_().to(logits.dtype)


def _flip_counts(law: Tensor, logits: Tensor) -> Tensor:
    return torch.where(logits.detach() > 0, law.flip(0), law)


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


def _systematic_counts(phi: Tensor, n: int) -> tuple[Tensor, Tensor]:
    expected = n * torch.sigmoid(-phi.detach().abs())
    whole = expected.floor()
    return whole, expected - whole


def _owen_quadrature(n: int, dtype: torch.dtype) -> tuple[list[tuple[float, float]], float]:
    """Gauss-Legendre (x^2, weight / (1 + x^2)) on [0, a], and the |h| beyond which the rest of the integral is lost."""
    reach, unit_nodes = _DOUBLE_NODES if dtype == torch.float64 else _SINGLE_NODES
    a = math.sqrt(n / (n - 2))
    return [((a * x) ** 2, a * weight / (1 + (a * x) ** 2)) for x, weight in unit_nodes], reach / a


def _unit_nodes(count: int) -> list[tuple[float, float]]:
    x, weight = np.polynomial.legendre.leggauss(count)
    return list(zip(((x + 1) / 2).tolist(), (weight / 2).tolist(), strict=True))


_SINGLE_NODES = (5.6, _unit_nodes(10))  # 1e-7 and 3e-14 of the integral, at every n and h
_DOUBLE_NODES = (8.3, _unit_nodes(20))
