"""How the verbs speak: one line is one line, however narrow the terminal."""

import rich


def say(line: str) -> None:
    """Print a line with rich's markup, unbroken, so that paths in it can be copied."""
    rich.get_console().print(line, soft_wrap=True)
