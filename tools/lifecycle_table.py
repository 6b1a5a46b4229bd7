"""Write committers/opening/lifecycle.COMMANDS as a table into docs/protocol.md.

tools/run python tools/lifecycle_table.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.committers.opening.lifecycle import COMMANDS, QUERY, Answer, Lifecycle

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"
BEGIN, END = "<!-- lifecycles: begin -->", "<!-- lifecycles: end -->"
NAMES = {"name": "NAME", "to": "NEW", "back": "ID", "nobody": ""}


def table() -> str:
    """The rows that refuse anything as a table; then their next steps, the lifecycles, the other rows."""
    refusing = [each for each in Lifecycle if any(each in row for row in COMMANDS.values())]
    answers = list(dict.fromkeys(answer for row in COMMANDS.values() for answer in row.values()))

    def cell(answer: Answer | None) -> str:
        return "" if answer is None else f"({answers.index(answer) + 1})"

    lines = [
        f"| | {' | '.join(each.name.lower() for each in refusing)} |",
        "|---" * (len(refusing) + 1) + "|",
    ]
    for command, row in COMMANDS.items():
        name = command if command == QUERY else f"`{command}`"
        lines += [f"| {name} | {' | '.join(cell(row.get(each)) for each in refusing)} |"] * bool(row)
    lines += ["", "An empty cell: the command continues. The others are refused, with this next step:", ""]
    for number, answer in enumerate(answers, 1):
        when = " (the work is done first)" * answer.after
        lines.append(f"{number}. {answer.text.format(**NAMES)}{when}")
    lines += ["", "| | the namespace |", "|---|---|"]
    lines += [f"| {each.name.lower()} | {each.value.format(**NAMES)} |" for each in Lifecycle]
    others = ", ".join(f"`{command}`" for command, row in COMMANDS.items() if not row)
    return "\n".join([*lines, "", f"These continue with each of them: {others}."])


def page(text: str) -> str:
    """The page with the table in its place."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if page(text) == text else f"{PAGE} differs from lifecycle.COMMANDS: run this tool")
    PAGE.write_text(page(text))
