"""Units of a spillable buffer for tests: filled, read, measured and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits

KIB = 1024
SMALL = BufferLimits(memory_bytes_max=256 * KIB, disk_bytes_max=1024 * KIB, file_bytes=16 * KIB)


def fill(buffer: Buffer, group: object, *contents: bytes, tier: Any = None) -> list[Any]:
    """Keep exactly these contents; their segments."""
    with buffer.claim(str(group)) as held:
        assert held is not None
        segments: list[Any] = [held.write([content], tier) for content in contents]
        assert held.keep(segments, b"caller")
        return segments


def contents_of(buffer: Buffer, group: object) -> list[bytes]:
    with buffer.claim(str(group)) as held:
        assert held is not None
        return [held.view(segment).to_pybytes() for segment in held.segments]


def files_of(buffer: Buffer, tier: Any) -> list[Path]:
    return sorted(path for files in buffer.paths(tier) for path in files.folder.glob(f"units/*/*.{tier}"))


def lengths_of(buffer: Buffer, tier: Any) -> int:
    return sum(path.stat().st_size for path in files_of(buffer, tier))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
