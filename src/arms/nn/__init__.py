"""Modules with discrete choices, built on `arms.sample`: gates, codes and routers.

To train them, call them in a block of `arms.sampling`, or give them a biased estimator. In
evaluation mode they are deterministic and take the likeliest choice.
"""

from arms.nn.codes import Codes
from arms.nn.gates import Gates
from arms.nn.router import Router

__all__ = ["Codes", "Gates", "Router"]
