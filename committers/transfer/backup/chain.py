"""The chain of a backup folder: its format, its one commit point, its lock and its checks.

    chain                       ``Chain``: the list of the links, replaced as a whole by each backup
    full-00000000000000000041/  an export (export_format.py), and ``place``: ``Place``
    increment-00000000000000000047/   ``index``: ``Index``; ``blobs``: manifests and frames of the log

``chain``, ``place`` and ``index`` are a line with the XXH3-64 of the rest, then JSON. The chain holds the
digest of each link's descriptions, and these hold the checksums of its other files. So no byte can change
unnoticed.
A link is a link from the moment at which the chain lists it; every other entry is a leftover.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash

from tidegate.base.decoders import json_decoder
from tidegate.base.files import (
    close,
    create,
    make_folder,
    open_lock,
    read_regular,
    remove_folder,
    sync_above,
    sync_folder,
)
from tidegate.committers.exports.export_format import MANIFEST
from tidegate.errors import ConfigError, CorruptError
from tidegate.sinks.records import CatalogEntry
from tidegate.wal.record import UNREADABLE, Count, DecidedVersion, KeyGroups

FORMAT = 1
CHAIN, LOCK, PLACE, INDEX, BLOBS = "chain", "lock", "place", "index", "blobs"
PART = ".part"
"""The folder in which a link is written before it has its name."""
FULL, INCREMENT = "full", "increment"
LEFTOVER = re.compile(rf"\{PART}|({FULL}|{INCREMENT})-[0-9]{{20}}(-[0-9a-f]{{32}})?")
DESCRIPTIONS = {FULL: (MANIFEST, PLACE), INCREMENT: (INDEX,)}
FILE_BYTES_MAX = 1024 * 1024 * 1024
MENDED_BY = (
    "put a copy of this file back, or restore at an older version (--to), or make a backup in a new folder"
)

Described = TypeVar("Described")


class Link(msgspec.Struct, frozen=True):
    """A full backup at ``version``, or the log from after version ``after`` up to ``version``.

    Where ``after`` is ``version``, the link before has this version, too: an increment has no version, only
    later records.
    """

    kind: str
    after: Count
    version: Count
    decided_at_us: Count
    bytes: Count
    rows: Count
    digest: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]

    @property
    def name(self) -> str:
        """The name of its folder."""
        again = f"-{self.digest}" if self.after == self.version else ""
        return f"{self.kind}-{self.version:020}{again}"


class Chain(msgspec.Struct, frozen=True):
    """The links, oldest first. The first one is full; each increment continues the link before it."""

    namespace: str
    uuid: str
    key_groups: KeyGroups
    links: tuple[Link, ...] = ()
    format: int = FORMAT

    @property
    def since_full(self) -> tuple[Link, ...]:
        """The newest full backup and its increments."""
        starts = [number for number, link in enumerate(self.links) if link.kind == FULL]
        return self.links[starts[-1] :] if starts else ()

    @property
    def versions(self) -> dict[int, bool]:
        """The version of each link, and whether it is the last one before another full backup, or at all."""
        following = (*self.links[1:], None)
        return {
            link.version: after is None or after.kind == FULL
            for link, after in zip(self.links, following, strict=True)
        }


class Place(msgspec.Struct, frozen=True):
    """The place of a full backup in the log.

    ``state`` is a Summary record: the fold before the next version's decision, or at the log's end.
    ``position`` is the log's next position. ``source_offsets`` are those of the last batch that the version
    contains, ``next_offsets`` those of the batch that the next one follows: a restore has undone what is
    between them.
    """

    state: bytes
    position: Count
    entry: CatalogEntry
    source_offsets: str
    next_offsets: str


class VersionBlobs(msgspec.Struct, frozen=True):
    """The places of a version's manifest and frames in ``blobs``: (start, bytes), frames in their order."""

    decided: DecidedVersion
    manifest: tuple[Count, Count]
    frames: tuple[tuple[Count, Count], ...]


class Index(msgspec.Struct, frozen=True):
    """The contents of an increment: the log's records after the link before it, and its versions' blobs."""

    records: tuple[bytes, ...]
    position: Count
    versions: tuple[VersionBlobs, ...]
    size: Count
    checksum: str


