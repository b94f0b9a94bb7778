"""`python -m arms` is the command `arms`."""

from arms.cli import main

if __name__ == "__main__":
    main()
