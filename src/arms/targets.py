r"""Targets: what is differentiated. The expectation of the objective, or the K-sample bound of log-weights.

$$ E[f(b)], \qquad\qquad E\Big[\log \frac1K \sum_{k=1}^K w(b_k)\Big] \le \log p(x),
   \quad w(b) = p(x, b) / q(b), \quad b_k \sim q $$

Reference for the bound: Burda, Grosse & Salakhutdinov, "Importance weighted autoencoders", ICLR 2016.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from arms.arguments import at_least_float32

__all__ = ["Expectation", "MultiSampleBound", "Target", "log_mean_exp"]


class Target(ABC):
    """A function of the objective's values at independent samples, whose expectation is differentiated.

    The exact value and gradient of any target follow from these three by enumeration: see `arms.checks`.
    """

    direct: ClassVar[bool]
    """Whether the objective itself depends on the logits (log-weights contain log q) and autograd's gradient through
    it counts. Where it does not, the objective sees the logits as constants."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many independent samples one value of the target is made of."""

    @abstractmethod
    def attached(self, n: int) -> int:
        """Return how many of n samples, the leading ones, keep their graph: the value is made of them."""

    @abstractmethod
    def value(self, values: Tensor) -> Tensor:
        """Return the target `[*batch]` as seen by objective values `[n, *batch]`."""


@dataclass(frozen=True)
class Expectation(Target):
    """E[f(b)], seen as the mean over all samples.

    >>> Expectation()
    Expectation()
    """

    direct: ClassVar[bool] = False

    @property
    def size(self) -> int:
        return 1

    def attached(self, n: int) -> int:
        return n

    def value(self, values: Tensor) -> Tensor:
        return values.mean(0)

    def __str__(self) -> str:
        return "expectation"


@dataclass(frozen=True)
class MultiSampleBound(Target):
    """E[log(1/K sum_k w(b_k))], made of the first K = `samples` values, which are log-weights.

    Args:
        samples: K.

    >>> import torch
    >>> MultiSampleBound(2).value(torch.tensor([[0.0], [0.0], [9.0]]))
    tensor([0.])
    """

    samples: int

    direct: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return self.samples

    def attached(self, n: int) -> int:
        return self.samples

    def value(self, values: Tensor) -> Tensor:
        return log_mean_exp(values[: self.samples])

    def __str__(self) -> str:
        return f"{self.samples}-sample bound"


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """Return log mean exp over the first axis.

    >>> import torch
    >>> log_mean_exp(torch.tensor([0.0, 10_000.0]))
    tensor(9999.3066)
    """
    total = at_least_float32(log_weights).logsumexp(0) - math.log(len(log_weights))
    return total.to(log_weights.dtype)
