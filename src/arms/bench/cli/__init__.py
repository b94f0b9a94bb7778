"""The `arms` command: its subcommands, its parser, and its one-line errors."""

import inspect
import io
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, NoReturn

import tyro

from arms import __version__
from arms.arguments import described, unknown_name
from arms.bench.output import LONGEST_NAME, get_console, printable, shorten, shorten_words
from arms.bench.runs.files import check_local
from arms.bench.training.engine import is_out_of_memory, keep_freed_memory

DESCRIPTION = (
    "Gradients through discrete choices: train discrete VAEs, check and compare estimators"
)

Output = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
"""Type of the argument for the output path of a subcommand."""
RunPath = Annotated[Path, tyro.conf.Positional]
"""Type of an argument for a run directory."""
ModelName = Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")]
"""Type of an argument for a function that makes a model."""

Verb = Callable[..., None]


def verbs() -> dict[str, Verb]:
    """Return {name of a subcommand: its function}. To add a subcommand, add one line here."""
    from arms.bench.cli import audit, library, runs, sweep, train

    return {
        "train": train.train,
        "runs": runs.runs,
        "evaluate": runs.evaluate,
        "variance": runs.variance,
        "sample": runs.sample,
        "data list": library.data_list,
        "data get": library.data_get,
        "demo": train.demo,
        "check": library.check,
        "audit": audit.audit,
        "estimators": library.estimators,
        "report": sweep.report,
        "archive": runs.archive,
        "toy": sweep.toy,
        "correlations": sweep.correlations,
        "experiments list": sweep.experiments_list,
        "experiments run": sweep.experiments_run,
        "sweep": sweep.sweep,
        "sweep paper": sweep.sweep_paper,
    }


def main() -> None:
    """Run the command line. For wrong words, print one line on stderr, and exit with code 2."""
    words = sys.argv[1:]
    try:
        if words in (["--version"], ["-V"]):
            verb: Callable[[], object] = partial(sys.stdout.write, f"arms {__version__}\n")
        else:
            verb = parse(verbs(), words)
        keep_freed_memory()  # affects the whole process, so the library itself does not call it
        verb()
        sys.stdout.flush()
        if get_console().reader_left:
            raise SystemExit(141)
    except ValueError as error:
        _end(str(error))
    except BrokenPipeError:  # the reader, such as `| head`, closed the pipe
        _discard_output()
        raise SystemExit(141) from None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _end("the computation does not fit into memory: use fewer samples, images or replicas")
    except OSError as error:
        if not error.filename:
            _discard_output()  # stdout may be on a full disk
        where = f"cannot use {error.filename}: " if error.filename else ""
        _end(f"{where}{error.strerror or error}: choose another path, or correct this problem")
    except KeyboardInterrupt as stop:  # the argument of `stop` says which step was saved, if any
        saved = f"; {stop}: the same command resumes from there" if stop.args else ""
        _end(f"stopped{saved}", 130 if type(stop) is KeyboardInterrupt else 143)


def _discard_output() -> None:
    """Discard the buffered output, because Python's attempt to write it at exit would fail."""
    with suppress(OSError, ValueError):  # stdout is not a file in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, code: int = 2) -> NoReturn:
    """Print an error message on stderr as one line without control characters. Exit with `code`."""
    line = shorten_words(printable(" ".join(message.splitlines())), sys.argv[1:])
    with suppress(OSError):  # stderr may be on a full disk or closed; the exit code still counts
        sys.stderr.write(f"arms: {line}\n")
    raise SystemExit(code) from None


# ---- the parser


def parse(verbs: Mapping[str, Verb], words: Sequence[str]) -> Callable[[], object]:
    """Parse the words of a command line, and return a function without arguments that runs it.

    The first words name a subcommand in `verbs`. A name may have two words, such as "data list".

    Raises:
        ValueError: The words are not a valid command. The message has one line.
    """
    first = words[0] if words else "--help"
    group = {verb: verbs[verb] for verb in verbs if verb.split()[0] == first}
    if first in ("-h", "--help"):
        return partial(_print_verbs, verbs)
    if not group:
        raise unknown_name("command", first, verbs)
    if first not in verbs and (len(words) == 1 or words[1] in ("-h", "--help")):
        return partial(_print_verbs, group)
    verb = " ".join(words[:2])
    verb = first if first in verbs and verb not in verbs else verb
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
    """Return a function with the signature of `function` that delays the call.

    The new function does not call `function`. It returns a function without arguments, which checks
    all paths among the arguments and then calls `function`. Errors of the parser are therefore
    raised before any error of the subcommand.
    """

    @wraps(function)
    def prepare(*args: object, **options: object) -> Callable[[], None]:
        def call() -> None:
            for path in _paths((*args, *options.values())):
                check_local(path)
            function(*args, **options)

        return call

    # The help is wrapped to the terminal, so line breaks of the source are removed.
    prepare.__doc__ = (function.__doc__ or "").replace("\n" + 12 * " ", " ")
    prepare.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del prepare.__wrapped__  # otherwise, the parser uses the original docstring
    return prepare


def _paths(value: object) -> list[Path]:
    """Return all paths in a command's argument: a path, a tuple, or an object with fields."""
    inside = value if isinstance(value, tuple) else tuple(getattr(value, "__dict__", {}).values())
    return [value] if isinstance(value, Path) else [path for one in inside for path in _paths(one)]


def _in_one_line(complaint: str) -> str:
    """Return the parser's error message as one line, without the title and the frame around it.

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


@contextmanager
def naming_the_model(name: str | None) -> Iterator[None]:
    """Convert exceptions in the `with` block to a `ValueError` that names the user's model.

    `ValueError` and `OSError` are not converted, because the command prints these errors on one
    line anyway. If `name` is None, no exception is converted.
    """
    try:
        yield
    except (ValueError, OSError):
        raise
    except (Exception, SystemExit) as error:
        if name is None:
            raise
        what = f"the model {name} must run without an error, but raised {described(error)}"
        raise ValueError(f"{what}: call it in Python to see the traceback") from error
