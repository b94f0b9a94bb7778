"""`python -m arms` is the command `arms`."""

from arms_command import main

if __name__ == "__main__":
    main()
