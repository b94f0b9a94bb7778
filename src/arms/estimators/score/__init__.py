"""Estimators that use the objective's values and the score of the samples."""
