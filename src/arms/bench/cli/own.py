"""What users write themselves and name on the command line as module:attribute."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import tyro

from arms.arguments import described

ModelName = Annotated[
    str | None, tyro.conf.arg(metavar="MODULE:NAME", help_behavior_hint="(default: none)")
]
"""Type of an argument for a function that makes a model."""
OwnData = Annotated[
    str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(default: the run's)")
]
"""Type of an argument for a data set of the user's own that has moved."""


def find_attribute(subject: str) -> Any:
    """Return what module:attribute names, imported from this folder too; whatever goes wrong is a `ValueError`."""
    module, colon, attribute = subject.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"{subject!r} must be module:name, such as my_module:make_model")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise ValueError(f"cannot find {subject!r}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ValueError(
            f"cannot find {subject!r}: importing {module} ends in {described(error)}"
        ) from None


def find_model(name: str | None) -> Callable[..., Any] | None:
    """Return the function that makes a model, or the model, that a user has named; None where none is."""
    if name is None:
        return None
    found = find_attribute(name)
    if not callable(found):
        raise ValueError(
            f"{name!r} must be a function from a data set to a model, got {type(found).__name__}"
        )
    return found  # type: ignore[no-any-return]


@contextmanager
def naming_the_model(name: str | None) -> Iterator[None]:
    """Turn an exception of a user's own model, if there is one, into a `ValueError` that names it.

    Errors that are one line already, about values and files, stay as they are.
    """
    try:
        yield
    except (ValueError, OSError):
        raise
    except (Exception, SystemExit) as error:
        if name is None:
            raise
        raise ValueError(
            f"the model {name} must run without an error, got {described(error)}: call it in Python "
            "to see where that is raised"
        ) from error
