"""A model of a disk at a power cut: it knows what was synced and what was not yet.

The model is that of "All File Systems Are Not Created Equal" (Pillai and others, OSDI 2014), with no more
promised than POSIX does. A sync of a file makes its content durable, not its name; a sync of a folder makes
the names in it durable, not the content of the files. All else may be lost or kept, for each file
independently. Of the writes to one file any part may be kept, in any order, by sectors. Of the changes of one
folder the first N are kept, because file systems journal them. A rename is one step.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SECTOR_BYTES = 512
"""The unit that a disk writes whole or not at all."""

LOSSES = ("lost", "kept", "names", "content", "zeros", "some", "other")
"""The fates of unsynced data:

    ``lost``     all of it is gone
    ``kept``     all of it is there, as after a SIGKILL
    ``names``    names are there, content is not: files that are empty or as they were before
    ``content``  content is there, names are not: new files are gone, renamed ones are back
    ``zeros``    names and sizes are there, content is zeros
    ``some``     of each file and folder a part that a seed chooses; ``other``: by another seed
"""


class Op(NamedTuple):
    """One change of a file or folder. ``path`` and ``target`` are relative to the disk's root.

    ``make`` (an empty file), ``folder``, ``write`` (``content`` at ``offset``), ``size`` (cut or grown to
    ``offset`` bytes), ``sync``, ``rename`` (to ``target``), ``unlink`` (a folder too), ``said`` (``content``
    left the process: its readers may rely on it).
    """

    kind: str
    path: str = ""
    offset: int = 0
    content: bytes = b""
    target: str = ""


class _Write(NamedTuple):
    offset: int
    content: bytes

    def on(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.content)] = self.content

    def sectors(self) -> Iterator[_Write]:
        at = self.offset
        end = at + len(self.content)
        while at < end:
            following = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
            yield _Write(at, self.content[at - self.offset : following - self.offset])
            at = following

    def zeros(self) -> _Size:
        return _Size(self.offset + len(self.content), grow=True)


class _Size(NamedTuple):
    size: int
    grow: bool = False
    """Grow to this size, never shrink."""

    def on(self, content: bytearray) -> None:
        if len(content) < self.size:
            content.extend(bytes(self.size - len(content)))
        elif not self.grow:
            del content[self.size :]

    def sectors(self) -> Iterator[_Size]:
        yield self

    def zeros(self) -> _Size:
        return self


class _File:
    def __init__(self) -> None:
        self.synced = b""
        self.waiting: list[_Write | _Size] = []

    def sync(self) -> None:
        self.synced, self.waiting = self._with(self.waiting), []

    def _with(self, changes: Iterable[_Write | _Size]) -> bytes:
        content = bytearray(self.synced)
        for change in changes:
            change.on(content)
        return bytes(content)

    def left(self, loss: str, chance: random.Random) -> bytes:
        if loss in {"lost", "names"}:
            return self.synced
        if loss == "zeros":
            return self._with(change.zeros() for change in self.waiting)
        if loss in {"some", "other"}:
            share = chance.choice((0.0, 0.5, 0.9, 1.0))
            sectors = (sector for change in self.waiting for sector in change.sectors())
            return self._with(sector for sector in sectors if chance.random() < share)
        return self._with(self.waiting)


class _Name(NamedTuple):
    """A change of a folder: ``name`` leads to ``node`` now, and ``gone`` to nothing."""

    name: str
    node: _File | _Folder | None
    gone: str = ""

    def on(self, names: dict[str, _File | _Folder]) -> None:
        names.pop(self.gone, None)
        if self.node is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.node


class _Folder:
    def __init__(self) -> None:
        self.synced: dict[str, _File | _Folder] = {}
        self.waiting: list[_Name] = []

    def sync(self) -> None:
        self.synced, self.waiting = self.now(), []

    def now(self) -> dict[str, _File | _Folder]:
        return self._with(self.waiting)

    def _with(self, changes: Iterable[_Name]) -> dict[str, _File | _Folder]:
        names = dict(self.synced)
        for change in changes:
            change.on(names)
        return names

    def left(self, loss: str, chance: random.Random) -> dict[str, _File | _Folder]:
        if loss in {"lost", "content"}:
            return self.synced
        if loss in {"some", "other"}:
            return self._with(self.waiting[: chance.randint(0, len(self.waiting))])
        return self.now()


class Disk:
    """A folder and all in it, as the kernel shows it and as it is durable."""

    def __init__(self) -> None:
        self._root = _Folder()

    def do(self, op: Op) -> None:
        """Apply one change. KeyError: its file does not exist, so an earlier change was missed."""
        match op.kind:
            case "make" | "folder":
                folder, name = self._place(op.path)
                folder.waiting.append(_Name(name, _File() if op.kind == "make" else _Folder()))
            case "write":
                self._file(op.path).waiting.append(_Write(op.offset, op.content))
            case "size":
                self._file(op.path).waiting.append(_Size(op.offset))
            case "sync":
                self._node(op.path).sync()
            case "rename":
                self._rename(op)
            case "unlink":
                self._node(op.path)
                folder, name = self._place(op.path)
                folder.waiting.append(_Name(name, None))
            case "said":
                pass
            case _:
                raise ValueError(op)

    def _rename(self, op: Op) -> None:
        folder, name = self._place(op.path)
        other, target = self._place(op.target)
        if folder is not other:
            msg = f"a rename from one folder into another is not modelled: {op}"
            raise ValueError(msg)
        folder.waiting.append(_Name(target, folder.now()[name], gone=name))

    def _node(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self._root
        for name in PurePosixPath(path).parts:
            if not isinstance(node, _Folder):
                raise KeyError(path)
            node = node.now()[name]
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        if not isinstance(node, _File):
            raise KeyError(path)
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        where = PurePosixPath(path)
        node = self._node(str(where.parent))
        if not isinstance(node, _Folder):
            raise KeyError(path)
        return node, where.name

    def has(self, path: str) -> bool:
        """Return whether the kernel shows it."""
        try:
            self._node(path)
        except KeyError:
            return False
        return True

    def left(self, loss: str, seed: object = "") -> dict[str, bytes | None]:
        """Return what a power cut leaves now: content by path, None for a folder, parents first."""
        tree: dict[str, bytes | None] = {}
        self._left(self._root, "", loss, str(seed), tree)
        return tree

    def _left(self, folder: _Folder, at: str, loss: str, seed: str, tree: dict[str, bytes | None]) -> None:
        chance = random.Random(f"{seed} {loss} {at}")
        for name, node in sorted(folder.left(loss, chance).items()):
            path = f"{at}/{name}" if at else name
            if isinstance(node, _Folder):
                tree[path] = None
                self._left(node, path, loss, seed, tree)
            else:
                tree[path] = node.left(loss, random.Random(f"{seed} {loss} {path}"))


def put(tree: dict[str, bytes | None], folder: Path) -> None:
    """Create the remains of a power cut, in an existing folder."""
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
