"""Estimators for the importance-weighted bound."""
