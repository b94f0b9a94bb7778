"""The list of estimators, each with a kind of latent, that drives every generic test."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from arms import (
    ARM,
    ARMS,
    LOORF,
    REBAR,
    RELAX,
    RODEO,
    VIMCO,
    BestOf,
    Bits,
    DisARM,
    DisARMOnBound,
    DoubleCV,
    Estimator,
    Exact,
    ExtraSample,
    Flips,
    FlipsOnBound,
    GappedStraightThrough,
    GumbelSoftmax,
    Joint,
    Latent,
    Midpoint,
    MidpointOnBound,
    OnBound,
    OneHot,
    Reinforce,
    ReinMax,
    Relaxation,
    Stacked,
    StraightThrough,
    Subset,
    UnorderedSet,
    WithTaylor,
)
from arms.designs import Cyclic, Dirichlet, Gaussian, Stratified, Systematic
from arms.estimators.derivative.midpoint import cross_paired


class Wave(nn.Module):
    """A control that is far from zero, for up to eight latents."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first = nn.Parameter(torch.randn(8, 5, generator=generator, dtype=torch.float64))
        self.last = nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))

    def forward(self, z: Tensor) -> Tensor:
        first, last = self.first.to(z), self.last.to(z)
        values: Tensor = torch.tanh(z @ first[: z.shape[-1]]) @ last + 0.3 * z[..., 0]
        return values


