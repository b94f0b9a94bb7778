"""Printing for the verbs: one line per message, unbroken however narrow the terminal is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from arms.bench.terminal import get_console


def print_markup(line: str) -> None:
    """Print a line with rich's markup, unbroken, so that paths in it can be copied.

    Line breaks are written out: with one in its name, a run could add lines about other runs.
    """
    get_console().print(line.replace("\n", "\\n"), soft_wrap=True)


def print_plain(line: str) -> None:
    """Print a line as it is: it may contain anything, such as a path with brackets."""
    print_markup(escape(line))


def print_table(table: Table) -> None:
    """Print a table; on a narrow terminal, long words continue on the next line of their cell."""
    for column in table.columns:
        column.overflow = "fold"  # the default replaces the rest of a word by "…"
    get_console().print(table)


def print_paths(paths: Sequence[Path]) -> None:
    """Print the files that a verb has written."""
    for path in paths:
        print_markup(f"[bold]{escape(str(path))}")


@contextmanager
def explaining_missing_packages() -> Iterator[None]:
    """Raise a `ValueError` that says what to install if a package for figures is missing."""
    try:
        yield
    except ImportError as error:
        remedy = "pip install 'arms-grad[bench]'"
        raise ValueError(f"figures and reports need {error.name}: {remedy}") from None
