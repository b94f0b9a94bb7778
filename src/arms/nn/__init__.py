"""Modules with discrete choices, built on `arms.sample`: gates, codes and routers.

To train a module, call the module in a block of `arms.sampling`, or pass a biased estimator to the
module's constructor. In evaluation mode, modules are deterministic and take the most likely choice.
"""

from arms.nn.codes import Codes
from arms.nn.gates import Gates
from arms.nn.router import Router

__all__ = ["Codes", "Gates", "Router"]
