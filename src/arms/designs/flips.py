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

FLOOR = 0.3  # added to each variable's evidence, relative to the mean evidence
MOST_EVIDENCE = 400.0  # the evidence of a bit with logit 20; evidence is clamped to this value
LEAST = 1e-12  # keeps q positive if no variable has any evidence
BELOW_ONE = 1 - 2.0**-50  # keeps uniform numbers below the end of the last interval


@dataclass(frozen=True)
class WithFlips(Design):
    r"""n samples, then m flips: copies of samples in which one variable has another value.

    Flip j copies sample j % n, and changes a single variable of the copy. This is variable k with
    probability q_k, which does not depend on the samples. If the variable has the value b in the
    sample, the new value is a with probability p_a / (1 - p_b). `memory` contains the weight of
    every flip, `[m, *batch]`:

    $$ \frac{w_{ab}}{q_k}, \qquad w_{ab} = \frac{(1 - p_a)(1 - p_b)}{2 - p_a - p_b} $$

    Given variable k, the old and the new value are a and b in any order with probability
    p_a p_b / w_ab. Therefore, for any symmetric function h, the expectation of the weight times
    h(a, b) is the sum of p_a p_b h(a, b) over all variables and all pairs {a, b}. For bits,
    w is p (1 - p).

    The m variables that are flipped in a row are a systematic sample: variable k occurs m q_k times
    on average. q_k is proportional to the product of two factors: the probability that two samples
    differ in variable k, and e_k / mean e + 0.3. For bits, e_k is the mean of the squared logit
    over the rows of the batch; for categories, e_k is 1. In a batch of one row, q_k is proportional
    to the first factor only.

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
        """Return numbers proportional to the probabilities q_k of the class docstring.

        The result is `[*batch, variables]`. The factor of proportionality may differ between rows.
        """
        uncertain = latent.uncertainty()
        if not latent.batch_shape or latent.batch_shape[-1] == 1:
            return uncertain
        # An infinite logit or a row of NaN must not make the q of other variables infinite or NaN.
        evidence = latent.evidence().clamp_(max=MOST_EVIDENCE).nan_to_num_(0.0)
        evidence, weight = evidence.sum(-2, keepdim=True), uncertain.sum(-1, keepdim=True)
        floor = (uncertain @ evidence.mT).mul_(FLOOR).clamp_(min=LEAST)
        return torch.addcmul(floor, evidence, weight).mul_(uncertain)

    def copied(self, of_samples: Tensor) -> Tensor:
        """Return a tensor `[m, ...]`. Its entry j, for flip j, is entry j % n of `of_samples`."""
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
        """Do the same as `outcomes`, with q_k proportional to `distribution` `[variables]`."""
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
        of_value = of_value.nan_to_num(1 / len(values))  # any value, if the variable cannot change
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
    """The variable that each flip changes, and this variable's values. All are `[m, *batch]`."""

    variable: Tensor
    chance: Tensor  # the probability q of choosing this variable
    old: Tensor  # the value in the sample
    value: Tensor  # the value in the flip


def _pair_weight(latent: Neighbors, variable: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return the weights w_ab that the docstring of `WithFlips` defines, `[m, *batch]`.

    The values a and b of the variable are `one` and `other`.
    """
    if latent.count_values() == 2:
        uncertain = latent.uncertainty().expand(len(variable), *variable.shape[1:], -1)
        return uncertain.gather(-1, variable.unsqueeze(-1)).squeeze(-1) / 2
    rest = rest_of(latent.probs_at(variable))
    first, second = (rest.gather(-1, at.unsqueeze(-1)).squeeze(-1) for at in (one, other))
    return first * second / (first + second)


def _ends(weights: Tensor) -> Tensor:
    """Return the ends of intervals whose lengths are `weights`. The first interval starts at 0.

    Each interval starts at the end of the previous interval, so rounding leaves no gaps.
    """
    return weights.cumsum(-1, dtype=torch.float64).contiguous()


def _systematic(ends: Tensor, noise: Tensor, m: int) -> Tensor:
    """Choose m variables `[*batch, m]` by systematic sampling.

    `noise` `[*batch, 1]` are uniform numbers. `ends` `[*batch, variables]` are the ends of adjacent
    intervals. The probability of a variable is proportional to the length of its interval.
    """
    steps = torch.arange(m, dtype=noise.dtype, device=noise.device)
    return _choose(ends, noise + steps, m)


def _all_systematic(distribution: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return all outcomes of `_systematic` for one row, and their probabilities.

    The variables are `[m, outcomes]`, and the probabilities are `[outcomes]`.
    """
    ends = _ends(distribution)
    starts = (ends / ends[-1]).nan_to_num(0.0).mul(m).frac().tolist()
    cuts = torch.tensor(sorted({0.0, 1.0, *starts}), dtype=torch.float64)
    middle = (cuts[1:] + cuts[:-1]) / 2
    return _systematic(ends.repeat(len(middle), 1), middle.unsqueeze(-1), m).T, cuts.diff()


def _choose(ends: Tensor, noise: Tensor, top: int = 1) -> Tensor:
    """Return, for each number in `noise`, the index of the interval that contains the number.

    The numbers are uniform on [0, top). `ends` are the ends of the intervals, up to a factor: they
    are scaled so that the last end is `top`.
    """
    at = (noise * (ends[..., -1:] * (BELOW_ONE / top))).contiguous()
    return torch.searchsorted(ends, at, right=True).clamp_(max=ends.shape[-1] - 1)
