"""How the verbs speak: one line is one line, however narrow the terminal."""

import rich
from rich.markup import escape


def say(line: str) -> None:
    """Print a line with rich's markup, unbroken, so that paths in it can be copied."""
    rich.get_console().print(line, soft_wrap=True)


def tell(line: str) -> None:
    """Print a line that may hold anything, a path with brackets say, as it is."""
    say(escape(line))
