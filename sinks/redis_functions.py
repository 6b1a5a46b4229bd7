"""tidegate's functions inside Redis: the library, how it is loaded, how a call looks on the wire.

The Lua stands in ``lua/``. Where Redis Functions are allowed (Redis 7.0 and later, Valkey) it is a
library, ``tidegate1``, loaded on every primary that lacks it or has an older release of it; where
they are barred the same text runs through EVALSHA. ``1`` is the version of the storage format:
libraries of two formats live side by side.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from typing import NamedTuple

FORMAT = 1
LIBRARY = f"tidegate{FORMAT}"
RELEASE = 11
"""Raised with every change of the Lua; a server with an older one gets the newer."""

FILES = ("common.lua", "pointer.lua", "group.lua", "alias.lua")
RELIEF = (
    "announce",
    "begin_fill",
    "claim",
    "drop",
    "drop_alias",
    "expire",
    "forget",
    "heartbeat",
    "list_servers",
    "merge",
    "release",
    "remove",
    "set_alias",
    "sweep",
)
"""They run when memory is full too: they free it, or write next to nothing."""


class Script(NamedTuple):
    """The text for EVAL and its digest for EVALSHA."""

    text: bytes
    sha: bytes


@functools.cache
def source() -> str:
    """The Lua of all files, in order."""
    folder = resources.files("tidegate.sinks") / "lua"
    files = [(folder / name).read_text(encoding="utf-8") for name in FILES]
    return "\n".join((*files, f"reads.release_of = function() return {RELEASE} end"))


def _names() -> list[tuple[str, str]]:
    """Every function: in which table it stands, reads or writes, and its name."""
    return re.findall(r"^(reads|writes)\.(\w+) = function", source(), re.MULTILINE)


@functools.cache
def flags(name: str) -> str:
    """What Redis is told of a function: it writes nothing, it runs when memory is full too, or nothing."""
    return "no-writes" if name in readers() else "allow-oom" if name in RELIEF else ""


@functools.cache
def library() -> bytes:
    """The text for FUNCTION LOAD. Each function is named: there are no loops over tables while it loads."""
    calls = []
    for table, name in _names():
        told = f"'{flags(name)}'" if flags(name) else ""
        calls.append(
            f"redis.register_function{{ function_name = '{LIBRARY}_{name}', callback = {table}.{name},"
            f" flags = {{ {told} }} }}"
        )
    return "\n".join((f"#!lua name={LIBRARY}", source(), *calls, "")).encode()


def script_of(name: str) -> Script:
    """The script that has a function, for EVAL: one for all of the same flags; it is named first."""
    return _script(flags(name))


@functools.cache
def _script(told: str) -> Script:
    text = (
        f"#!lua{' flags=' * bool(told)}{told}\n{source()}\nlocal name = table.remove(ARGV, 1)\n"
        "return (reads[name] or writes[name])(KEYS, ARGV)\n"
    )
    return Script(text.encode(), hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


@functools.cache
def readers() -> frozenset[str]:
    """The functions that write nothing, which FCALL_RO and EVALSHA_RO may call."""
    return frozenset(name for table, name in _names() if table == "reads")


@functools.cache
def call_head(name: str, *, functions: bool) -> tuple[bytes, ...]:
    """The first words of a call, up to the number of keys."""
    read_only = b"_RO" if name in readers() else b""
    if functions:
        return (b"FCALL" + read_only, f"{LIBRARY}_{name}".encode(), b"1")
    return (b"EVALSHA" + read_only, script_of(name).sha, b"1")
