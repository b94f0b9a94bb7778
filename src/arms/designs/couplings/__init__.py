"""Couplings: n exchangeable samples of every variable, and what undoes their dependence."""

from collections.abc import Callable, Mapping

from arms.arguments import unknown_name
from arms.designs.couplings.base import Coupling
from arms.designs.couplings.dirichlet import Dirichlet
from arms.designs.couplings.gaussian import Gaussian
from arms.designs.couplings.stratified import Stratified
from arms.designs.couplings.systematic import Systematic

COUPLINGS: Mapping[str, Callable[[], Coupling]] = {
    "dirichlet": Dirichlet,
    "gaussian": Gaussian,
    "systematic": Systematic,
    "stratified": Stratified,
}
"""Couplings by name."""


def as_coupling(name: str | Coupling) -> Coupling:
    """Return the coupling of a name; a coupling object is returned as it is.

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
