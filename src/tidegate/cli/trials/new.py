"""``tidegate new``: a small project to start from. Its files are templates in ``project/``."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from tidegate.cli.core.options import Json, examples
from tidegate.cli.core.output import print_json
from tidegate.cli.core.settings_file import trust
from tidegate.errors import ConfigError

EXAMPLES = examples("tidegate new orders", "tidegate new orders --on redis")

PLACES = {
    ".gitignore": "gitignore.txt",
    "README.md": "README.md.txt",
    "compose.yaml": "compose.yaml.txt",
    "input/orders-1.json": "orders-1.json.txt",
    "input/orders-2.json": "orders-2.json.txt",
    "reader.py": "reader.py.txt",
    "requirements.txt": "requirements.txt",
    "settings.py": "settings.py.txt",
    "stream.py": "stream.py.txt",
    "tests/test_stream.py": "test_stream.py.txt",
    "tidegate.toml": "tidegate.toml.txt",
}
"""The template of each file of a project."""
UP = "docker compose up -d --wait           # Kafka and Redis\n"
VALUES = {
    "files": {
        "store": "sqlite://${HERE}/data/store",
        "wal": "file://${HERE}/data/wal",
        "unsafe": "",
        "extras": "spark,cli",
        "reader": "`pip install tidegate`",
        "start": "",
        "elsewhere": "Log and store are folders in `data/`. `tidegate new DIR --on redis` makes this project"
        " on Kafka and\nRedis: it differs in `tidegate.toml`, `requirements.txt` and one"
        " option in `stream.py`.",
    },
    "redis": {
        "store": "redis://127.0.0.1:6379",
        "wal": "kafka://127.0.0.1:9092",
        "unsafe": ", allow_unsafe=True",
        "extras": "spark,kafka,redis,cli",
        "reader": "`pip install 'tidegate[redis]'`",
        "start": UP,
        "elsewhere": "`allow_unsafe` in `stream.py` admits one broker and one Redis without copies.\nLeave"
        " it out with real servers: `tidegate doctor` checks them.",
    },
}
"""The values of the marks in the templates, by kind of project."""


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is made, or has nothing but .git.")
    ],
    on: Annotated[
        Literal["files", "redis"],
        typer.Option(
            metavar="PLACES", help="files: log and store in folders, no server. redis: Kafka and Redis."
        ),
    ] = "files",
    *,
    json: Json = False,
) -> None:
    """Write a small project: a stream, a reader, their tests, a compose file and tidegate.toml.

    It runs as it is, without servers. Nothing is overwritten: a folder with files in it, other than .git,
    is refused.
    """
    if ":" in str(folder):  # not repeated: it may have a password
        raise ConfigError("DIR has a colon, as URLs have: name a folder")
    if folder.exists() and (not folder.is_dir() or any(file.name != ".git" for file in folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: name a new one")
    templates = files("tidegate.cli.trials") / "project"
    for name, template in PLACES.items():
        text = (templates / template).read_text(encoding="utf-8")
        for what, value in VALUES[on].items():
            text = text.replace(f"@{what}@", value)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(
            path, "x", encoding="utf-8", opener=_opened
        ) as file:  # never over one that appeared meanwhile
            file.write(text)
    trust(folder / "tidegate.toml")
    if json:
        print_json({"folder": str(folder), "on": on, "files": sorted(PLACES)})
        return
    print(f"{folder}: {', '.join(sorted(PLACES))}")
    servers = "docker compose up -d --wait; " if on == "redis" else ""
    print(f"next: cd {quote(str(folder))}; {servers}python stream.py --once")


def _opened(path: str, flags: int) -> int:
    """Open a file that nobody else may write, whatever the umask."""
    return os.open(path, flags, 0o644)
