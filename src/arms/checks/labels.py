"""Short names of estimator objects: the class, and what tells one object from another."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields

import numpy as np
from torch import Tensor, nn

from arms.couplings import Coupling
from arms.estimators import Estimator

__all__ = ["LONGEST", "LONGEST_VALUE", "label", "told_apart"]

LONGEST = 60
LONGEST_VALUE = 24


def label(estimator: Estimator) -> str:
    """Return the class of an estimator, its coupling or inner estimator, and the fields that are not at their defaults.

    The number of samples has no part in it. It is the same in every process: no addresses, no learnt numbers.

    >>> from arms import ARMS, ARTS, LOORF, Dirichlet
    >>> [label(one) for one in (LOORF(4), ARMS(4), ARMS(4, Dirichlet()), ARTS(4, correlation=-0.5))]
    ['LOORF', 'ARMS(Systematic())', 'ARMS(Dirichlet())', 'ARTS(correlation=-0.5)']
    """
    parts = []
    for field in fields(estimator):
        value = getattr(estimator, field.name)
        if isinstance(value, Coupling | Estimator):
            parts.append(_text(value))
        elif field.name != "num_samples" and field.repr and not _is_default(field, value):
            parts.append(f"{field.name}={_text(value)}")
    return _shortened(type(estimator).__name__ + (f"({', '.join(parts)})" if parts else ""), LONGEST)


def told_apart(labels: Sequence[str]) -> list[str]:
    """Number labels that occur more than once.

    >>> told_apart(["LOORF", "ARM", "LOORF"])
    ['LOORF #1', 'ARM', 'LOORF #2']
    """
    total, seen = Counter(labels), Counter[str]()
    numbered = []
    for one in labels:
        seen[one] += 1
        numbered.append(f"{one} #{seen[one]}" if total[one] > 1 else one)
    return numbered


def _is_default(field: "Field[object]", value: object) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return True  # too long for a label, and equal to nothing in one word
    if field.default is not MISSING:
        return bool(value == field.default)
    # A factory that is called could draw from the global generator; a class says what it makes without a call.
    return isinstance(value, nn.Module) and type(value) is field.default_factory


def _text(value: object) -> str:
    if isinstance(value, Estimator):
        return label(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if type(value).__repr__ is object.__repr__:  # it would be an address
        return f"{type(value).__name__}()"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return _shortened(repr(value), LONGEST_VALUE)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
