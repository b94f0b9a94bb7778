"""The command line parser: from words to the call of one verb, and its complaints as a single line."""

import inspect
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial, wraps
from pathlib import Path
from typing import Annotated

import tyro

from arms.bench.formatting import LONGEST_NAME, shorten
from arms.bench.runs.files import check_local

DESCRIPTION = "Gradients through discrete choices: train discrete VAEs, check and compare estimators, write reports."

Output = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
"""Type of an argument for what a verb writes."""
LONGEST_ECHOED = 2 * LONGEST_NAME
"""In characters. Longer words of a command are cut in the parser's complaint."""
RunPath = Annotated[Path, tyro.conf.Positional]
"""Type of an argument for a run directory."""


def parse(verbs: Mapping[str, Callable[..., None]], words: Sequence[str]) -> Callable[[], object]:
    """Return the call that the words ask for; whatever is wrong with them is a `ValueError` of one line.

    A verb may be two words, such as "data list". The parser knows it as "data:list".
    """
    if group := [verb for verb in verbs if words and verb.startswith(f"{words[0]} ")]:
        if len(words) == 1 or words[1] in ("-h", "--help"):
            return partial(sys.stdout.write, "".join(f"arms {verb} --help\n" for verb in group))
        words = [f"{words[0]}:{words[1]}", *words[2:]]
    functions = {_joined(verb): _later(function) for verb, function in verbs.items()}
    complaint, help_text = io.StringIO(), io.StringIO()
    try:
        with redirect_stderr(complaint), redirect_stdout(help_text):
            call: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
                functions, args=words, prog="arms", description=DESCRIPTION
            )
    except SystemExit as stop:
        if not stop.code:
            sys.stdout.write(_plainly(_as_typed(help_text.getvalue(), verbs)))
            sys.stdout.flush()
            raise
        if max(map(len, words), default=0) > LONGEST_ECHOED:
            return parse(verbs, [shorten(word) for word in words])  # for a complaint without them
        verb = words[0] if words and words[0] in functions else ""
        line = f"{in_one_line(complaint.getvalue(), verb)}; see {f'arms {verb}'.strip()} --help"
        raise ValueError(_as_typed(line, verbs)) from None
    if warning := complaint.getvalue():
        sys.stderr.write(warning)
    return call


def _later(function: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """Return a function of the same signature that calls nothing yet: errors of a verb are not errors of the parser."""

    @wraps(function)
    def prepare(*args: object, **options: object) -> Callable[[], None]:
        return partial(_call, function, args, options)

    # The help is wrapped to the terminal's width: line breaks of the source would only make it ragged.
    prepare.__doc__ = re.sub(r"\n {12}", " ", function.__doc__ or "")
    prepare.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del prepare.__wrapped__  # whose documentation the parser would take
    return prepare


def _call(
    function: Callable[..., None], args: Sequence[object], options: Mapping[str, object]
) -> None:
    """Call a verb, after every path among its arguments was checked."""
    for value in (*args, *options.values()):
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                check_local(path)
    function(*args, **options)


def in_one_line(box: str, verb: str) -> str:
    """Return the gist of the parser's complaint about a verb's arguments, which it prints as paragraphs in a box.

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
        rf"^(--\S+)(?:(?!\n--).)*?\nin arms {re.escape(verb)} --help",
        rest,
        re.MULTILINE | re.DOTALL,
    ):
        return f"{what}: perhaps {meant[1]}"
    if known := re.search(r"^Available subcommands: ((?:[\w:,-]+\s?)+)", rest):
        return f"{what}: choose one of {' '.join(known[1].split())}"
    return what


def _plainly(text: str) -> str:
    """Leave out that a flag may be None: it is left out for that. The words keep their width, as boxes are around them.

    >>> _plainly("│ --output {None}|PATH   │")
    '│ --output PATH          │'
    """
    return re.sub(r"\{None\}\|(\S+)", rf"\1{' ' * len('{None}|')}", text)


def _joined(verb: str) -> str:
    return verb.replace(" ", ":")


def _as_typed(text: str, verbs: Iterable[str]) -> str:
    """Replace the parser's names of verbs, which are as long, by the words that a user types."""
    for verb in verbs:
        if " " in verb:
            text = re.sub(rf"\b{re.escape(_joined(verb))}\b", verb, text)
    return text
