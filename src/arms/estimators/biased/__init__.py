"""Biased estimators, for comparison."""
