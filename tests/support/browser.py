"""A headless Chromium, driven over its debugging pipe: no driver program and no library is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
"""The browser of PATH; None: there is none."""
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank"),
)
WAIT_S = 60.0
AT_3_AND_4 = (
    "import fcntl, os, sys;"
    "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]];"
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
"""The program that starts the browser with its pipes as the file descriptors that it expects."""


class Page:
    """One page of a browser. ``errors`` has what its console reported as an error, also of its CSP."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._waiting = commands, answers, b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol. Raises: RuntimeError: the browser refuses."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def open(self, url: str, width: int = 1280, height: int = 900, *, scheme: str = "light") -> None:
        """Open a URL in a window of this size, with a light or a dark scheme."""
        is_phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url="about:blank")  # the same address with another fragment loads nothing
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression. Raises: RuntimeError: it threw."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"]))
        return done["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Return the value of an expression once it is true."""
        end = time.monotonic() + WAIT_S
        while not (value := self.run(condition)):
            assert time.monotonic() < end, (condition, self.errors, self.run("document.body.innerText"))
            time.sleep(0.05)
        return value

    def click(self, text: str, within: str = "body") -> None:
        """Click the first button or link with this text."""
        found = f"[...document.querySelectorAll({within!r} + ' :is(button, a, summary)')]"
        self.wait(f"{found}.some(node => node.textContent === {json.dumps(text)})")
        self.run(f"{found}.find(node => node.textContent === {json.dumps(text)}).click()")

    def picture(self, path: Path, kind: str = "png", **options: Any) -> None:
        """Write a picture of the window."""
        shot = self.call("Page.captureScreenshot", format=kind, **options)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            if not select.select([self._answers], [], [], WAIT_S)[0]:
                raise RuntimeError(f"the browser has not answered for {WAIT_S:.0f} s")
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._waiting += part
        content, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(content)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(str(message["params"]["entry"]))
        return message


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Run a browser with its profile in ``folder``; its processes end with the context."""
    assert PROGRAM is not None, f"none of {', '.join(NAMES)} is on PATH"
    (folder / "profile").mkdir(parents=True)
    to_browser, from_browser = os.pipe(), os.pipe()
    command = (PROGRAM, *ARGUMENTS, f"--user-data-dir={folder}/profile")
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", AT_3_AND_4, str(to_browser[0]), str(from_browser[1]), *command],
            pass_fds=(to_browser[0], from_browser[1]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TZ": "Europe/Berlin"},
            start_new_session=True,
        )
    os.close(to_browser[0])
    os.close(from_browser[1])
    page = None
    try:
        page = Page(to_browser[1], from_browser[0])
        yield page
    finally:
        if page is not None:
            with contextlib.suppress(RuntimeError, OSError):
                page._session = None
                page.call("Browser.close")
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])
