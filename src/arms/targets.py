r"""Targets: the quantities that are differentiated. They depend on the objective's values.

$$ E[f(b)], \qquad E\Big[\max_{j \le k} f(b_j)\Big], \qquad
   E\Big[\log \frac1K \sum_{k=1}^K w(b_k)\Big] \le \log p(x),
   \quad w(b) = p(x, b) / q(b), \quad b_k \sim q $$

Reference: Burda, Grosse & Salakhutdinov, "Importance weighted autoencoders", ICLR 2016.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from arms.arguments import as_count, at_least_float32


class Target(ABC):
    """The quantity to differentiate: the expectation of a function of f(b_1), ..., f(b_k).

    Here b_1, ..., b_k are independent samples, and k is the property `size`.
    """

    is_expectation: ClassVar[bool] = False  # whether this is E[f(b)], which some wrappers require
    subtracts_log_q: ClassVar[bool] = False  # whether f is log p(x, b), and log q(b) is subtracted

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of independent samples that one value of the target needs."""

    @abstractmethod
    def value(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """Estimate the target `[*batch]` from values `[n, *batch]` at the samples.

        For a bound, `values` are the log-weights. `weights` `[n, *batch]` are the weights of the
        samples; None means equal weights.
        """

    @abstractmethod
    def num_attached(self, n: int) -> int:
        """Return how many of the n samples the estimated target depends on. These are the first."""


@dataclass(frozen=True)
class Expectation(Target):
    """The expectation E[f(b)], estimated by the mean over samples.

    Args:
        samples: The number of leading samples that the mean is taken over; all by default.
    """

    samples: int | None = None
    is_expectation: ClassVar[bool] = True
    size = 1

    def value(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.samples is not None:
            return values[: self.samples].mean(0)
        return values.mean(0) if weights is None else (weights.to(values.dtype) * values).sum(0)

    def num_attached(self, n: int) -> int:
        return n if self.samples is None else self.samples

    def __str__(self) -> str:
        return "expectation"


@dataclass(frozen=True)
class BestOf(Target):
    """The expected maximum of f over k samples: max@k, or pass@k if all values are 0 or 1.

    The estimate from n samples is the average of the maximum over all subsets of k samples.

    Args:
        k: The number of samples that the maximum is taken over.

    >>> import torch
    >>> BestOf(2).value(torch.tensor([0.0, 1.0, 3.0]))  # the mean of 1, 3 and 3
    tensor(2.3333)
    """

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", as_count(self.k, 1, "k of BestOf"))

    @property
    def size(self) -> int:
        return self.k

    def value(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        n = len(values)
        # Value j in ascending order is the largest of C(j, k - 1) subsets.
        shares = [math.comb(j, self.k - 1) / math.comb(n, self.k) for j in range(n)]
        share = torch.tensor(shares, dtype=values.dtype, device=values.device)
        return (values.sort(0).values * share.view(n, *[1] * (values.ndim - 1))).sum(0)

    def num_attached(self, n: int) -> int:
        return n

    def __str__(self) -> str:
        return f"best of {self.k}"


@dataclass(frozen=True)
class ImportanceBound(Target):
    """The bound E[log(1/K sum_k w(b_k))], estimated from the log-weights of the first K samples.

    Args:
        samples: K. The default is all samples, but only `arms.weights` accepts this default.

    >>> import torch
    >>> ImportanceBound(2).value(torch.tensor([[0.0], [0.0], [9.0]]))
    tensor([0.])
    """

    samples: int | None = None
    subtracts_log_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.samples is not None:
            object.__setattr__(self, "samples", as_count(self.samples, 1, "samples of a bound"))

    @property
    def size(self) -> int:
        if self.samples is None:
            what = "the bound needs its number of samples K here, got None"
            raise ValueError(f"{what}: write ImportanceBound(samples=K)")
        return self.samples

    def value(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        return log_mean_exp(values[: self.samples])

    def num_attached(self, n: int) -> int:
        return self.size

    def __str__(self) -> str:
        return "bound" if self.samples is None else f"{self.samples}-sample bound"


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """Return log(mean(exp(log_weights))), with the mean over the first axis."""
    total = at_least_float32(log_weights).logsumexp(0) - math.log(len(log_weights))
    return total.to(log_weights.dtype)
