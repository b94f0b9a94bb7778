"""Packages that only some data sets need, imported when one of them is asked for."""

from importlib import import_module
from types import ModuleType


def require(module: str) -> ModuleType:
    """Import a module, or say how to install what is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"this data set needs {module} ({error}): pip install 'arms-grad[data]'") from None
