"""Estimators: a design plus a rule that combines the objective's values into a gradient."""

from arms.estimators.base import Learnable as Learnable
from arms.estimators.base import Objective as Objective
from arms.estimators.base import TensorObjective as TensorObjective
from arms.estimators.base import Values as Values
from arms.estimators.registry import *  # noqa: F403
