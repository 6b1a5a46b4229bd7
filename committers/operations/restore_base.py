"""The export from which a restore computes a version that the log alone no longer gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.export_format import Manifest, batches_of, read_manifest
from tidegate.committers.exports.import_rows import read_whole
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.committers.transfer.backup.chain import FULL, read_chain
from tidegate.errors import ConfigError
from tidegate.wal.record import DecidedVersion


class Base(NamedTuple):
    """An export of an older version of the namespace, whose files were compared with its manifest."""

    folder: Path
    manifest: Manifest

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Yield the batches of all tables, each with its table."""
        for name, table in self.manifest.tables.items():
            for batch in batches_of(self.folder, name, table, self.manifest.key_groups):
                yield name, batch


def read_base(coordinator: Coordinator, target: DecidedVersion, folder: Path) -> Base:
    """Read an export, or the newest one of a folder of backups, and check that ``target`` continues it.

    ``refuse_other_base`` was called. Raises: ConfigError: it is of a newer version, or of one that the log no
    longer knows. Otherwise as ``read_whole``.
    """
    folder = _export_in(folder, target.version)
    manifest, _ = read_whole(folder)
    if manifest.version > target.version:
        raise ConfigError(
            f"{folder} is an export of version {manifest.version}, which is newer than {target.version}: give"
            f" one of version {target.version} or an older one"
        )
    if decided_version(coordinator.decisions, manifest.version) is None:
        raise ConfigError(
            f"{folder} is an export of version {manifest.version}, and {coordinator.log.where} no longer has"
            " its decision: give a newer export; `tidegate import FOLDER` makes a version of this one"
        )
    return Base(folder, manifest)


def refuse_other_base(coordinator: Coordinator, folder: Path, version: int) -> None:
    """Refuse an export, or a folder of backups, of another namespace or history. Its rows are not read.

    Of a folder of backups it is the full one that ``read_base`` takes, else the oldest. Raises: ConfigError:
    as described. Otherwise as ``read_manifest``.
    """
    full = [link for link in chain.links if link.kind == FULL] if (chain := read_chain(folder)) else []
    if full:
        older = [link for link in full if link.version <= version]
        folder = folder / (older[-1] if older else full[0]).name
    manifest, _ = read_manifest(folder)
    state, name = coordinator.folded, coordinator.endpoints.namespace
    if (manifest.uuid, manifest.key_groups) != (state.namespace, state.key_groups):
        raise ConfigError(
            f"{folder} is an export of namespace {manifest.namespace} ({manifest.uuid}), not of {name}"
            f" ({state.namespace}): give one of {name}; `tidegate import FOLDER` takes rows of others"
        )
    decided = decided_version(coordinator.decisions, manifest.version)
    if decided is not None and decided.digest != manifest.digest:
        raise ConfigError(
            f"{folder} is an export of version {manifest.version} with digest {manifest.digest}, and the"
            f" log has it with {decided.digest}: it is of another history of {name}; give another one"
        )


def _export_in(folder: Path, version: int) -> Path:
    """Return the newest full backup up to ``version`` in a folder of backups, else the folder itself."""
    chain = read_chain(folder)
    if chain is None:
        return folder
    full = [link for link in chain.links if link.kind == FULL]
    older = [link for link in full if link.version <= version]
    if not older:
        raise ConfigError(
            f"{folder} has no full backup of version {version} or an older one, its oldest is of version"
            f" {full[0].version if full else 'none'}: give an export of version {version} or an older one"
        )
    return folder / older[-1].name
