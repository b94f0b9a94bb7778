"""The enumeration oracle, and objectives with no structure that an estimator could be lucky with."""

import math
from collections import Counter
from itertools import combinations_with_replacement

import torch
from torch import Generator, Tensor

from arms.arguments import Logits
from arms.estimators.base import Objective, TensorObjective
from arms.estimators.exact import Exact, binary_states


def exact_gradient(objective: Objective, logits: Logits) -> Tensor:
    """Return the gradient of E[objective(b)] with respect to the logits, by enumeration of all states (d <= 16).

    >>> exact_gradient(lambda b: b.sum(-1), torch.zeros(2))
    tensor([0.2500, 0.2500])
    """
    with torch.no_grad():
        return Exact()(objective, logits).grad


def exact_bound(log_weight: TensorObjective, logits: Tensor, bound_samples: int) -> Tensor:
    """Return E[log(1/K sum_k w(b_k))] over K independent samples of logits `[d]`, attached to them.

    All multisets of K states are enumerated, since the order of samples does not matter: few latents, few samples.

    >>> exact_bound(lambda b: torch.zeros(len(b)), torch.zeros(2), bound_samples=3)
    tensor(0.)
    """
    states = binary_states(len(logits), logits)
    log_probs = torch.nn.functional.logsigmoid(torch.where(states > 0, logits, -logits)).sum(-1)
    multisets = list(combinations_with_replacement(range(len(states)), bound_samples))
    orders = torch.tensor([_orders(multiset) for multiset in multisets], dtype=logits.dtype, device=logits.device)
    chosen = torch.tensor(multisets, device=logits.device)
    bounds = log_weight(states)[chosen].logsumexp(-1) - math.log(bound_samples)
    return (orders * log_probs[chosen].sum(-1).exp() * bounds).sum()


def _orders(multiset: tuple[int, ...]) -> int:
    return math.factorial(len(multiset)) // math.prod(map(math.factorial, Counter(multiset).values()))


def random_table(d: int, generator: Generator | None = None) -> Tensor:
    """Return a random objective value for each of the 2^d states, in float64."""
    return torch.randn(2**d, generator=generator, dtype=torch.float64) + 1


def table_objective(table: Tensor) -> TensorObjective:
    """Return the objective whose value at state b is table[b], extended multilinearly so that b may also be relaxed.

    >>> table_objective(torch.tensor([1.0, 2.0, 3.0, 4.0]))(torch.tensor([1.0, 0.0]))
    tensor(3.)
    """
    states = binary_states(table.numel().bit_length() - 1, table)

    def objective(b: Tensor) -> Tensor:
        bits = b.unsqueeze(-2).to(table.dtype)
        return (table * (states * bits + (1 - states) * (1 - bits)).prod(-1)).sum(-1)

    return objective
