"""Run directories, and the way from a configuration to a finished run."""
