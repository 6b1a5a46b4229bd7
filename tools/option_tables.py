"""Write what is made from the fields of ``tidegate.options.Options``.

    python tools/option_tables.py           # write the files
    python tools/option_tables.py --check   # exit code 1 if one of them differs

They are the class ``SinkOptions``, for type checkers and editors, and the tables of docs/configuration.md.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tidegate.options import Options

ROOT = Path(__file__).resolve().parent.parent
TYPES, PAGE = ROOT / "src/tidegate/options/sink_options.py", ROOT / "docs/configuration.md"
HEAD = '''"""The options of ``VersionedSink`` as keywords: tools/option_tables.py writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from tidegate.base.local_dir import LocalDirs
from tidegate.options.durations import Duration


class SinkOptions(TypedDict, total=False):
    """The options of ``VersionedSink`` as keywords, for type checkers and editors."""

'''
OF_ONE_TABLE = {"ttl": "Mapping[str, Duration | None] | Duration | None"}
"""Types of options that have a shorter form for the sink's one table."""
SIZES = ((1024 * 1024, "MiB"), (1024, "KiB"))
LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)|`")
SECTION = re.compile(r"^    # -- (.*) --$", re.MULTILINE)
NAME = re.compile(r"^    (\w+): ", re.MULTILINE)


def options() -> list[dataclasses.Field[object]]:
    """List the fields that are options."""
    return [field for field in dataclasses.fields(Options) if "text" in field.metadata]


def printed(field: dataclasses.Field[object]) -> str:
    """Print the default of an option."""
    value = field.default
    if value is None:
        return str(field.metadata["default"])
    if isinstance(value, bool | str):
        return str(value)
    assert isinstance(value, int | float)
    if field.name.endswith("_bytes") or field.name.endswith("_bytes_max"):
        for size, unit in SIZES:
            if value % size == 0:
                return f"{int(value) // size} {unit}"
    return f"{value:,.0f}{' s' * field.name.endswith('_s')}"


def types() -> str:
    """Write the class ``SinkOptions``."""
    lines = [HEAD]
    for field in options():
        text = LINK.sub(r"\1", f'"""{field.metadata["text"]}. Default: {printed(field)}.')
        wrapped = textwrap.fill(text, 106, initial_indent="    ", subsequent_indent="    ")
        kind = str(OF_ONE_TABLE.get(field.name, field.type)).replace("'", '"')
        end = '\n    """' if "\n" in wrapped else '"""'
        lines.append(f"    {field.name}: {kind}\n{wrapped}{end}\n")
    return "".join(lines)


def tables() -> Iterator[tuple[str, str]]:
    """Yield the name of each section and its table."""
    source = (ROOT / "src/tidegate/options/__init__.py").read_text(encoding="utf-8")
    by_name = {field.name: field for field in options()}
    parts = SECTION.split(source.partition("# -- no options")[0])[1:]
    for section, part in zip(parts[::2], parts[1::2], strict=True):
        rows = [
            f"| `{name}` | {printed(by_name[name])} | {by_name[name].metadata['text']} |"
            for name in NAME.findall(part)
        ]
        yield section, "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def page() -> str:
    """Return docs/configuration.md with its tables written again."""
    text = PAGE.read_text(encoding="utf-8")
    for section, table in tables():
        title = f"### {section.capitalize()}\n\n"
        before, found, rest = text.partition(title)
        assert found, f"{PAGE.name} has no section {section}"
        text = before + title + table + "\n\n" + re.sub(r"\A(\|[^\n]*\n)*\n?", "", rest)
    return text


def main() -> int:
    """Run the command."""
    differing = 0
    for path, content in ((TYPES, types()), (PAGE, page())):
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        differing = 1
        if "--check" not in sys.argv[1:]:
            path.write_text(content, encoding="utf-8")
    return differing if "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
