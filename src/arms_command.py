"""Start the `arms` command. Its imports take seconds; Ctrl-C ends them in one line."""

import os
import sys


def main() -> None:
    _prepare_streams()
    try:
        from arms.bench.cli import main as run

        run()
    except KeyboardInterrupt:
        _end("stopped", 130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("arms"):
            raise
        remedy = "pip install 'arms-grad[bench]' ('.[bench]' in its folder)"
        _end(f"the command line needs {error.name}: {remedy}", 2)


def _prepare_streams() -> None:
    """Make stdout and stderr accept all output, even if a caller closed them."""
    # The numbers of closed streams would go to the next files opened, such as a checkpoint.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # the processes of a sweep need them too
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", errors="backslashreplace"))
    if hasattr(sys.stdout, "reconfigure"):  # "?" for what it cannot encode, as "±" in ASCII
        sys.stdout.reconfigure(errors="replace")


def _end(line: str, code: int) -> None:
    sys.stderr.write(f"arms: {line}\n")
    raise SystemExit(code) from None
