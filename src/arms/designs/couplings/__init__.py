"""Couplings: joint distributions of n exchangeable samples, and the corrections they need."""
