"""Couplings: joint distributions of n exchangeable samples, and how to correct for them."""
