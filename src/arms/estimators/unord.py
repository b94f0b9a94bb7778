r"""UNORD: n different joint states, drawn without replacement, each weighted by how surely it was to be drawn.

$$ g = \sum_{s \in S} p_s R_s \Big(f_s - \sum_{t \in S} p_t R_{st} f_t\Big) \nabla \log p_s, \qquad
   R_s = \frac{P^{-s}(S \setminus s)}{P(S)}, \quad R_{st} = \frac{P^{-s,t}(S \setminus s, t)}{P^{-s}(S \setminus s)},
   \quad R_{ss} = 1 $$

where P(S) is the probability that the set S is drawn, and P^{-s} the same among all states but s. Unbiased because
p_s R_s is the probability that s was drawn first given the set, so that sum_s p_s R_s h(s) averages h over the first
draw, a plain one, given the set; and given s, the inner sum does the same for the states that were drawn after it. All
the probabilities are integrals over the time of the n-th event, when state s comes at rate p_s:

$$ P(S) = \int_0^\infty \prod_{s \in S} (1 - e^{-a_s x})\, e^{-x}\, dx, \qquad a_s = p_s / (1 - \textstyle\sum_S p), $$

with factors left out for the others, by the trapezoid rule in log x. As S comes to hold all mass, g becomes exact.
Reference: Kool, van Hoof & Welling, "Estimating gradients for discrete random variables by sampling without
replacement", ICLR 2020; drawn as in "Stochastic beams and where to find them", ICML 2019.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import at_least_float32
from arms.estimators.base import Draw, Estimator
from arms.latents import Bernoulli, Latent, OneHot
from arms.noise import uniform

NODES = 240
"""Of the quadrature: relative errors of 1e-13."""
MOST_STATES = 2**16
"""Joint states of a latent other than bits and categories, all of which are enumerated."""
LEAST_LEFT = 1e-13
"""What is left of the mass is never taken for less: its rounding would show."""


@dataclass(frozen=True)
class Unordered(Estimator):
    """The unordered-set estimator with its built-in baseline: n of the K^d joint states, none of them twice.

    For a single latent, or few states that carry the mass. Its value, too, is weighted: the mean of f without bias.

    Args:
        num_samples: n, at least 2, and at most as many as there are joint states.

    >>> Unordered(4)(lambda b: b.prod(-1), torch.zeros(2)).grad  # four states of two bits: all there are
    tensor([0.1250, 0.1250])
    """

    min_samples: ClassVar[int] = 2
    latents: ClassVar[tuple[type[Latent], ...]] = (Latent,)
    formula: ClassVar[str] = "sum over the set of p R (f - baseline of the others) (b - p), drawn without replacement"
    reference: ClassVar[str] = "Kool, van Hoof & Welling 2020"

    @property
    def equal_weights(self) -> bool:
        return False

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        if latent.count_states() < self.num_samples:
            raise ValueError(
                f"without replacement there are at most as many samples as joint states, {latent.count_states()}, got "
                f"num_samples = {self.num_samples}: use exact, which enumerates them"
            )
        return self.weighted(latent, distinct_states(latent, self.num_samples, generator))

    def weighted(self, latent: Latent, points: Tensor) -> Draw:
        """Return the draw of these states `[n, *batch, *event]`, all different."""
        # In float64: 1 - sum p loses its digits otherwise.
        return Draw(self, latent, points, memory=set_weights(_in_float64(latent).log_prob(points.double())))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        weights, baseline_weights = draw.memory
        # A common constant has no part in the estimate, and would cost digits.
        values = values.double() - values.double().mean(0)
        baselines = (baseline_weights * values.unsqueeze(0)).sum(1)
        signal = (weights * (values - baselines)).to(at_least_float32(draw.logits).dtype)
        return (draw.latent.with_event_axes(signal) * draw.latent.score(draw.points)).sum(0)

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        weights: Tensor = draw.memory[0]
        return (weights.to(values.dtype) * values).sum(0)


def set_weights(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return p_s R_s `[n, *batch]`, and p_t R_st as `[n (s), n (t), *batch]`, for the states of a set, in float64.

    A state that is impossible is treated as no part of the set: it fills up one of fewer than n possible states.
    """
    possible = log_probs > -torch.inf
    left = (1 - log_probs.exp().sum(0)).clamp(min=LEAST_LEFT)
    y = torch.linspace(-34, 4.2, NODES, dtype=log_probs.dtype, device=log_probs.device)
    exponent = (log_probs - left.log()).unsqueeze(-1) + y  # log(a x)
    gone = torch.where(exponent < -30, exponent, torch.log(-torch.expm1(-exponent.exp())))
    gone = torch.where(possible.unsqueeze(-1), gone, 0.0)  # log(1 - exp(-a x)) [n, *batch, nodes]
    base = gone.sum(0) - y.exp() + y
    base = base - base.logsumexp(-1, keepdim=True)
    without = base - gone  # one left out; two left out are sums of products of their square roots
    first = without.logsumexp(-1)
    half = base / 2 - gone
    top = half.amax(-1, keepdim=True)
    scaled = (half - top).exp()
    pairs = torch.einsum("s...x,t...x->st...", scaled, scaled).log() + top.squeeze(-1) + top.squeeze(-1).unsqueeze(1)
    itself = torch.eye(len(log_probs), dtype=torch.bool, device=log_probs.device)
    itself = itself.view(*itself.shape, *[1] * (log_probs.ndim - 1))
    ratios = torch.where(itself, 0.0, pairs - first.unsqueeze(1))
    return (log_probs + first).exp(), (log_probs.unsqueeze(0) + ratios).exp()


