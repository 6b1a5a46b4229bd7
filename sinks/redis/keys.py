"""The names of a namespace's keys in Redis, and their slots. Pure; docs/storage-format.md.

All keys of a key group share one hash tag, so that one server holds them and one function call is
atomic over them. Names of namespaces and tables are ``[A-Za-z0-9_.-]{1,64}``: none contains the
``/``, ``:`` and braces that separate them here, so the key names are injective.
"""

from __future__ import annotations

import binascii
import functools
import re

SLOTS = 16_384


def meta_key(namespace: str) -> bytes:
    """Return the key of the pointer, with identity and listed servers.

    ``beside`` has the others of its slot: ``catalog, schemas, leases, versions, tables, locality,
    dropped``.
    """
    return b"tg:{%b}:meta" % namespace.encode()


EVERY_META = "tg:{*}:meta"
"""The SCAN pattern of the pointers of all namespaces."""
_META = re.compile(rb"tg:\{([A-Za-z0-9_.-]{1,64})\}:meta")


def namespace_of(key: bytes) -> str | None:
    """Return the namespace of a pointer's key; None: the key is another.

    >>> namespace_of(b"tg:{flights}:meta"), namespace_of(b"tg:{flights/7}:meta")
    ('flights', None)
    """
    match = _META.fullmatch(key)
    return match[1].decode() if match else None


def beside(namespace: str, name: str) -> bytes:
    """Return a key beside the pointer."""
    return b"tg:{%b}:%b" % (namespace.encode(), name.encode())


def dropped_key(namespace: str, uuid: bytes) -> bytes:
    """Return the key of what was a dropped namespace's pointer, kept until all its keys are gone."""
    return b"tg:{%b}:dropped:%b" % (namespace.encode(), uuid)


@functools.lru_cache(maxsize=32_768)
def header_key(namespace: str, group: int) -> bytes:
    """Return the header's key of a key group: floor, sealed layers, versions of the bases."""
    return b"tg:{%b/%d}:h" % (namespace.encode(), group)


def changes_key(namespace: str, group: int, table: str, version: int, uuid: bytes) -> bytes:
    """Return the key of the changes of one version: key -> stored value with its flags byte.

    Plain commands without any check write them. One that is late, after the namespace was dropped
    and created again, must not hit a key of the new one, so the uuid is part of the name. Until the
    seal the attempt is part of it, too (``uuid:attempt``): rows of an attempt that no log has mix
    with no other's.
    """
    return b"tg:{%b/%d}:%b:d:%d:%b" % (namespace.encode(), group, table.encode(), version, uuid)


def base_key(namespace: str, group: int, table: str) -> bytes:
    """Return the key of the base: all versions up to its own, merged."""
    return b"tg:{%b/%d}:%b:b" % (namespace.encode(), group, table.encode())


def rebuilt_key(namespace: str, group: int, table: str, token: bytes) -> bytes:
    """Return the key of a base that a repair writes; the token is a field of it until it is put in place."""
    return b"tg:{%b/%d}:%b:r:%b" % (namespace.encode(), group, table.encode(), token)


def owner_key(key: bytes) -> bytes:
    """Return the key that proves the owner of a namespace's key: its key group's header, or the pointer.

    >>> owner_key(b"tg:{flights/7}:aircraft:b"), owner_key(b"tg:{flights}:catalog")
    (b'tg:{flights/7}:h', b'tg:{flights}:meta')
    """
    tag = key[: key.index(b"}") + 1]
    return tag + (b":h" if b"/" in tag else b":meta")


def patterns(namespace: str) -> tuple[str, str]:
    """Return the SCAN patterns for every key of a namespace: its own, and those of its key groups."""
    name = "".join(f"[{letter}]" for letter in namespace)  # so that no letter is a wildcard
    return f"tg:{{{name}}}:*", f"tg:{{{name}/*}}:*"


def slot_of(key: bytes) -> int:
    """Return the slot of Redis Cluster: CRC16 (XMODEM) of the hash tag, mod 16,384.

    >>> slot_of(b"tg:{flights/7}:h") == slot_of(b"tg:{flights/7}:aircraft:d:12:0")
    True
    """
    first = key.find(b"{")
    end = key.find(b"}", first + 1)
    tag = key[first + 1 : end] if -1 < first < end - 1 else key
    return binascii.crc_hqx(tag, 0) % SLOTS
