"""A lint for words: patterns of tools/words.toml in pages, docstrings, comments and messages.

    python tools/words.py             # print what is found in excess of the allowance
    python tools/words.py --all       # print all that is found
    python tools/words.py PATH ...    # the same, in these files and folders
    python tools/words.py --update    # lower the allowance to what is found

tools/words-allowed.toml is the allowance: the number of findings that each file may have. It has five
sections: `docs` for pages, `code` for docstrings and comments, `messages` for string literals that reach
people, as arguments of errors, warnings, log lines, events and options, `names` for names in Lua, and `bound`
for the names that functions in Python bind.
`--update` never raises a number and never adds a file. A section that is absent there is counted from
scratch.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LIST, ALLOWED = ROOT / "tools/words.toml", ROOT / "tools/words-allowed.toml"
CODE = ("committers", "sinks", "spark", "wal", "src", "examples", "tools", "readers", "deploy")
SECTIONS = {
    "docs": ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "tests/defects.md"),
    "code": CODE,
    "messages": CODE,
    "names": ("sinks/redis/lua",),
    "bound": ("wal", "sinks", "committers", "spark", "src"),
}
"""Pages and folders with code, by section of the allowance."""

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.DOTALL)
QUERY = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|BEGIN|GRANT|local|--|#!lua)\b")
WORD = re.compile(r"[^\W\d_]{2,}")
SESSION = re.compile(r"^ *(>>>|\.\.\.) .*$", re.MULTILINE)
QUOTED = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
BRACES = re.compile(rf"(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<string>{QUOTED}|`[^`]*`)", re.DOTALL)
DASHES = re.compile(rf"(?P<comment>/\*.*?\*/|--\[\[.*?\]\]|--[^\n]*)|(?P<string>{QUOTED})", re.DOTALL)
MARKS = re.compile(r"^([ \t]*)(?:/\*+|//+|--(?:\[\[)?|\*(?!/))|\*/|\]\]$", re.MULTILINE)
"""The marks of a comment, on each of its lines."""
TOKENS = {
    **dict.fromkeys((".js", ".go", ".java", ".css"), BRACES),
    **dict.fromkeys((".lua", ".cql"), DASHES),
}
"""Comments and string literals of the languages beside Python, by the end of a file's name."""


class Text(NamedTuple):
    """A piece of prose and the line on which it begins."""

    line: int
    text: str


class Finding(NamedTuple):
    """A match of a pattern."""

    line: int
    name: str
    text: str


class Pattern(NamedTuple):
    """An entry of the word list."""

    name: str
    regex: re.Pattern[str]
    reason: str
    instead: str
    finds: tuple[str, ...]
    passes: tuple[str, ...]
    section: str | None
    """The only section in which it is looked for; None: in all."""


def patterns() -> list[Pattern]:
    """Read the word list."""
    return [
        Pattern(
            name,
            re.compile(
                re.sub(r"(?<!\\n) (?![*])", r"\\s+", entry["pattern"]),
                re.MULTILINE if entry.get("cased") else re.MULTILINE | re.IGNORECASE,
            ),
            entry["reason"],
            entry["instead"],
            tuple(entry["finds"]),
            tuple(entry["passes"]),
            entry.get("section"),
        )
        for name, entry in tomllib.loads(LIST.read_text(encoding="utf-8")).items()
    ]


def without_code(text: str) -> str:
    """Replace code blocks, code spans and doctests by blanks; lines stay where they are."""
    for code in (FENCE, SESSION, SPAN):
        text = code.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    return text


def prose(path: Path, section: str) -> Iterator[Text]:
    """Yield a page, or a file's docstrings and comments, its messages, its names, or its code without all."""
    source = path.read_text(encoding="utf-8")
    if section == "docs":
        yield Text(1, source)
    elif section == "bound":
        yield from bound_names(source) if path.suffix == ".py" else ()
    elif section == "names":
        yield Text(1, TOKENS[path.suffix].sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source))
    elif path.suffix in TOKENS:
        yield from tokens(source, TOKENS[path.suffix], section)
    elif section == "messages":
        yield from messages(source)
    else:
        yield from docstrings(source)
        yield from comments(source)


def bound_names(source: str) -> Iterator[Text]:
    """Yield the names of a file's variables and parameters; a parameter with its type, if it has one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Text(node.lineno, node.id)
        elif isinstance(node, ast.arg):
            yield Text(
                node.lineno, f"{node.arg}: {ast.unparse(node.annotation)}" if node.annotation else node.arg
            )


def docstrings(source: str) -> Iterator[Text]:
    """Yield a file's docstrings, those of attributes too."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield Text(node.value.lineno, node.value.value)


