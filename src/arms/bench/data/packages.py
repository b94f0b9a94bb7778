"""Import of packages that only some data sets need."""

from importlib import import_module
from types import ModuleType


def import_optional(module: str) -> ModuleType:
    """Return a module, or raise a `ValueError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"this data set needs {module} ({error}): pip install 'arms-grad[data]'"
        ) from None
