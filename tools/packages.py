"""The list of packages in pyproject.toml, generated from the folders that hold Python files.

    python tools/packages.py          # write it
    python tools/packages.py --check  # exit code 1 where it differs

Setuptools finds packages by itself only where folders are not mapped to other names, as ours are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LIST = re.compile(r"(?<=\npackages = )\[.*?\n\]", re.DOTALL)


def packages(root: Path, mapping: dict[str, str]) -> list[str]:
    """List the dotted name of every folder that holds Python files, below the mapped ones."""
    return sorted(
        {
            ".".join((package, *path.parent.relative_to(root / folder).parts))
            for package, folder in mapping.items()
            for path in (root / folder).rglob("*.py")
        }
    )


def with_packages(root: Path) -> str:
    """Return the text of pyproject.toml with the list as it has to be."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    mapping = tomllib.loads(text)["tool"]["setuptools"]["package-dir"]
    lines = "".join(f'  "{name}",\n' for name in packages(root, mapping))
    return LIST.sub(f"[\n{lines}]", text, count=1)


if __name__ == "__main__":
    file, wanted = ROOT / "pyproject.toml", with_packages(ROOT)
    if "--check" in sys.argv:
        if file.read_text(encoding="utf-8") != wanted:
            sys.exit("packages in pyproject.toml differ from the folders: run python tools/packages.py")
    else:
        file.write_text(wanted, encoding="utf-8")
