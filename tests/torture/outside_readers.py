"""Readers for `tidegate torture --reader` that break a rule: `outside_readers.py NAME PID_FILE`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tidegate.base.steps import run
from tidegate.testing.conformance.reader import ReferenceReader, main, rows_of


class Torn(ReferenceReader):
    """A request for several tables reads the first of them one version earlier, where that can be read."""

    def get_many(self, keys: dict[str, list[Any]], snapshot: str | None = None) -> dict[str, Any]:
        answer = super().get_many(keys, snapshot)
        first = next(iter(keys))
        if answer["version"] > 1:
            with self.gate.snapshot(answer["version"] - 1) as before:
                answer["rows"][first] = run(before.read(first, rows_of, keys[first]))[1]
        return answer


class Dying(ReferenceReader):
    """The process ends in the middle of its work."""

    def scan(self, table: str, snapshot: str | None = None) -> dict[str, Any]:
        os._exit(3)


class Stubborn(ReferenceReader):
    """The process does not end when it is asked to."""

    def close(self) -> bool:
        if self._gate is not None:
            print("it stays", file=sys.stderr, flush=True)
            super().close()
            time.sleep(600)
        return True


READERS = {"torn": Torn, "dying": Dying, "stubborn": Stubborn}

if __name__ == "__main__":
    name, pid_file = sys.argv[1:]
    Path(pid_file).write_text(str(os.getpid()))
    main(READERS[name]())
