"""The `arms` command before its imports. They take seconds, and Ctrl-C ends them in one line."""

import os
import sys


def main() -> None:
    """Load the command line and run it."""
    _prepare_streams()
    try:
        from arms.bench.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("arms: stopped\n")
        raise SystemExit(130) from None
    run()


def _prepare_streams() -> None:
    """Make stdout and stderr accept everything that is printed.

    A caller may have closed them (`arms train >&-`). Their numbers would then go to the next files
    that are opened, such as a checkpoint, so the null device takes them first. A stdout that cannot
    encode a character, such as "±" in ASCII, shows a question mark instead.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # the processes of a sweep need them too
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", errors="backslashreplace"))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
