"""The entries of docs/troubleshooting.md as data of `tidegate explain`: explanations.json beside explain.py.

tools/run python tools/explanations.py [--check]

It also counts, by file, the messages that advise something and that no entry quotes, into
explanations-allowed.toml, which only shrinks. `tidegate explain` finds those by their error's class alone.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
DATA = ROOT / "src" / "tidegate" / "cli" / "inspect" / "explanations.json"
ALLOWED = ROOT / "tools" / "explanations-allowed.toml"
SOURCES = ("wal", "committers", "sinks", "spark", "src/tidegate")
ADVICE = re.compile(
    r"`tidegate |[:;,] (?:or )?(?:add|bring|check|choose|correct|free|give|grant|install|leave|let|look|lower"
    r"|make|put|raise|remove|renew|restart|restore|run|set|start|stop|use|wait|write)\b"
)
"""A message that advises something: it names a command, or has an imperative."""

SECTION = re.compile(r"^#{2,4} (.+)\n((?:(?!#{2,4} ).*\n?)*)", re.MULTILINE)
SEEN_AS = re.compile(r"^(?:- \*\*Seen as:\*\*|\| \").*(?:\n  .*)*", re.MULTILINE)
QUOTED, LINK = re.compile(r'"([^"]+)"'), re.compile(r"\[([^]]*)\]\(([^)]*)\)")
NAMED = re.compile(r"`((?:Tidegate|tidegate_)\w+|[A-Z]\w+Error)`")


def anchor_of(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def entries(page: str) -> list[dict[str, Any]]:
    """Return the entries of the page: title, anchor, names and quoted messages that lead to them, text."""
    index: dict[str, set[str]] = {}
    found: list[dict[str, Any]] = []
    for title, text in SECTION.findall(page):
        if title.startswith("By "):
            for row in re.findall(r"^\| `.*", text, re.MULTILINE):
                seen, _, targets = row.partition(" | ")
                for target in re.findall(r"\(#([\w-]+)\)", targets):
                    index.setdefault(target, set()).update(NAMED.findall(seen))
            continue
        seen = SEEN_AS.findall(text)
        if not seen:
            continue
        quoted = [
            " ".join(each.split()) for part in seen for each in QUOTED.findall(part.partition(" | ")[0])
        ]
        names = [name for part in seen for name in NAMED.findall(part)]
        found.append(
            {
                "title": title,
                "anchor": anchor_of(title),
                "names": names,
                "messages": quoted,
                "text": LINK.sub(r"\1", text).strip(),
            }
        )
    for entry in found:
        entry["names"] = sorted({*entry["names"], *index.get(entry["anchor"], ())})
    return found


def data() -> str:
    """Return the content of the file."""
    return json.dumps(entries(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"


class Message(NamedTuple):
    """The text of an error, with "..." for its expressions."""

    path: str
    error: str
    text: str


def messages(path: Path) -> Iterator[Message]:
    """Yield the texts of a file's errors of tidegate that advise something."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assigned: dict[str, str] = {}
        nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned[node.targets[0].id] = _text(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                text = assigned.get(first.id, "") if isinstance(first, ast.Name) else _text(first)
                if re.fullmatch(r"[A-Z]\w+Error", node.func.id) and ADVICE.search(text):
                    yield Message(str(path.relative_to(ROOT)), node.func.id, text)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "..." for part in node.values)
    return "..."


def all_messages() -> list[Message]:
    """Return the messages of all sources, each once."""
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    return sorted({message for path in paths for message in messages(path)})


def without_entry() -> dict[str, int]:
    """Count by file the messages that no entry quotes."""
    quoted = [message for entry in entries(PAGE.read_text(encoding="utf-8")) for message in entry["messages"]]
    return dict(
        sorted(
            Counter(
                each.path for each in all_messages() if not any(part in each.text for part in quoted)
            ).items()
        )
    )


def allowance() -> str:
    """Return the content of the file with the counts of now."""
    counts = "".join(f'"{path}" = {number}\n' for path, number in without_entry().items())
    heading = (
        "# Messages with advice that docs/troubleshooting.md does not quote. tools/explanations.py writes it."
    )
    return f"{heading}\n{counts}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        if DATA.read_text(encoding="utf-8") != data():
            sys.exit("docs/troubleshooting.md has changed: run tools/run python tools/explanations.py")
    else:
        DATA.write_text(data(), encoding="utf-8")
        ALLOWED.write_text(allowance(), encoding="utf-8")
