"""Couplings: n exchangeable samples of every variable, and the correction for their dependence."""