class Wild(nn.Module):
    """A control for RODEO that is far from zero and far from linear."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, change: Tensor, value: Tensor) -> Tensor:
        waves = torch.sin(change + value), torch.tanh(change * value) + 0.1 * change.square()
        return self.scale.to(change) * torch.stack(waves, -1)


@dataclass(frozen=True)
class Instance:
    """An estimator, with the kind of latent for its tests."""

    estimator: Estimator
    kind: type[Latent] = Bits
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.estimator}, {self.kind.__name__}"

    def fitted(self, width: int) -> Estimator:
        """Return the estimator for a first batch axis of this length."""
        return fitted(self.estimator, width)


def fitted(estimator: Estimator, width: int) -> Estimator:
    """Return the estimator for a first batch axis of this length, which stacked estimators divide."""
    match estimator:
        case ExtraSample():
            return ExtraSample(fitted(estimator.inner, width))
        case Stacked():
            share = width // len(estimator.inners)
            first = [share] * (len(estimator.inners) - 1)
            return Stacked(estimator.inners, [*first, width - sum(first)])
        case _:
            return estimator


def on_bound(inner: Estimator, bound_samples: int) -> OnBound:
    return OnBound(inner, bound_samples)


COUPLED = (Dirichlet(), Gaussian(), Systematic())

EXPECTATION = [
    *(Reinforce(n) for n in (1, 3)),
    *(LOORF(n) for n in (2, 3)),
    *(LOORF(n, BestOf(k)) for n, k in ((2, 1), (2, 2), (3, 2))),
    *(ARM(n) for n in (2, 4)),
    *(DisARM(n) for n in (2, 4)),
    DisARM(2, correlation=-0.3),
    DisARM(4, correlation=0.4),
    *(ARMS(n, coupling) for coupling in COUPLED for n in (2, 3, 4)),
    ARMS(3, Stratified()),
    *(ARMS(n, Cyclic()) for n in (2, 3, 4)),
    *(UnorderedSet(n) for n in (2, 3)),
    Exact(),
]
DERIVATIVES = [
    *(Midpoint(n) for n in (2, 4, 6)),
    *(Midpoint(n, pairs=1) for n in (2, 4)),
    *(Midpoint(n, coupling) for coupling in COUPLED for n in (2, 4)),
    *(Midpoint(4, coupling, pairs=1) for coupling in COUPLED),
    *(Midpoint(8, coupling) for coupling in (None, Systematic())),
    Midpoint(4, pairs=1, own_bits=False),
    *(cross_paired(n, coupling) for coupling in (None, Systematic()) for n in (4, 6)),
    *(Flips(n) for n in (1, 2, 3, 4)),
    *(Flips(n, coupling=coupling) for coupling in (None, Dirichlet()) for n in (2, 3)),
    Flips(3, coupling=Systematic()),
    Flips(2, coupling=Gaussian()),
    *(Flips(n, flips=m) for n, m in ((1, 2), (2, 2), (3, 3), (2, 3))),
    *(WithTaylor(ARMS(n, coupling)) for coupling in (Dirichlet(), Systematic()) for n in (2, 3)),
    *(WithTaylor(LOORF(n)) for n in (2, 3)),
    WithTaylor(DisARM(2)),
]
SLOTS: list[DisARMOnBound | OnBound] = [
    *(DisARMOnBound(n) for n in (2, 4, 6)),
    *(on_bound(LOORF(m), k) for k, m in ((1, 2), (1, 3), (2, 2), (3, 3))),
    *(
        on_bound(ARMS(m, coupling), k)
        for coupling in (Dirichlet(), Systematic())
        for k, m in ((1, 2), (1, 3), (2, 2), (2, 4), (3, 3))
    ),
    *(on_bound(ARMS(m, Gaussian()), k) for k, m in ((1, 3), (2, 2), (3, 3))),
    on_bound(Reinforce(2), 2),
    on_bound(DisARM(2), 2),
    on_bound(ARM(2), 2),
    on_bound(UnorderedSet(2), 2),
]
"""Estimators of the bound slot by slot, with the direct term folded in."""
BOUND = [
    *(VIMCO(n, baseline) for n in (1, 2, 3) for baseline in ("geometric", "arithmetic", "none")),
    *SLOTS,
    *(replace(one, folded=False) for one in SLOTS),
    *(FlipsOnBound(n) for n in (1, 2)),
    *(FlipsOnBound(n, m) for n, m in ((1, 2), (2, 1), (2, 3), (3, 1))),
    *(MidpointOnBound(n) for n in (2, 4, 6)),
    *(MidpointOnBound(k + 2 * p, shared=p) for k, p in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))),
]
CONTROLLED = {
    **{f"double-cv, n = {n}": DoubleCV(n) for n in (2, 3)},
    "double-cv, other coefficient": DoubleCV(4, coefficient=-0.7),
    "rodeo, n = 2": RODEO(2),
    **{f"rodeo, wild control, n = {n}": RODEO(n, control=Wild()) for n in (2, 3)},
}
RELAXED = {
    f"{name}, n = {n}": estimator
    for n in (2, 4, 8)
    for name, estimator in {
        "rebar": REBAR(n),
        "rebar, other temperature and scale": REBAR(n, Relaxation(temperature=0.7, scale=-0.6)),
        "relax": RELAX(n),
        "relax, network": RELAX(n, control=Wave()),
        "relax, network alone": RELAX(n, relaxation=None, control=Wave()),
    }.items()
}
BIASED = [
    *(StraightThrough(n) for n in (1, 3)),
    *(StraightThrough(n, scaled=True) for n in (1, 3)),
    GumbelSoftmax(1),
    GumbelSoftmax(3, temperature=1.0),
    GumbelSoftmax(1, hard=True),
    GumbelSoftmax(3, temperature=1.0, hard=True),
    GappedStraightThrough(1),
    GappedStraightThrough(3, temperature=0.5, gap=0.3),
    ReinMax(1),
    ReinMax(3, temperature=1.5),
    ExtraSample(ReinMax(2)),
    ExtraSample(GumbelSoftmax(2)),
    Stacked([GumbelSoftmax(2), ReinMax(2), StraightThrough(2)], [1, 1, 1]),
]
WRAPPED = [
    ExtraSample(LOORF(2)),
    ExtraSample(ARMS(3)),
    ExtraSample(ARM(2)),
    Stacked([LOORF(2), ARMS(2), ARM(2)], [1, 1, 1]),
    Stacked(
        [on_bound(LOORF(2), 2), on_bound(ARMS(2, Dirichlet()), 2), DisARMOnBound(4)], [1, 1, 1]
    ),
    Stacked([DisARMOnBound(4, folded=False), DisARMOnBound(4)], [1, 1]),
    ExtraSample(Stacked([DisARM(2), Reinforce(2)], [1, 1])),
    ExtraSample(Midpoint(4)),
    ExtraSample(Midpoint(2)),
    ExtraSample(Flips(2)),
    Stacked([Flips(2), Flips(2, coupling=None)], [1, 1]),
    Stacked([Midpoint(4), Midpoint(4, Systematic())], [1, 1]),
    Stacked([Midpoint(4, pairs=1), Midpoint(4, Dirichlet(), pairs=1)], [1, 1]),
]
CATEGORICAL = [
    Reinforce(2),
    LOORF(2),
    LOORF(3),
    Exact(),
    VIMCO(2, "none"),
    VIMCO(2),
    VIMCO(3, baseline="arithmetic"),
    on_bound(LOORF(2), 1),
    on_bound(LOORF(2), 2),
    OnBound(LOORF(2), 2, folded=False),
    DisARMOnBound(4),
    MidpointOnBound(2),
    MidpointOnBound(4),
    MidpointOnBound(4, shared=1),
    FlipsOnBound(1),
    FlipsOnBound(2),
    ExtraSample(LOORF(2)),
    Stacked([LOORF(2), Reinforce(2)], [1, 1]),
    *(Flips(n) for n in (1, 2, 3)),
    Flips(2, flips=2),
    *(Flips(2, coupling=coupling) for coupling in (None, Stratified(), Dirichlet())),
    *(Midpoint(n) for n in (2, 4)),
    Midpoint(4, pairs=1),
    cross_paired(4),
    DoubleCV(2),
    WithTaylor(LOORF(2)),
    *(
        ARMS(n, coupling)
        for coupling in (Systematic(), Stratified(), Dirichlet())
        for n in (2, 3, 4)
    ),
    *(DisARM(n, tree=tree) for n in (2, 4) for tree in ("balanced", "stick")),
    DisARM(2, correlation=0.3),
    *(UnorderedSet(n) for n in (2, 3)),
    Midpoint(4, Systematic()),
    Midpoint(4, Stratified(), pairs=1),
    cross_paired(4, Systematic()),
    WithTaylor(ARMS(3)),
    *(on_bound(ARMS(m), k) for k, m in ((1, 2), (2, 2))),
    *(on_bound(ARMS(2, coupling), 2) for coupling in (Stratified(), Dirichlet())),
    ExtraSample(ARMS(2)),
    ExtraSample(UnorderedSet(2)),
    Stacked([LOORF(2), ARMS(2), DisARM(2)], [1, 1, 1]),
    StraightThrough(1),
    GumbelSoftmax(2),
    GumbelSoftmax(2, hard=True),
    *(ReinMax(n, tau) for n, tau in ((1, 1.0), (2, 1.5))),
]
INSTANCES = [
    *(Instance(one) for one in (*EXPECTATION, *DERIVATIVES, *BOUND, *WRAPPED, *BIASED)),
    *(Instance(one, name=name) for name, one in {**RELAXED, **CONTROLLED}.items()),
    Instance(
        ExtraSample(RELAXED["relax, network, n = 2"]), name="extra sample of relax, network, n = 2"
    ),
    *(Instance(one, OneHot) for one in CATEGORICAL),
]

# Latents of every kind for exact tests, small enough to enumerate all joint outcomes.
JOINT_LATENTS: list[Latent] = [
    Subset(torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64), k=2),
    Subset(torch.tensor([0.3, torch.inf, -0.4], dtype=torch.float64), k=2),
    Joint(
        mask=torch.tensor([0.4], dtype=torch.float64),
        action=OneHot(torch.tensor([[0.3, -0.5, 0.1]], dtype=torch.float64)),
    ),
    Joint(
        mask=torch.tensor([0.4], dtype=torch.float64),
        items=Subset(torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64), k=1),
    ),
]


def parts(estimator: Estimator) -> list[Estimator]:
    """Return the inner estimators of a wrapper, or the estimator itself."""
    match estimator:
        case ExtraSample() | WithTaylor() | OnBound():
            return parts(estimator.inner)
        case Stacked():
            return [part for inner in estimator.inners for part in parts(inner)]
        case _:
            return [estimator]


def is_enumerable(instance: Instance) -> bool:
    """Whether the design lists all its outcomes, unlike some couplings and relaxed noise."""
    if any(isinstance(one, Stacked) for one in _all_parts(instance.estimator)):
        return all(
            is_enumerable(Instance(part, instance.kind)) for part in parts(instance.estimator)
        )
    example = torch.zeros(1, 3) if instance.kind is OneHot else torch.zeros(2)
    return instance.estimator.design.outcomes(instance.kind(example.double())) is not None


def _all_parts(estimator: Estimator) -> list[Estimator]:
    match estimator:
        case ExtraSample():
            return [estimator, *_all_parts(estimator.inner)]
        case _:
            return [estimator]


ENUMERABLE = [one for one in INSTANCES if one.estimator.unbiased and is_enumerable(one)]
BITS = [instance for instance in INSTANCES if instance.kind is Bits]
