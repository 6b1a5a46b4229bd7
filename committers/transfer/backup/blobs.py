"""The blobs of an increment: manifests and frames of versions, byte for byte as the log has them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import xxhash

from tidegate.base.files import create
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.exports.export_format import checksum_of, opened
from tidegate.committers.transfer.backup.chain import (
    BLOBS,
    INDEX,
    MENDED_BY,
    Index,
    VersionBlobs,
    read_sealed,
)
from tidegate.errors import CorruptError
from tidegate.wal.frame import decode_frame
from tidegate.wal.log import Blob, Log
from tidegate.wal.record import DecidedVersion


class Copied(msgspec.Struct, frozen=True):
    """The copied versions. ``rows`` is the number of their changes."""

    versions: tuple[VersionBlobs, ...]
    bytes: int
    rows: int
    checksum: str


def copy_blobs(log: Log, versions: Iterable[DecidedVersion], folder: Path) -> Copied:
    """Copy the blobs of these versions into a new file, durably; each frame is checked, one is in memory.

    Raises: WalGapError: the log no longer has one of them. CorruptError: one is damaged in the log.
    """
    state, copied, end, rows = xxhash.xxh3_64(), [], 0, 0
    with os.fdopen(create(folder / BLOBS, os.O_WRONLY), "wb") as file:

        def add(content: bytes) -> tuple[int, int]:
            nonlocal end
            file.write(content)
            state.update(content)
            end += len(content)
            return end - len(content), len(content)

        for decided in versions:
            (blob,) = log.read([decided.manifest_address])
            manifest = read_manifest(_OneBlob(log.where, blob), decided)
            of_manifest = add(blob.content)
            refs = {ref.address: ref for ref in manifest.frames()}
            places = {}
            for blob in log.read([*refs]) if refs else ():
                where = f"{log.where}, version {decided.version}, frame at {blob.address}"
                decode_frame(blob.content, refs[blob.address], decided.attempt, where)
                places[blob.address] = add(blob.content)
                rows += refs[blob.address].changes
            frames = tuple(places[address] for address in refs)
            copied.append(VersionBlobs(decided, of_manifest, frames))
        file.flush()
        os.fsync(file.fileno())
    return Copied(tuple(copied), end, rows, state.hexdigest())


class _OneBlob:
    """A manifest that was read already."""

    def __init__(self, where: str, blob: Blob) -> None:
        self.where, self._blob = where, blob

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        del addresses
        yield self._blob


class BackupBlobs:
    """The blobs of one increment, read by the addresses that they had in the log."""

    def __init__(self, link: Path) -> None:
        self.where = str(link)
        self.index = read_sealed(link / INDEX, Index)
        self._path, self._places = link / BLOBS, dict[str, tuple[int, int]]()

    def check(self) -> None:
        """Compare the file with its checksum. Raises: CorruptError."""
        try:
            copied = checksum_of(self._path, self.index.size)
        except OSError as error:
            raise CorruptError(f"{self._path} cannot be read: {error.strerror}; {MENDED_BY}") from None
        if (copied.bytes, copied.checksum) != (self.index.size, self.index.checksum):
            raise CorruptError(
                f"{self._path} has {copied.bytes} bytes with checksum {copied.checksum}, written were"
                f" {self.index.size} with {self.index.checksum}; {MENDED_BY}"
            )

    def versions(self, last: int) -> Iterator[DecidedVersion]:
        """Yield the versions up to ``last``; while one is the current one, its blobs can be read."""
        for of_version in self.index.versions:
            decided = of_version.decided
            if decided.version > last:
                return
            self._places = {decided.manifest_address: of_version.manifest}
            addresses = [ref.address for ref in read_manifest(self, decided).frames()]
            if len(addresses) != len(of_version.frames):
                raise CorruptError(
                    f"{self.where}: version {decided.version} has {len(addresses)} frames, the index lists"
                    f" {len(of_version.frames)}; {MENDED_BY}"
                )
            self._places |= dict(zip(addresses, of_version.frames, strict=True))
            yield decided

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        """Yield the blobs at these addresses of the current version, as ``Log.read``."""
        with opened(self._path) as file:
            end = os.fstat(file.fileno()).st_size
            for address in addresses:
                start, size = self._places.get(address, (0, end + 1))
                if not 0 <= start <= start + size <= end:
                    raise CorruptError(
                        f"{self._path} has {end} bytes, and the index names a blob that it does not have;"
                        f" {MENDED_BY}"
                    )
                file.seek(start)
                yield Blob(address, file.read(size))
