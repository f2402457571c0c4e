"""What the installed command ``memx-tui`` runs: a Ctrl-C is a Ctrl-C already while Python still reads the program."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run ``memx-tui`` with the process's arguments and exit; 130 when interrupted before it has begun."""
    try:
        from memx_tui import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
