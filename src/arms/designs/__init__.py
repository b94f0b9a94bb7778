"""Designs: where the objective is evaluated, and the joint distribution of these points."""

from arms.designs.base import Design, Draw, Needs, Rows
from arms.designs.couplings import COUPLINGS, as_coupling
from arms.designs.couplings.base import BitCoupling, CategoryCoupling, Coupling
from arms.designs.couplings.dirichlet import Dirichlet
from arms.designs.couplings.gaussian import Gaussian
from arms.designs.couplings.pair import CorrelatedPair
from arms.designs.couplings.stratified import Stratified
from arms.designs.couplings.systematic import Systematic
from arms.designs.midpoints import Midpoints, SharedPairs
from arms.designs.pairs import Pairs
from arms.designs.relaxed import Perturbed, RelaxedPairs
from arms.designs.samples import AllStates, AntitheticNoise, Coupled, Independent
from arms.designs.without_replacement import WithoutReplacement
from arms.designs.wrappers import AfterSamples, OneMore, SideBySide, WithMean

__all__ = ["Design", "Draw", "Needs", "Rows"]
__all__ += ["AllStates", "AntitheticNoise", "Coupled", "Independent", "WithoutReplacement"]
__all__ += ["Midpoints", "Pairs", "Perturbed", "RelaxedPairs", "SharedPairs"]
__all__ += ["AfterSamples", "OneMore", "SideBySide", "WithMean"]
__all__ += ["COUPLINGS", "BitCoupling", "CategoryCoupling", "Coupling", "as_coupling"]
__all__ += ["CorrelatedPair", "Dirichlet", "Gaussian", "Stratified", "Systematic"]
