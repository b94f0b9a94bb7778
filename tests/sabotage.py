"""Estimators that are wrong on purpose: what the tests must be able to see."""

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
    Bernoulli,
    Dirichlet,
    Draw,
    Estimator,
    Gaussian,
    Latent,
    MultiSampleARMS,
    MultiSampleLOORF,
    Reinforce,
    Systematic,
)
from arms.estimators.base import Slopes
from arms.estimators.double_cv import linear_control
from arms.estimators.loorf import leave_one_out
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

    @property
    def derivatives(self) -> int:
        return self.num_samples

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
    def combine(self, draw: Draw, values: Tensor, slopes: Tensor | None = None) -> Tensor:
        return MultiSampleLOORF.combine(self, draw, values)


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

    @property
    def slopes(self) -> Slopes:
        return "all"

    @property
    def derivatives(self) -> int:
        return self.num_samples

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


GROSS: list[Estimator] = [
    NoDebias(4, Systematic()),
    NoDebias(3, Dirichlet()),
    ProductOfAverages(4),
    SelfBaseline(8),
    StraightThrough(2),
    MeanOverSlots(4, coupling=Systematic()),
    NoDirectTerm(4, coupling=Systematic()),
    NoDebiasOfSlots(4, coupling=Systematic()),
    SeesItself(2),
    *(CoupledDoubleCV(n, coupling) for n, coupling in ((2, Dirichlet()), (3, Systematic()))),
    CoupledRODEO(3, Systematic()),
]
SEEN_BY_ENUMERATION: list[Estimator] = [*GROSS, WrongCorrelation(3), SelfBaseline(3), FlippedNoise(2)]
SEEN_BY_DRAWS: list[Estimator] = [
    *GROSS,
    NoDebias(4, Gaussian()),
    OtherCouplingsDebias(4, Gaussian()),
    CoupledBound(4, coupling=Systematic()),
]
