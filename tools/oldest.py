"""An environment of the oldest libraries that pyproject.toml admits, for `make oldest`.

    python tools/oldest.py FOLDER

Exactly the lower bounds of what tidegate and its extras ask for themselves; tools of the tests, and what the
libraries ask for, are today's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUND = re.compile(r'"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)[^"]*"')
OF_THEIR_TIME = ("click<8.3",)
"""With a newer one the oldest typer warns of what click deprecates, and warnings are errors in the tests."""


def bounds(project: str) -> list[str]:
    """The lower bounds in the text of pyproject.toml, those of the tests' tools left out."""
    users = re.search(r"^dependencies = \[.*?^\]", project, re.MULTILINE | re.DOTALL)
    extras = re.search(
        r"^\[project\.optional-dependencies\]\n.*?(?=^dev = )", project, re.MULTILINE | re.DOTALL
    )
    if users is None or extras is None:
        raise SystemExit("pyproject.toml: no dependencies or no extras in front of dev")
    return [f"{name}=={oldest}" for name, oldest in BOUND.findall(users[0] + extras[0])]


def main(folder: Path) -> None:
    """Make it, or bring it to today's bounds."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    oldest = [*bounds((ROOT / "pyproject.toml").read_text()), *OF_THEIR_TIME]
    listed = folder / "oldest.txt"
    listed.write_text("\n".join(oldest) + "\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(listed), "-e", f"{ROOT}[all,dev]"], check=True)
    print("\n".join(oldest))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
