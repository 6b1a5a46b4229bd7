"""Logins by the name of a function, ``"module:function"``: the option ``credential_provider``.

Only the name is in the options. Each process imports the function itself, so no function is pickled. The
function takes no argument and returns ``(user, token, expires_at)``: two texts and the end of the token in
seconds since the epoch. ``user`` is ``""`` where the server takes none. ``expires_at`` is None if the end is
not known, as of a password that is rotated: the function is then called for each new connection.

A login is used again until a fifth of its time is left, or until a server refuses it. The function runs in a
thread of its own: a caller waits for it up to a limit, and one that hangs is called again later.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from tidegate.base import forks
from tidegate.base.text import cell
from tidegate.errors import ConfigError
from tidegate.options.client_options import is_text

logger = logging.getLogger("tidegate.logins")
logger.addHandler(logging.NullHandler())

OPTION = "credential_provider"
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
FORM = 'it must be "module:function", the name of a function that each process can import'
RETURNS = (
    "it must return (user, token, expires_at): two texts in UTF-8 without NUL, and seconds since the epoch or"
    " None"
)
USED_SHARE = 0.8
"""The share of a login's time after which the function is called again, as librdkafka does."""
LIMIT_S = 3.0
"""The longest wait of one try for the function, while no login is left."""
EARLY_LIMIT_S, AGAIN_S = 0.5, 5.0
"""While a login is left: the longest wait for the next one, and the pause after a try that failed."""
HANGS_S, HANGING_MAX = 20.0, 4
"""The time after which the function is called a second time, and the most threads that wait for it."""
JUST_S = 1.0
"""A login that is younger is not asked for again when a server refuses it."""
FAR_S = 100 * 365 * 86_400.0
NO_TIME = 1e18
"""A larger number is no time in seconds, and may have no float."""


class NoLoginError(Exception):
    """The function returned no login now. It may later."""


class Login(NamedTuple):
    """A user, a token and its end, in seconds since the epoch. ``repr`` shows neither user nor token."""

    user: str
    token: str
    expires_at: float | None

    def __repr__(self) -> str:
        return "Login(***)"


