"""The input of a game day: small JSON files at a steady rate, and the sums that they must give."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

FILES_PER_S = 4.0
ROWS_PER_FILE = 5
KEYS = 7


class Sums(NamedTuple):
    """The row of ``totals`` after the input's first ``last + 1`` rows."""

    count: int
    n: int
    last: int


@dataclasses.dataclass
class Content:
    """Both tables, as the whole input gives them."""

    totals: Sums
    latest: dict[str, tuple[int, int]]


class Generator:
    """A thread that writes files of rows ``{"seq", "k", "n"}`` until ``stop``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hidden = folder.with_name(f"{folder.name}.new")
        self.read_before = folder.with_name(f"{folder.name}.read")
        """A folder for files that a new checkpoint must not read again."""
        for place in (folder, self._hidden, self.read_before):
            place.mkdir(parents=True)
        self._sums: list[int] = []
        self._files = self._written_ns = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def last(self) -> int:
        """The ``seq`` of the newest row; -1 before the first."""
        return len(self._sums) - 1

    def expected(self, last: int) -> Sums | None:
        """The sums up to that row; None when the input does not have it yet."""
        sums = self._sums
        return Sums(last + 1, sums[last], last) if 0 <= last < len(sums) else None

    def write(self, rows: int = ROWS_PER_FILE, **changes: Any) -> Path:
        """Write one file; ``changes`` replace fields of its first row in the file, not in the sums."""
        with self._lock:
            before = self._sums[-1] if self._sums else 0
            lines, sums = [], []
            for seq in range(len(self._sums), len(self._sums) + rows):
                row = {"seq": seq, "k": f"k{seq % KEYS}", "n": seq % 101}
                before += seq % 101
                sums.append(before)
                lines.append(row | (changes if not lines else {}))
            self._files += 1
            path = self.folder / f"{self._files:06}.json"
            hidden = self._hidden / path.name
            hidden.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            # Spark orders files by their time in milliseconds: those of a burst keep their order, too.
            self._written_ns = max(time.time_ns(), self._written_ns + 2_000_000)
            os.utime(hidden, ns=(self._written_ns, self._written_ns))
            self._sums += sums
            hidden.rename(path)
            return path

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            self.write()
            due += 1 / FILES_PER_S


def recount(*folders: Path) -> Content:
    """Fold the files of the input again, from the disk."""
    count = total = 0
    last = -1
    latest: dict[str, tuple[int, int]] = {}
    for folder in folders:
        for path in folder.glob("*.json"):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                count, total, last = count + 1, total + row["n"], max(last, row["seq"])
                if row["k"] is not None:  # such a row is refused
                    latest[row["k"]] = max(latest.get(row["k"], (-1, 0)), (row["seq"], row["n"]))
    return Content(Sums(count, total, last), latest)
