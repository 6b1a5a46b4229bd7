"""The bands of the spill monitor: when a host's state leaves memory, and when it comes back."""

from __future__ import annotations

import dataclasses

from tidegate.base.text import brief
from tidegate.errors import ConfigError

BANDS = ("load_below", "load_to", "spill_to", "spill_above")
"""The four limits of a band, from the lowest to the highest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateSpill:
    """When state moves between a host's memory and its disks, which state, and how much in one batch.

    Three signals: the share of ``state_memory_bytes`` in use, the share of the container's memory in
    use, and the wait of a task for memory. Any of them starts a spill; state is loaded when none of
    them objects. Shares are between 0 and 1.

    Raises: ConfigError: a value is of the wrong type or out of range, or limits contradict each other.
    """

    spill_above: float = 0.9
    """The share of ``state_memory_bytes`` above which state is spilled ..."""
    spill_to: float = 0.8
    """... down to this share."""
    load_below: float = 0.6
    """The share of ``state_memory_bytes`` below which state is loaded ..."""
    load_to: float = 0.7
    """... up to this share."""
    container_spill_above: float = 0.95
    """The share of the container's memory above which state is spilled ..."""
    container_spill_to: float = 0.9
    """... down to this share."""
    container_load_below: float = 0.8
    """Only below this share of the container's memory is state loaded ..."""
    container_load_to: float = 0.85
    """... up to this share."""
    wait_spill_above: float = 0.1
    """A task that spent more than this share of its time waiting for memory spills state ..."""
    wait_load_below: float = 0.02
    """... and only one that waited for a smaller share than this loads state."""
    wait_spill_share: float = 0.1
    """The share of ``state_memory_bytes`` that waiting spills, once a batch ..."""
    wait_spill_to: float = 0.3
    """... and never below this share: a task may wait for reasons that a spill does not cure."""
    fault_s: float = 0.001
    """The wait that a major page fault counts as, in seconds, where the kernel does not measure waits."""
    size_share: float = 0.5
    """The share of the size in a weight; the request rate has the rest."""
    new_share: float = 0.3
    """The share of the newest batch in a request rate."""
    rate_min: float = 0.001
    """Key groups with fewer requests per batch are not loaded."""
    batch_bytes_max: int = 256 * 1024 * 1024
    """The most bytes that a host moves in one batch; a larger part moves alone. 0: nothing is moved."""

    def __post_init__(self) -> None:
        for name in (field.name for field in dataclasses.fields(self)):
            value = getattr(self, name)
            kinds = int if name == "batch_bytes_max" else int | float
            most = float("inf") if name in ("batch_bytes_max", "fault_s", "rate_min") else 1
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= most:
                limit = "0 or more" if most > 1 else "between 0 and 1"
                raise ConfigError(f"state_spill: {name} is {brief(value)}; it must be a number, {limit}")
        self._check_band("")
        self._check_band("container_")
        if self.wait_load_below > self.wait_spill_above:
            msg = (
                f"state_spill: wait_load_below is {self.wait_load_below}; it must be at most"
                f" wait_spill_above, {self.wait_spill_above}"
            )
            raise ConfigError(msg)

    def _check_band(self, of: str) -> None:
        """Check that a move ends where no other move begins."""
        names = [of + name for name in BANDS]
        limits = [getattr(self, name) for name in names]
        if limits != sorted(limits) or limits[1] == limits[3]:
            msg = (
                f"state_spill: {', '.join(names)} are {', '.join(map(str, limits))}; they must rise, and"
                f" {names[1]} must be below {names[3]}"
            )
            raise ConfigError(msg)
