"""The command line parser: from words to the call of a verb; any complaint is a single line."""

import inspect
import io
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial, wraps
from pathlib import Path
from typing import Annotated

import tyro

from arms.arguments import unknown_name
from arms.bench.formatting import LONGEST_NAME, shorten
from arms.bench.runs.files import check_local

DESCRIPTION = (
    "Gradients through discrete choices: train discrete VAEs, check and compare estimators"
)

Output = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
"""Type of an argument for what a verb writes."""
RunPath = Annotated[Path, tyro.conf.Positional]
"""Type of an argument for a run directory."""
ModelName = Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")]
"""Type of an argument for a function that makes a model."""

Verb = Callable[..., None]


def parse(verbs: Mapping[str, Verb], words: Sequence[str]) -> Callable[[], object]:
    """Return the call that the words ask for. A verb may be two words, such as "data list".

    Raises:
        ValueError: Something is wrong with the words. The message is one line.
    """
    first = words[0] if words else "--help"
    group = {verb: verbs[verb] for verb in verbs if verb.split()[0] == first}
    if first in ("-h", "--help"):
        return partial(_print_verbs, verbs)
    if not group:
        raise unknown_name("command", first, verbs)
    if first not in verbs and (len(words) == 1 or words[1] in ("-h", "--help")):
        return partial(_print_verbs, group)
    verb = first if first in verbs else " ".join(words[:2])
    if verb not in verbs:
        raise unknown_name("command", verb, group)
    return _parse_options(verb, verbs[verb], words[len(verb.split()) :])


def _parse_options(verb: str, function: Verb, words: Sequence[str]) -> Callable[[], object]:
    complaint, help_text = io.StringIO(), io.StringIO()
    try:
        with redirect_stderr(complaint), redirect_stdout(help_text):
            call: Callable[[], object] = tyro.cli(
                _later(function), args=words, prog=f"arms {verb}", config=(tyro.conf.DisallowNone,)
            )
    except SystemExit as stop:
        if not stop.code:
            return partial(sys.stdout.write, help_text.getvalue())
        if max(map(len, words), default=0) > 2 * LONGEST_NAME:
            return _parse_options(verb, function, [shorten(word) for word in words])
        raise ValueError(f"{_in_one_line(complaint.getvalue())}; see arms {verb} --help") from None
    return call


def _later(function: Verb) -> Callable[..., Callable[[], None]]:
    """Return a function of the same signature that calls nothing yet.

    Errors of a verb are not errors of the parser. Paths among the arguments are checked first.
    """

    @wraps(function)
    def prepare(*args: object, **options: object) -> Callable[[], None]:
        def call() -> None:
            for path in _paths((*args, *options.values())):
                check_local(path)
            function(*args, **options)

        return call

    # Line breaks of the source would make the help ragged, which is wrapped to the terminal.
    prepare.__doc__ = (function.__doc__ or "").replace("\n" + 12 * " ", " ")
    prepare.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del prepare.__wrapped__  # whose documentation the parser would take
    return prepare


def _paths(value: object) -> list[Path]:
    """Return the paths in a value, which may be a tuple or an object with options."""
    inside = value if isinstance(value, tuple) else tuple(getattr(value, "__dict__", {}).values())
    return [value] if isinstance(value, Path) else [path for one in inside for path in _paths(one)]


def _in_one_line(complaint: str) -> str:
    """Return the first paragraph of the parser's complaint, which has a title and perhaps a box.

    >>> _in_one_line("╭ Error ╮\\n│ Wrong: --n │\\n│ ── │\\n│ Perhaps you meant: │\\n│ --m INT │")
    'Wrong: --n: perhaps --m'
    """
    lines = [line.strip(" │╭╮╰╯─") for line in complaint.splitlines()[1:]]
    text = "\n".join(line if line.strip("-") else "" for line in lines)
    what, _, rest = text.strip().partition("\n\n")
    _, _, meant = rest.partition("Perhaps you meant:\n")
    return " ".join(what.rstrip(".").split()) + (f": perhaps {meant.split()[0]}" if meant else "")


def _print_verbs(verbs: Mapping[str, Verb]) -> None:
    lines = [f"usage: arms COMMAND [OPTIONS]\n\n{DESCRIPTION}. Options: arms COMMAND --help\n"]
    for verb, function in verbs.items():
        about = inspect.getdoc(function) or ""
        line = f"  {verb:<18}{about.partition(chr(10))[0]}"
        lines += textwrap.wrap(line, 100, subsequent_indent=20 * " ")
    sys.stdout.write("\n".join(lines) + "\n")
