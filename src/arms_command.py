"""The `arms` command before its imports. They take seconds, and Ctrl-C ends them in one line."""

import os
import sys


def main() -> None:
    _prepare_streams()
    try:
        from arms.bench.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("arms: stopped\n")
        raise SystemExit(130) from None
    run()


def _prepare_streams() -> None:
    """Make stdout and stderr accept everything that is printed, even if a caller closed them."""
    # The numbers of closed streams would go to the next files opened, such as a checkpoint.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # the processes of a sweep need them too
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", errors="backslashreplace"))
    if hasattr(sys.stdout, "reconfigure"):  # "?" for what it cannot encode, as "±" in ASCII
        sys.stdout.reconfigure(errors="replace")
