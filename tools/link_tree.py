"""Link the mapped folders into one package tree, so that static checkers see what Python sees.

Setuptools maps `wal/` to `tidegate.wal` and so on. At run time an import hook of the editable install
does it; a type checker runs no hook. This makes `.types/tidegate/` out of links, afresh at each run:

    python tools/link_tree.py && mypy
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SKIP = {"__pycache__"}


def package_dirs(root: Path) -> dict[str, Path]:
    """Tell which folder each mapped package comes from, parents before children."""
    with (root / "pyproject.toml").open("rb") as file:
        mapping: dict[str, str] = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    return {name: root / folder for name, folder in sorted(mapping.items())}


def wanted_links(root: Path, tree: Path) -> dict[Path, Path]:
    """Tell every link of the tree and what it points at; a package with mapped children is a real folder."""
    packages = package_dirs(root)
    links: dict[Path, Path] = {}
    for name, folder in packages.items():
        place = tree.joinpath(*name.split("."))
        if not folder.is_dir():
            continue
        if not any(other.startswith(name + ".") for other in packages):
            links[place] = folder
            continue
        for entry in folder.iterdir():
            if entry.name not in SKIP:
                links[place / entry.name] = entry
    return links


def link_tree(root: Path, tree: Path) -> int:
    """Make the tree say exactly what `wanted_links` says. Returns how many links it has."""
    links = wanted_links(root, tree)
    if tree.is_dir():
        stale = (path for path in tree.rglob("*") if path.is_symlink() and path not in links)
        for path in list(stale):
            path.unlink()
    for link, target in links.items():
        text = os.path.relpath(target, link.parent)
        if link.is_symlink():
            if str(link.readlink()) == text:
                continue
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(text, target_is_directory=target.is_dir())
    return len(links)


if __name__ == "__main__":
    link_tree(ROOT, ROOT / ".types")
