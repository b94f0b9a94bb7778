"""The console that every command prints to.

Names come from files of other people. The console shows control characters in them as text: an
escape sequence could otherwise clear the screen, hide lines or set the title.
"""

import os
import sys
from functools import cache
from typing import Any

from rich.console import Console
from rich.text import Text

from arms.bench.formatting import printable

MIN_WIDTH = 40
"""Narrower tables have empty cells. At width 0, which COLUMNS=0 asks for, rich prints nothing."""
LONGEST_HIGHLIGHTED = 1000
"""In characters. The time in which rich finds numbers in a long word grows with its square."""


class SafeConsole(Console):
    """A console that prints control characters as text, and nothing once its reader has left.

    What runs goes on then: a training is worth more than its output. The exit code says so.
    """

    _reader_left = False

    def on_broken_pipe(self) -> None:
        """Stop printing. Rich's own console would end the process here."""
        self.quiet = True
        self._reader_left = True
        # Python would otherwise try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def check_reader(self) -> None:
        """Raise if the reader of the output has left before its end."""
        if self._reader_left:
            raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich's text. Rich calls this for every string, also in tables."""
        if len(text) > LONGEST_HIGHLIGHTED:
            options["highlight"] = False
        return super().render_str(printable(text), **options)


@cache
def get_console() -> SafeConsole:
    """Return the console on stdout, always the same one: lines then appear above a progress bar."""
    console = SafeConsole(emoji=False)  # ":car:" in a name is no picture
    if console.width < MIN_WIDTH:
        console.width = MIN_WIDTH
    return console
