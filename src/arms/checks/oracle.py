"""The enumeration oracle, and objectives with no structure that an estimator could be lucky with."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from arms.arguments import Logits
from arms.estimators.base import Objective
from arms.estimators.exact import Exact, binary_states


def exact_gradient(objective: Objective, logits: Logits) -> Tensor:
    """Return the gradient of E[objective(b)] with respect to the logits, by enumeration of all states (d <= 16).

    >>> exact_gradient(lambda b: b.sum(-1), torch.zeros(2))
    tensor([0.2500, 0.2500])
    """
    with torch.no_grad():
        return Exact()(objective, logits).grad


def random_table(d: int, generator: Generator | None = None) -> Tensor:
    """Return a random objective value for each of the 2^d states, in float64."""
    return torch.randn(2**d, generator=generator, dtype=torch.float64) + 1


def table_objective(table: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the objective whose value at state b is table[b], extended multilinearly so that b may also be relaxed.

    >>> table_objective(torch.tensor([1.0, 2.0, 3.0, 4.0]))(torch.tensor([1.0, 0.0]))
    tensor(3.)
    """
    states = binary_states(table.numel().bit_length() - 1, table)

    def objective(b: Tensor) -> Tensor:
        bits = b.unsqueeze(-2).to(table.dtype)
        return (table * (states * bits + (1 - states) * (1 - bits)).prod(-1)).sum(-1)

    return objective
