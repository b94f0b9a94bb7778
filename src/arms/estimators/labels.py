"""Short labels of estimator objects: the class, and what tells one object from another."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass

import numpy as np
from torch import Tensor, nn

from arms.designs import Coupled, Coupling, Design, Independent
from arms.estimators.base import Estimator
from arms.estimators.derivative.relax import RELAX
from arms.estimators.score.leave_one_out import LeaveOneOut

LONGEST, LONGEST_VALUE = 60, 24


def label(estimator: Estimator) -> str:
    """Return the class of an estimator and its settings, without num_samples and learned numbers.

    >>> from arms import ARMS, LOORF, REBAR, DisARM
    >>> [label(one) for one in (LOORF(4), ARMS(4), DisARM(4, correlation=-0.5), REBAR(4))]
    ['LOORF', 'ARMS(Systematic())', 'DisARM(correlation=-0.5)', 'REBAR']
    """
    name, design = type(estimator).__name__, type(estimator.design)
    if type(estimator) is LeaveOneOut and design in (Independent, Coupled):
        name = "LOORF" if design is Independent else "ARMS"
    hidden = {"num_samples"}
    if type(estimator) is RELAX and estimator.control is None:
        name, hidden = "REBAR", {"num_samples", "control"}
    parts = []
    known: tuple[Field[object], ...] = fields(estimator) if is_dataclass(estimator) else ()
    for field in known:
        value = getattr(estimator, field.name)
        if field.name in hidden or isinstance(value, Independent):
            continue
        if isinstance(value, Coupling | Estimator | Design):
            parts.append(_text(value.coupling if isinstance(value, Coupled) else value))
        elif field.repr and not _is_default(field, value):
            parts.append(f"{field.name}={_text(value)}")
    return _shortened(name + (f"({', '.join(parts)})" if parts else ""), LONGEST)


def deduplicate_labels(labels: Sequence[str]) -> list[str]:
    """Number the labels that occur more than once.

    >>> deduplicate_labels(["LOORF", "ARM", "LOORF"])
    ['LOORF #1', 'ARM', 'LOORF #2']
    """
    total = Counter(labels)
    places = [labels[: at + 1].count(one) for at, one in enumerate(labels)]
    numbered = zip(labels, places, strict=True)
    return [f"{one} #{place}" if total[one] > 1 else one for one, place in numbered]


def _is_default(field: "Field[object]", value: object) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return True  # too long for a label
    if field.default is not MISSING:
        return bool(value == field.default)
    # A factory that is called could draw from the global generator. A class need not be called.
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
