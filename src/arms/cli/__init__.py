"""The `arms` command: one verb, one function, no logic of its own."""

import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial, wraps

DESCRIPTION = "Gradients through binary choices: train discrete VAEs, check and compare estimators, draw and report."


def main() -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    try:
        import tyro  # noqa: F401

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
        _parse(verbs, words)()
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


def _parse(verbs: Mapping[str, Callable[..., None]], words: Sequence[str]) -> Callable[[], None]:
    """Return what the words ask for, to be called; what the parser has to say about them is made one line."""
    import tyro

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
