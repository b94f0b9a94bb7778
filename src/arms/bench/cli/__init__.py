"""The `arms` command: one verb, one function, no logic of its own."""

import os
import sys
from collections.abc import Callable


def main() -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    try:
        from arms.bench.cli import checking, parsing, reporting, training
        from arms.bench.runs.memory import keep_freed_memory
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("arms"):
            raise
        sys.stderr.write(
            f"arms: the command line needs {error.name}: pip install 'arms-grad[bench]' ('.[bench]' in its folder)\n"
        )
        raise SystemExit(2) from None
    verbs: dict[str, Callable[..., None]] = {
        "train": training.train,
        "evaluate": training.evaluate,
        "variance": training.variance,
        "sample": training.sample,
        "data:list": training.data_list,
        "data:get": training.data_get,
        "demo": training.demo,
        "check": checking.check,
        "estimators": checking.estimators,
        "report": reporting.report,
        "toy": reporting.toy_problem,
        "correlations": reporting.correlations,
        "experiments:list": reporting.experiments_list,
        "experiments:run": reporting.experiments_run,
    }
    try:
        verb = parsing.parse(verbs, sys.argv[1:])
        keep_freed_memory()  # process-wide, so the command's business and not the library's
        verb()
        sys.stdout.flush()
    except ValueError as error:
        sys.stderr.write(f"arms: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:  # `| head` has seen enough; nothing may be written on the way out either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        where = f"cannot use {error.filename}: " if error.filename else ""
        sys.stderr.write(f"arms: {where}{error.strerror or error}: choose another place, or see what is in the way\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:  # it says what was saved, if anything was
        sys.stderr.write(f"arms: stopped{f'; {stop}: the same command goes on from there' if stop.args else ''}\n")
        raise SystemExit(130) from None
