"""Estimators: a design plus a rule that combines the objective's values into a gradient."""

from arms.estimators.base import (
    Estimate,
    Estimator,
    Learnable,
    Objective,
    TensorObjective,
    Values,
    variance_loss,
)
from arms.estimators.biased.gapped import GappedStraightThrough
from arms.estimators.biased.gumbel_softmax import GumbelSoftmax
from arms.estimators.biased.reinmax import ReinMax
from arms.estimators.biased.straight_through import StraightThrough
from arms.estimators.bound.disarm import DisARMOnBound
from arms.estimators.bound.midpoint import MidpointOnBound
from arms.estimators.bound.on_bound import OnBound
from arms.estimators.bound.vimco import VIMCO
from arms.estimators.combinators import ExtraSample, Stacked
from arms.estimators.derivative.double_cv import DoubleCV
from arms.estimators.derivative.midpoint import Midpoint
from arms.estimators.derivative.relax import REBAR, RELAX, Relaxation, relax_control
from arms.estimators.derivative.rodeo import RODEO, SteinControl
from arms.estimators.derivative.taylor import WithTaylor
from arms.estimators.registry import (
    ALIASES,
    ALL_ESTIMATORS,
    BIASED_ESTIMATORS,
    DEFAULT_NUM_SAMPLES,
    ENTRIES,
    ESTIMATORS,
    as_estimator,
    num_samples_of,
    resolve,
)
from arms.estimators.score.arm import ARM
from arms.estimators.score.disarm import DisARM
from arms.estimators.score.exact import Exact
from arms.estimators.score.leave_one_out import ARMS, LOORF, LeaveOneOut
from arms.estimators.score.reinforce import Reinforce
from arms.estimators.score.unordered_set import UnorderedSet

__all__ = ["Estimate", "Estimator", "Learnable", "Objective", "TensorObjective", "Values"]
__all__ += ["ALIASES", "ALL_ESTIMATORS", "BIASED_ESTIMATORS", "ENTRIES", "ESTIMATORS"]
__all__ += ["DEFAULT_NUM_SAMPLES", "as_estimator", "num_samples_of", "resolve", "variance_loss"]
__all__ += ["ARM", "ARMS", "LOORF", "DisARM", "Exact", "LeaveOneOut", "Reinforce", "UnorderedSet"]
__all__ += ["REBAR", "RELAX", "RODEO", "DoubleCV", "Midpoint", "Relaxation", "SteinControl"]
__all__ += ["DisARMOnBound", "ExtraSample", "MidpointOnBound", "OnBound", "Stacked", "WithTaylor"]
__all__ += ["VIMCO", "GappedStraightThrough", "GumbelSoftmax", "ReinMax", "StraightThrough"]
__all__ += ["relax_control"]