def read_chain(folder: Path) -> Chain | None:
    """Read the chain; None: there is no backup. Raises: ConfigError: it has another format. CorruptError."""
    if not (folder / CHAIN).exists():
        return None
    chain = read_sealed(folder / CHAIN, Chain)
    if chain.format != FORMAT:
        raise ConfigError(
            f"{folder} has backup format {chain.format}, this release knows {FORMAT}: upgrade tidegate"
        )
    if why := _impossible(chain):
        raise CorruptError(f"{folder / CHAIN} cannot be right: {why}; {MENDED_BY}")
    return chain


def require_chain(folder: Path) -> Chain:
    """Read the chain of a folder with a backup. Raises: ConfigError: it has none; as ``read_chain``."""
    chain = read_chain(folder)
    if chain is None or not chain.links:
        raise ConfigError(
            f"{folder} holds no backup, it has no file {CHAIN}: give a folder that tidegate backup has made"
        )
    return chain


def _impossible(chain: Chain) -> str:
    before: Link | None = None
    for link in chain.links:
        if link.kind not in DESCRIPTIONS:
            return f"a link is of kind {link.kind!r}"
        if link.kind == INCREMENT and (before is None or link.after != before.version):
            return f"{link.name} continues version {link.after}, which no link before it ends with"
        if link.kind == INCREMENT and link.version < link.after:
            return f"{link.name} ends before it begins"
        before = link
    return ""


def write_chain(folder: Path, chain: Chain) -> None:
    """Replace the chain, durably: the one write by which a backup counts."""
    part = folder / f".{CHAIN}.part"
    part.unlink(missing_ok=True)
    write_sealed(part, chain)
    part.replace(folder / CHAIN)
    sync_folder(folder)


def write_sealed(path: Path, described: Any) -> None:
    """Write a new file of JSON with its checksum, durably."""
    body = msgspec.json.encode(described)
    with os.fdopen(create(path, os.O_WRONLY), "wb") as file:
        file.write(f"{xxhash.xxh3_64_hexdigest(body)}\n".encode() + body)
        file.flush()
        os.fsync(file.fileno())


def read_sealed(path: Path, kind: type[Described]) -> Described:
    """Read a file of JSON with its checksum. Raises: CorruptError: it is missing, or has other bytes."""
    checksum, _, body = _content(path).partition(b"\n")
    if checksum.decode("ascii", "replace") != xxhash.xxh3_64_hexdigest(body):
        raise CorruptError(f"{path}: its checksum does not fit its {len(body)} bytes; {MENDED_BY}")
    try:
        decoded: Described = json_decoder(kind).decode(body)
    except UNREADABLE as error:
        raise CorruptError(f"{path} cannot be read: {error}; {MENDED_BY}") from None
    return decoded


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, FILE_BYTES_MAX)
    except OSError as error:
        raise CorruptError(f"{path} cannot be read: {error.strerror}; {MENDED_BY}") from None


def digest_of(link: Path, kind: str) -> str:
    """Compute the digest of a link's descriptions, which hold the checksums of its other files."""
    digest = hashlib.blake2b(digest_size=16)
    for name in DESCRIPTIONS[kind]:
        digest.update(hashlib.blake2b(_content(link / name)).digest())
    return digest.hexdigest()


def check_digest(folder: Path, link: Link) -> None:
    """Check the descriptions of a link. Raises: CorruptError: they are not those of the chain."""
    if digest_of(folder / link.name, link.kind) != link.digest:
        names = " or ".join(DESCRIPTIONS[link.kind])
        raise CorruptError(f"{folder / link.name}: {names} has other bytes than the chain lists; {MENDED_BY}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, and remove what an interrupted backup left.

    Raises: ConfigError: another backup holds it, or the folder has other contents.
    """
    make_folder(folder)
    sync_above(folder)
    entries = {path.name for path in folder.iterdir()}
    if entries - {LOCK, PART, f".{CHAIN}.part"} and CHAIN not in entries:
        raise ConfigError(f"{folder} is not empty, and holds no backup: give a new folder")
    fd = open_lock(folder / LOCK, make=True)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{folder}: another backup is being written there; wait for its end, then run it again"
            ) from None
        yield
    finally:
        close(fd)


def remove_leftovers(folder: Path, chain: Chain | None) -> None:
    """Remove links that the chain does not list. Repeatable. Entries with other names stay."""
    listed = {link.name for link in chain.links} if chain else set()
    for path in folder.iterdir():
        is_leftover = LEFTOVER.fullmatch(path.name) and path.name not in listed
        if is_leftover and (path.is_symlink() or path.is_dir()):
            remove_folder(path)
