r"""Exact variances of the estimators for one latent, where f is just two numbers f(0) and f(1).

With S = b_1 + ... + b_n, leave-one-out gives g = (f(1) - f(0)) S(n-S) / (n(n-1)) / (1-rho), so Var needs only P(S = s).
"""

from functools import singledispatch

import torch
from torch import Tensor

from arms.couplings import BinaryCoupling, CorrelatedPair, Independent
from arms.estimators import ARM, ARMS, ARTS, LOORF, DisARM, Estimator, Exact, Reinforce

__all__ = ["univariate_variance"]


@singledispatch
def univariate_variance(estimator: Estimator, logits: Tensor, f0: float, f1: float) -> Tensor | None:
    """Return the exact variance of the estimate at every logit (each a problem of one latent), or None if not known.

    Args:
        estimator: An estimator, with its n.
        logits: Any shape; each is a problem of its own.
        f0: The objective at 0.
        f1: The objective at 1.

    >>> from arms import LOORF
    >>> univariate_variance(LOORF(2), torch.zeros(1), f0=0.0, f1=1.0)
    tensor([0.0625], dtype=torch.float64)
    """
    return None


@univariate_variance.register
def _(estimator: LOORF, logits: Tensor, f0: float, f1: float) -> Tensor | None:
    return _leave_one_out(Independent(), estimator.num_samples, logits, f1 - f0)


@univariate_variance.register
def _(estimator: ARMS, logits: Tensor, f0: float, f1: float) -> Tensor | None:
    if not isinstance(estimator.coupling, BinaryCoupling):
        return None
    return _leave_one_out(estimator.coupling, estimator.num_samples, logits, f1 - f0)


@univariate_variance.register
def _(estimator: ARTS, logits: Tensor, f0: float, f1: float) -> Tensor | None:
    return _pairs(estimator.correlation, estimator.num_samples, logits, f1 - f0)


@univariate_variance.register
def _(estimator: DisARM, logits: Tensor, f0: float, f1: float) -> Tensor | None:
    return _pairs(-1.0, estimator.num_samples, logits, f1 - f0)


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


def _leave_one_out(coupling: BinaryCoupling, n: int, logits: Tensor, difference: float) -> Tensor | None:
    law = coupling.count_law(logits, n)
    if law is None:
        return None
    counts = torch.arange(n + 1, dtype=torch.float64, device=logits.device).view(-1, *[1] * logits.ndim)
    estimate = difference * counts * (n - counts) / (n * (n - 1)) * coupling.debias(logits.double(), n)
    mean = (law * estimate).sum(0)
    return (law * (estimate - mean) ** 2).sum(0)


def _pairs(correlation: float, n: int, logits: Tensor, difference: float) -> Tensor:
    one_pair = _leave_one_out(CorrelatedPair(correlation), 2, logits, difference)
    assert one_pair is not None
    return one_pair / (n // 2)
