"""All engines by name. To add an engine, add a module and an entry here."""

import inspect
from collections.abc import Callable, Mapping

from arms.arguments import unknown_name
from arms.bench.sweeps.engines.base import Here, SweepEngine
from arms.bench.sweeps.engines.processes import Processes
from arms.bench.sweeps.engines.ray import RayCluster

__all__ = ["ENGINES", "Here", "Processes", "RayCluster", "SweepEngine", "make_engine"]

ENGINES: Mapping[str, Callable[..., SweepEngine]] = {
    "here": Here,
    "processes": Processes,
    "ray": RayCluster,
}


def make_engine(name: str, **options: object) -> SweepEngine:
    """Create an engine by its name. Options with the value None are ignored.

    >>> make_engine("here", address="10.0.0.1:6379")
    Traceback (most recent call last):
    ValueError: the engine 'here' has no option address: remove the option, or choose another engine
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    given = {option: value for option, value in options.items() if value is not None}
    if unknown := [
        each for each in given if each not in inspect.signature(ENGINES[name]).parameters
    ]:
        what = f"the engine {name!r} has no option {unknown[0]}"
        raise ValueError(f"{what}: remove the option, or choose another engine")
    return ENGINES[name](**given)
