"""Estimators: a design plus a rule that combines the objective's values into a gradient."""

from arms.estimators.base import Learnable as Learnable
from arms.estimators.base import Objective as Objective
from arms.estimators.base import TensorObjective as TensorObjective
from arms.estimators.base import Values as Values
from arms.estimators.registry import *  # noqa: F403
from arms.estimators.registry import ALIASES as ALIASES
from arms.estimators.registry import ALL_ESTIMATORS as ALL_ESTIMATORS
from arms.estimators.registry import DEFAULT_NUM_SAMPLES as DEFAULT_NUM_SAMPLES
from arms.estimators.registry import ENTRIES as ENTRIES
from arms.estimators.registry import num_samples_of as num_samples_of
from arms.estimators.registry import resolve as resolve
