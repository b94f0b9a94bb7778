"""Estimators that are wrong on purpose: what the tests must be able to see."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from instances import Wild
from torch import Generator, Tensor

from arms import (
    ARM,
    ARMS,
    LOORF,
    RODEO,
    VIMCO,
    ARMSTaylor,
    Bernoulli,
    Dirichlet,
    Draw,
    Estimator,
    Gaussian,
    Latent,
    Midpoint,
    MultiSampleARMS,
    MultiSampleDisARM,
    MultiSampleLOORF,
    MultiSampleMidpoint,
    Reinforce,
    Repaired,
    Systematic,
)
from arms.estimators.base import Slopes
from arms.estimators.double_cv import linear_control
from arms.estimators.loorf import leave_one_out
from arms.estimators.midpoint import combine_pairs
from arms.targets import log_mean_exp


@dataclass(frozen=True)
class NoDebias(ARMS):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return leave_one_out(draw.latent, draw.points, values)


@dataclass(frozen=True)
class OtherCouplingsDebias(ARMS):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return ARMS(self.num_samples, Dirichlet()).combine(draw, values)


@dataclass(frozen=True)
class WrongCorrelation(ARMS):
    """By a millionth: too little for draws, not for enumeration."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1 + 1e-6)


class ProductOfAverages(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return draw.latent.with_event_axes(values.mean(0)) * draw.latent.score(draw.points).mean(0)


class SelfBaseline(LOORF):
    """The mean over all samples as the baseline, its own included, without the correction."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (self.num_samples - 1) / self.num_samples


class FlippedNoise(ARM):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(replace(draw, memory=(1 - draw.memory[0],)), values)


@dataclass(frozen=True)
class StraightThrough(Reinforce):
    """mean_i df/db(b_i) p (1 - p): the derivative at the samples taken for a difference. Labelled as unbiased."""

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli,)

    @property
    def slopes(self) -> Slopes:
        return "all"

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        assert slopes.shape == draw.points.shape
        return slopes.mean(0) * torch.sigmoid(draw.logits) * torch.sigmoid(-draw.logits)


@dataclass(frozen=True)
class MarkedStraightThrough(StraightThrough):
    """The same under its true label."""

    unbiased: ClassVar[bool] = False


@dataclass(frozen=True)
class MarkedLOORF(LOORF):
    """An unbiased estimator that is labelled as biased."""

    unbiased: ClassVar[bool] = False


@dataclass(frozen=True)
class MeanOverSlots(MultiSampleARMS):
    """The released code's score part: a mean over slots."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) / self.bound_samples


@dataclass(frozen=True)
class NoDirectTerm(MultiSampleARMS):
    def value(self, draw: Draw, values: Tensor) -> Tensor:
        return super().value(draw, values.detach()) + 0 * values.sum(0)


@dataclass(frozen=True)
class NoDebiasOfSlots(MultiSampleARMS):
    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        return MultiSampleLOORF.combine_slots(self, draw, values, slopes)


@dataclass(frozen=True)
class DirectTermTwice(MultiSampleDisARM):
    """The whole gradient, and autograd's direct term on top."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return self.combine_slots(draw, values, slopes)


@dataclass(frozen=True)
class DirectTermNever(MultiSampleDisARM):
    """The paper's score part, with the direct term taken off."""

    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        return MultiSampleDisARM(self.num_samples, folded=False).combine(draw, values)


@dataclass(frozen=True)
class SlopeOfTheBound(MultiSampleMidpoint):
    """The midpoint's own part left in, as if the control variate had mean zero latent by latent."""

    def combine_slots(self, draw: Draw, values: Tensor, slopes: Tensor | None) -> Tensor:
        assert slopes is not None
        first, second, _ = draw.points.chunk(3)
        step = first - second
        return super().combine_slots(draw, values, slopes) - (slopes * step * step / 2).sum(0)


@dataclass(frozen=True)
class SeesItself(VIMCO):
    """A baseline that has seen its own sample."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        centred = log_mean_exp(values) - values.mean(0)
        return draw.latent.with_event_axes(centred) * draw.latent.score(draw.points).sum(0)


@dataclass(frozen=True)
class CoupledBound(MultiSampleARMS):
    """Coupled samples in the bound itself."""

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, self.coupling.sample(latent, self.num_samples, generator))


@dataclass(frozen=True)
class CoupledDoubleCV(ARMS):
    """A control variate that needs independent samples, on coupled ones."""

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli,)

    @property
    def slopes(self) -> Slopes:
        return "all"

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        return super().combine(draw, values) - linear_control(draw.latent, draw.points, slopes)


@dataclass(frozen=True)
class CoupledRODEO(CoupledDoubleCV):
    """The same with the control variates of RODEO."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        controlled, plain = RODEO(self.num_samples, control=Wild()), LOORF(self.num_samples)
        control = controlled.combine(draw, values, slopes) - plain.combine(draw, values)
        return ARMS.combine(self, draw, values) + control.detach()


@dataclass(frozen=True)
class OwnBitIncluded(Midpoint):
    """The whole C . s taken off, latent k's own part included."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        count = self.num_samples // 2
        step = draw.points[:count] - draw.points[count : 2 * count]
        whole = draw.latent.sum_event(slopes[-self.midpoints :] * step[: self.midpoints])
        fall = values[:count] - values[count : 2 * count] - whole
        return (draw.latent.with_event_axes(fall) * step).mean(0) / 2


@dataclass(frozen=True)
class OwnSlopes(Repaired):
    """The mean slope at a pair's own ends in place of the others': it knows which end is which."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        first, second = slopes.chunk(2)
        start, end = draw.points.chunk(2)
        return combine_pairs(draw.latent, start - end, values, (first + second) / 2)


@dataclass(frozen=True)
class OwnMidpointControlsItself(Midpoint):
    """The own part's noise measured by the same midpoint's slope."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        count = self.num_samples // 2
        step, own = draw.points[:count] - draw.points[count : 2 * count], slopes[-self.midpoints :]
        noise = (own * step.square() / 2 - draw.latent.covary(own)).mean(0)
        return Midpoint(self.num_samples, pairs=1, own_bits=False).combine(draw, values, slopes) - noise / 2


@dataclass(frozen=True)
class FullTaylorMean(ARMSTaylor):
    """The linear control without the gradient of its own expectation."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        return super().combine(draw, values, slopes) - draw.latent.covary(slopes[0]) / 2


# --- What people write by mistake, or what hides from draws at moderate logits --------------------------------------


class MedianBaseline(LOORF):
    """The median of all samples as the baseline, its own included."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        centred = (values - values.quantile(0.5, 0)) / len(values)
        return (draw.latent.score(draw.points) * draw.latent.with_event_axes(centred)).sum(0)


class ThreePercent(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * 1.03


class OnePercentOfEight(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.01 if self.num_samples == 8 else 1.0)


class AntitheticLOORF(LOORF):
    """Antithetic bits, without dividing out their correlation."""

    latents: ClassVar[tuple[type[Latent], ...]] = (Bernoulli,)

    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return Draw(self, latent, Dirichlet().sample(latent, self.num_samples, generator))


class NoisyCombine(LOORF):
    """Noise of its own in what should be a pure function."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1 + torch.randn(()).to(values) / 10)


class IgnoredGenerator(LOORF):
    def draw(self, latent: Latent, generator: Generator | None = None) -> Draw:
        return super().draw(latent)


class WrongOnCategories(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.2 if draw.latent.event_dims == 2 else 1.0)


class WrongInTheTail(LOORF):
    """Twice the gradient of logits beyond ±5."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * torch.where(draw.logits.abs() > 5, 2.0, 1.0)


class BatchBaseline(LOORF):
    """The mean over all samples of all rows as the baseline."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        centred = (values - values.mean()) / len(values)
        return (draw.latent.score(draw.points) * draw.latent.with_event_axes(centred)).sum(0)


class WrongForManySamples(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.5 if self.num_samples > 8 else 1.0)


class WrongBeyondThree(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * torch.where(draw.logits.abs() > 3, 1.5, 1.0)


class WrongInFloat32(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.1 if draw.logits.dtype == torch.float32 else 1.0)


class WrongWithoutBatch(LOORF):
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return super().combine(draw, values) * (1.0 if draw.latent.batch_shape else 1.5)


class WrongValue(LOORF):
    def value(self, draw: Draw, values: Tensor) -> Tensor:
        return values.amax(0)


class InfiniteNeighbors(LOORF):
    """Loses the other latents' gradient where one of them is certain."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        certain = draw.latent.sum_event(draw.logits.isinf().to(values.dtype)) > 0
        return super().combine(draw, values) * draw.latent.with_event_axes(torch.where(certain, 0.5, 1.0))


@dataclass(frozen=True)
class SubtractedOwnRow(ARMSTaylor):
    """A coefficient from the sum over all rows minus the own one, whose rounding error stays behind."""

    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        assert slopes is not None
        latent, samples = draw.latent, draw.points[: self.num_samples]
        linear = latent.sum_event(slopes[0] * (samples - latent.mean()))
        found, control = (
            self.coupling.undo(latent, self.num_samples, leave_one_out(latent, samples, seen))
            for seen in (values[: self.num_samples], linear)
        )
        control = control - latent.covary(slopes[0])
        if not latent.batch_shape:
            return found - control / 2
        along, square = (latent.sum_event(one * control) for one in (found, control))
        along, square = (one.sum(-1, keepdim=True) - one for one in (along, square))
        alpha = torch.where(square > 0, along / torch.where(square > 0, square, 1.0), 0.5)
        return found - latent.with_event_axes(alpha) * control


BROKEN: dict[str, Callable[[int], Estimator]] = {
    kind.__name__: kind
    for kind in (
        MedianBaseline,
        ThreePercent,
        OnePercentOfEight,
        AntitheticLOORF,
        NoisyCombine,
        IgnoredGenerator,
        WrongOnCategories,
        WrongInTheTail,
        BatchBaseline,
        WrongForManySamples,
        WrongBeyondThree,
        WrongInFloat32,
        WrongWithoutBatch,
        WrongValue,
        InfiniteNeighbors,
        SubtractedOwnRow,
    )
}
"""Estimators that the check of a whole estimator must refuse."""

GROSS: list[Estimator] = [
    NoDebias(4, Systematic()),
    NoDebias(3, Dirichlet()),
    ProductOfAverages(4),
    SelfBaseline(8),
    StraightThrough(2),
    MeanOverSlots(4, coupling=Systematic()),
    NoDirectTerm(4, coupling=Systematic()),
    NoDebiasOfSlots(4, coupling=Systematic()),
    *(kind(4, coupling=Systematic(), folded=False) for kind in (MeanOverSlots, NoDirectTerm, NoDebiasOfSlots)),
    DirectTermTwice(4),
    DirectTermNever(4),
    SlopeOfTheBound(4),
    SeesItself(2),
    *(CoupledDoubleCV(n, coupling) for n, coupling in ((2, Dirichlet()), (3, Systematic()))),
    CoupledRODEO(3, Systematic()),
    OwnBitIncluded(2),
    OwnBitIncluded(4, Systematic(), pairs=1),
    *(OwnSlopes(n) for n in (4, 6)),
    OwnMidpointControlsItself(4, pairs=1),
    FullTaylorMean(3, Systematic()),
]
SEEN_BY_ENUMERATION: list[Estimator] = [*GROSS, WrongCorrelation(3), SelfBaseline(3), FlippedNoise(2)]
SEEN_BY_DRAWS: list[Estimator] = [
    *GROSS,
    NoDebias(4, Gaussian()),
    OtherCouplingsDebias(4, Gaussian()),
    CoupledBound(4, coupling=Systematic()),
]
