"""Couplings: n exchangeable samples for every latent, and what undoes their dependence. One file each."""

from collections.abc import Callable, Mapping

from arms.arguments import unknown_name
from arms.couplings.base import BinaryCoupling, Coupling
from arms.couplings.dirichlet import Dirichlet
from arms.couplings.gaussian import Gaussian
from arms.couplings.independent import Independent
from arms.couplings.pair import CorrelatedPair
from arms.couplings.stratified import Stratified
from arms.couplings.systematic import Systematic

__all__ = [
    "COUPLINGS",
    "BinaryCoupling",
    "CorrelatedPair",
    "Coupling",
    "Dirichlet",
    "Gaussian",
    "Independent",
    "Stratified",
    "Systematic",
    "as_coupling",
]

COUPLINGS: Mapping[str, Callable[[], BinaryCoupling]] = {
    "independent": Independent,
    "dirichlet": Dirichlet,
    "gaussian": Gaussian,
    "systematic": Systematic,
    "stratified": Stratified,
}
"""Name to a function that makes the coupling."""


def as_coupling(name: str | Coupling) -> Coupling:
    """Return the coupling of that name; a coupling object is returned as it is.

    Args:
        name: A name in `arms.COUPLINGS`, or a coupling.

    >>> as_coupling("systematic")
    Systematic()
    """
    if isinstance(name, Coupling):
        return name
    if name not in COUPLINGS:
        raise unknown_name("coupling", name, COUPLINGS)
    return COUPLINGS[name]()
