"""Designs: which points the objective is evaluated at, and how these points are distributed."""

from collections.abc import Callable, Mapping

from arms.arguments import unknown_name
from arms.designs.base import BitCoupling, CategoryCoupling, Coupling, Design, Draw, Needs, Rows
from arms.designs.couplings.copulas import Dirichlet, Gaussian
from arms.designs.couplings.systematic import Cyclic, Stratified, Systematic
from arms.designs.flips import WithFlips
from arms.designs.midpoints import Midpoints, SharedPairs
from arms.designs.pairs import CorrelatedPair, Pairs, RelaxedPairs
from arms.designs.samples import AllStates, AntitheticNoise, Coupled, Independent, Perturbed
from arms.designs.without_replacement import WithoutReplacement
from arms.designs.wrappers import AfterSamples, SideBySide, WithMean

__all__ = ["Design", "Draw", "Needs", "Rows"]
__all__ += ["AllStates", "AntitheticNoise", "Coupled", "Independent", "WithoutReplacement"]
__all__ += ["Midpoints", "Pairs", "Perturbed", "RelaxedPairs", "SharedPairs"]
__all__ += ["AfterSamples", "SideBySide", "WithFlips", "WithMean"]
__all__ += ["COUPLINGS", "BitCoupling", "CategoryCoupling", "Coupling", "as_coupling"]
__all__ += ["CorrelatedPair", "Cyclic", "Dirichlet", "Gaussian", "Stratified", "Systematic"]

COUPLINGS: Mapping[str, Callable[[], Coupling]] = {
    "dirichlet": Dirichlet,
    "gaussian": Gaussian,
    "systematic": Systematic,
    "stratified": Stratified,
}


def as_coupling(name: str | Coupling) -> Coupling:
    """Return the coupling with this name, or a coupling object unchanged.

    Args:
        name: A name in `arms.designs.COUPLINGS`, or a coupling.

    >>> as_coupling("systematic")
    Systematic()
    """
    if isinstance(name, Coupling):
        return name
    if name not in COUPLINGS:
        raise unknown_name("coupling", name, COUPLINGS)
    return COUPLINGS[name]()
