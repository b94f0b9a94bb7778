"""Unbiased, low-variance gradients through discrete choices in PyTorch."""
# ruff: noqa: F403

from arms import checks, designs, nn
from arms.api import Handle, attach, draw, expectation, importance_bound
from arms.checks import variance
from arms.estimators import registry
from arms.estimators.registry import *
from arms.latents import Bits, Indices, Joint, Latent, OneHot, Subset, as_latent
from arms.random import rank_generator
from arms.rewards import weights
from arms.sites import Sampling, same_samples, sample, sampling
from arms.targets import BestOf, Expectation, ImportanceBound, Target

__version__ = "0.2.0"

__all__ = ["Handle", "attach", "checks", "designs", "draw", "expectation", "importance_bound"]
__all__ += ["nn"]
__all__ += ["Bits", "Indices", "Joint", "Latent", "OneHot", "Subset", "as_latent"]
__all__ += ["Expectation", "ImportanceBound", "Target", "rank_generator", "variance"]
__all__ += ["BestOf", "weights"]
__all__ += ["Sampling", "same_samples", "sample", "sampling"]
__all__ += registry.__all__
