"""Commands of tidegate in this process: what they print, and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tidegate.cli import app
from tidegate.committers.coordinator import Coordinator


def run(*arguments: object, typed: str | None = None) -> Result:
    """Run one command; ``typed`` is what a person types at its questions."""
    return CliRunner().invoke(app, [str(word) for word in arguments], prog_name="tidegate", input=typed)


def ended(code: int, *arguments: object) -> Result:
    """The result of a command that ends with ``code``."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    return result


def done(*arguments: object) -> str:
    """The standard output of a command that succeeds without a word on standard error."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def done_json(*arguments: object) -> Any:
    return json.loads(done(*arguments, "--json"))


def refused(code: int, *arguments: object) -> str:
    """The one message on standard error of a command that ends with ``code``, without a traceback."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr


def options_for(root: Path, namespace: str = "flights") -> list[str]:
    return [f"--store=sqlite://{root}/store", f"--wal=file://{root}/wal", f"--namespace={namespace}"]


def readers_only(options: Iterable[str]) -> list[str]:
    return [option for option in options if not option.startswith("--wal")]


def decisions(driver: Coordinator) -> list[bytes]:
    return [entry.content for entry in driver.log.decisions()]
