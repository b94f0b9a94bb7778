r"""Distinct joint states, drawn without replacement.

Let S be the set of the n drawn states. The weight of state s is p_s R_s, the probability that s was
drawn first, given S. `UnorderedSet` defines R_s and R_st. Suppose that each state s arrives after
an exponential time with rate p_s. Then S consists of the first n arrivals. The probability of S is
an integral over x, where x is the time of the first arrival outside of S, divided by this time's
mean:

$$ P(S) = \int_0^\infty \prod_{s \in S} (1 - e^{-a_s x})\, e^{-x}\, dx, \qquad
   a_s = p_s / (1 - \textstyle\sum_S p). $$

The integral in the numerator of R_s omits the factor of s. The integral in the numerator of R_st
omits the factors of s and t. All integrals are computed by the trapezoid rule in log x.
Reference: Kool, van Hoof & Welling, "Stochastic beams and where to find them", ICML 2019.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.designs.base import Design, Draw, Rows
from arms.latents import Enumerable, Latent
from arms.random import uniform

NODES = 240  # nodes of the quadrature, for relative errors of 1e-13
LEAST_LEFT = 1e-13  # a smaller remaining probability consists of rounding error only


@dataclass(frozen=True)
class WithoutReplacement(Design):
    """n different joint states, drawn one after the other without replacement.

    In each draw, the probabilities of the remaining states are p, divided by their sum.

    Args:
        num_samples: n, at least 2, and at most the number of joint states.
    """

    requires: ClassVar[tuple[type, ...]] = (Enumerable,)
    weighted: ClassVar[bool] = True
    least_samples: ClassVar[int] = 2

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return distinct_states(self._checked(latent), self.num_samples, generator)

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        # 1 - sum p needs float64.
        wide = latent.with_logits(latent.logits.detach().double())
        log_probs = wide.log_prob(rows.double())
        assert isinstance(latent, Enumerable)
        if len(rows) == latent.count_states():  # 1 - sum p would be rounding error
            weights = log_probs.exp()
            baseline_weights = weights.expand(len(rows), *weights.shape)
        else:
            weights, baseline_weights = set_weights(log_probs)
        return Draw(latent, rows, memory=baseline_weights, weights=weights)

    def row_outcomes(self, latent: Latent) -> Rows:
        states = self._checked(latent).states()
        probs = latent.log_prob(states).exp()
        sets = torch.tensor(list(itertools.combinations(range(len(states)), self.num_samples)))
        chances = torch.zeros(len(sets), dtype=torch.float64)
        for order in itertools.permutations(range(self.num_samples)):
            left, chance = torch.ones_like(chances), torch.ones_like(chances)
            for one in sets[:, order].T:
                chance = chance * probs[one] / left.clamp(min=1e-300)
                left = left - probs[one]
            chances += chance
        if len(sets) == 1:  # the set of all states has probability 1
            chances = torch.ones_like(chances)
        return Rows(states[sets].transpose(0, 1), chances)

    def _checked(self, latent: Latent) -> Enumerable:
        assert isinstance(latent, Enumerable)
        if (count := latent.count_states()) < self.num_samples:
            wanted = f"num_samples must be at most {count}, the number of joint states"
            why = "because samples are drawn without replacement"
            raise ValueError(f"{wanted}, {why}, got {self.num_samples}: use exact instead")
        return latent


def set_weights(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights p_s R_s and p_t R_st for all states s and t in a set of n states.

    `log_probs` `[n, *batch]` are log p_s. The first result is `[n, *batch]`. The second result is
    `[n, n, *batch]`, with s on the first axis. `UnorderedSet` defines R_s and R_st.
    """
    possible = log_probs > -torch.inf  # a set may contain impossible states if others run out
    left = (1 - log_probs.exp().sum(0)).clamp(min=LEAST_LEFT)
    y = torch.linspace(-34, 4.2, NODES, dtype=log_probs.dtype, device=log_probs.device)
    exponent = (log_probs - left.log()).unsqueeze(-1) + y  # log(a x)
    gone = torch.where(exponent < -30, exponent, torch.log(-torch.expm1(-exponent.exp())))
    gone = torch.where(possible.unsqueeze(-1), gone, 0.0)  # log(1 - exp(-a x)) [n, *batch, nodes]
    base = gone.sum(0) - y.exp() + y
    base = base - base.logsumexp(-1, keepdim=True)
    without = base - gone  # omits one factor; below, products of square roots omit two factors
    first = without.logsumexp(-1)
    half = base / 2 - gone
    top = half.amax(-1, keepdim=True)
    scaled = (half - top).exp()
    top = top.squeeze(-1)
    pairs = torch.einsum("s...x,t...x->st...", scaled, scaled).log() + top + top.unsqueeze(1)
    itself = torch.eye(len(log_probs), dtype=torch.bool, device=log_probs.device)
    itself = itself.view(*itself.shape, *[1] * (log_probs.ndim - 1))
    ratios = torch.where(itself, 0.0, pairs - first.unsqueeze(1))
    return (log_probs + first).exp(), (log_probs.unsqueeze(0) + ratios).exp()


def distinct_states(latent: Enumerable, n: int, generator: Generator | None) -> Tensor:
    """Draw n different joint states `[n, *batch, *event]`, by Gumbel top-n (stochastic beams)."""
    # A beam is a prefix: the values of the first variables. Its number `largest` is the largest
    # perturbed log-probability over all states with this prefix, which is a Gumbel variable. The
    # search extends the prefixes variable by variable, and keeps the n largest. The numbers of all
    # continuations of a prefix are Gumbel variables too, shifted so that their maximum is the
    # number of the prefix.
    log_probs = latent.variable_log_probs()
    total, largest = (torch.zeros_like(log_probs[0][..., :1]) for _ in range(2))
    chosen: list[tuple[Tensor, Tensor]] = []
    for of_variable in log_probs:
        totals = total.unsqueeze(-1) + of_variable.unsqueeze(-2)  # [*batch, beams, K]
        tiny = torch.finfo(totals.dtype).tiny
        clocks = -uniform(1, totals, generator)[0].clamp(min=tiny).log()
        perturbed = totals - clocks.clamp(min=tiny).log()
        # Shift the noise, so that the maximum over a beam's continuations is the beam's number.
        below = perturbed - perturbed.amax(-1, keepdim=True)
        v = largest.unsqueeze(-1) - perturbed + torch.log(-torch.expm1(below))
        moved = largest.unsqueeze(-1) - v.relu() - torch.log1p(torch.exp(-v.abs()))
        moved = torch.where(totals > -torch.inf, moved, -torch.inf).flatten(-2)
        largest, place = moved.topk(min(n, moved.shape[-1]), -1)
        total = totals.flatten(-2).gather(-1, place)
        chosen.append((place // of_variable.shape[-1], place % of_variable.shape[-1]))
    # Follow the beams back from the last variable to the first.
    came_from, last = chosen[-1]
    states = [last]
    for beam, state in reversed(chosen[:-1]):
        states.append(state.gather(-1, came_from))
        came_from = beam.gather(-1, came_from)
    return latent.from_states(states[::-1])
