"""The enumeration oracle, and objectives with no structure that an estimator could be lucky with."""

import math
from collections import Counter
from itertools import combinations_with_replacement

import torch
from torch import Generator, Tensor

from arms.estimators.base import Objective, TensorObjective
from arms.estimators.exact import Exact
from arms.latents import Bernoulli, Latent, Logits, as_latent
from arms.targets import MultiSampleBound, Target

__all__ = [
    "as_seen",
    "exact_bound",
    "exact_gradient",
    "exact_target_gradient",
    "exact_value",
    "random_table",
    "smooth_objective",
    "table_objective",
]


def exact_gradient(objective: Objective, logits: Logits) -> Tensor:
    """Return the gradient of E[objective(b)] with respect to the logits, by enumeration of all states.

    Args:
        objective: Maps states `[states, *batch, *event]` to values; it may be a black box.
        logits: As for `arms.expectation`, at most 2^16 states.

    >>> exact_gradient(lambda b: b.sum(-1), torch.zeros(2))
    tensor([0.2500, 0.2500])
    """
    with torch.no_grad():
        return Exact()(objective, logits).grad


def exact_value(objective: TensorObjective, logits: Logits, target: Target) -> Tensor:
    """Return the expectation of any target over independent samples, attached to the logits: differentiate it at will.

    All multisets of `target.size` states are enumerated, since the order of samples does not matter: few latents, few
    samples.

    Args:
        objective: Maps states `[states, *event]` to values `[states]`, attached to the logits if it depends on them.
        logits: As for `arms.expectation`, without batch axes.
        target: What is to be enumerated.

    >>> from arms import Expectation
    >>> exact_value(lambda b: b.sum(-1), torch.zeros(2), Expectation())
    tensor(1.)
    """
    latent = as_latent(logits)
    states = latent.states()
    # A state that cannot happen has no part, even if the objective is infinite there.
    states = states[latent.log_prob(states).detach() > -torch.inf]
    log_probs = latent.log_prob(states)
    multisets = list(combinations_with_replacement(range(len(states)), target.size))
    orders = torch.tensor([_orders(multiset) for multiset in multisets]).to(log_probs)
    chosen = torch.tensor(multisets, device=states.device).T  # [size, multisets]
    seen = target.value(objective(latent.shown(states))[chosen])
    return (orders * log_probs[chosen].sum(0).exp() * seen).sum()


def exact_bound(log_weight: TensorObjective, logits: Logits, bound_samples: int) -> Tensor:
    """Return E[log(1/K sum_k w(b_k))] over K independent samples of logits `[d]`, attached to them.

    Args:
        log_weight: Maps states `[m, d]` to log-weights `[m]`.
        logits: `[d]`, of few latents.
        bound_samples: K.

    >>> exact_bound(lambda b: torch.zeros(len(b)), torch.zeros(2), bound_samples=3)
    tensor(0.)
    """
    return exact_value(log_weight, logits, MultiSampleBound(bound_samples))


def exact_target_gradient(objective: TensorObjective, latent: Latent, target: Target) -> Tensor:
    """Return the gradient of any target with respect to logits `[*event]`, by enumeration.

    Where the target has a direct term, the objective is log p(x, b), and the log-weight that minus log q(b).
    """
    with torch.enable_grad():
        own = type(latent)(latent.logits.detach().clone().requires_grad_())
        (grad,) = torch.autograd.grad(exact_value(as_seen(objective, own, target), own, target), own.logits)
    return grad


def as_seen(objective: TensorObjective, latent: Latent, target: Target) -> TensorObjective:
    """Return the objective, or where the target has a direct term the log-weight objective(b) - log q(b)."""
    return (lambda b: objective(b) - latent.log_prob(b)) if target.direct else objective


def _orders(multiset: tuple[int, ...]) -> int:
    return math.factorial(len(multiset)) // math.prod(map(math.factorial, Counter(multiset).values()))


def random_table(states: int, generator: Generator | None = None) -> Tensor:
    """Return a random objective value for each of this many states, in float64.

    Args:
        states: How many.
        generator: Source of the values; the global one unless given.
    """
    return torch.randn(states, generator=generator, dtype=torch.float64) + 1


def table_objective(table: Tensor, latent: Latent | None = None) -> TensorObjective:
    """Return a smooth objective whose value at state b is table[b], and which is curved between the states.

    A multilinear extension of the table would not do: on it E[df/db] p (1 - p) is the very gradient, and a plain
    straight-through estimator looks unbiased. What is added here is zero at every state, and its slope is not; nor is
    the mean of its slopes at both ends, which is all that the trapezoid rule (`reinmax`) sees.

    Args:
        table: One value per joint state, in the order of `latent.states()`.
        latent: Whose states they are; bits unless given.

    >>> table_objective(torch.tensor([1.0, 2.0, 3.0, 4.0]))(torch.tensor([1.0, 0.0]))
    tensor(3.)
    """
    kind = Bernoulli(torch.zeros(table.numel().bit_length() - 1)) if latent is None else latent
    is_binary = kind.event_dims == 1
    categories = 2 if is_binary else kind.logits.shape[-1]

    def objective(b: Tensor) -> Tensor:
        bits = b.to(table.dtype)
        chosen = torch.stack([1 - bits, bits], -1) if is_binary else bits  # [..., d, K]
        rest = table
        for one in chosen.unbind(-2):  # the first latent is the slowest index of the table
            rest = (one.unsqueeze(-1) * rest.unflatten(-1, (categories, -1))).sum(-2)
        return rest.squeeze(-1) + _bend(bits, kind)

    return objective


def smooth_objective(latent: Latent, generator: Generator | None = None) -> TensorObjective:
    """Return a random smooth objective of samples of any latent: a sum of waves, one for every state.

    Args:
        latent: Whose samples it takes.
        generator: Source of the waves; the global one unless given.

    >>> smooth_objective(Bernoulli(torch.zeros(3)))(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5])
    """
    event = latent.logits.shape[-latent.event_dims :]
    waves = min(16, latent.count_states())
    frequencies = torch.randn(event.numel(), waves, generator=generator, dtype=torch.float64)
    phases, heights = torch.randn(2, waves, generator=generator, dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        flat = b.to(frequencies.dtype).flatten(b.ndim - latent.event_dims)
        values: Tensor = torch.sin(flat @ frequencies + phases) @ heights + 1
        return values

    return objective


def _bend(bits: Tensor, latent: Latent) -> Tensor:
    """Zero at 0 and 1, cubic in between, another slope at each latent, and slopes at both ends that do not cancel."""
    event = latent.logits.shape[-latent.event_dims :]
    weights = torch.linspace(1.0, 2.0, event.numel(), dtype=bits.dtype, device=bits.device).view(event)
    return latent.sum_event(weights * bits * (1 - bits) * (1 + bits + bits.roll(1, -1)))
