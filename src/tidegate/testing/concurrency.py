"""Threads that start at once, and Python processes of their own, for the suites of logs and stores."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from tidegate.errors import TidegateError


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Run the functions at once, each in a thread; return their results, or the tidegate errors they raised.

    Any other error of theirs is raised again.
    """
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)

    def run(index: int, function: Callable[[], Any]) -> None:
        barrier.wait(timeout=60)
        try:
            results[index] = function()
        except BaseException as error:  # noqa: BLE001 - returned or raised below, in the caller's own thread
            results[index] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
        assert not thread.is_alive(), "a thread hangs"
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, TidegateError):
            raise result
    return results


def in_another_process(script: str, argument: Any) -> Any:
    """Run a script in a new Python, with the argument as JSON; return the JSON value that it prints."""
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    done = subprocess.run(  # noqa: S603 - our own interpreter and our own script
        [sys.executable, *isolated, "-c", script, json.dumps(argument)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
