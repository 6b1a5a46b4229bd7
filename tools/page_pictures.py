"""Make the pictures of the page for the documentation: `tools/run python tools/page_pictures.py`.

It writes a namespace of files without Spark, opens `tidegate ui`'s page in a headless Chromium, and writes
docs/pictures/page-*.webp. The values are the same in each run, the times are not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from support.browser import Page, browser  # noqa: E402
from tidegate.base.clock import Clock  # noqa: E402
from tidegate.options import Options  # noqa: E402
from tidegate.options.endpoints import parse_store  # noqa: E402
from tidegate.testing.example import Example  # noqa: E402
from tidegate.ui.facts import Facts  # noqa: E402
from tidegate.ui.server import Server  # noqa: E402
from tidegate.ui.spaces import Spaces  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
VERSIONS, PAUSE_AFTER = 64, 40
AIRPORTS, CARRIERS = ("EWR", "JFK", "LGA"), ("AA", "B6", "DL", "EV", "UA", "WN")


class PastClock(Clock):
    """A clock that is behind, and catches up when told to."""

    def __init__(self, behind_s: float) -> None:
        self._behind_us = round(behind_s * 1e6)

    def now_us(self) -> int:
        return super().now_us() - self._behind_us

    def advance(self, seconds: float) -> None:
        self._behind_us = max(0, self._behind_us - round(seconds * 1e6))


def write(folder: Path) -> tuple[str, str, Example, list[dict[str, Any]]]:
    """Write the versions of a query, with a pause and a takeover; return its URLs, its writer, its phases."""
    wal, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    chosen, clock, commits = random.Random(7), PastClock(VERSIONS * 10.2 + 240), list[dict[str, Any]]()
    departures = dict.fromkeys(AIRPORTS, 0)
    options = Options(key_groups=8, keep_versions=1_000)
    older: Example | None = None
    writer = Example(wal, store, options=options, clock=clock)
    for version in range(1, VERSIONS + 1):
        if version == PAUSE_AFTER:
            clock.advance(250)
            older, writer = writer, Example(wal, store, options=options, clock=clock)
        planes: dict[Any, Any] = {}
        for _ in range(chosen.randint(40, 160)):
            planes[f"N{chosen.randint(10_000, 14_999)}"] = {
                "carrier": chosen.choice(CARRIERS),
                "flights": chosen.randint(1, 60),
            }
            departures[chosen.choice(AIRPORTS)] += 1
        airports = {
            name: {"departures": count, "delay": round(chosen.gauss(9, 3), 1)}
            for name, count in departures.items()
        }
        legs = {
            (chosen.choice(AIRPORTS), chosen.randint(1, 900)): {
                "dest": chosen.choice(("IAH", "BOS", "SFO", "MIA"))
            }
        }
        writer.write({"aircraft": planes, "airports": airports, "legs": legs})
        base = 2.5 if version in {1, PAUSE_AFTER} else chosen.uniform(0.25, 0.45)
        shares = {"stage": 0.45, "manifest": 0.05, "decide": 0.08, "apply": 0.34, "publish": 0.08}
        phases = {name: base * share * chosen.uniform(0.7, 1.3) for name, share in shares.items()}
        commits.append({"namespace": "flights", "version": version, "phases": phases})
        clock.advance(chosen.uniform(9, 11.4) if version < VERSIONS else 0)
    clock.advance(3_600)
    if older is not None:
        with contextlib.suppress(Exception):  # it is fenced, which the page has to show
            older.write({"airports": {"EWR": {"departures": 1, "delay": 0.0}}})
        older.close()
    for other in ("orders", "users"):
        Example(f"file://{folder}/wal", f"sqlite://{folder}/store", other).close()
    return wal, store, writer, commits


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the page of that namespace; yield its URL."""
    wal, store, writer, commits = write(folder)
    (folder / "commits").write_text(json.dumps(commits))
    driver = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=driver.serve_forever, daemon=True).start()

    def opened(name: str) -> Facts:
        return Facts(name, (parse_store(store),), wal, None, f"http://127.0.0.1:{driver.server_port}/metrics")

    beats = threading.Thread(target=_beat, args=(writer, ended := threading.Event()), daemon=True)
    beats.start()
    first = opened("flights")
    spaces = Spaces(first, lambda: ["flights", "orders", "users"], opened)
    server = Server(first, "127.0.0.1", 0, spaces=spaces)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        spaces.close()
        driver.shutdown()
        driver.server_close()
        ended.set()
        beats.join()
        writer.close()


def _beat(writer: Example, ended: threading.Event) -> None:
    """Show signs of life, as a query does."""
    while not ended.wait(1.0):
        writer.driver.store.heartbeat(writer.driver.folded.epoch)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log no requests."""


def take(page: Page, url: str, folder: Path, kind: str) -> None:
    """Write the pictures of the page."""
    quality: dict[str, Any] = {} if kind == "png" else {"quality": 80}
    ready = "document.querySelectorAll('#chart g.v').length > 10"
    for name, width, height, scheme, place, shown in (
        ("desktop", 1280, 900, "light", "", ""),
        ("dark", 1280, 900, "dark", "", ""),
        ("phone", 390, 844, "light", "", ""),
        ("diff", 1280, 900, "light", "#view=diff&before=62&after=64&table=airports", "#answer table"),
    ):
        page.open(url + place, width, height, scheme=scheme)
        page.wait(ready)
        if shown:
            page.wait(f"document.querySelector('{shown}') !== null")
            page.run("document.querySelector('#inside').scrollIntoView()")
        time.sleep(0.3)  # the fonts and the scroll are drawn; nothing reports it
        page.picture(folder / f"page-{name}.{kind}", kind, **quality)


def main(folder: Path = PICTURES, kind: str = "webp") -> None:
    """Make all pictures in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, served(Path(place)) as url, browser(Path(place)) as page:
        take(page, url, folder, kind)
        assert page.errors == [], page.errors
    for path in sorted(folder.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]), *sys.argv[2:3])
