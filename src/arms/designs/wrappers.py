"""Designs made of others: with the mean, after independent samples, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from arms.designs.base import Design, Draw, Needs, RowDesign, independent_rows, product
from arms.latents import HasMean, Latent
from arms.lazy import lazy_property


@dataclass(frozen=True, init=False)
class WithMean(Design):
    """The points of another design, then the mean of the latent, where f is differentiated.

    The inner draw is kept in `memory`.

    Args:
        inner: A design that needs no derivatives.
    """

    inner: Design

    def __init__(self, inner: Design) -> None:
        object.__setattr__(self, "num_samples", inner.num_samples)
        object.__setattr__(self, "inner", inner)

    @property
    def requires(self) -> tuple[type, ...]:  # type: ignore[override]
        return (*self.inner.requires, HasMean)

    @property
    def weighted(self) -> bool:
        return self.inner.weighted

    def takes(self, latent: Latent) -> bool:
        return super().takes(latent) and self.inner.takes(latent)

    @lazy_property
    def needs(self) -> Needs:
        evaluations = self.inner.needs.evaluations
        return Needs(None if evaluations is None else evaluations + 1, 1)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        return _with_mean(self.inner.draw(latent, generator))

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        found = self.inner.outcomes(latent)
        return None if found is None else (_with_mean(found[0]), found[1])


def _with_mean(inner: Draw) -> Draw:
    latent = inner.latent
    assert isinstance(latent, HasMean)
    mean = latent.mean().to(inner.points.dtype).unsqueeze(0)
    return replace(inner, points=torch.cat([inner.points, mean]), extra=1, memory=inner)


@dataclass(frozen=True, init=False)
class AfterSamples(Design):
    """Independent samples, followed by the points of another design.

    The inner draw is kept in `memory`.

    Args:
        first: The number of independent samples.
        inner: The design of the points after them.
    """

    first: int
    inner: Design

    def __init__(self, first: int, inner: Design) -> None:
        object.__setattr__(self, "num_samples", first + inner.num_samples)
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "inner", inner)

    @property
    def requires(self) -> tuple[type, ...]:  # type: ignore[override]
        return self.inner.requires

    @property
    def weighted(self) -> bool:
        return self.inner.weighted

    def takes(self, latent: Latent) -> bool:
        return self.inner.takes(latent)

    @lazy_property
    def needs(self) -> Needs:
        inner = self.inner.needs
        total = None if inner.evaluations is None else inner.evaluations + self.first
        return replace(inner, evaluations=total)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        own = latent.sample(self.first, generator)
        return _after(own, self.inner.draw(latent, generator))

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        rows = self.inner.row_outcomes(latent) if isinstance(self.inner, RowDesign) else None
        if rows is None:
            return None
        assert isinstance(self.inner, RowDesign)
        both = product(independent_rows(latent, self.first), rows)
        many = latent.expand(len(both.probabilities), 1)
        own, rest = both.rows.unsqueeze(2).tensor_split([self.first])
        return _after(own, self.inner.assemble(many, rest)), both.probabilities


class OneMore(AfterSamples):
    """One independent sample, followed by the points of another design, which are drawn first.

    Args:
        inner: The other design.
    """

    def __init__(self, inner: Design) -> None:
        super().__init__(1, inner)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        inner = self.inner.draw(latent, generator)
        return _after(latent.sample(1, generator), inner)


def _after(samples: Tensor, inner: Draw) -> Draw:
    points = torch.cat([samples, inner.points])
    return Draw(inner.latent, points, inner.extra, memory=inner)


@dataclass(frozen=True, init=False)
class SideBySide(Design):
    """Several designs on the first batch axis, each for its own part of it.

    The draws of all parts are kept in `memory`.

    Args:
        inners: Designs with equal needs.
        widths: How many entries of the first batch axis each of them serves.
    """

    inners: tuple[Design, ...]
    widths: tuple[int, ...]

    def __init__(self, inners: Sequence[Design], widths: Sequence[int]) -> None:
        object.__setattr__(self, "num_samples", inners[0].num_samples)
        object.__setattr__(self, "inners", tuple(inners))
        object.__setattr__(self, "widths", tuple(widths))

    @property
    def requires(self) -> tuple[type, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(one for inner in self.inners for one in inner.requires))

    @property
    def weighted(self) -> bool:
        return any(inner.weighted for inner in self.inners)

    def takes(self, latent: Latent) -> bool:
        return all(inner.takes(latent) for inner in self.inners)

    @lazy_property
    def needs(self) -> Needs:
        return self.inners[0].needs

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        parts = zip(self.inners, latent.split_rows(self.widths), strict=True)
        return self.join(latent, [inner.draw(part, generator) for inner, part in parts])

    def join(self, latent: Latent, draws: Sequence[Draw]) -> Draw:
        """Return the draws of all parts as one."""
        points = torch.cat([draw.points for draw in draws], 1)
        weights = None
        if any(draw.weights is not None for draw in draws):
            weights = torch.cat([_weights(draw) for draw in draws], 1)
        return Draw(latent, points, draws[0].extra, tuple(draws), weights)


def _weights(draw: Draw) -> Tensor:
    if draw.weights is not None:
        return draw.weights
    samples = draw.samples
    shape = samples.shape[: samples.ndim - draw.latent.event_dims]
    return torch.full(shape, 1 / len(samples), dtype=torch.float64, device=samples.device)
