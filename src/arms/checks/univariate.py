r"""Exact variances for a single bit, where f is just two numbers f(0) and f(1).

With S = b_1 + ... + b_n, leave-one-out gives g = (f(1) - f(0)) S(n-S) / (n(n-1)) / (1-rho), so the
variance needs only P(S = s).
"""

from functools import singledispatch

import torch
from torch import Tensor

from arms.designs import BitCoupling, CorrelatedPair, Coupled, Independent
from arms.estimators import ARM, DisARM, Estimator, Exact, LeaveOneOut, Reinforce


@singledispatch
def univariate_variance(
    estimator: Estimator, logits: Tensor, f0: float, f1: float
) -> Tensor | None:
    """Return the exact variance of the estimate at every logit, or None if no form is known.

    Args:
        estimator: An estimator.
        logits: Any shape; each entry is a problem with a single bit.
        f0: The objective at 0.
        f1: The objective at 1.

    >>> from arms import LOORF
    >>> univariate_variance(LOORF(2), torch.zeros(1), f0=0.0, f1=1.0)
    tensor([0.0625], dtype=torch.float64)
    """
    return None


@univariate_variance.register
def _(estimator: LeaveOneOut, logits: Tensor, f0: float, f1: float) -> Tensor | None:
    design, n = estimator.design, estimator.design.num_samples
    if isinstance(design, Independent):
        counts, debias = _binomial(logits, n), torch.ones_like(logits, dtype=torch.float64)
        return _leave_one_out(counts, debias, f1 - f0)
    if isinstance(design, Coupled) and isinstance(design.coupling, BitCoupling):
        return _coupled(design.coupling, n, logits, f1 - f0)
    return None


@univariate_variance.register
def _(estimator: DisARM, logits: Tensor, f0: float, f1: float) -> Tensor:
    one_pair = _coupled(CorrelatedPair(estimator.correlation), 2, logits, f1 - f0)
    assert one_pair is not None
    return one_pair / (estimator.num_samples // 2)


@univariate_variance.register
def _(estimator: ARM, logits: Tensor, f0: float, f1: float) -> Tensor:
    q = torch.sigmoid(-logits.double().abs())
    moment = (1 - (1 - 2 * q) ** 3) / 12  # 2 int_0^q (u - 1/2)^2 du
    return (f1 - f0) ** 2 * (moment - (q * (1 - q)) ** 2) / (estimator.num_samples // 2)


@univariate_variance.register
def _(estimator: Reinforce, logits: Tensor, f0: float, f1: float) -> Tensor:
    one, zero = torch.sigmoid(logits.double()), torch.sigmoid(-logits.double())
    moment = one * zero * (f1**2 * zero + f0**2 * one)
    return (moment - ((f1 - f0) * one * zero) ** 2) / estimator.num_samples


@univariate_variance.register
def _(estimator: Exact, logits: Tensor, f0: float, f1: float) -> Tensor:
    return torch.zeros_like(logits, dtype=torch.float64)


def _coupled(coupling: BitCoupling, n: int, logits: Tensor, difference: float) -> Tensor | None:
    counts = coupling.count_distribution(logits, n)
    if counts is None:
        return None
    return _leave_one_out(counts, coupling.debias(logits.double(), n), difference)


def _binomial(logits: Tensor, n: int) -> Tensor:
    """Return P(S = s) for n independent bits, `[n + 1, *logits.shape]`."""
    one, zero = torch.sigmoid(logits.double()), torch.sigmoid(-logits.double())
    counts = torch.ones(1, *logits.shape, dtype=torch.float64, device=logits.device)
    edge = torch.zeros_like(counts)
    for _ in range(n):
        counts = torch.cat([counts, edge]) * zero + torch.cat([edge, counts]) * one
    return counts


def _leave_one_out(counts: Tensor, debias: Tensor, difference: float) -> Tensor:
    n = len(counts) - 1
    s = torch.arange(n + 1, dtype=torch.float64, device=counts.device)
    s = s.view(-1, *[1] * (counts.ndim - 1))
    estimate = difference * s * (n - s) / (n * (n - 1)) * debias
    mean = (counts * estimate).sum(0)
    return (counts * (estimate - mean) ** 2).sum(0)
