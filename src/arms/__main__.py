"""`python -m arms` is the command `arms`."""

from arms.bench.cli import main

if __name__ == "__main__":
    main()
