"""Sweeps: training of many runs on several kinds of engines."""
