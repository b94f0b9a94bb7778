"""The one list of estimators, each with a latent and a target: it drives every generic test."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from arms import (
    ARM,
    ARMS,
    ARTS,
    LOORF,
    REBAR,
    RELAX,
    RODEO,
    VIMCO,
    ARMSTaylor,
    Bernoulli,
    Concrete,
    Coupling,
    Dirichlet,
    DisARM,
    DoubleCV,
    Estimator,
    Exact,
    ExtraSample,
    GappedStraightThrough,
    Gaussian,
    GumbelStraightThrough,
    Independent,
    Latent,
    Midpoint,
    MultiSampleARMS,
    MultiSampleDisARM,
    MultiSampleLOORF,
    MultiSampleMidpoint,
    MultiSampleReinforce,
    OneHot,
    Reinforce,
    ReinMax,
    Relaxation,
    Repaired,
    SigmoidStraightThrough,
    Stacked,
    StraightThrough,
    Stratified,
    Systematic,
    TreeDisARM,
    Unordered,
)


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
        found = torch.stack([torch.sin(change + value), torch.tanh(change * value) + 0.1 * change.square()], -1)
        return self.scale.to(found) * found


@dataclass(frozen=True)
class Instance:
    """An estimator, and the kind of latent that it is tried on."""

    estimator: Estimator
    kind: type[Latent] = Bernoulli
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.estimator}, {self.kind.__name__}"

    def fitted(self, width: int) -> Estimator:
        """The estimator for a first batch axis of that length."""
        return fitted(self.estimator, width)


def fitted(estimator: Estimator, width: int) -> Estimator:
    """The estimator for a first batch axis of that length, which stacked ones share out."""
    match estimator:
        case ExtraSample():
            return ExtraSample(fitted(estimator.inner, width))
        case Stacked():
            share = width // len(estimator.inners)
            first = [share] * (len(estimator.inners) - 1)
            return Stacked(estimator.inners, [*first, width - sum(first)])
        case _:
            return estimator


EXPECTATION = [
    *(Reinforce(n) for n in (1, 3)),
    *(LOORF(n) for n in (2, 3)),
    *(ARM(n) for n in (2, 4)),
    *(DisARM(n) for n in (2, 4)),
    ARTS(2),
    ARTS(2, correlation=-0.3),
    ARTS(4, correlation=0.4),
    ARMS(3, Independent()),
    *(ARMS(n, coupling) for coupling in (Dirichlet(), Gaussian(), Systematic()) for n in (2, 3, 4)),
    ARMS(3, Stratified()),
    TreeDisARM(2),
    *(Unordered(n) for n in (2, 3)),
    Exact(),
]
SLOPES = [
    *(Midpoint(n) for n in (2, 4, 6)),
    *(Midpoint(n, pairs=1) for n in (2, 4)),
    *(Midpoint(n, coupling) for coupling in (Dirichlet(), Gaussian(), Systematic()) for n in (2, 4)),
    *(Midpoint(4, coupling, pairs=1) for coupling in (Dirichlet(), Gaussian(), Systematic())),
    *(Midpoint(8, coupling) for coupling in (Independent(), Systematic())),
    Midpoint(4, pairs=1, own_bits=False),
    *(Repaired(n, coupling) for coupling in (Independent(), Systematic()) for n in (4, 6)),
    *(ARMSTaylor(n, coupling) for coupling in (Independent(), Dirichlet(), Systematic()) for n in (2, 3)),
]
SLOTS = [
    *(MultiSampleDisARM(n) for n in (2, 4, 6)),
    *(MultiSampleLOORF(k + m, bound_samples=k) for k, m in ((1, 2), (1, 3), (2, 2), (3, 3))),
    *(
        MultiSampleARMS(k + m, bound_samples=k, coupling=coupling)
        for coupling in (Dirichlet(), Systematic(), Independent())
        for k, m in ((1, 2), (1, 3), (2, 2), (2, 4), (3, 3))
    ),
    *(MultiSampleARMS(k + m, bound_samples=k, coupling=Gaussian()) for k, m in ((1, 3), (2, 2), (3, 3))),
]
"""Estimators of the bound slot by slot, the direct term folded in."""
BOUND = [
    *(MultiSampleReinforce(n) for n in (1, 2, 3)),
    *(VIMCO(n, baseline=kind) for n in (1, 2, 3) for kind in ("geometric", "arithmetic")),
    *SLOTS,
    *(replace(one, folded=False) for one in SLOTS),
    *(MultiSampleMidpoint(n) for n in (2, 4, 6)),
    *(MultiSampleMidpoint(k + 2 * p, tried=p) for k, p in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))),
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
    *(SigmoidStraightThrough(n) for n in (1, 3)),
    Concrete(1),
    Concrete(3, temperature=1.0),
    GumbelStraightThrough(1),
    GumbelStraightThrough(3, temperature=1.0),
    GappedStraightThrough(1),
    GappedStraightThrough(3, temperature=0.5, gap=0.3),
    ReinMax(1),
    ReinMax(3, temperature=1.5),
    ExtraSample(ReinMax(2)),
    ExtraSample(Concrete(2)),
    Stacked([Concrete(2), ReinMax(2), StraightThrough(2)], [1, 1, 1]),
]
WRAPPED = [
    ExtraSample(LOORF(2)),
    ExtraSample(ARMS(3, Systematic())),
    ExtraSample(ARM(2)),
    Stacked([LOORF(2), ARMS(2, Systematic()), ARM(2)], [1, 1, 1]),
    Stacked([MultiSampleLOORF(4), MultiSampleARMS(4, coupling=Dirichlet()), MultiSampleDisARM(4)], [1, 1, 1]),
    Stacked([MultiSampleDisARM(4, folded=False), MultiSampleDisARM(4)], [1, 1]),
    ExtraSample(Stacked([DisARM(2), Reinforce(2)], [1, 1])),
    ExtraSample(Midpoint(4)),
    ExtraSample(Midpoint(2)),
    Stacked([Midpoint(4), Midpoint(4, Systematic())], [1, 1]),
    Stacked([Midpoint(4, pairs=1), Midpoint(4, Dirichlet(), pairs=1)], [1, 1]),
]
CATEGORICAL = [
    Reinforce(2),
    LOORF(2),
    LOORF(3),
    ARMS(3, Independent()),
    Exact(),
    MultiSampleReinforce(2),
    VIMCO(2),
    VIMCO(3, baseline="arithmetic"),
    MultiSampleLOORF(3, bound_samples=1),
    MultiSampleLOORF(4),
    MultiSampleLOORF(4, folded=False),
    MultiSampleARMS(4, coupling=Independent()),
    MultiSampleMidpoint(2),
    MultiSampleMidpoint(4),
    MultiSampleMidpoint(4, tried=1),
    ExtraSample(LOORF(2)),
    Stacked([LOORF(2), Reinforce(2)], [1, 1]),
    *(Midpoint(n) for n in (2, 4)),
    Midpoint(4, pairs=1),
    Repaired(4),
    ARMSTaylor(2, Independent()),
    *(ARMS(n, coupling) for coupling in (Systematic(), Stratified(), Dirichlet()) for n in (2, 3, 4)),
    *(TreeDisARM(n, tree) for n in (2, 4) for tree in ("balanced", "stick")),
    TreeDisARM(2, correlation=0.3),
    *(Unordered(n) for n in (2, 3)),
    Midpoint(4, Systematic()),
    Midpoint(4, Stratified(), pairs=1),
    Repaired(4, Systematic()),
    ARMSTaylor(3, Systematic()),
    *(MultiSampleARMS(k + m, bound_samples=k, coupling=Systematic()) for k, m in ((1, 2), (2, 2))),
    *(MultiSampleARMS(4, coupling=coupling) for coupling in (Stratified(), Dirichlet())),
    ExtraSample(ARMS(2, Systematic())),
    ExtraSample(Unordered(2)),
    Stacked([LOORF(2), ARMS(2, Systematic()), TreeDisARM(2)], [1, 1, 1]),
    StraightThrough(1),
    Concrete(2),
    GumbelStraightThrough(2),
    *(ReinMax(n, tau) for n, tau in ((1, 1.0), (2, 1.5))),
]
INSTANCES = [
    *(Instance(estimator) for estimator in (*EXPECTATION, *SLOPES, *BOUND, *WRAPPED, *BIASED)),
    *(Instance(estimator, name=name) for name, estimator in {**RELAXED, **CONTROLLED}.items()),
    Instance(ExtraSample(RELAXED["relax, network, n = 2"]), name="extra sample of relax, network, n = 2"),
    *(Instance(estimator, OneHot) for estimator in CATEGORICAL),
]


def parts(estimator: Estimator) -> list[Estimator]:
    """The estimators that one is made of: itself, if it is no wrapper."""
    match estimator:
        case ExtraSample():
            return parts(estimator.inner)
        case Stacked():
            return [part for inner in estimator.inners for part in parts(inner)]
        case _:
            return [estimator]


def couplings(estimator: Estimator) -> list[Coupling]:
    """The couplings that an estimator draws from, as far as it names them."""
    return [
        part.coupling for part in parts(estimator) if isinstance(part, ARMS | MultiSampleARMS | Midpoint | Repaired)
    ]


def is_enumerable(instance: Instance) -> bool:
    """Whether all that it can draw can be listed: Gaussian counts have no closed form, relaxed noise is continuous.

    Of the categories that a Dirichlet copula draws, only a pair is simple.
    """
    categorical = issubclass(instance.kind, OneHot) and instance.estimator.num_samples > 2
    return not (
        any(
            isinstance(coupling, Gaussian) or (isinstance(coupling, Dirichlet) and categorical)
            for coupling in couplings(instance.estimator)
        )
        or any(isinstance(part, REBAR) for part in parts(instance.estimator))
    )


ENUMERABLE = [instance for instance in INSTANCES if instance.estimator.unbiased and is_enumerable(instance)]
BITS = [instance for instance in INSTANCES if instance.kind is Bernoulli]
