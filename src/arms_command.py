"""Start the `arms` command.

If Ctrl-C interrupts the command's imports, print only one line. Do the same if a package is not
installed.
"""

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
        remedy = "pip install 'arms-grad[bench]' (or '.[bench]' in the repository)"
        _end(f"the command line needs {error.name}: {remedy}", 2)


def _prepare_streams() -> None:
    """Open the standard streams that the caller closed. Let stdout accept all characters."""
    # Otherwise, the next file that is opened, such as a checkpoint, would get the number of a
    # closed stream, and output would be written into it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # the processes of a sweep need the streams too
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", errors="backslashreplace"))
    if hasattr(sys.stdout, "reconfigure"):  # print "?" for characters that cannot be encoded
        sys.stdout.reconfigure(errors="replace")


def _end(line: str, code: int) -> None:
    sys.stderr.write(f"arms: {line}\n")
    raise SystemExit(code) from None
