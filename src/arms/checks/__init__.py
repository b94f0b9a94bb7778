"""Checks that can fail: the enumeration oracle, tests of bias and of couplings, variances. For our tests and yours."""

from arms.checks.bias import bias_scores, check_bias
from arms.checks.coupling import check_coupling
from arms.checks.estimator import check_estimator
from arms.checks.oracle import exact_bound, exact_gradient, exact_value, random_table, table_objective
from arms.checks.univariate import univariate_variance
from arms.checks.variance import variance
from arms.checks.variance_table import VarianceRow, VarianceTable
from arms.checks.verdicts import Finding, Report, score_limit

__all__ = [
    "Finding",
    "Report",
    "VarianceRow",
    "VarianceTable",
    "bias_scores",
    "check_bias",
    "check_coupling",
    "check_estimator",
    "exact_bound",
    "exact_gradient",
    "exact_value",
    "random_table",
    "score_limit",
    "table_objective",
    "univariate_variance",
    "variance",
]
