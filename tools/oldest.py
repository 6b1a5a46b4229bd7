"""An environment of the oldest libraries that pyproject.toml admits, for `make oldest`, or of one Spark.

    python tools/oldest.py FOLDER          exactly the lower bounds of what tidegate and its extras ask for
    python tools/oldest.py FOLDER 4.0      the newest Spark 4.0, with today's libraries

Tools of the tests, and what the libraries ask for, are today's.
"""

from __future__ import annotations

import os
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


def as_set_up() -> dict[str, str]:
    """The environment in which tools/setup calls uv: the certificates of the system, and pip's index."""
    certificates = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_HTTP_TIMEOUT": "180"}
    index = os.environ.get("PIP_INDEX_URL")
    return certificates | ({"UV_DEFAULT_INDEX": index} if index else {}) | os.environ


def main(folder: Path, spark: str = "") -> None:
    """Make it, or make it again for a pyproject.toml that has changed since."""
    project, made = (ROOT / "pyproject.toml").read_text(), folder / "made"
    oldest = [f"pyspark=={spark}.*"] if spark else [*bounds(project), *OF_THEIR_TIME]
    if not made.exists() or made.read_text() != project:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
        listed = folder / "oldest.txt"
        listed.write_text("\n".join(oldest) + "\n")
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q"]
        # PySpark's jars are compressed already: its wheel holds them as they are.
        stored, python = "-C=--build-option=--compression=stored", f"--python={folder}/bin/python"
        words = [*uv, stored, python, "-c", str(listed), "-e", f"{ROOT}[all,dev]"]
        subprocess.run(words, check=True, env=as_set_up())
        made.write_text(project)
    if (java := ROOT / ".venv" / "java-home").exists() and not (folder / java.name).exists():
        shutil.copy(java, folder)
    print(*oldest)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
