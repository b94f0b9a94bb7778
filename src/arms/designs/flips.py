"""Samples, and copies of samples in which a single variable is changed."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32, lazy_property
from arms.designs.base import Coupling, Design, Draw, Needs
from arms.designs.couplings.systematic import Cyclic
from arms.designs.midpoints import repeat_per_pair
from arms.designs.samples import Coupled, Independent
from arms.latents import Latent, Neighbors
from arms.latents.categories import rest_of
from arms.random import uniform

FLOOR = 0.3  # the least evidence of a variable, relative to the row's mean evidence
MOST_EVIDENCE = 400.0  # the evidence of a logit of 20
LEAST = 1e-12  # keeps q positive if no row has any evidence
BELOW_ONE = 1 - 2.0**-50  # keeps uniform numbers below the end of the last interval


@dataclass(frozen=True)
class WithFlips(Design):
    r"""n samples, then m flips: copies of samples in which one variable has another value.

    Flip j copies sample j % n. It changes variable k with a probability q_k that does not depend on
    the samples, from value b to value a, which is drawn with p_a / (1 - p_b). `memory` holds the
    weight of every flip, `[m, *batch]`:

    $$ \frac{w_{ab}}{q_k}, \qquad w_{ab} = \frac{(1 - p_a)(1 - p_b)}{2 - p_a - p_b} $$

    The pair {a, b} comes up in either order, with probability p_a p_b / w_ab in total. So the mean
    of weight times h(a, b), for a symmetric h, is the sum over variables and pairs of p_a p_b h.
    For bits w is p (1 - p).

    The m variables of a row are a systematic sample: each k is expected m q_k times. q_k is
    proportional to P(two draws of variable k differ) times (e_k / mean e + 0.3). For bits, e_k is
    the mean of the squared logit over the rows of the batch; for categories, it is 1. In a batch of
    one row, q_k is proportional to the first factor only.

    Args:
        num_samples: n.
        flips: m.
        coupling: The coupling of the samples; None makes them independent.
    """

    flips: int = 1
    coupling: Coupling | None = field(default_factory=Cyclic)

    base: Independent | Coupled = field(init=False, repr=False, compare=False)
    requires: ClassVar[tuple[type, ...]] = (Neighbors,)
    uses_extra_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "flips", as_count(self.flips, 1, "flips"))
        n, coupling = self.num_samples, self.coupling
        base = Independent(n) if coupling is None or n == 1 else Coupled(n, coupling)
        object.__setattr__(self, "base", base)

    @lazy_property
    def needs(self) -> Needs:
        total = self.num_samples + self.flips
        return Needs(total, derivatives=total, differences=True)

    def takes(self, latent: Latent) -> bool:
        return super().takes(latent) and self.base.takes(latent)

    def distribution(self, latent: Neighbors) -> Tensor:
        """Return q up to a factor per row, `[*batch, variables]`."""
        uncertain = latent.uncertainty()
        if not latent.batch_shape or latent.batch_shape[-1] == 1:
            return uncertain
        # An infinite logit or a row of NaN must not make the q of other variables infinite or NaN.
        evidence = latent.evidence().clamp_(max=MOST_EVIDENCE).nan_to_num_(0.0)
        evidence, weight = evidence.sum(-2, keepdim=True), uncertain.sum(-1, keepdim=True)
        floor = (uncertain @ evidence.mT).mul_(FLOOR).clamp_(min=LEAST)
        return torch.addcmul(floor, evidence, weight).mul_(uncertain)

    def copied(self, of_samples: Tensor) -> Tensor:
        """Return, for every flip, the row of the sample that it copies."""
        return repeat_per_pair(of_samples[: self.flips], self.flips)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        assert isinstance(latent, Neighbors)
        samples, distribution = self.base.draw_rows(latent, generator), self.distribution(latent)
        if not distribution.shape[-1]:  # no variables
            weights = at_least_float32(latent.logits).new_zeros(self.flips, *latent.batch_shape)
            points = torch.cat([samples, self.copied(samples)])
            return Draw(latent, points, extra=self.flips, memory=weights)
        ends = _ends(distribution)
        at = uniform(1, ends[..., 0], generator).movedim(0, -1)
        chosen = _systematic(ends, at, self.flips)
        chance = (distribution.gather(-1, chosen) / ends[..., -1:]).movedim(-1, 0)
        variable = chosen.movedim(-1, 0)
        old = latent.values_at(self.copied(samples), variable)
        if latent.count_values() == 2:
            value = 1 - old
        else:
            others = latent.probs_at(variable).scatter(-1, old.unsqueeze(-1), 0.0)
            value = _choose(_ends(others), uniform(self.flips, at, generator)).squeeze(-1)
        return self._flip(latent, samples, _Flips(variable, chance, old, value))

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        assert isinstance(latent, Neighbors)
        return self.outcomes_of_row(latent, self.distribution(latent))

    def outcomes_of_row(
        self, latent: Neighbors, distribution: Tensor
    ) -> tuple[Draw, Tensor] | None:
        """Return all outcomes for a latent without batch axes, given the distribution q."""
        if (found := self.base.row_outcomes(latent)) is None:
            return None
        m, (variables, of_variables) = self.flips, _all_systematic(distribution, self.flips)
        values = torch.arange(latent.count_values())
        counts = [torch.arange(len(one)) for one in (found.probabilities, of_variables)]
        sample, which, *to = torch.cartesian_prod(*counts, *[values] * m).unbind(-1)
        many, value = latent.expand(len(sample), 1), torch.stack(to).unsqueeze(-1)
        samples, variable = found.rows[:, sample].unsqueeze(2), variables[:, which].unsqueeze(-1)
        old, probs = many.values_at(self.copied(samples), variable), many.probs_at(variable)
        of_value = probs.scatter(-1, old.long().unsqueeze(-1), 0.0)
        of_value = of_value / of_value.sum(-1, keepdim=True)
        of_value = of_value.nan_to_num(1 / len(values))  # arbitrary if no variable can change
        of_value = of_value.gather(-1, value.unsqueeze(-1)).flatten(1).prod(0)
        chance = distribution[variable] / distribution.sum()
        draw = self._flip(many, samples, _Flips(variable, chance, old, value))
        return draw, found.probabilities[sample] * of_variables[which] * of_value

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        return self.base.correct(latent, grad)

    def _flip(self, latent: Neighbors, samples: Tensor, flips: "_Flips") -> Draw:
        variable, chance, old, value = flips
        possible = chance > 0  # False if no variable of the row can change
        points = torch.cat([samples, self.copied(samples)])
        latent.change_(points[len(samples) :], variable, torch.where(possible, value, old))
        weight = torch.where(possible, _pair_weight(latent, variable, old, value) / chance, 0.0)
        weight = weight.to(at_least_float32(latent.logits).dtype)
        return Draw(latent, points, extra=self.flips, memory=weight)


class _Flips(NamedTuple):
    """The flipped variable at each point, `[m, *batch]`, with its probability and values."""

    variable: Tensor
    chance: Tensor  # q of that variable
    old: Tensor
    value: Tensor


def _pair_weight(latent: Neighbors, variable: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return w, which is symmetric in two values of a variable."""
    if latent.count_values() == 2:
        uncertain = latent.uncertainty().expand(len(variable), *variable.shape[1:], -1)
        return uncertain.gather(-1, variable.unsqueeze(-1)).squeeze(-1) / 2
    rest = rest_of(latent.probs_at(variable))
    first, second = (rest.gather(-1, at.unsqueeze(-1)).squeeze(-1) for at in (one, other))
    return first * second / (first + second)


