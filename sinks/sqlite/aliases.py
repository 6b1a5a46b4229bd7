"""Aliases beside a SQLite store's folders: a file for each, replaced by one rename.

``<path>/<escape(alias)>.alias`` contains a JSON object: alias, namespace, uuid. An escaped name
contains no dot, so no namespace's folder has such a name. A replacement is written and fsynced
under a name of its own before the rename, and the folder is fsynced after it: at any time the alias
is the old one or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.base.files import create, read_regular, sync_folder
from tidegate.base.names import check_name, escape
from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError
from tidegate.sinks.aliases import Aliases, Target
from tidegate.sinks.rules.reads import decode, encode

SUFFIX = ".alias"
BYTES_MAX = 65_536
NO_ALIAS = (errno.EINVAL, errno.EISDIR, errno.EFBIG)


class Stored(msgspec.Struct, frozen=True):
    """The content of an alias file, with the alias's name, which its escaped form may not determine."""

    alias: str
    namespace: str
    uuid: str

    @property
    def target(self) -> Target:
        return Target(self.namespace, self.uuid)


class FileAliases(Aliases):
    """The aliases in a folder, for any number of processes of one machine."""

    def __init__(self, folder: Path) -> None:
        self.where = f"store sqlite://{folder}"
        self._folder = folder

    def get(self, alias: str) -> Target | None:
        stored = self._read(self._path(alias))
        return None if stored is None else stored.target

    def all(self) -> dict[str, Target]:
        with self._explaining():
            paths = sorted(self._folder.iterdir()) if self._folder.exists() else []
        files = (self._read(path) for path in paths if path.name.endswith(SUFFIX))
        return {stored.alias: stored.target for stored in files if stored is not None}

    def set(self, alias: str, target: Target) -> None:
        check_name("alias", alias)
        path = self._path(alias)
        new = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        content = encode(Stored(alias, target.namespace, target.uuid))
        with self._explaining():
            try:
                with os.fdopen(create(new, os.O_WRONLY), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    new.unlink()
                raise
            sync_folder(self._folder)

    def drop(self, alias: str) -> bool:
        with self._explaining():
            try:
                self._path(alias).unlink()
            except FileNotFoundError:
                return False
            sync_folder(self._folder)
        return True

    def _path(self, alias: str) -> Path:
        return self._folder / (escape(alias) + SUFFIX)

    def _read(self, path: Path) -> Stored | None:
        with self._explaining():
            try:
                content = read_regular(path, BYTES_MAX)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno not in NO_ALIAS:
                    raise
                raise CorruptError(
                    f"{self.where}: {path} is no alias: {error.strerror}; remove it, then set the alias again"
                ) from None
        return decode(f"{self.where}: {path}", content, Stored)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(
                f"{self.where}: {error.filename}: {error.strerror}; give a folder that this user can use"
            ) from error
        except OSError as error:
            raise StoreUnavailableError(
                f"{self.where}: {error.filename or self._folder}: {error.strerror or error}"
            ) from error
