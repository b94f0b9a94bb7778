r"""Exact variances for a single bit, where f is just two numbers f(0) and f(1).

With S = b_1 + ... + b_n, leave-one-out gives g = (f(1) - f(0)) S(n-S) / (n(n-1)) / (1-rho), so the
variance needs only P(S = s).
"""

import torch
from torch import Tensor

from arms.designs import BitCoupling, CorrelatedPair, Coupled, Independent
from arms.estimators import ARM, DisARM, Estimator, Exact, LeaveOneOut, Reinforce


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
    logits, design = logits.double(), estimator.design
    one, zero = torch.sigmoid(logits), torch.sigmoid(-logits)
    if isinstance(estimator, Exact):
        return torch.zeros_like(logits)
    if isinstance(estimator, Reinforce):
        moment = one * zero * (f1**2 * zero + f0**2 * one)
        return (moment - ((f1 - f0) * one * zero) ** 2) / estimator.num_samples
    if isinstance(estimator, ARM):
        q = torch.sigmoid(-logits.abs())
        moment = (1 - (1 - 2 * q) ** 3) / 12  # 2 int_0^q (u - 1/2)^2 du
        return (f1 - f0) ** 2 * (moment - (q * (1 - q)) ** 2) / (estimator.num_samples // 2)
    if isinstance(estimator, DisARM):
        one_pair = _coupled(CorrelatedPair(estimator.correlation), 2, logits, f1 - f0)
        return None if one_pair is None else one_pair / (estimator.num_samples // 2)
    if isinstance(estimator, LeaveOneOut) and isinstance(design, Independent):
        counts = _binomial(one, zero, design.num_samples)
        return _leave_one_out(counts, torch.ones_like(logits), f1 - f0)
    if isinstance(estimator, LeaveOneOut) and isinstance(design, Coupled):
        return _coupled(design.coupling, design.num_samples, logits, f1 - f0)
    return None


def _coupled(coupling: object, n: int, logits: Tensor, difference: float) -> Tensor | None:
    if not isinstance(coupling, BitCoupling):
        return None
    counts = coupling.count_distribution(logits, n)
    if counts is None:
        return None
    return _leave_one_out(counts, coupling.debias(logits, n), difference)


def _binomial(one: Tensor, zero: Tensor, n: int) -> Tensor:
    """Return P(S = s) for n independent bits with these probabilities, `[n + 1, *shape]`."""
    counts = torch.ones_like(one).unsqueeze(0)
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
