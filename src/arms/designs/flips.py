"""Samples, and some of them again with a single variable changed."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from arms.arguments import as_count, at_least_float32, lazy_property
from arms.designs.base import Coupling, Design, Draw, Needs
from arms.designs.couplings.systematic import Systematic
from arms.designs.midpoints import repeat_per_pair
from arms.designs.samples import Coupled, Independent
from arms.latents import Latent, Neighbors
from arms.random import uniform

FLOOR = 0.3  # of a variable's evidence, relative to the row's mean evidence
LEAST_RATIO = 2e-9  # of two probabilities: an infinite logit must leave the law of others finite
BELOW_ONE = 1 - 2.0**-50  # keeps uniform numbers from reaching the end, where nothing is possible


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

    The m variables of a row are a systematic sample: each k is expected m q_k times. q is
    proportional to P(two draws of the variable differ) times (e_k / mean e + 0.3), where e_k is the
    mean over the rows of the batch of the squared log-odds of the variable's two likeliest values.
    In a batch of one row, it is proportional to the first factor.

    Args:
        num_samples: n.
        flips: m.
        coupling: The coupling of the samples; None if they are independent, as is a single one.
    """

    flips: int = 1
    coupling: Coupling | None = field(default_factory=Systematic)

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

    def law(self, latent: Neighbors) -> "FlipLaw":
        """Return what is flipped with which probability, given the logits."""
        return FlipLaw.of(latent)

    def copied(self, of_samples: Tensor) -> Tensor:
        """Return, for every flip, the row of the sample that it copies."""
        return repeat_per_pair(of_samples[: self.flips], self.flips)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        assert isinstance(latent, Neighbors)
        samples, law = self.base.draw_rows(latent, generator), self.law(latent)
        if not law.chances.shape[-1]:  # no variables
            weights = at_least_float32(latent.logits).new_zeros(self.flips, *latent.batch_shape)
            points = torch.cat([samples, self.copied(samples)])
            return Draw(latent, points, extra=self.flips, memory=weights)
        at = uniform(1, law.chances[..., 0], generator).movedim(0, -1)
        variable = law.variables(at, self.flips)
        old = latent.values_at(self.copied(samples), variable)
        if law.probs.shape[-1] == 2:
            return self._flip(latent, law, samples, variable, 1 - old)
        value = _choose(law.of_others(variable, old), uniform(self.flips, at, generator))
        return self._flip(latent, law, samples, variable, value.squeeze(-1))

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        assert isinstance(latent, Neighbors)
        return self.outcomes_of_row(latent, self.law(latent))

    def outcomes_of_row(self, latent: Neighbors, law: "FlipLaw") -> tuple[Draw, Tensor] | None:
        """Return all outcomes for a latent without batch axes, given what other rows decide."""
        if (found := self.base.row_outcomes(latent)) is None:
            return None
        m, values = self.flips, torch.arange(law.probs.shape[-1])
        variables, of_variables = law.all_variables(m)
        counts = [torch.arange(len(one)) for one in (found.probabilities, of_variables)]
        sample, which, *value = torch.cartesian_prod(*counts, *[values] * m).unbind(-1)
        many, law = latent.expand(len(sample), 1), law.expand(len(sample), 1)
        samples, variable = found.rows[:, sample].unsqueeze(2), variables[:, which].unsqueeze(-1)
        to = torch.stack(value).unsqueeze(-1)
        of_value = law.of_others(variable, many.values_at(self.copied(samples), variable))
        of_value = of_value / of_value.sum(-1, keepdim=True)
        of_value = of_value.nan_to_num(1 / len(values))  # nothing can change: whatever it is
        of_value = of_value.gather(-1, to.unsqueeze(-1)).flatten(1).prod(0)
        draw = self._flip(many, law, samples, variable, to)
        return draw, found.probabilities[sample] * of_variables[which] * of_value

    def correct(self, latent: Latent, grad: Tensor) -> Tensor:
        return self.base.correct(latent, grad)

    def _flip(
        self, latent: Neighbors, law: "FlipLaw", samples: Tensor, variable: Tensor, value: Tensor
    ) -> Draw:
        first = self.copied(samples)
        old = latent.values_at(first, variable)
        rest, chance = law.at(law.rest, variable), law.at(law.chances.unsqueeze(-1), variable)
        of_old, of_new = (rest.gather(-1, one.unsqueeze(-1)) for one in (old, value))
        weight = (of_old * of_new / ((of_old + of_new) * chance)).squeeze(-1)
        possible = (chance.squeeze(-1) > 0) & (value != old)
        changed = latent.change(first, variable, torch.where(possible, value, old))
        weight = torch.where(possible, weight, 0.0).to(at_least_float32(latent.logits).dtype)
        return Draw(latent, torch.cat([samples, changed]), extra=self.flips, memory=weight)


