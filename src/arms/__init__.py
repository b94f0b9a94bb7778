"""Unbiased, low-variance gradients through binary choices: RLOO, generalised to n antithetic samples."""

from importlib.metadata import PackageNotFoundError, version

from arms import checks
from arms.checks import variance
from arms.couplings import (
    COUPLINGS,
    BinaryCoupling,
    Coupling,
    Dirichlet,
    Gaussian,
    Independent,
    Systematic,
    as_coupling,
)
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
    ExtraSample,
    MultiSampleARMS,
    MultiSampleDisARM,
    MultiSampleLOORF,
    MultiSampleReinforce,
    Reinforce,
    Relaxation,
    Stacked,
    as_estimator,
    relax_control,
    variance_loss,
)
from arms.expectation import attach, coupled_bound, draw, expectation, multi_sample_bound
from arms.latents import Bernoulli, Latent, OneHot, as_latent
from arms.targets import Expectation, MultiSampleBound, Target

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
    "Bernoulli",
    "BinaryCoupling",
    "Coupling",
    "Dirichlet",
    "DisARM",
    "Draw",
    "Estimate",
    "Estimator",
    "Exact",
    "Expectation",
    "ExtraSample",
    "Gaussian",
    "Independent",
    "Latent",
    "MultiSampleARMS",
    "MultiSampleBound",
    "MultiSampleDisARM",
    "MultiSampleLOORF",
    "MultiSampleReinforce",
    "OneHot",
    "Reinforce",
    "Relaxation",
    "Stacked",
    "Systematic",
    "Target",
    "as_coupling",
    "as_estimator",
    "as_latent",
    "attach",
    "checks",
    "coupled_bound",
    "draw",
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
