"""The script ``tidegate``, and ``python -m tidegate`` where the script is not on the PATH."""

from __future__ import annotations

import sys

from tidegate.base.extras import missing


def main() -> None:
    """Run the command line; without its libraries, print the extra that brings them."""
    try:
        from tidegate.cli import main as run
    except ModuleNotFoundError as error:
        lacks = missing("the command line", error)
        print(f"tidegate: {lacks}", file=sys.stderr)  # noqa: T201 - as the command line does
        sys.exit(lacks.exit_code)
    run()


if __name__ == "__main__":
    main()
