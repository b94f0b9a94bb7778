"""Unbiased, low-variance gradients through binary choices: RLOO, generalised to n antithetic samples."""

from importlib.metadata import PackageNotFoundError, version

from arms import checks
from arms.checks import variance
from arms.couplings import COUPLINGS, Coupling, Dirichlet, Gaussian, Independent, Systematic, coupling
from arms.estimators import (
    ARM,
    ARMS,
    ARTS,
    ESTIMATORS,
    LOORF,
    DisARM,
    Draw,
    Estimate,
    Estimator,
    Exact,
    Reinforce,
    estimator,
)
from arms.expectation import attach, draw, expectation

__all__ = [
    "ARM",
    "ARMS",
    "ARTS",
    "COUPLINGS",
    "ESTIMATORS",
    "LOORF",
    "Coupling",
    "Dirichlet",
    "DisARM",
    "Draw",
    "Estimate",
    "Estimator",
    "Exact",
    "Gaussian",
    "Independent",
    "Reinforce",
    "Systematic",
    "attach",
    "checks",
    "coupling",
    "draw",
    "estimator",
    "expectation",
    "variance",
]

try:
    __version__ = version("arms-grad")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0+unknown"
