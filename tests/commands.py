"""What the fixture `say` gives: a command that is run in the test's own process."""

from collections.abc import Callable
from typing import TypeAlias

Say: TypeAlias = Callable[..., tuple[int, str, str]]
"""Takes the words of a command; returns its exit code, and what it said on stdout and stderr."""
