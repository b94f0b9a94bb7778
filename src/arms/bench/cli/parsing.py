"""From the words of a command line to the call they ask for."""

import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial, wraps

import tyro

DESCRIPTION = "Gradients through binary choices: train discrete VAEs, check and compare estimators, draw and report."


def parse(verbs: Mapping[str, Callable[..., None]], words: Sequence[str]) -> Callable[[], object]:
    """Return what the words ask for, to be called; what the parser has to say about them is a `ValueError` of one line.

    A verb `data:list` is typed as two words, which reads better.
    """
    if group := [verb for verb in verbs if words and verb.startswith(f"{words[0]}:")]:
        if len(words) == 1 or words[1] in ("-h", "--help"):
            return partial(sys.stdout.write, "".join(f"arms {_spoken(verb)} --help\n" for verb in group))
        words = [f"{words[0]}:{words[1]}", *words[2:]]
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            asked: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
                {verb: _later(function) for verb, function in verbs.items()},
                args=words,
                prog="arms",
                description=DESCRIPTION,
            )
    except SystemExit as stop:
        if not stop.code:
            sys.stdout.flush()
            raise
        verb = words[0] if words and words[0] in verbs else ""
        raise ValueError(
            f"{in_one_line(said.getvalue(), verb)}; see {_spoken(f'arms {verb}').strip()} --help"
        ) from None
    sys.stderr.write(said.getvalue())
    return asked


def _later(function: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    @wraps(function)
    def prepare(*args: object, **options: object) -> Callable[[], None]:
        return partial(function, *args, **options)

    return prepare


def in_one_line(box: str, verb: str) -> str:
    """Return the gist of what the parser says of a verb's arguments, in a box of paragraphs.

    >>> in_one_line("│ Error parsing --n: no INT in ['x'] │\\n│ ─── │\\n│ Help: │\\n│ --n INT │\\n", "toy")
    "--n must be INT, got 'x'"
    """
    lines = [line.strip(" │") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    first, *others = re.split(r"\n[─-]{3,}\n", "\n".join(lines))
    if "│" not in box:  # plain letters, with the title above
        first, *others = others or [first]
    what, rest = " ".join(first.split()).rstrip("."), "\n\n".join(others)
    if wrong := re.match(r"Error parsing (\S+): .*?(?:\[(.*?)\]|('[^']*'))", what):
        kind = re.search(rf"^(?:.*, )?{re.escape(wrong[1])} (.+)$", rest, re.MULTILINE)
        return f"{wrong[1]} must be {kind[1] if kind else 'of another kind'}, got {wrong[2] or wrong[3]}"
    if meant := re.search(
        rf"^(--\S+)(?:(?!\n--).)*?\nin arms {re.escape(verb)} --help", rest, re.MULTILINE | re.DOTALL
    ):
        return f"{what}: perhaps {meant[1]}"
    if known := re.search(r"^Available subcommands: ((?:[\w:,-]+\s?)+)", rest):
        return _spoken(f"{what}: choose one of {' '.join(known[1].split())}")
    return _spoken(what)


def _spoken(verbs: str) -> str:
    return re.sub(r"\b(data|experiments):(?=\w)", r"\1 ", verbs)
