"""The experiment bench: discrete VAEs, runs that survive a crash, sweeps, reports. Needs arms-grad[bench]."""
