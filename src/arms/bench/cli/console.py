"""Printing for the verbs: one line per message, unbroken however narrow the terminal, with or without markup."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import rich
from rich.markup import escape

__all__ = ["explaining_missing_packages", "print_markup", "print_paths", "print_plain"]


def print_markup(line: str) -> None:
    """Print a line with rich's markup, unbroken, so that paths in it can be copied."""
    rich.get_console().print(line, soft_wrap=True)


def print_plain(line: str) -> None:
    """Print a line as it is: it may contain anything, such as a path with brackets."""
    print_markup(escape(line))


def print_paths(paths: Sequence[Path]) -> None:
    """Print the files that a verb has written, one per line."""
    for path in paths:
        print_markup(f"[bold]{escape(str(path))}")


@contextmanager
def explaining_missing_packages() -> Iterator[None]:
    """Raise a `ValueError` that says what to install where a package for figures or pages is missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"figures and reports need {error.name}: pip install 'arms-grad[bench]'") from None
