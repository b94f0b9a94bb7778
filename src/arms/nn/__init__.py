"""Modules with discrete choices inside, made of `arms.sample`: gates, codes and routers.

They train in a block of `arms.sampling`, or without one if they are given a biased estimator. In
evaluation mode nothing is random: the likeliest choice is taken.
"""

from arms.nn.codes import Codes
from arms.nn.gates import Gates
from arms.nn.router import Router

__all__ = ["Codes", "Gates", "Router"]
