"""The process: ``python -m gradscope``, and the command ``gradscope``."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends it quietly from the first import on."""
    try:
        from gradscope import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