class _Running:
    """One call of the function, in its thread."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.began = monotonic()
        self.login: Login | None = None
        self.error: Exception | None = None


class Provider:
    """The function of one name, in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._secrets: deque[str] = deque(maxlen=8)
        self.restart()

    def restart(self) -> None:
        """Start without a login and without the parent's threads, in a child."""
        self._lock = forks.BriefLock()
        self._login: Login | None = None
        self._got_at = self._renew_at = self._end_at = self._failed_at = -math.inf
        self._running: _Running | None = None
        self._hanging: list[_Running] = []

    @property
    def secrets(self) -> list[str]:
        """The last tokens, for ``hide``."""
        return list(self._secrets)

    def get(self, limit_s: float = LIMIT_S, reuse_s: float = math.inf) -> Login:
        """Return a login that is at most ``reuse_s`` old, if a newer one can be had.

        Raises: NoLoginError: the function raised, or did not return within ``limit_s``. ConfigError: there is
        no such function, or it returned something else.
        """
        forks.notice()
        now = monotonic()
        with self._lock:
            login, valid = self._login, now < self._end_at
            if login and now < self._renew_at and now - self._got_at <= reuse_s:
                return login
            if login and valid and now - self._failed_at < AGAIN_S:
                return login
            running = self._running
            if running is None or running.ended.is_set() or now - running.began > HANGS_S:
                running = self._start(running)
        try:
            if not running.ended.wait(min(limit_s, EARLY_LIMIT_S) if login and valid else limit_s):
                raise NoLoginError(
                    f"{self._called} has not returned for {monotonic() - running.began:.1f} s; give its"
                    " requests a time limit"
                )
            if running.error is not None:
                raise type(running.error)(*running.error.args)  # each waiter has its own
        except (NoLoginError, ConfigError) as error:
            if login is None or not valid:
                raise
            self._failed_at = monotonic()
            logger.warning("the present login is used further: %s", error)
            return login
        assert running.login is not None
        return running.login

    def forget(self) -> bool:
        """Drop the login, which a server has refused. Return whether the function may have another one."""
        with self._lock:
            old = self._login is not None and monotonic() - self._got_at > JUST_S
            self._login = None
        return old

    @property
    def _called(self) -> str:
        return f"the function {self.name} ({OPTION})"

    def _start(self, before: _Running | None) -> _Running:
        self._hanging = [each for each in self._hanging if not each.ended.is_set()]
        if before is not None and not before.ended.is_set():
            if len(self._hanging) >= HANGING_MAX:
                return before
            self._hanging.append(before)
        running = _Running()
        thread = threading.Thread(target=self._run, args=(running,), name="tidegate-login", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, and starts no thread any more
            self._run(running)
        self._running = running  # only now: others wait for it
        return running

    def _run(self, running: _Running) -> None:
        try:
            login = self._checked(self._value())
        except (ConfigError, NoLoginError) as error:
            running.error = error
        except ImportError as error:
            running.error = ConfigError(f"{self._called} cannot import {cell(str(error.name))}: install it")
        except BaseException as error:  # noqa: BLE001 - of the user's function; raised for those who wait
            running.error = NoLoginError(f"{self._called} raised {place_of(error)}; call it by itself")
        else:
            now = monotonic()
            left_s = math.inf if login.expires_at is None else login.expires_at - time.time()
            with self._lock:
                self._login, self._got_at, self._failed_at = login, now, -math.inf
                known = login.expires_at is not None
                self._renew_at = now + USED_SHARE * left_s if known else -math.inf
                self._end_at = now + left_s if known else -math.inf
            running.login = login
        finally:
            running.ended.set()

    def _value(self) -> Any:
        function = self._function()
        try:
            return function()
        except ConfigError as error:
            if not str(function.__module__).startswith("tidegate."):  # its text may have a token
                raise NoLoginError(f"{self._called} raised {place_of(error)}; call it by itself") from None
            raise ConfigError(f"{self._called}: {error}") from None

    def _function(self) -> Callable[[], Any]:
        module, _, name = self.name.partition(":")
        try:
            function = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"{self._called}: this process finds no module {module}: install it on each machine, or put"
                " its folder on PYTHONPATH"
            ) from error
        except Exception as error:  # noqa: BLE001 - of the user's module
            raise ConfigError(f"{self._called}: its module cannot be imported: {place_of(error)}") from None
        if not callable(function):
            raise ConfigError(f"{self._called}: the module {module} has no function {name}; {FORM}")
        return function  # type: ignore[no-any-return]

    def _checked(self, value: Any) -> Login:
        """Return the function's value as a login. Raises: ConfigError, with the types of the value alone."""
        is_triple = isinstance(value, tuple | list) and len(value) == 3
        user, token, expires_at = value if is_triple else (0, 0, 0)
        is_number = isinstance(expires_at, int | float) and not isinstance(expires_at, bool)
        is_time = is_number and abs(expires_at) < NO_TIME
        user = "" if user is None else user
        if not (is_text(user) and is_text(token) and token and (expires_at is None or is_time)):
            kinds = ", ".join(_kind(each) for each in value) if isinstance(value, tuple | list) else ""
            raise ConfigError(f"{self._called} returned {type(value).__name__}({kinds}); {RETURNS}")
        self._secrets.append(token)
        if expires_at is None:
            return Login(user, token, None)
        left_s = expires_at - time.time()
        if left_s > FAR_S:
            raise ConfigError(f"{self._called} returned an end more than 100 years from now; {RETURNS}")
        if left_s <= 0:
            raise NoLoginError(
                f"{self._called} returned a token that ended {-left_s:.0f} s ago; look at this machine's"
                " clock, and at a cache in the function"
            )
        return Login(user, token, float(expires_at))


def place_of(error: BaseException) -> str:
    """Name an exception and its line. Its text may quote the token."""
    frames = traceback.extract_tb(error.__traceback__)
    location = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return cell(type(error).__name__ + location)


def _kind(value: object) -> str:
    return "''" if value == "" else type(value).__name__


_providers: dict[str, Provider] = {}
_lock = forks.BriefLock()


def provider_of(name: object, where: str) -> Provider:
    """Return this process's provider of the name; nothing is imported. Raises: ConfigError: it is no name."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ConfigError(f"{where}: {OPTION} has another form; {FORM}")  # not shown: it may be a token
    with _lock:
        return _providers.setdefault(name, Provider(name))


@forks.in_child
def _after_fork() -> None:
    for provider in list(_providers.values()):
        provider.restart()
