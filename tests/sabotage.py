"""Estimators that are wrong on purpose, which the tests must detect."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from instances import Wild
from torch import Generator, Tensor

from arms import (
    ARM,
    ARMS,
    LOORF,
    RODEO,
    VIMCO,
    DisARMOnBound,
    Estimator,
    Expectation,
    Flips,
    FlipsOnBound,
    Latent,
    LeaveOneOut,
    Midpoint,
    MidpointOnBound,
    OnBound,
    Reinforce,
    WithTaylor,
)
from arms.arguments import as_count
from arms.designs import (
    AfterSamples,
    Coupled,
    Design,
    Dirichlet,
    Draw,
    Gaussian,
    Independent,
    Needs,
    Systematic,
    WithFlips,
)
from arms.designs.couplings.systematic import SystematicBits
from arms.estimators.base import set_design
from arms.estimators.bound.on_bound import slot_sums
from arms.estimators.bound.slots import direct_term
from arms.estimators.derivative.double_cv import linear_control
from arms.estimators.derivative.flips import set_flips
from arms.estimators.derivative.midpoint import combine_pairs
from arms.estimators.regression import fit_two_controls
from arms.estimators.score.leave_one_out import leave_one_out
from arms.latents import Binary, Choices, ExchangeablePairs, HasMean, Neighbors
from arms.random import uniform
from arms.targets import ImportanceBound, log_mean_exp


class NoCorrection(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return leave_one_out(draw.latent, draw.points, values)


class OtherCouplingsCorrection(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return ARMS(self.design.num_samples, Dirichlet()).combine(draw, values)


class WrongCorrelation(LeaveOneOut):
    """Wrong by a millionth, which enumeration detects and draws do not."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1 + 1e-6)


