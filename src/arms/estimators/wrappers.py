"""Estimators made of others: one more sample that the value is taken from, and several side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Generator, Tensor, nn

from arms.estimators.base import Draw, Estimator, Slopes
from arms.latents import Latent
from arms.targets import Target


@dataclass(frozen=True, init=False)
class ExtraSample(Estimator):
    """An estimator whose value is f at one more, independent sample: what the decoder learns from in the paper.

    The gradient for the logits is the inner estimator's, untouched. It serves targets that one sample can stand for.

    Args:
        inner: The estimator of the gradient.

    >>> from arms import LOORF
    >>> ExtraSample(LOORF(4)).evaluations
    5
    """

    inner: Estimator

    def __init__(self, inner: Estimator) -> None:
        if inner.target.size != 1:
            raise ValueError(f"one extra sample cannot stand for the {inner.target} of {inner}: use {inner} itself")
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "num_samples", inner.num_samples + 1)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.inner.unbiased

    @property
    def latents(self) -> tuple[type[Latent], ...]:  # type: ignore[override]
        return self.inner.latents

    @property
    def target(self) -> Target:
        return self.inner.target

    @property
    def slopes(self) -> Slopes:
        return self.inner.slopes

    @property
    def evaluations(self) -> int | None:
        return None if self.inner.evaluations is None else self.inner.evaluations + 1

    @property
    def derivatives(self) -> int:
        return self.inner.derivatives

    @property
    def equal_weights(self) -> bool:
        return self.inner.equal_weights

    def attached(self) -> int:
        return 1

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.inner.parameters()

    def prepare(self, logits_shape: torch.Size, context_shape: torch.Size, generator: Generator) -> Self:
        return type(self)(self.inner.prepare(logits_shape, context_shape, generator))

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        inner = self.inner.draw(latent, generator)
        extra = latent.sample(1, generator)
        return Draw(self, latent, torch.cat([extra, inner.points]), inner.extra, (inner,))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        (inner,) = draw.memory
        rest = replace(inner, points=draw.points[1:])
        return self.inner.combine(rest, values[1:], slopes)

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        return values[0]

    def sample_values(self, draw: Draw, values: Tensor) -> Tensor:
        (inner,) = draw.memory
        return self.inner.sample_values(inner, values[1:])


@dataclass(frozen=True, init=False)
class Stacked(Estimator):
    """Several estimators side by side on the first batch axis, each for its own part: `widths` entries of it.

    They must ask the same of the objective: as many points, as many of them samples, the same slopes, one target.

    Args:
        inners: The estimators.
        widths: How many entries of the first batch axis each of them serves.

    >>> from arms import ARMS, LOORF
    >>> Stacked([LOORF(4), ARMS(4)], [2, 3])(lambda b: b.sum(-1), torch.zeros(5, 7, 3)).grad.shape
    torch.Size([5, 7, 3])
    """

    inners: tuple[Estimator, ...]
    widths: tuple[int, ...]

    def __init__(self, inners: Sequence[Estimator], widths: Sequence[int]) -> None:
        if not inners or len(inners) != len(widths):
            raise ValueError(f"each estimator needs a width, got {len(widths)} for {len(inners)} estimators")
        for inner in inners:
            if why := why_not_stacked(inners[0], inner):
                raise ValueError(why)
        object.__setattr__(self, "inners", tuple(inners))
        object.__setattr__(self, "widths", tuple(widths))
        object.__setattr__(self, "num_samples", inners[0].num_samples)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return all(inner.unbiased for inner in self.inners)

    @property
    def latents(self) -> tuple[type[Latent], ...]:  # type: ignore[override]
        kinds = dict.fromkeys(kind for inner in self.inners for kind in inner.latents)
        return tuple(kind for kind in kinds if all(issubclass(kind, inner.latents) for inner in self.inners))

    @property
    def target(self) -> Target:
        return self.inners[0].target

    @property
    def slopes(self) -> Slopes:
        return self.inners[0].slopes

    @property
    def evaluations(self) -> int | None:
        return self.inners[0].evaluations

    @property
    def derivatives(self) -> int:
        return self.inners[0].derivatives

    @property
    def equal_weights(self) -> bool:
        return all(inner.equal_weights for inner in self.inners)

    def attached(self) -> int:
        return self.inners[0].attached()

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        draws = [inner.draw(part, generator) for inner, part in zip(self.inners, self._parts(latent), strict=True)]
        return Draw(self, latent, torch.cat([draw.points for draw in draws], 1), draws[0].extra, tuple(draws))

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        points, of_values = draw.points.split(self.widths, 1), values.split(self.widths, 1)
        of_slopes = [None] * len(self.inners) if slopes is None else slopes.split(self.widths, 1)
        parts = zip(self.inners, draw.memory, points, of_values, of_slopes, strict=True)
        return torch.cat([one.combine(replace(own, points=b), f, slope) for one, own, b, f, slope in parts])

    def value(self, draw: Draw, values: Tensor) -> Tensor:
        if self.equal_weights:  # which of the values make up the target is the same for all: what they ask for is
            return self.inners[0].value(draw.memory[0], values)
        parts = zip(self.inners, draw.memory, values.split(self.widths, 1), strict=True)
        return torch.cat([inner.value(own, part) for inner, own, part in parts])

    def sample_values(self, draw: Draw, values: Tensor) -> Tensor:
        return self.inners[0].sample_values(draw.memory[0], values)

    def _parts(self, latent: Latent) -> list[Latent]:
        logits = latent.logits.split(self.widths)
        contexts = [None] * len(logits) if latent.context is None else latent.context.split(self.widths)
        return [replace(latent, logits=part, context=seen) for part, seen in zip(logits, contexts, strict=True)]


def what_is_asked(estimator: Estimator) -> tuple[object, ...] | None:
    """Return what an estimator asks of the objective; None if it cannot be stacked with any other.

    Estimators that ask the same can share one evaluation. Parameters would have to be told apart by part, and
    enumeration has as many points as there are states: those stand alone.
    """
    if estimator.evaluations is None or estimator.has_parameters:
        return None
    counts = (estimator.evaluations, estimator.derivatives, estimator.attached())
    return (*counts, estimator.slopes, estimator.target)


def why_not_stacked(first: Estimator, other: Estimator) -> str:
    """Return why two estimators cannot be stacked, nothing if they can."""
    for one in (first, other):
        if what_is_asked(one) is None:
            kind = "enumerates all states" if one.evaluations is None else "has parameters of its own"
            return f"{type(one).__name__} {kind} and cannot be stacked with other estimators: use it separately"
    if what_is_asked(first) != what_is_asked(other):
        return (
            f"stacked estimators must ask the same of the objective, got {type(first).__name__} ({demand(first)}) and "
            f"{type(other).__name__} ({demand(other)}): "
            "use them separately"
        )
    return ""


def demand(estimator: Estimator) -> str:
    """Return what an estimator asks of the objective, in words."""
    slopes = f", {estimator.derivatives} derivatives" if estimator.derivatives else ""
    return f"{estimator.evaluations} evaluations{slopes}, {estimator.target}"
