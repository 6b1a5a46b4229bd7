"""``python -m tidegate``: the command line where its script is not on the PATH."""

from tidegate.cli import main

main()
