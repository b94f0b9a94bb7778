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
    REBAR,
    RELAX,
    VIMCO,
    DisARM,
    Draw,
    Estimate,
    Estimator,
    Exact,
    MultiSample,
    MultiSampleARMS,
    MultiSampleDisARM,
    MultiSampleLOORF,
    MultiSampleReinforce,
    Reinforce,
    Relaxation,
    estimator,
    relax_control,
    variance_loss,
)
from arms.expectation import attach, coupled_bound, draw, expectation, multi_sample_bound

__all__ = [
    "ARM",
    "ARMS",
    "ARTS",
    "COUPLINGS",
    "ESTIMATORS",
    "LOORF",
    "REBAR",
    "RELAX",
    "VIMCO",
    "Coupling",
    "Dirichlet",
    "DisARM",
    "Draw",
    "Estimate",
    "Estimator",
    "Exact",
    "Gaussian",
    "Independent",
    "MultiSample",
    "MultiSampleARMS",
    "MultiSampleDisARM",
    "MultiSampleLOORF",
    "MultiSampleReinforce",
    "Reinforce",
    "Relaxation",
    "Systematic",
    "attach",
    "checks",
    "coupled_bound",
    "coupling",
    "draw",
    "estimator",
    "expectation",
    "multi_sample_bound",
    "relax_control",
    "variance",
    "variance_loss",
]

try:
    __version__ = version("arms-grad")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0+unknown"
