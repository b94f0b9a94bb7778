"""Unbiased estimators that also use derivatives of the objective."""
