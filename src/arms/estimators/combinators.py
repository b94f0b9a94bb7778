"""Estimators made of others: one more sample for the value, and several side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arms.designs import AfterSamples, Draw, SideBySide
from arms.estimators.base import Estimator, Wrapper, set_design
from arms.targets import Expectation


@dataclass(frozen=True)
class ExtraSample(Wrapper):
    """An estimator whose value is f at one more, independent sample, as in the ARMS paper.

    >>> from arms import LOORF
    >>> ExtraSample(LOORF(4)).design.needs.evaluations
    5
    """

    inner: Estimator
    """An estimator of the expectation, whose gradient is used for the logits."""

    def __post_init__(self) -> None:
        if not self.inner.target.is_expectation:
            raise ValueError(f"ExtraSample needs an estimator of the expectation, got {self.inner}")
        design = AfterSamples(1, self.inner.design, drawn_last=True)
        self.wrap(design, target=Expectation(samples=1))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return self.inner.combine(draw.memory, values[1:], derivatives)


@dataclass(frozen=True)
class Stacked(Estimator):
    """Several estimators on the first batch axis, each for its own part of it.

    Args:
        inners: The estimators, with the same target, number of points, samples and derivatives.
        widths: How many entries of the first batch axis each of them serves.

    >>> from arms import ARMS, LOORF
    >>> Stacked([LOORF(4), ARMS(4)], [2, 3])(lambda b: b.sum(-1), torch.zeros(5, 7, 3)).grad.shape
    torch.Size([5, 7, 3])
    """

    inners: Sequence[Estimator]
    widths: Sequence[int]

    def __post_init__(self) -> None:
        inners, widths = tuple(self.inners), tuple(self.widths)
        if not inners or len(inners) != len(widths):
            raise ValueError(f"{len(inners)} estimators need a width each, got {len(widths)}")
        for inner in inners:
            if reason := reason_not_stacked(inners[0], inner):
                raise ValueError(reason)
        unbiased = all(inner.unbiased for inner in inners)
        requires = tuple(dict.fromkeys(one for inner in inners for one in inner.requires))
        facts = {"target": inners[0].target, "unbiased": unbiased, "requires": requires}
        design = SideBySide([inner.design for inner in inners], widths)
        set_design(self, design, **facts, inners=inners, widths=widths)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        of_values = values.split(list(self.widths), 1)
        of_derivatives = [None] * len(self.inners)
        if derivatives is not None:
            of_derivatives = list(derivatives.split(list(self.widths), 1))
        parts = zip(self.inners, draw.memory, of_values, of_derivatives, strict=True)
        return torch.cat([inner.combine(own, f, df) for inner, own, f, df in parts])


def evaluation_signature(estimator: Estimator) -> tuple[object, ...] | None:
    """Return what an estimator needs from the objective; None if it cannot be stacked."""
    needs, target = estimator.design.needs, estimator.target
    if needs.evaluations is None or any(True for _ in estimator.parameters()):
        return None
    return (needs, target.num_attached(estimator.design.num_samples), target)


def reason_not_stacked(first: Estimator, other: Estimator) -> str:
    """Return why two estimators cannot be stacked, or nothing if they can."""
    for one in (first, other):
        if evaluation_signature(one) is None:
            enumerates = one.design.needs.evaluations is None
            kind = "enumerates all states" if enumerates else "has parameters"
            return f"{type(one).__name__} {kind} and cannot be stacked: use it separately"
    if evaluation_signature(first) == evaluation_signature(other):
        return ""
    asked = [f"{type(one).__name__} ({describe_signature(one)})" for one in (first, other)]
    return f"stacked estimators must need the same from the objective, got {' and '.join(asked)}"


def describe_signature(estimator: Estimator) -> str:
    needs = estimator.design.needs
    derivatives = f", {needs.derivatives} derivatives" if needs.derivatives else ""
    return f"{needs.evaluations} evaluations{derivatives}, {estimator.target}"
