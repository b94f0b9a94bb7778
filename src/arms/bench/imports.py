"""Objects of the user's own code that are named as module:attribute."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from arms.arguments import described


def find_attribute(subject: str) -> Any:
    """Return what module:attribute names, also in this folder. Any failure is a `ValueError`."""
    module, _, attribute = subject.partition(":")
    if not module or not attribute:
        raise ValueError(f"{subject!r} must be module:name, such as my_module:make_model")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise ValueError(f"cannot find {subject!r}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        why = f"importing {module} ends in {described(error)}"
        raise ValueError(f"cannot find {subject!r}: {why}") from None


def find_model(model: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return the function that makes a model, given itself or its name."""
    found = find_attribute(model) if isinstance(model, str) else model
    if not callable(found):
        got = type(found).__name__
        raise ValueError(f"{model!r} must be a function from a data set to a model, got {got}")
    return found
