r"""MIDPOINT: pairs of samples, the noise of all other latents removed to third order by the slope halfway between.

For a pair (b, b') with s = b - b', and any C that is a function of b + b' alone,

$$ g_k = \tfrac12 \Big[ f(b) - f(b') - \sum_{l \ne k} C_l\, s_l \Big]\, s_k, \qquad C = \nabla f\big((b + b')/2\big) $$

Unbiased because exchanging latent l between b and b' leaves the law of the pair as it is, and b + b', hence C; the term
C_l s_l s_k, l != k, changes its sign, and has expectation zero. What is left is leave-one-out REINFORCE for two
samples. For quadratic f, f(b) - f(b') = C . s exactly: the linear and the quadratic part of f make no noise but through
latent k itself. Leaving latent k's own term in (l = k) would be biased, and so would slopes at b and b' themselves.

Given b + b', any orientation of the differing latents is as likely as any other. So further pairs with the same
midpoint come by exchanging every latent with probability 1/2, and a pair's C may use the slopes at the other pairs:

$$ C = \tfrac12 \nabla f(m) + \tfrac12\, \mathrm{mean}\,\{\nabla f \text{ at the ends of the other pairs}\},
   \qquad m = (b + b')/2 $$

The first misses how the other latents, once decided, bend f; the second knows it, with noise. Several midpoints are
independent draws, or coupled ones, undone as in ARMS. With independent ones, whether latent k differs in its pair at
all is noise of its own, of which the other midpoints' C know the size:

$$ Z_k = \mathrm{mean}\,\big\{\tfrac12 \tilde C_k s_k^2 - \mathrm{Var}(b_k)\, \tilde C_k\big\},
   \qquad \tilde C = \mathrm{mean}\, C \text{ of the other midpoints}, $$

is subtracted with a coefficient from the other rows of the batch (1/2 where there are none).
Reference: this project (docs/midpoint.md).
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32
from arms.couplings import Coupling, Independent
from arms.couplings.base import coupled_samples
from arms.estimators.base import Draw, Slopes
from arms.estimators.controls import fitted, sum_of_others
from arms.estimators.coupled import CoupledPairs
from arms.latents import Latent
from arms.noise import indicator, uniform


@dataclass(frozen=True)
class Midpoint(CoupledPairs):
    """Pairs with the slope at their midpoint as control variate: for differentiable objectives of many latents.

    The objective must be defined, and differentiable, between 0 and 1. Samples and midpoints are evaluated in one call,
    midpoints last; values of the estimate are those at the samples.

    Args:
        num_samples: n, even: evaluations at samples. One more for every midpoint.
        coupling: Of the samples that make the midpoints.
        pairs: How many pairs share a midpoint, at least; n/2 if that is less. With 1, only the midpoints are
            differentiated; with more, all points are.
        own_bits: Whether to remove the noise of a latent's own part, where there are independent midpoints.

    >>> f = lambda b: (b.sum(-1) - 2.0) ** 2  # quadratic: one pair knows all but how often each bit differs
    >>> estimate = Midpoint(8)(f, torch.zeros(100, 5))
    >>> estimate.values.shape, Midpoint(8).evaluations, Midpoint(8).derivatives
    (torch.Size([8, 100]), 10, 10)
    """

    coupling: Coupling = field(default_factory=Independent)
    pairs: int = 2
    own_bits: bool = True

    min_samples: ClassVar[int] = 2
    even_samples: ClassVar[bool] = True
    formula: ClassVar[str] = "mean over pairs of (f(b) - f(b') - sum_{l != k} C_l s_l) s_k / 2, C = df((b + b')/2)"
    reference: ClassVar[str] = "this project"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pairs", as_count(self.pairs, 1, f"pairs of {type(self).__name__}"))

    @property
    def midpoints(self) -> int:
        """How many different midpoints are drawn."""
        return max(1, self.num_samples // (2 * self.pairs))

    @property
    def slopes(self) -> Slopes:
        return "all" if self._shares else "extra"

    @property
    def evaluations(self) -> int:
        return self.num_samples + self.midpoints

    @property
    def derivatives(self) -> int:
        return self.evaluations if self._shares else self.midpoints

    @property
    def _shares(self) -> bool:
        return 2 * self.midpoints < self.num_samples

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        firsts, seconds = draw_pairs(self.coupling, latent, self.num_samples // 2, self.midpoints, generator)
        middle = (firsts[: self.midpoints] + seconds[: self.midpoints]) / 2
        return Draw(self, latent, torch.cat([firsts, seconds, middle]), extra=self.midpoints)

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        latent, count = draw.latent, self.num_samples // 2
        slopes = at_least_float32(slopes)
        control = slopes
        if self._shares:
            ends = slopes[:count] + slopes[count : 2 * count]
            control = torch.lerp(spread(slopes[2 * count :], count), others(ends, self.midpoints) / 2, 0.5)
        step = (draw.points[:count] - draw.points[count : 2 * count]).to(slopes.dtype)
        found = combine_pairs(latent, step, values, control)
        if self.own_bits and self.midpoints > 1 and isinstance(self.coupling, Independent):
            own = mean_of_midpoints(control, self.midpoints)
            elsewhere = sum_of_others(own, 0) / (self.midpoints - 1)
            s = step[: self.midpoints]
            noise = (latent.sum_variable(elsewhere * s) * s / 2 - latent.covary(elsewhere)).mean(0)
            found = fitted(latent, found, noise, prior=0.5)
        return self.coupling.undo(latent, 2 * self.midpoints, found)


def draw_pairs(
    coupling: Coupling, latent: Latent, count: int, midpoints: int, generator: Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw `count` pairs `[count, *batch, *event]` each, pair a with the midpoint of pair a modulo `midpoints`.

    The first pairs are coupled samples; the others exchange every variable of theirs with probability 1/2.
    """
    firsts, seconds = coupled_samples(coupling, latent, 2 * midpoints, generator).chunk(2)
    if count == midpoints:
        return firsts, seconds
    decision = latent.sum_variable(at_least_float32(firsts[0]))  # one per variable
    exchange = indicator(uniform(count - midpoints, decision, generator) - 0.5).to(firsts.dtype)
    start, end = spread(firsts, count - midpoints), spread(seconds, count - midpoints)
    exchanged = torch.lerp(start, end, exchange)  # between 0 and 1, exact; torch.where costs several times as much
    return torch.cat([firsts, exchanged]), torch.cat([seconds, start + end - exchanged])


