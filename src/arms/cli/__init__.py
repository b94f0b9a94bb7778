"""The `arms` command: one verb, one function, no logic of its own."""

import sys
from collections.abc import Callable


def main() -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    try:
        import tyro

        from arms.cli import checking, reporting
    except ImportError as error:
        sys.stderr.write(f"arms: the command line needs {error.name}: pip install 'arms-grad[cli]'\n")
        raise SystemExit(2) from None
    verbs: dict[str, Callable[..., None]] = {
        "check": checking.check,
        "estimators": checking.estimators,
        "report": reporting.report,
        "toy": reporting.toy_problem,
    }
    try:
        tyro.extras.subcommand_cli_from_dict(verbs, prog="arms", description=__doc__)
    except ValueError as error:
        sys.stderr.write(f"arms: {error}\n")
        raise SystemExit(2) from None
