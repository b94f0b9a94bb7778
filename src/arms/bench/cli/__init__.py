"""The `arms` command: the registry of its verbs, and what users see of an error."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

__all__ = ["main", "verbs"]


def verbs() -> dict[str, Callable[..., None]]:
    """Return every verb, as it is typed, with its function; one line here makes a new one known."""
    from arms.bench.cli import check, data, report, runs, sweep, train

    return {
        "train": train.train,
        "runs": runs.runs,
        "evaluate": runs.evaluate,
        "variance": runs.variance,
        "sample": runs.sample,
        "data list": data.data_list,
        "data get": data.data_get,
        "demo": train.demo,
        "check": check.check,
        "estimators": check.estimators,
        "report": report.report,
        "archive": runs.archive,
        "toy": report.toy,
        "correlations": report.correlations,
        "experiments list": sweep.experiments_list,
        "experiments run": sweep.experiments_run,
        "sweep": sweep.sweep,
    }


def main() -> None:
    """Run the command line; a mistake of the user is one line on stderr and exit code 2."""
    try:
        _run()
    except KeyboardInterrupt as stop:  # its message says what was saved, if anything was
        saved = f"; {stop}: the same command resumes from there" if stop.args else ""
        _end(f"stopped{saved}", 130 if type(stop) is KeyboardInterrupt else 143)


def _run() -> None:
    try:
        from arms.bench.cli.parsing import parse
        from arms.bench.terminal import get_console
        from arms.bench.training.engine import is_out_of_memory, keep_freed_memory

        known = verbs()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("arms"):
            raise
        remedy = "pip install 'arms-grad[bench]' ('.[bench]' in its folder)"
        _end(f"the command line needs {error.name}: {remedy}")
    try:
        words = sys.argv[1:]
        verb = _print_version if words in (["--version"], ["-V"]) else parse(known, words)
        keep_freed_memory()  # process-wide, so the command's business and not the library's
        verb()
        sys.stdout.flush()
        get_console().check_reader()
    except ValueError as error:
        _end(str(error))
    except BrokenPipeError:  # `| head` has closed its end
        _discard_output()
        raise SystemExit(141) from None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _end("it does not fit into memory: ask for fewer samples, images or replicas")
    except OSError as error:
        if not error.filename:
            _discard_output()  # it may be on a full disk
        where = f"cannot use {error.filename}: " if error.filename else ""
        _end(f"{where}{error.strerror or error}: choose another place, or remove the obstacle")


def _print_version() -> None:
    from arms import __version__

    sys.stdout.write(f"arms {__version__}\n")


def _discard_output() -> None:
    """Send what is still to be written to the null device; Python would fail again at its exit."""
    with suppress(OSError, ValueError):  # a stdout that is no file, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, code: int = 2) -> NoReturn:
    """Print why the command ends, as one line that no name in it can disturb, and end it."""
    from arms.bench.formatting import printable, shorten_words

    line = shorten_words(printable(" ".join(message.splitlines())), sys.argv[1:])
    with suppress(OSError):  # stderr may be on a full disk, or its reader gone: the code remains
        sys.stderr.write(f"arms: {line}\n")
    raise SystemExit(code) from None