def distinct_states(latent: Latent, n: int, generator: Generator | None) -> Tensor:
    """Draw n different joint states one after the other, each by its probability among those left, all at once.

    The n largest of log p + Gumbel noise over all states are such a draw. They are found latent by latent: the largest
    of all states that begin alike is a Gumbel variable too, and given it, so are the largest of each continuation.
    """
    if not isinstance(latent, Bernoulli | OneHot):
        return _distinct_of_all(latent, n, generator)
    log_probs = _of_categories(latent)
    total, largest = (torch.zeros_like(log_probs[..., 0, :1]) for _ in range(2))
    chosen: list[tuple[Tensor, Tensor]] = []
    for of_latent in log_probs.unbind(-2):
        totals = total.unsqueeze(-1) + of_latent.unsqueeze(-2)  # [*batch, beams, K]
        clocks = -uniform(1, totals, generator)[0].clamp(min=torch.finfo(totals.dtype).tiny).log()
        perturbed = totals - clocks.clamp(min=torch.finfo(totals.dtype).tiny).log()
        below = perturbed - perturbed.amax(-1, keepdim=True)
        v = largest.unsqueeze(-1) - perturbed + torch.log(-torch.expm1(below))
        moved = largest.unsqueeze(-1) - v.relu() - torch.log1p(torch.exp(-v.abs()))
        moved = torch.where(totals > -torch.inf, moved, -torch.inf)
        moved = moved.flatten(-2)
        largest, place = moved.topk(min(n, moved.shape[-1]), -1)
        total = totals.flatten(-2).gather(-1, place)
        chosen.append((place // of_latent.shape[-1], place % of_latent.shape[-1]))
    categories = [chosen[-1][1]]
    came_from = chosen[-1][0]
    for beam, category in reversed(chosen[:-1]):
        categories.append(category.gather(-1, came_from))
        came_from = beam.gather(-1, came_from)
    states = torch.stack(categories[::-1], -1).movedim(-2, 0)  # [n, *batch, d]
    return latent.one_hot(states) if isinstance(latent, OneHot) else states.to(latent.logits.dtype)


def _distinct_of_all(latent: Latent, n: int, generator: Generator | None) -> Tensor:
    """Draw n different joint states of a latent of any kind, by perturbing the log-probabilities of all of them."""
    if latent.count_states() > MOST_STATES:
        raise ValueError(
            f"Unordered enumerates the states of a {type(latent).__name__}, at most {MOST_STATES}, got "
            f"{latent.count_states()}: use an estimator such as loorf"
        )
    states = latent.states()
    event, batch = states.shape[1:], latent.batch_shape
    every = states.view(-1, *[1] * len(batch), *event).expand(-1, *batch, *event)
    log_probs = _in_float64(latent).log_prob(every.double())
    clocks = -torch.log1p(-uniform(len(states), log_probs[0], generator))
    perturbed = log_probs - clocks.clamp(min=torch.finfo(clocks.dtype).tiny).log()
    return states[perturbed.topk(n, 0).indices]


def _in_float64(latent: Latent) -> Latent:
    return replace(latent, logits=latent.logits.detach().double())


def _of_categories(latent: Latent) -> Tensor:
    """Return log-probabilities `[*batch, d, K]` in float64; a bit has two categories."""
    logits = latent.logits.detach().double()
    if isinstance(latent, OneHot):
        return torch.log_softmax(logits, -1)
    return torch.nn.functional.logsigmoid(torch.stack([-logits, logits], -1))
