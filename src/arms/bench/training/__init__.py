"""One training step and its state, the optimiser, and how steps are driven."""
