"""Couplings: n exchangeable samples of every variable, and what undoes their dependence."""
