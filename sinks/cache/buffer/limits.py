"""The limits of a buffer."""

from __future__ import annotations

import dataclasses

from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.options.state_spill import StateSpill


@dataclasses.dataclass(frozen=True)
class BufferLimits:
    """The limits of a buffer. All processes of a host use the same. Raises: ConfigError: out of range."""

    memory_bytes_max: int = 256 * 1024 * 1024
    """The most bytes of all processes of the host together in the memory tier."""
    disk_bytes_max: int = 10 * 1024 * 1024 * 1024
    """Likewise on all disks together."""
    file_bytes: int = 1024 * 1024
    """Size of the files in rotation. A larger segment has a file of its own, which is removed with it."""
    bands: StateSpill = dataclasses.field(default_factory=StateSpill)
    """When units move between the tiers, and how much in one batch."""

    def __post_init__(self) -> None:
        for name, least in (("memory_bytes_max", 0), ("disk_bytes_max", 0), ("file_bytes", 64)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} is {brief(value)}; it must be a whole number, at least {least}")
