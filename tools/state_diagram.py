"""Draw committers/states.TABLE as a Mermaid diagram into docs/protocol.md.

tools/run python tools/state_diagram.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.committers.states import ACTIONS, TABLE

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"
BEGIN, END = "<!-- states: begin -->", "<!-- states: end -->"


def diagram() -> str:
    """The table as Mermaid text."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> READY"]
    for state, events in TABLE.items():
        lines.append(f"    {state.name}: {state.value} / {ACTIONS[state].value}")
        targets: dict[str, list[str]] = {}
        for event, target in events.items():
            targets.setdefault(target.name, []).append(event.name)
        lines += [f"    {state.name} --> {target}: {', '.join(names)}" for target, names in targets.items()]
        if not events:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join([*lines, "```"])


def page(text: str) -> str:
    """The page with the diagram in its place."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{diagram()}\n{END}{tail}"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if page(text) == text else f"{PAGE} differs from committers/states.py: run this tool")
    PAGE.write_text(page(text))
