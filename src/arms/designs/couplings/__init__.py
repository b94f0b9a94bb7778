"""Couplings: joint distributions of n exchangeable samples, with corrections of the gradient."""
