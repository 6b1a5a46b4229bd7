"""The changes that the conformance program makes to a store, and that no release makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Undo = Callable[[], None]


class StoreChanges(Protocol):
    """The changes that every store has. The namespace has one key group, and nothing was retired."""

    def identity(self, **fields: Any) -> Undo:
        """Change fields of the identity."""
        ...

    def not_ready(self) -> Undo:
        """Leave the namespace as one whose creation was interrupted, or that is being dropped."""
        ...

    def pointer(self, **fields: Any) -> Undo:
        """Change fields of the pointer: ``visible``, ``digest``, ``horizon``, ``writer``."""
        ...

    def schema(self, schema_id: str, content: bytes) -> Undo:
        """Change the content of a schema."""
        ...

    def value(self, table: str, key: bytes, version: int, stored: bytes) -> Undo:
        """Change the stored value that a version has written."""
        ...
