"""The `arms` command before anything is imported: Ctrl-C while PyTorch loads, seconds of it, is one line too."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from arms.bench.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("arms: stopped\n")
        raise SystemExit(130) from None
    run()
