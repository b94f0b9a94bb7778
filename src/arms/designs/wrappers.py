"""Designs that extend or combine other designs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from arms.designs.base import Design, Draw, Needs, independent_rows, product
from arms.latents import HasMean, Latent


class Composite(Design):
    """A design that is made of other designs."""

    made_of: Sequence[Design]

    def set_up(self, made_of: Sequence[Design], needs: Needs, *more: type, **fields: Any) -> None:
        requires = [*(one for inner in made_of for one in inner.requires), *more]
        fields |= {"needs": needs, "requires": tuple(dict.fromkeys(requires)), "made_of": made_of}
        for fact in ("weighted", "uses_extra_values"):
            fields[fact] = any(getattr(inner, fact) for inner in made_of)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def takes(self, latent: Latent) -> bool:
        return super().takes(latent) and all(inner.takes(latent) for inner in self.made_of)


def _with_more(needs: Needs, points: int) -> Needs:
    total = None if needs.evaluations is None else needs.evaluations + points
    return replace(needs, evaluations=total)


@dataclass(frozen=True, init=False)
class WithMean(Composite):
    """The points of an inner design, and then the latent's mean. f is differentiated at the mean.

    `memory` contains the draw of the inner design.
    """

    inner: Design
    """A design that needs no derivatives."""

    def __init__(self, inner: Design) -> None:
        needs = replace(_with_more(inner.needs, 1), derivatives=1)
        self.set_up([inner], needs, HasMean, num_samples=inner.num_samples, inner=inner)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        return self._append_mean(self.inner.draw(latent, generator))

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        found = self.inner.outcomes(latent)
        return None if found is None else (self._append_mean(found[0]), found[1])

    def _append_mean(self, inner: Draw) -> Draw:
        assert isinstance(inner.latent, HasMean)
        mean = inner.latent.mean().to(inner.points.dtype).unsqueeze(0)
        return replace(inner, points=torch.cat([inner.points, mean]), extra=1, memory=inner)


@dataclass(frozen=True, init=False)
class AfterSamples(Composite):
    """Independent samples, followed by the points of an inner design.

    `memory` contains the draw of the inner design.
    """

    first: int
    """The number of independent samples."""
    inner: Design
    """The design of the points after the independent samples."""
    drawn_last: bool = field(default=False, repr=False)
    """Whether the independent samples are drawn after the points of the inner design."""

    def __init__(self, first: int, inner: Design, *, drawn_last: bool = False) -> None:
        count, needs = first + inner.num_samples, _with_more(inner.needs, first)
        fields = {"first": first, "inner": inner, "drawn_last": drawn_last}
        self.set_up([inner], needs, num_samples=count, **fields)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        if self.drawn_last:
            inner = self.inner.draw(latent, generator)
            return self._prepend(latent.sample(self.first, generator), inner)
        own = latent.sample(self.first, generator)
        return self._prepend(own, self.inner.draw(latent, generator))

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        if (rows := self.inner.row_outcomes(latent)) is None:
            return None
        both = product(independent_rows(latent, self.first), rows)
        many = latent.expand(len(both.probabilities), 1)
        own, rest = both.rows.unsqueeze(2).tensor_split([self.first])
        return self._prepend(own, self.inner.assemble(many, rest)), both.probabilities

    def _prepend(self, samples: Tensor, inner: Draw) -> Draw:
        points = torch.cat([samples, inner.points])
        return Draw(inner.latent, points, inner.extra, memory=inner)


@dataclass(frozen=True, init=False)
class SideBySide(Composite):
    """Several designs. Each design draws the points for one slice of the first batch axis.

    `memory` contains the draws of these designs.
    """

    inners: tuple[Design, ...]
    """The designs, which must have equal needs."""
    widths: tuple[int, ...]
    """For each design, the number of entries of the first batch axis that it draws."""

    def __init__(self, inners: Sequence[Design], widths: Sequence[int]) -> None:
        inners, widths, count = tuple(inners), tuple(widths), inners[0].num_samples
        self.set_up(inners, inners[0].needs, num_samples=count, inners=inners, widths=widths)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        parts = zip(self.inners, latent.split_rows(self.widths), strict=True)
        draws = tuple(inner.draw(part, generator) for inner, part in parts)
        points, weights = torch.cat([draw.points for draw in draws], 1), None
        if any(draw.weights is not None for draw in draws):
            weights = torch.cat([_weights(draw) for draw in draws], 1)
        return Draw(latent, points, draws[0].extra, draws, weights)


def _weights(draw: Draw) -> Tensor:
    if draw.weights is not None:
        return draw.weights
    per_sample = draw.latent.sum_event(draw.samples.double())
    return torch.full_like(per_sample, 1 / len(per_sample))
