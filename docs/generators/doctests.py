"""Examples in docstrings as blocks of code: Markdown would take their prompts for quotations."""

import re
from typing import Any

import griffe

PROMPT = re.compile(r"^( *)(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)


def fenced(text: str) -> str:
    """Return a docstring with every run of lines from a prompt to the next empty line fenced."""
    return PROMPT.sub(
        lambda match: f"{match[1]}```pycon\n{match[1]}{match[2]}\n{match[1]}```", text
    )


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
