"""Checks: exact expectations, tests for bias, tests of couplings, and comparisons of variance."""

from arms.checks.audit import Audit, AuditRow, audit
from arms.checks.bias import bias_finding
from arms.checks.estimator import findings
from arms.checks.oracle import (
    exact_gradient,
    exact_value,
    expected_estimate,
    random_table,
    smooth_objective,
    table_objective,
    univariate_variance,
)
from arms.checks.variance import VarianceRow, VarianceTable, variance
from arms.checks.verdicts import Finding, Findings, score_limit

__all__ = ["Audit", "AuditRow", "audit"]
__all__ += ["Finding", "Findings", "VarianceRow", "VarianceTable", "bias_finding", "exact_gradient"]
__all__ += ["exact_value", "expected_estimate", "findings", "random_table", "score_limit"]
__all__ += ["smooth_objective", "table_objective", "univariate_variance", "variance"]
