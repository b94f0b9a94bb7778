"""Properties that are computed once."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property

    lazy_property = cached_property
else:

    class lazy_property:  # noqa: N801 (used like a function)
        """`cached_property` without the lock of Python 3.11, which torch.compile cannot trace."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self.function(instance)
            # Found before this descriptor from now on. Frozen dataclasses allow no assignment.
            object.__setattr__(instance, self.function.__name__, value)
            return value
