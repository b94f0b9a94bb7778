"""Training: one step and its state, the optimizer, and the execution of steps."""
