"""Runs: training, run directories, checkpoints and archives."""
