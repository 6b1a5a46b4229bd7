"""How a server gets tidegate's functions: the commands, their order, the meaning of the replies. Pure.

A user that may load functions can change what every user of the server runs, so on a shared server
only the administrator has that right, and runs `tidegate redis-functions`. A client on a server
without the functions tries to load them, then EVAL, and otherwise raises an error with that
command. docs/decisions/0066.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.functions import call_head, library, library_name
from tidegate.sinks.redis.client.replies import DENIED, barred, no_room, pack


def present() -> bytes:
    """Return the command that succeeds if the server has the functions."""
    return pack((*call_head("present", functions=True)[:2], b"0"))


def _present_by_eval() -> bytes:
    return pack((*call_head("present", functions=False)[:2], b"0", b"present"))


def load_library() -> bytes:
    """Return the command that loads the functions; it replaces nothing."""
    return pack((b"FUNCTION", b"LOAD", library()))


def loading(where: str, address: object) -> Generator[bytes, Any, bool]:
    """Make the functions usable on one server; return whether functions, not EVAL, are used there.

    The generator yields the commands to send and is sent their replies, an error as the exception.
    It runs once for each server. Raises: ConfigError: this user may use neither; the server's other
    errors unchanged.
    """
    reply = yield present()
    if not isinstance(reply, Exception):
        return True
    if barred(reply):
        return False
    if "not found" not in str(reply):
        raise reply
    reply = yield load_library()
    if not isinstance(reply, Exception) or "already exists" in str(reply):
        return True
    full = no_room(where, address, reply)
    if not barred(reply) and full is None:
        raise reply
    reply = yield _present_by_eval()  # a script takes no room that is limited
    if isinstance(reply, DENIED):
        raise full or not_installed(where, address)
    return False


def not_installed(where: str, address: object) -> ConfigError:
    """Return the error for a server without the functions, and a user that may not load them."""
    return ConfigError(
        f"{where}: {address} does not have the functions of this release ({library_name()}), and this user"
        " may not load them: the administrator of the server runs `tidegate redis-functions --store URL`,"
        " once for each release; nothing was written"
    )
