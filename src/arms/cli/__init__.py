"""The `arms` command: one verb, one function, no logic of its own."""

import sys
from collections.abc import Callable

DESCRIPTION = "Gradients through binary choices: train discrete VAEs, check and compare estimators, draw and report."


def main() -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    try:
        import tyro

        from arms.cli import checking, reporting, training
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
    words = sys.argv[1:]
    if words[:1] in (["data"], ["experiments"]):  # reads better than `arms data:list`
        if len(words) == 1 or words[1] in ("-h", "--help"):
            own = [verb.partition(":")[2] for verb in verbs if verb.startswith(f"{words[0]}:")]
            sys.stdout.write("".join(f"arms {words[0]} {verb} --help\n" for verb in own))
            return
        words = [f"{words[0]}:{words[1]}", *words[2:]]
    try:
        tyro.extras.subcommand_cli_from_dict(verbs, args=words, prog="arms", description=DESCRIPTION)
    except ValueError as error:
        sys.stderr.write(f"arms: {error}\n")
        raise SystemExit(2) from None
    except OSError as error:
        where = f"cannot use {error.filename}: " if error.filename else ""
        sys.stderr.write(f"arms: {where}{error.strerror or error}: choose another place, or see what is in the way\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:  # it says what was saved, if anything was
        sys.stderr.write(f"arms: stopped{f'; {stop}: the same command goes on from there' if stop.args else ''}\n")
        raise SystemExit(130) from None