def _ends(weights: Tensor) -> Tensor:
    """Return the end of each weight's interval; the first interval starts at 0.

    All ends come from one cumulative sum, so rounding leaves no gaps between intervals.
    """
    return weights.cumsum(-1, dtype=torch.float64).contiguous()


def _systematic(ends: Tensor, noise: Tensor, m: int) -> Tensor:
    """Return m variables `[*batch, m]` for each uniform number `[*batch, 1]`."""
    steps = torch.arange(m, dtype=noise.dtype, device=noise.device)
    return _choose(ends, noise + steps, m)


def _all_systematic(distribution: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return all outcomes of `_systematic` for one row, `[m, outcomes]`, and probabilities."""
    ends = _ends(distribution)
    starts = (ends / ends[-1]).nan_to_num(0.0).mul(m).frac().tolist()
    cuts = torch.tensor(sorted({0.0, 1.0, *starts}), dtype=torch.float64)
    middle = (cuts[1:] + cuts[:-1]) / 2
    return _systematic(ends.repeat(len(middle), 1), middle.unsqueeze(-1), m).T, cuts.diff()


def _choose(ends: Tensor, noise: Tensor, top: int = 1) -> Tensor:
    """Map uniform numbers below `top` to indices with probabilities proportional to weights."""
    at = (noise * (ends[..., -1:] * (BELOW_ONE / top))).contiguous()
    return torch.searchsorted(ends, at, right=True).clamp_(max=ends.shape[-1] - 1)