def combine_pairs(latent: Latent, step: Tensor, values: Tensor, control: Tensor) -> Tensor:
    """Return the mean over pairs of 1/2 [f - f' - sum over the other variables of C . s] s.

    Args:
        latent: What was drawn.
        step: `[pairs, *batch, *event]`, the differences s of the pairs.
        values: `[2 pairs or more, *batch]`: f at the first ends, then at the second ones.
        control: `[pairs, *batch, *event]`, the C of each.
    """
    values = at_least_float32(values)
    fall = values[: len(step)] - values[len(step) : 2 * len(step)]
    along = latent.sum_variable(control * step)
    rest = latent.with_event_axes(fall - latent.sum_event(along)) + along
    return (rest * step).sum(0) / (2 * len(step))


def spread(of_midpoints: Tensor, count: int) -> Tensor:
    """Return what belongs to each midpoint for each of `count` pairs: pair a has midpoint a modulo their number."""
    rounds, rest = divmod(count, len(of_midpoints))
    if rounds == 1 and not rest:
        return of_midpoints
    if len(of_midpoints) == 1:
        return of_midpoints.expand(count, *of_midpoints.shape[1:])
    return torch.cat([of_midpoints] * rounds + [of_midpoints[:rest]] * (rest > 0))


def others(of_pairs: Tensor, midpoints: int) -> Tensor:
    """Return for each pair the mean over the other pairs of its midpoint, of which there is at least one."""
    if len(of_pairs) == 2 * midpoints:
        return of_pairs.roll(midpoints, 0)
    # One product with a zero diagonal: a sum minus the pair's own part would keep that part's rounding error.
    midpoint = torch.arange(len(of_pairs), device=of_pairs.device) % midpoints
    weights = (midpoint.unsqueeze(-1) == midpoint).to(of_pairs.dtype).fill_diagonal_(0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ of_pairs.reshape(len(of_pairs), -1)).view_as(of_pairs)


def mean_of_midpoints(of_pairs: Tensor, midpoints: int) -> Tensor:
    """Return the mean over the pairs of each midpoint."""
    if len(of_pairs) == midpoints:
        return of_pairs
    return _sum_of_midpoints(of_pairs, midpoints) / _count_of_midpoints(of_pairs, midpoints)


def _sum_of_midpoints(of_pairs: Tensor, midpoints: int) -> Tensor:
    rest = len(of_pairs) % midpoints
    whole, last = of_pairs[: len(of_pairs) - rest], of_pairs[len(of_pairs) - rest :]
    sums = whole.unflatten(0, (-1, midpoints)).sum(0)
    return torch.cat([sums[:rest] + last, sums[rest:]]) if rest else sums


def _count_of_midpoints(of_pairs: Tensor, midpoints: int) -> Tensor:
    """Return how many pairs each midpoint has: the first ones have one more where the division leaves a rest."""
    rounds, rest = divmod(len(of_pairs), midpoints)
    index = torch.arange(midpoints, device=of_pairs.device).view(-1, *[1] * (of_pairs.ndim - 1))
    return rounds + (index < rest).to(of_pairs.dtype)
