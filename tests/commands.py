"""The type of the fixture `say`, which runs a command in the test's process."""

from collections.abc import Callable
from typing import TypeAlias

Say: TypeAlias = Callable[..., tuple[int, str, str]]
"""A function that takes the words of a command, and returns its exit code, stdout and stderr."""
