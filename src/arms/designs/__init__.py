"""Designs: where the objective is evaluated, and the joint distribution of these points."""

from arms.designs.base import Design, Draw, Needs, RowDesign, Rows
from arms.designs.couplings import (
    COUPLINGS,
    BitCoupling,
    CategoryCoupling,
    CorrelatedPair,
    Coupling,
    Dirichlet,
    Gaussian,
    Stratified,
    Systematic,
    as_coupling,
)
from arms.designs.midpoints import Midpoints, SharedPairs
from arms.designs.pairs import Pairs
from arms.designs.relaxed import Perturbed, RelaxedPairs
from arms.designs.samples import AllStates, AntitheticNoise, Coupled, Independent
from arms.designs.without_replacement import WithoutReplacement
from arms.designs.wrappers import AfterSamples, OneMore, SideBySide, WithMean

__all__ = [
    "COUPLINGS",
    "AfterSamples",
    "AllStates",
    "AntitheticNoise",
    "BitCoupling",
    "CategoryCoupling",
    "CorrelatedPair",
    "Coupled",
    "Coupling",
    "Design",
    "Dirichlet",
    "Draw",
    "Gaussian",
    "Independent",
    "Midpoints",
    "Needs",
    "OneMore",
    "Pairs",
    "Perturbed",
    "RelaxedPairs",
    "RowDesign",
    "Rows",
    "SharedPairs",
    "SideBySide",
    "Stratified",
    "Systematic",
    "WithMean",
    "WithoutReplacement",
    "as_coupling",
]
