"""``python -m drr.cli`` is ``drr``."""

from drr.cli import main

if __name__ == "__main__":
    main()
