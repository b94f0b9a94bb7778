"""Estimators that contain other estimators."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arms.designs import AfterSamples, Draw, SideBySide
from arms.estimators.base import Estimator, Wrapper, set_design
from arms.targets import Expectation


@dataclass(frozen=True)
class ExtraSample(Wrapper):
    """Wrap an estimator, and draw one additional, independent sample.

    `Estimate.value` is then f at the additional sample, on which the gradient does not depend.

    >>> from arms import LOORF
    >>> ExtraSample(LOORF(4)).design.needs.evaluations
    5
    """

    inner: Estimator
    """The estimator of the gradient."""

    def __post_init__(self) -> None:
        if not self.inner.target.is_expectation:
            wanted = "an inner estimator of the expectation"
            raise ValueError(f"ExtraSample needs {wanted}, got {self.inner}")
        design = AfterSamples(1, self.inner.design, drawn_last=True)
        self.wrap(design, target=Expectation(samples=1))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return self.inner.combine(draw.memory, values[1:], derivatives)


@dataclass(frozen=True)
class Stacked(Estimator):
    """Several estimators, applied to different parts of the batch.

    The first batch axis is divided, and each estimator handles one part.

    Args:
        inners: The estimators. They must have the same target, and the same numbers of points,
            samples and derivatives.
        widths: The length of each estimator's part of the first batch axis.

    >>> from arms import ARMS, LOORF
    >>> Stacked([LOORF(4), ARMS(4)], [2, 3])(lambda b: b.sum(-1), torch.zeros(5, 7, 3)).grad.shape
    torch.Size([5, 7, 3])
    """

    inners: Sequence[Estimator]
    widths: Sequence[int]

    def __post_init__(self) -> None:
        inners, widths = tuple(self.inners), tuple(self.widths)
        if not inners or len(inners) != len(widths):
            wanted = "Stacked needs at least one estimator and one width for each"
            got = f"{len(inners)} estimators and {len(widths)} widths"
            raise ValueError(f"{wanted}, got {got}")
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
    """Return a tuple that describes an estimator's evaluations and target.

    Two estimators can be parts of one `Stacked` if their tuples are equal. The result is None if
    the estimator can never be stacked.
    """
    needs, target = estimator.design.needs, estimator.target
    if needs.evaluations is None or any(True for _ in estimator.parameters()):
        return None
    return (needs, target.num_attached(estimator.design.num_samples), target)


def reason_not_stacked(first: Estimator, other: Estimator) -> str:
    """Return the reason why two estimators cannot be parts of one `Stacked`.

    The result is "" if they can be parts of one `Stacked`.
    """
    for one in (first, other):
        if evaluation_signature(one) is None:
            enumerates = one.design.needs.evaluations is None
            kind = "enumerates all states" if enumerates else "has learned parameters"
            return f"{type(one).__name__} {kind}, so it cannot be stacked: use it separately"
    if evaluation_signature(first) == evaluation_signature(other):
        return ""
    asked = [f"{type(one).__name__} ({describe_signature(one)})" for one in (first, other)]
    got = " and ".join(asked)
    return f"stacked estimators must make the same evaluations of the objective, got {got}"


def describe_signature(estimator: Estimator) -> str:
    needs = estimator.design.needs
    derivatives = f", {needs.derivatives} derivatives" if needs.derivatives else ""
    return f"{needs.evaluations} evaluations{derivatives}, {estimator.target}"