class ProductOfAverages(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        mean = draw.latent.with_event_axes(values.mean(0))
        return mean * draw.latent.score(draw.points).mean(0)


class SelfBaseline(LeaveOneOut):
    """The mean over all samples as the baseline, including the sample itself, without a correction."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        n = self.design.num_samples
        return super().combine(draw, values) * (n - 1) / n


class FlippedNoise(ARM):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(replace(draw, memory=1 - draw.memory), values)


@dataclass(frozen=True)
class StraightThrough(Reinforce):
    """mean_i df/db(b_i) p (1 - p), labeled as unbiased: the derivative instead of a difference."""

    def __post_init__(self) -> None:
        set_design(self, Independent(self.num_samples, differentiated=True))

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert derivatives.shape == draw.points.shape
        assert isinstance(draw.latent, HasMean)
        return draw.latent.covariance_matvec(derivatives.mean(0))


@dataclass(frozen=True)
class MarkedStraightThrough(StraightThrough):
    """The same under its true label."""

    unbiased = False


@dataclass(frozen=True)
class MarkedLOORF(Reinforce):
    """An unbiased estimator that is labeled as biased."""

    unbiased = False


class MeanOverSlots(OnBound):
    """The released code's score part: a mean over slots."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) / self.bound_samples


class NoDirectTerm(OnBound):
    """The papers' form without the direct term."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return self.inner.combine(draw.memory, slot_sums(values, self.bound_samples, folded=False))


class NoCorrectionOfSlots(OnBound):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        plain = OnBound(NoCorrection(self.inner.design), self.bound_samples, self.folded)
        return plain.combine(draw, values)


class DirectTermTwice(DisARMOnBound):
    """The whole gradient plus a second direct term."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        slots = self.design.num_samples // 2
        direct = direct_term(draw.latent, draw.points[:slots], values[:slots].softmax(0))
        return super().combine(draw, values) + direct


class DirectTermNever(DisARMOnBound):
    """The paper's score part alone."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        slots = self.design.num_samples // 2
        direct = direct_term(draw.latent, draw.points[:slots], values[:slots].softmax(0))
        return DisARMOnBound(self.num_samples, folded=False).combine(draw, values) - direct


class OwnPartOfTheBound(MidpointOnBound):
    """Each latent's own part is not excluded from the control, as if its mean were zero for each latent."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        first, second, _ = draw.points.chunk(3)
        step = first - second
        own = (derivatives * step * step / 2).sum(0)
        return super().combine(draw, values, derivatives) - own


class SeesItself(VIMCO):
    """A baseline that depends on its own sample."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        latent = draw.latent
        centered = log_mean_exp(values) - values.mean(0)
        found = latent.with_event_axes(centered) * latent.score(draw.points).sum(0)
        return found + direct_term(latent, draw.points, values.softmax(0))


@dataclass(frozen=True)
class CoupledSamplesFirst(AfterSamples):
    """Coupled samples in the bound itself."""

    def __init__(self, first: int, inner: Design) -> None:
        super().__init__(first, inner)

    def draw(self, latent: Latent, generator: Generator | None) -> Draw:
        own = Coupled(self.first, Systematic()).draw_rows(latent, generator)
        inner = self.inner.draw(latent, generator)
        return Draw(latent, torch.cat([own, inner.points]), inner.extra, memory=inner)


@dataclass(frozen=True)
class CoupledBound(OnBound):
    def __post_init__(self) -> None:
        design = CoupledSamplesFirst(self.bound_samples, self.inner.design)
        self.wrap(design, target=ImportanceBound(self.bound_samples))


@dataclass(frozen=True)
class DifferentiatedCoupled(Coupled):
    @cached_property
    def needs(self) -> Needs:
        return Needs(self.num_samples, self.num_samples)


class CoupledDoubleCV(LeaveOneOut):
    """A control variate that needs independent samples, on coupled ones."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert isinstance(draw.latent, HasMean)
        control = linear_control(draw.latent, draw.points, derivatives)
        return super().combine(draw, values) - control


class CoupledRODEO(LeaveOneOut):
    """The same with the control variates of RODEO."""

    requires = (Binary,)

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        n = self.design.num_samples
        control = RODEO(n, control=Wild()).combine(draw, values, derivatives)
        control = control - LOORF(n).combine(draw, values)
        return super().combine(draw, values) + control.detach()


class OwnBitIncluded(Midpoint):
    """The whole C . s is subtracted, including the part of latent k itself."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        count, midpoints = self.num_samples // 2, draw.extra
        step = draw.points[:count] - draw.points[count : 2 * count]
        whole = draw.latent.sum_event(derivatives[-midpoints:] * step[:midpoints])
        fall = values[:count] - values[count : 2 * count] - whole
        return (draw.latent.with_event_axes(fall) * step).mean(0) / 2


class OwnDerivatives(Midpoint):
    """The mean derivative at a pair's own ends, which depends on their order."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert isinstance(draw.latent, ExchangeablePairs)
        first, second = derivatives.chunk(2)
        start, end = draw.points.chunk(2)
        return combine_pairs(draw.latent, start - end, values, (first + second) / 2)


class OwnMidpointControlsItself(Midpoint):
    """The noise of the own part is predicted by the derivative at the same midpoint."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert isinstance(draw.latent, HasMean)
        count, midpoints = self.num_samples // 2, draw.extra
        step = draw.points[:count] - draw.points[count : 2 * count]
        own = derivatives[-midpoints:]
        noise = (own * step.square() / 2 - draw.latent.covariance_matvec(own)).mean(0)
        plain = Midpoint(self.num_samples, pairs=1, own_bits=False)
        return plain.combine(draw, values, derivatives) - noise / 2


class FullTaylorMean(WithTaylor):
    """The linear control without the gradient of its own expectation."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        assert isinstance(draw.latent, HasMean)
        missing = draw.latent.covariance_matvec(derivatives[0])
        return super().combine(draw, values, derivatives) - missing / 2


class OwnCurvature(Flips):
    """The curvature is fitted on the samples that it predicts."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        b, slopes, p = draw.samples, derivatives[: self.num_samples], draw.latent.logits.sigmoid()
        centered = b - b.mean(0)
        curve = (centered * slopes).sum(0) / (centered.square().sum(0) + 0.5)
        own = (1 - p) * (b.mean(0) - p) * curve / 2
        return super().combine(draw, values, derivatives) - own


class NoTrapezoidAtTheFlip(Flips):
    """The derivative at the sample is used for both ends."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        near = derivatives[: self.num_samples]
        return super().combine(
            draw, values, torch.cat([near, near[: self.design.needs.derivatives - len(near)]])
        )


class FlipOfTheLargestRise(Flips):
    """The flip with the largest effect is used as if it had been drawn."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        n = self.num_samples
        rise = (values[n:] - values[: len(draw.memory)]).abs()
        chosen = rise == rise.amax(0)
        memory = draw.memory * chosen * len(draw.memory) / chosen.sum(0)
        return super().combine(replace(draw, memory=memory), values, derivatives)


class LawOfTheSample(WithFlips):
    """Latents at one are flipped more often, but the weight does not include this."""

    def outcomes(self, latent: Latent) -> tuple[Draw, Tensor] | None:
        found = super().outcomes(latent)
        assert found is not None
        draw, probabilities = found
        phi = draw.latent.logits
        distribution = phi.sigmoid() * (-phi).sigmoid() * (0.1 + draw.points[0])
        at = draw.points[-1] != draw.points[0]
        asked = ((distribution / distribution.sum(-1, keepdim=True)) * at).sum(-1)
        of_weight = (phi.sigmoid() * (-phi).sigmoid() * at).sum(-1) / draw.memory[0]
        return draw, probabilities * (asked / of_weight).nan_to_num(0.0).squeeze(-1)


class NoLawAtInfinity(WithFlips):
    """One infinite logit breaks the distribution of the others, so nothing is flipped."""

    def distribution(self, latent: Neighbors) -> Tensor:
        return torch.where(latent.logits.isinf().any(), 0.0, super().distribution(latent))


class ChainedCoefficients(Flips):
    """Coefficients are fitted on rows whose curvature depends on this row's draw."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        n, latent, design = self.num_samples, draw.latent, self.design
        unsafe = Flips(n, self.flips, safe=False, coupling=self.coupling)
        plain = unsafe.combine(draw, values, derivatives)
        by_flips = unsafe.combine(draw, values, 0 * derivatives)
        alone = leave_one_out(latent, draw.samples, values[:n])
        slopes, rest = plain - by_flips, plain - design.correct(latent, alone)
        one, other = fit_two_controls(latent, plain, slopes, rest)
        return plain - one * slopes - other * rest


@dataclass(frozen=True)
class CommonOrder(SystematicBits):
    """All latents share one random order, so the latents of a sample are dependent."""

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        found = super().sample_bits(logits, n, generator)
        order = uniform(n, logits[..., :1], generator).argsort(0)
        return found.sort(0).values.gather(0, order.expand_as(found))


class CoupledFlipsOnBound(FlipsOnBound):
    """Coupled samples in the bound itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        set_flips(self, Systematic(), samples_per_flip=1)


class FlipOfOneSampleOnly(FlipsOnBound):
    """The flips of one sample are used for all K samples."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        less = replace(draw, memory=draw.memory / self.num_samples)
        return super().combine(less, values, derivatives)


# --- What people write by mistake, or what hides from draws at moderate logits --------------------


class MedianBaseline(LeaveOneOut):
    """The median of all samples as the baseline, including the sample itself."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        centered = (values - values.quantile(0.5, 0)) / len(values)
        return (draw.latent.score(draw.points) * draw.latent.with_event_axes(centered)).sum(0)


class ThreePercent(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * 1.03


class OnePercentOfEight(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.01 if self.design.num_samples == 8 else 1.0)


class AntitheticLOORF(LeaveOneOut):
    """Antithetic bits without a correction for their correlation."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return leave_one_out(draw.latent, draw.points, values)


class NoisyCombine(LeaveOneOut):
    """Additional noise in a function that must be pure."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1 + torch.randn(()).to(values) / 10)


class GlobalSamples(Independent):
    def draw_rows(self, latent: Latent, generator: Generator | None) -> Tensor:
        return latent.sample(self.num_samples)


class IgnoredGenerator(LeaveOneOut):
    """Draws from the global generator and ignores the given one."""


class WrongOnCategories(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.2 if draw.latent.has(Choices) else 1.0)


class WrongInTheTail(LeaveOneOut):
    """Twice the gradient of logits beyond ±5."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * torch.where(draw.latent.logits.abs() > 5, 2.0, 1.0)


class BatchBaseline(LeaveOneOut):
    """The mean over all samples of all rows as the baseline."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        centered = (values - values.mean()) / len(values)
        return (draw.latent.score(draw.points) * draw.latent.with_event_axes(centered)).sum(0)


class WrongForManySamples(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.5 if self.design.num_samples > 8 else 1.0)


class WrongBeyondThree(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * torch.where(draw.latent.logits.abs() > 3, 1.5, 1.0)


class WrongInFloat32(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (
            1.1 if draw.latent.logits.dtype == torch.float32 else 1.0
        )


class WrongWithoutBatch(LeaveOneOut):
    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.0 if draw.latent.batch_shape else 1.5)


@dataclass(frozen=True)
class Largest(Expectation):
    def value(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        return values.amax(0)


class WrongValue(LeaveOneOut):
    """The largest value instead of the mean."""

    target = Largest()


class SmallConstant(LeaveOneOut):
    """A constant in a denominator, which outweighs the rarer value of a bit at |logit| about 14.

    Draws cannot show it, because that value hardly ever occurs.
    """

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        logits = draw.latent.logits.abs()
        rarer = torch.sigmoid(-logits)
        return super().combine(draw, values) * rarer / (rarer + 1e-6)


class InfiniteNeighbors(LeaveOneOut):
    """Loses the gradient of other latents if one latent is certain."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        certain = draw.latent.sum_event(draw.latent.logits.isinf().to(values.dtype)) > 0
        return super().combine(draw, values) * draw.latent.with_event_axes(
            torch.where(certain, 0.5, 1.0)
        )


@dataclass(frozen=True)
class SubtractedOwnRow(WithTaylor):
    """A coefficient from the sum over all rows minus this row, whose rounding error remains."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        latent, inner = draw.latent, draw.memory
        assert isinstance(latent, HasMean)
        linear = latent.sum_event(derivatives[0] * (inner.points - latent.mean()))
        found = self.inner.combine(inner, values[:-1])
        control = self.inner.combine(inner, linear) - latent.covariance_matvec(derivatives[0])
        if not latent.batch_shape:
            return found - control / 2
        along, square = (latent.sum_event(one * control) for one in (found, control))
        along, square = (one.sum(-1, keepdim=True) - one for one in (along, square))
        alpha = torch.where(square > 0, along / torch.where(square > 0, square, 1.0), 0.5)
        return found - latent.with_event_axes(alpha) * control


class SubtractedOwnRowOfFlips(Flips):
    """Computes sums over the other rows by subtraction."""

    def combine(self, draw: Draw, values: Tensor, derivatives: Tensor | None = None) -> Tensor:
        assert derivatives is not None
        latent, unsafe = draw.latent, Flips(self.num_samples, self.flips, safe=False)
        plain = unsafe.combine(draw, values, derivatives)
        control = plain - unsafe.combine(draw, values, 0 * derivatives)
        if not latent.batch_shape:
            return plain
        along, square = (latent.sum_event(one * control) for one in (plain, control))
        along, square = (one.sum(-1, keepdim=True) - one for one in (along, square))
        alpha = torch.where(square > 0, along / torch.where(square > 0, square, 1.0), 0.0)
        return plain - latent.with_event_axes(alpha) * control


def with_design(estimator: Estimator, kind: type[WithFlips]) -> Estimator:
    """Return a copy of flips on another kind of design."""
    found, design = replace(estimator), estimator.design  # type: ignore[type-var]
    assert isinstance(design, WithFlips)
    set_design(found, kind(design.num_samples, design.flips, design.coupling))
    return found


def on_independent(kind: Callable[[Design], Estimator]) -> Callable[[int], Estimator]:
    return lambda n: kind(Independent(as_count(n, 2, "num_samples")))


BROKEN: dict[str, Callable[[int], Estimator]] = {
    **{
        kind.__name__: on_independent(kind)
        for kind in (
            MedianBaseline,
            ThreePercent,
            OnePercentOfEight,
            NoisyCombine,
            WrongOnCategories,
            WrongInTheTail,
            BatchBaseline,
            WrongForManySamples,
            WrongBeyondThree,
            WrongInFloat32,
            WrongWithoutBatch,
            WrongValue,
            InfiniteNeighbors,
            SmallConstant,
        )
    },
    "AntitheticLOORF": lambda n: AntitheticLOORF(Coupled(n, Dirichlet())),
    "IgnoredGenerator": lambda n: IgnoredGenerator(GlobalSamples(as_count(n, 2, "num_samples"))),
    "SubtractedOwnRow": lambda n: SubtractedOwnRow(ARMS(n)),
    "SubtractedOwnRowOfFlips": SubtractedOwnRowOfFlips,
    "NoLawAtInfinity": lambda n: with_design(Flips(n), NoLawAtInfinity),
}
"""Estimators that the check of an estimator must reject."""


def own_derivatives(n: int) -> OwnDerivatives:
    return OwnDerivatives(n, pairs=3, own_bits=False, at_midpoints=False)


GROSS: list[Estimator] = [
    NoCorrection(Coupled(4, Systematic())),
    NoCorrection(Coupled(3, Dirichlet())),
    ProductOfAverages(Independent(4)),
    SelfBaseline(Independent(8)),
    StraightThrough(2),
    *(
        kind(ARMS(2), 2, folded)
        for kind in (MeanOverSlots, NoDirectTerm, NoCorrectionOfSlots)
        for folded in (True, False)
    ),
    DirectTermTwice(4),
    DirectTermNever(4),
    OwnPartOfTheBound(4),
    SeesItself(2),
    CoupledDoubleCV(DifferentiatedCoupled(2, Dirichlet())),
    CoupledDoubleCV(DifferentiatedCoupled(3, Systematic())),
    CoupledRODEO(DifferentiatedCoupled(3, Systematic())),
    OwnBitIncluded(2),
    OwnBitIncluded(4, Systematic(), pairs=1),
    *(own_derivatives(n) for n in (4, 6)),
    OwnMidpointControlsItself(4, pairs=1),
    FullTaylorMean(ARMS(3)),
    OwnCurvature(3),
    NoTrapezoidAtTheFlip(2),
    FlipOfTheLargestRise(2, flips=2),
    FlipOfOneSampleOnly(2),
]
SEEN_BY_ENUMERATION: list[Estimator] = [
    *GROSS,
    WrongCorrelation(Coupled(3, Systematic())),
    SelfBaseline(Independent(3)),
    FlippedNoise(2),
    with_design(Flips(2), LawOfTheSample),
    CoupledFlipsOnBound(2),
]
SEEN_BY_DRAWS: list[Estimator] = [
    *GROSS,
    NoCorrection(Coupled(4, Gaussian())),
    OtherCouplingsCorrection(Coupled(4, Gaussian())),
    CoupledBound(ARMS(2), 2),
    CoupledFlipsOnBound(2),
    Flips(4, coupling=CommonOrder()),
]
