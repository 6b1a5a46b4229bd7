"""tidegate's functions inside Redis: the library, how it is loaded, the wire format of a call.

``lua/`` contains the Lua. Where Redis Functions are allowed (Redis 7.0 and later, Valkey) it is a
library, ``tidegate2_<digest>``; where they are barred the same text runs through EVALSHA. ``2`` is
the version of the storage format. The digest is of the library's own text: a client calls exactly
the code it knows, and the libraries of two releases exist on one server without replacing each
other.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from typing import NamedTuple

FORMAT = 2
LIBRARY = f"tidegate{FORMAT}"
"""The common prefix of the names of all libraries of this format."""
DIGEST_CHARS = 16

FILES = (
    "calls.lua",
    "pointer.lua",
    "attempt.lua",
    "catalog.lua",
    "lease.lua",
    "removal.lua",
    "header.lua",
    "read.lua",
    "seal.lua",
    "fill.lua",
    "merge.lua",
    "rebuild.lua",
    "alias.lua",
)
"""The files of the library, each after those whose local functions it uses."""
RELIEF = (
    "announce",
    "begin_fill",
    "claim",
    "discard",
    "drop",
    "drop_alias",
    "expire",
    "forget",
    "forget_begun",
    "forget_schemas",
    "heartbeat",
    "lease",
    "list_servers",
    "merge",
    "note_moved",
    "put_bases",
    "refuse_attempts",
    "release",
    "remove",
    "set_alias",
    "stamp",
    "sweep",
    "sweep_rebuild",
)
"""Functions that also run when memory is full: they free it, or write next to nothing.

A lease takes some hundred bytes, and ``max_leases`` limits their number.
"""


class Script(NamedTuple):
    """The text for EVAL and its digest for EVALSHA."""

    text: bytes
    sha: bytes


@functools.cache
def source() -> str:
    """Return the Lua of all files, in order."""
    folder = resources.files("tidegate.sinks.redis") / "lua"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in FILES)


def _names() -> list[tuple[str, str]]:
    """List every function: its table, reads or writes, and its name."""
    return re.findall(r"^(reads|writes)\.(\w+) = ", source(), re.MULTILINE)


@functools.cache
def flags(name: str) -> str:
    """Return a function's flags for Redis: it writes nothing, it runs when memory is full, or none."""
    return "no-writes" if name in readers() else "allow-oom" if name in RELIEF else ""


@functools.cache
def library() -> bytes:
    """Return the text for FUNCTION LOAD."""
    return _named(library_name())


@functools.cache
def library_name() -> str:
    """Return the name of this release's library: the format and a digest of the text."""
    return f"{LIBRARY}_{hashlib.sha256(_named(LIBRARY)).hexdigest()[:DIGEST_CHARS]}"


def _named(library: str) -> bytes:
    """Return the text under a name. Functions are listed one by one: no loop runs while it loads."""
    calls = []
    for table, name in _names():
        shown = f"'{flags(name)}'" if flags(name) else ""
        body = f"write_whole('{name}')" if table == "writes" else f"reads.{name}"
        callback = f"within_limits('{name}', {body})"
        calls.append(
            f"redis.register_function{{ function_name = '{library}_{name}', callback = {callback},"
            f" flags = {{ {shown} }} }}"
        )
    return "\n".join((f"#!lua name={library}", source(), *calls, "")).encode()


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all functions."""
    return tuple(name for _, name in _names())


def script_of(name: str) -> Script:
    """Return the script with a function, for EVAL: one for all functions of the same flags."""
    return _script(flags(name))


@functools.cache
def _script(listed: str) -> Script:
    text = (
        f"#!lua{' flags=' * bool(listed)}{listed}\n{source()}\nlocal function named(keys, args)\n"
        "local name = table.remove(args, 1)\n"
        "return within_limits(name, reads[name] or write_whole(name))(keys, args)\nend\n"
        "return within_limits('drop', named)(KEYS, ARGV)\n"
    )
    return Script(text.encode(), hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


@functools.cache
def readers() -> frozenset[str]:
    """Return the functions that write nothing, which FCALL_RO and EVALSHA_RO may call."""
    return frozenset(name for table, name in _names() if table == "reads")


@functools.cache
def call_head(name: str, *, functions: bool) -> tuple[bytes, ...]:
    """Return the first words of a call, up to the number of keys."""
    read_only = b"_RO" if name in readers() else b""
    if functions:
        return (b"FCALL" + read_only, f"{library_name()}_{name}".encode(), b"1")
    return (b"EVALSHA" + read_only, script_of(name).sha, b"1")
