"""The `arms` command: the registry of its verbs, and what users see of an error."""

import os
import sys
from collections.abc import Callable

__all__ = ["main", "verbs"]


def verbs() -> dict[str, Callable[..., None]]:
    """Return every verb, as it is typed, with its function; one line here makes a new one known."""
    from arms.bench.cli import check, data, experiments, report, runs, sweep, train

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
        "pack": runs.pack,
        "toy": report.toy,
        "correlations": report.correlations,
        "experiments list": experiments.experiments_list,
        "experiments run": experiments.experiments_run,
        "sweep": sweep.sweep,
    }


def main() -> None:
    """Run the command line; a mistake of the user is one line on stderr and exit code 2."""
    try:
        _run()
    except KeyboardInterrupt as stop:  # its message says what was saved, if anything was
        sys.stderr.write(f"arms: stopped{f'; {stop}: the same command resumes from there' if stop.args else ''}\n")
        raise SystemExit(143 if type(stop) is not KeyboardInterrupt else 130) from None


def _run() -> None:
    try:
        from arms.bench.cli.parsing import parse
        from arms.bench.runs.memory import keep_freed_memory

        known = verbs()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("arms"):
            raise
        sys.stderr.write(
            f"arms: the command line needs {error.name}: pip install 'arms-grad[bench]' ('.[bench]' in its folder)\n"
        )
        raise SystemExit(2) from None
    if sys.argv[1:] in (["--version"], ["-V"]):
        from arms import __version__

        sys.stdout.write(f"arms {__version__}\n")
        return
    try:
        verb = parse(known, sys.argv[1:])
        keep_freed_memory()  # process-wide, so the command's business and not the library's
        verb()
        sys.stdout.flush()
    except ValueError as error:
        sys.stderr.write(f"arms: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:  # `| head` has closed its end; Python must not try to write on the way out either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        where = f"cannot use {error.filename}: " if error.filename else ""
        sys.stderr.write(f"arms: {where}{error.strerror or error}: choose another place, or remove the obstacle\n")
        raise SystemExit(2) from None
