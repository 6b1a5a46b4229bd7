"""An environment of the oldest libraries that pyproject.toml admits, for `make oldest`.

    python tools/oldest.py FOLDER

Exactly the lower bounds of what tidegate and its extras ask for themselves; tools of the tests, and what the
libraries ask for, are today's.
"""

from __future__ import annotations

import re
import shutil
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
    """Make it, or bring it to today's bounds; nothing is done where it has them."""
    oldest = [*bounds((ROOT / "pyproject.toml").read_text()), *OF_THEIR_TIME]
    listed, made = folder / "oldest.txt", folder / "made"
    if not (made.exists() and listed.read_text().splitlines() == oldest):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
        listed.write_text("\n".join(oldest) + "\n")
        uv = [
            str(Path(sys.executable).with_name("uv")),
            "pip",
            "install",
            "-q",
            "--python",
            f"{folder}/bin/python",
        ]
        # PySpark's jars are compressed already: its wheel holds them as they are.
        stored = "-C=--build-option=--compression=stored"
        subprocess.run([*uv, stored, "-c", str(listed), "-e", f"{ROOT}[all,dev]"], check=True)
        made.touch()
    if (java := ROOT / ".venv" / "java-home").exists() and not (folder / java.name).exists():
        shutil.copy(java, folder)
    print(*oldest)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
