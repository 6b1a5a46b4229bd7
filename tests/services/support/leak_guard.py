"""A server's process that cannot outlive the process that started it, however that one ends.

``Guarded`` starts this file as a script, and the script starts the server and waits for the end of
its own standard input: a pipe whose other end only the starting process has. The kernel closes that
end when the starting process ends, by SIGKILL too, and the script kills the server. An ``atexit``
or a signal handler would not run then; PR_SET_PDEATHSIG is Linux's alone and fires when the *thread*
that started the server ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


class Guarded:
    """A running command; what it prints is added to ``output``. In a session of its own: Ctrl-C in a
    terminal reaches the tests, which then end it in order."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        with output.open("ab") as file:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._input, pid = self._guard.stdin, self._guard.stdout
        with pid:
            line = pid.readline()
        if not line:
            self.wait(timeout_s=10)
            raise RuntimeError(f"{command[0]} did not start: {output.read_text(errors='replace')[-2000:]}")
        self.pid = int(line)

    def alive(self) -> bool:
        return self._guard.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself; nothing when it has ended."""
        if self.alive():
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """The exit code, negative for a signal. TimeoutExpired when it still runs."""
        code = self._guard.wait(timeout_s)
        self._input.close()
        return _of_signals(code)

    @property
    def exit_code(self) -> int | None:
        """As ``wait`` gives it; None while it runs."""
        code = self._guard.poll()
        return None if code is None else _of_signals(code)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. It may be stopped or have ended."""
        self.signal(signal.SIGKILL)
        self.wait(timeout_s=30)


def _of_signals(code: int) -> int:
    """The guard's exit code as the command's."""
    return code if code < 128 else 128 - code


def _kill_at_end_of_input(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):
        pass
    child.kill()


def main() -> None:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=2)
    os.write(1, b"%d\n" % child.pid)
    threading.Thread(target=_kill_at_end_of_input, args=(child,), daemon=True).start()
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
