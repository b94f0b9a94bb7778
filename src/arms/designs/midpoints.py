"""Designs of pairs of samples and their midpoints."""

import itertools
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, lazy_property
from arms.designs.base import Coupling, Design, Draw, Needs, Rows, independent_rows
from arms.designs.samples import Coupled, Independent
from arms.latents import Enumerable, ExchangeablePairs, Latent


@dataclass(frozen=True)
class Midpoints(Design):
    """n/2 pairs of samples, and midpoints that several pairs may share.

    There are m midpoints. The first m pairs are drawn from the latent. Every further pair is drawn
    from all pairs that have the same sum, and therefore the same midpoint, as one of the first m
    pairs. The points are the first samples of all pairs, then the second samples of all pairs, then
    the m midpoints. Pair number a has the midpoint number a % m.

    Args:
        num_samples: n, even: the number of samples, without the midpoints.
        pairs: The least number of pairs that share a midpoint. If it exceeds n/2, all n/2 pairs
            share one midpoint.
        coupling: The coupling of the 2m samples in the first m pairs; None makes them independent.
        evaluate_midpoints: Whether to evaluate and differentiate the objective at the midpoints. If
            this is False, or if pairs share midpoints, the objective is differentiated at the
            samples.
    """

    pairs: int = 2
    coupling: Coupling | None = None
    evaluate_midpoints: bool = True

    base: Independent | Coupled = field(init=False, repr=False, compare=False)
    requires: ClassVar[tuple[type, ...]] = (ExchangeablePairs,)
    in_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pairs", as_count(self.pairs, 1, "pairs"))
        count, coupling = 2 * self.midpoints, self.coupling  # samples of the first pairs
        base = Independent(count) if coupling is None else Coupled(count, coupling)
        object.__setattr__(self, "base", base)

    @lazy_property
    def midpoints(self) -> int:
        return max(1, self.num_samples // (2 * self.pairs))

    @lazy_property
    def shares(self) -> bool:
        """Whether several pairs share each midpoint."""
        return 2 * self.midpoints < self.num_samples

    @lazy_property
    def needs(self) -> Needs:
        if not self.evaluate_midpoints:
            return Needs(self.num_samples, derivatives=self.num_samples)
        total = self.num_samples + self.midpoints
        # Derivatives are taken at the last points, which are the midpoints.
        return Needs(total, derivatives=total if self.shares else self.midpoints)

    def takes(self, latent: Latent) -> bool:
        return self.base.takes(latent) and super().takes(latent)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        assert isinstance(latent, ExchangeablePairs)
        samples = self.base.draw_rows(latent, generator)
        if not self.shares:
            return samples
        firsts, seconds = samples.chunk(2)
        more = self.num_samples // 2 - self.midpoints
        one, other = repeat_per_pair(firsts, more), repeat_per_pair(seconds, more)
        exchanged = latent.exchange(one, other, generator)
        return torch.cat([firsts, exchanged, seconds, one + other - exchanged])

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        if not self.evaluate_midpoints:
            return Draw(latent, rows)
        firsts, seconds = rows.chunk(2)
        middle = (firsts[: self.midpoints] + seconds[: self.midpoints]) / 2
        return Draw(latent, torch.cat([rows, middle]), extra=self.midpoints)

    def variable_outcomes(self, variable: Latent) -> Rows | None:
        assert isinstance(variable, Enumerable)
        base, m = self.base.variable_outcomes(variable), self.midpoints
        if base is None:
            return None
        rows, probabilities, states = [], [], variable.states()
        listed = states.tolist()
        for samples, chance in zip(base.rows.unbind(1), base.probabilities, strict=True):
            one, other = (repeat_per_pair(half, self.num_samples // 2) for half in samples.chunk(2))
            # For each further pair, all possible first samples are equally likely.
            totals = one[m:] + other[m:]
            options = [[s for s in states if (sum_ - s).tolist() in listed] for sum_ in totals]
            for chosen in itertools.product(*options):
                first = torch.stack([*one[:m], *chosen])
                rows.append(torch.cat([first, one + other - first]))
                probabilities.append(chance / math.prod(map(len, options)))
        return Rows(torch.stack(rows, 1), torch.stack(probabilities))

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        return self.base.correct(latent, grad)  # only the first pairs are coupled


def repeat_per_pair(of_midpoints: Tensor, count: int) -> Tensor:
    """Return `count` rows. Row a of the result is row a % m of `of_midpoints` `[m, ...]`."""
    rounds, rest = divmod(count, len(of_midpoints))
    if rounds == 1 and not rest:
        return of_midpoints
    if len(of_midpoints) == 1:
        return of_midpoints.expand(count, *of_midpoints.shape[1:])
    return torch.cat([of_midpoints] * rounds + [of_midpoints[:rest]])


def mean_of_siblings(of_pairs: Tensor, midpoints: int) -> Tensor:
    """Return, for each pair, the mean of `of_pairs` over the other pairs with the same midpoint.

    `of_pairs` and the result are `[pairs, ...]`. `midpoints` is the number of midpoints m. Pair
    number a has the midpoint number a % m.
    """
    if len(of_pairs) == 2 * midpoints:
        return of_pairs.roll(midpoints, 0)
    # The diagonal of the matrix is zero, which leaves out the pair itself. Subtracting the pair
    # from the sum of all pairs would cause rounding errors instead.
    midpoint = torch.arange(len(of_pairs), device=of_pairs.device) % midpoints
    weights = (midpoint.unsqueeze(-1) == midpoint).to(of_pairs.dtype).fill_diagonal_(0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ of_pairs.reshape(len(of_pairs), -1)).view_as(of_pairs)


def mean_per_midpoint(of_pairs: Tensor, midpoints: int) -> Tensor:
    """Return, for each midpoint, the mean of `of_pairs` over the pairs with this midpoint.

    `of_pairs` is `[pairs, ...]`, and the result is `[m, ...]`. `midpoints` is the number of
    midpoints m. Pair number a has the midpoint number a % m.
    """
    if len(of_pairs) == midpoints:
        return of_pairs
    rounds, rest = divmod(len(of_pairs), midpoints)
    sums: Tensor = of_pairs[: rounds * midpoints].unflatten(0, (-1, midpoints)).sum(0)
    if rest:
        sums = torch.cat([sums[:rest] + of_pairs[rounds * midpoints :], sums[rest:]])
    index = torch.arange(midpoints, device=of_pairs.device).view(-1, *[1] * (of_pairs.ndim - 1))
    return sums / (rounds + (index < rest).to(of_pairs.dtype))


@dataclass(frozen=True)
class SharedPairs(Design):
    """n independent samples. The last samples form pairs, and each pair has a midpoint.

    Estimators of the importance-weighted bound use this design. The bound is computed from the
    samples that are not in pairs. If `pairs` is 0, all samples are in pairs, and the bound is
    computed from the first sample of each pair.

    Args:
        num_samples: n, without the midpoints.
        pairs: The number of pairs; 0 means n/2.
    """

    pairs: int = 0
    requires: ClassVar[tuple[type, ...]] = (ExchangeablePairs,)

    def __post_init__(self) -> None:
        pairs = as_count(self.pairs, 0, "pairs")
        least = 2 * pairs + 1 if pairs else 2
        count = as_count(self.num_samples, least, "num_samples", even=not pairs)
        object.__setattr__(self, "num_samples", count)
        object.__setattr__(self, "pairs", pairs)

    @lazy_property
    def midpoints(self) -> int:
        return self.pairs or self.num_samples // 2

    @lazy_property
    def bound_samples(self) -> int:
        """K, the number of samples that the bound is computed from."""
        return self.num_samples - 2 * self.pairs if self.pairs else self.num_samples // 2

    @lazy_property
    def needs(self) -> Needs:
        return Needs(self.num_samples + self.midpoints, derivatives=self.midpoints)

    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return latent.sample(self.num_samples, generator)

    def assemble(self, latent: Latent, rows: Tensor) -> Draw:
        first, second = rows[self.num_samples - 2 * self.midpoints :].chunk(2)
        return Draw(latent, torch.cat([rows, (first + second) / 2]), extra=self.midpoints)

    def variable_outcomes(self, variable: Latent) -> Rows:
        return independent_rows(variable, self.num_samples)