def messages(source: str) -> Iterator[Text]:
    """Yield a file's other string literals of three words or more, without keys of dicts and queries."""
    passed: set[int] = set()  # docstrings, keys, and parts of f-strings, which are read as a whole
    for node in ast.walk(ast.parse(source)):  # parents first
        if isinstance(node, ast.Expr):
            passed.add(id(node.value))
        elif isinstance(node, ast.Dict):
            passed.update(map(id, node.keys))
        if id(node) in passed:
            continue
        if isinstance(node, ast.JoinedStr):
            passed.update(map(id, node.values))
            text = "".join(_literal(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(WORD.findall(text)) >= 3 and " " in text and not QUERY.match(text):
            yield Text(node.lineno, text)


def _literal(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "_"


def comments(source: str) -> Iterator[Text]:
    """Yield a file's comments; those on consecutive lines, at one column, are one text."""
    block: list[str] = []
    begin = end = column = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, at = token.start
        if block and (row, at) != (end + 1, column):
            yield Text(begin, "\n".join(block))
            block = []
        if not block:
            begin, column = row, at
        block.append(token.string.lstrip("#: "))
        end = row
    if block:
        yield Text(begin, "\n".join(block))


def tokens(source: str, token: re.Pattern[str], section: str) -> Iterator[Text]:
    """Yield the comments of a file that is not Python's, or its string literals of three words or more.

    Comments with nothing but white space between them are one text.
    """
    block, begin, end = "", 0, -1
    for match in token.finditer(source):
        if section == "messages":
            if match["string"] and len(WORD.findall(match[0])) >= 3 and not QUERY.match(match[0][1:]):
                yield Text(source.count("\n", 0, match.start()) + 1, match[0][1:-1])
        elif match["comment"]:
            text = MARKS.sub(r"\1", match[0])
            between = source[end : match.start()] if end >= 0 else ""
            if end >= 0 and not between.strip() and between.count("\n") == 1:
                block += "\n" + text.strip()
            else:
                if block:
                    yield Text(begin, block)
                block, begin = text.strip(), source.count("\n", 0, match.start()) + 1
            end = match.end()
    if block:
        yield Text(begin, block)


def findings(path: Path, section: str, words: list[Pattern]) -> list[Finding]:
    """List the matches of a section's patterns in a file, in the order of lines."""
    matches = set()
    for begin, raw in prose(path, section):
        text = without_code(raw)
        for word in words:
            if word.section != section and (word.section is not None or section == "bound"):
                continue  # a name is no prose
            for match in word.regex.finditer(text):
                line = begin + text.count("\n", 0, match.start() + len(match[0]) - len(match[0].lstrip()))
                matches.add((line, match.start(), Finding(line, word.name, " ".join(match[0].split()))))
    return [finding for _, _, finding in sorted(matches)]


def files(section: str) -> list[Path]:
    """List the files of a section of the allowance."""
    return sorted(
        {
            path
            for pattern in SECTIONS[section]
            for path in ((ROOT / pattern).rglob("*") if (ROOT / pattern).is_dir() else ROOT.glob(pattern))
            if section == "docs" or path.suffix in {".py", *TOKENS}
            if "target" not in path.parts
        }
    )


def name_of(path: Path) -> str:
    """Name a file by its path from the root."""
    return path.relative_to(ROOT).as_posix()


def count() -> dict[str, dict[str, int]]:
    """Count the findings of every file that has any, by section."""
    words = patterns()
    return {
        section: {name_of(path): n for path in files(section) if (n := len(findings(path, section, words)))}
        for section in SECTIONS
    }


def allowed() -> dict[str, dict[str, int]]:
    """Read the allowance."""
    return tomllib.loads(ALLOWED.read_text(encoding="utf-8")) if ALLOWED.exists() else {}


def update() -> list[str]:
    """Lower the allowance to what is found; return the files that have more than it allows."""
    now, before = count(), allowed()
    lines = ["# The findings that each file may have. Written by `python tools/words.py --update`."]
    excess = []
    for section in SECTIONS:
        limits = before.get(section, now[section])
        excess += [name for name, n in now[section].items() if n > limits.get(name, 0)]
        lines += ["", f"[{section}]"]
        for name, limit in sorted(limits.items()):
            if left := min(limit, now[section].get(name, 0)):
                lines.append(f'"{name}" = {left}')
    ALLOWED.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return excess


def _report(paths: list[tuple[str, Path]], limits: dict[str, dict[str, int]]) -> int:
    words = patterns()
    rules = {word.name: word for word in words}
    total = 0
    for section, path in paths:
        matches = findings(path, section, words)
        if len(matches) <= limits.get(section, {}).get(name_of(path), 0):
            continue
        total += len(matches)
        for line, name, text in matches:
            rule = rules[name]
            place = f"{name_of(path)}:{line}: {section}"
            print(f"{place}: {name}: {text[:60]!r}: {rule.reason}; write {rule.instead}")
    print(f"{total} findings", file=sys.stderr)
    return 1 if total else 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="only these files and folders")
    parser.add_argument("--all", action="store_true", help="print findings within the allowance, too")
    parser.add_argument("--update", action="store_true", help="lower the allowance to what is found")
    arguments = parser.parse_args()
    if arguments.update:
        excess = update()
        for name in excess:
            print(f"{name}: more findings than its allowance", file=sys.stderr)
        return 1 if excess else 0
    every = [(section, path) for section in SECTIONS for path in files(section)]
    inside = [path.resolve() for path in arguments.paths]
    if inside:
        every = [
            (name, path)
            for name, path in every
            if any(path == each or each in path.parents for each in inside)
        ]
    limits = {} if arguments.all or inside else allowed()
    return _report(every, limits)


if __name__ == "__main__":
    sys.exit(main())
