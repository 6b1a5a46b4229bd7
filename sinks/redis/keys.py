"""The names of a namespace's keys in Redis, and the slots they lie in. Pure; docs/storage-format.md.

All keys of a key group share one hash tag, so that one server holds them and one function call
is atomic over them. Names of namespaces and tables are ``[A-Za-z0-9_.-]{1,64}``: none holds the
``/``, ``:`` and braces that part them here, so the names are injective as they are.
"""

from __future__ import annotations

import binascii

SLOTS = 16_384


def meta_key(namespace: str) -> bytes:
    """Pointer, identity and listed servers. Beside it: ``catalog, schemas, leases, versions``."""
    return b"tg:{%b}:meta" % namespace.encode()


def beside(namespace: str, name: str) -> bytes:
    """What lies beside the pointer."""
    return b"tg:{%b}:%b" % (namespace.encode(), name.encode())


def header_key(namespace: str, group: int) -> bytes:
    """The header of a key group: floor, sealed layers, what the base holds."""
    return b"tg:{%b/%d}:h" % (namespace.encode(), group)


def changes_key(namespace: str, group: int, table: str, version: int, uuid: bytes) -> bytes:
    """The changes of one version: key -> stored value with its flags byte.

    They are written by plain commands, which ask for nothing before: one that comes when the namespace was
    dropped and made again must not meet a key of the new one, so the uuid is part of the name. Until its seal
    the attempt is, too (``uuid:attempt``): rows of an attempt that no log has meet no other's.
    """
    return b"tg:{%b/%d}:%b:d:%d:%b" % (namespace.encode(), group, table.encode(), version, uuid)


def base_key(namespace: str, group: int, table: str) -> bytes:
    """All versions up to the base's, merged."""
    return b"tg:{%b/%d}:%b:b" % (namespace.encode(), group, table.encode())


def rebuilt_key(namespace: str, group: int, table: str, token: bytes) -> bytes:
    """A base that a repair writes; it has the token as a field until it takes its place."""
    return b"tg:{%b/%d}:%b:r:%b" % (namespace.encode(), group, table.encode(), token)


def owner_key(key: bytes) -> bytes:
    """The key that says whose a namespace's key is: its key group's header, or the pointer.

    >>> owner_key(b"tg:{flights/7}:aircraft:b"), owner_key(b"tg:{flights}:catalog")
    (b'tg:{flights/7}:h', b'tg:{flights}:meta')
    """
    tag = key[: key.index(b"}") + 1]
    return tag + (b":h" if b"/" in tag else b":meta")


def patterns(namespace: str) -> tuple[str, str]:
    """What SCAN finds every key of a namespace with: its own, and those of its key groups."""
    name = "".join(f"[{letter}]" for letter in namespace)  # no letter is taken for a wildcard
    return f"tg:{{{name}}}:*", f"tg:{{{name}/*}}:*"


def slot_of(key: bytes) -> int:
    """The slot of Redis Cluster: CRC16 (XMODEM) of the hash tag, mod 16,384.

    >>> slot_of(b"tg:{flights/7}:h") == slot_of(b"tg:{flights/7}:aircraft:d:12:0")
    True
    """
    first = key.find(b"{")
    end = key.find(b"}", first + 1)
    tag = key[first + 1 : end] if -1 < first < end - 1 else key
    return binascii.crc_hqx(tag, 0) % SLOTS