class FlipLaw(NamedTuple):
    """The distribution of the flipped latents, in float64."""

    probs: Tensor  # [*batch, variables, K]
    rest: Tensor  # 1 - probs, without loss of digits
    chances: Tensor  # q [*batch, variables]; zero if no variable can change

    @classmethod
    def of(cls, latent: Neighbors) -> "FlipLaw":
        probs = latent.variable_probs()
        likeliest = probs.argmax(-1, keepdim=True)
        others = probs.scatter(-1, likeliest, 0.0).sum(-1, keepdim=True)
        rest = (1 - probs).scatter(-1, likeliest, others)
        chances = (probs * rest).sum(-1)
        if latent.batch_shape and latent.batch_shape[-1] > 1:
            first, second = probs.topk(2, -1).values.unbind(-1)
            evidence = (second / first).clamp(min=LEAST_RATIO).log().square()
            evidence = evidence.nan_to_num(0.0)  # a row of NaN must not spoil the others
            evidence = evidence.mean(-2, keepdim=True)
            total = chances.sum(-1, keepdim=True)
            mean = (chances * evidence).sum(-1, keepdim=True) / total
            chances = chances * (evidence / mean.clamp(min=1e-12) + FLOOR)
        total = chances.sum(-1, keepdim=True)
        return cls(probs, rest, torch.where(total > 0, chances / total, 0.0))

    def expand(self, *batch: int) -> "FlipLaw":
        """Return the law of a single row for each row of a batch."""
        return FlipLaw(*(one.expand(*batch, *one.shape) for one in self))

    def at(self, table: Tensor, variable: Tensor) -> Tensor:
        """Return the rows `[m, *batch, width]` of a table `[*batch, variables, width]`."""
        width = table.shape[-1]
        index = variable[..., None, None].expand(*variable.shape, 1, width)
        return table.expand(len(variable), *table.shape).gather(-2, index).squeeze(-2)

    def variables(self, noise: Tensor, m: int) -> Tensor:
        """Return a systematic sample of m variables `[m, *batch]` for each uniform number."""
        steps = torch.arange(m, dtype=noise.dtype, device=noise.device)
        return _choose(self.chances, (noise + steps) / m).movedim(-1, 0)

    def all_variables(self, m: int) -> tuple[Tensor, Tensor]:
        """Return all systematic samples `[m, samples]` of a single row, and their probabilities."""
        ends = self.chances.cumsum(-1).mul(m).frac().tolist()
        cuts = torch.tensor(sorted({0.0, 1.0, *ends}), dtype=torch.float64)
        middle = (cuts[1:] + cuts[:-1]) / 2
        steps = torch.arange(m, dtype=torch.float64)
        return _choose(self.chances, (middle.unsqueeze(-1) + steps) / m).T, cuts.diff()

    def of_others(self, variable: Tensor, old: Tensor) -> Tensor:
        """Return the probabilities of the other values of a variable, up to a factor."""
        return self.at(self.probs, variable).scatter(-1, old.unsqueeze(-1), 0.0)


def _choose(weights: Tensor, noise: Tensor) -> Tensor:
    """Return for each uniform number an index with probability proportional to the weights.

    The cumulative sum is used once, so that its rounding cannot leave a gap between two intervals.
    """
    total = weights.cumsum(-1).contiguous()
    at = (noise * BELOW_ONE * total[..., -1:]).contiguous()
    return torch.searchsorted(total, at, right=True).clamp(max=weights.shape[-1] - 1)
