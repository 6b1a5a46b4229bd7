"""``tidegate export`` and ``tidegate import``: a version as files, and files as a version."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tidegate.base.names import check_token
from tidegate.base.text import shown_bytes
from tidegate.cli.core.config_files import StoreConfig, StoreConfigs, WalConfig, endpoints, store_options
from tidegate.cli.core.options import (
    AllowUnsafe,
    Force,
    Jobs,
    Json,
    Namespace,
    Store,
    Stores,
    Wal,
    confirm,
    examples,
    gate_to,
)
from tidegate.cli.core.output import print_json
from tidegate.cli.core.stores import fail_if_behind, print_standings, stores_as_json
from tidegate.cli.core.versions import At, version_at
from tidegate.cli.read.diff import Tables
from tidegate.committers.apply.processes import jobs_here
from tidegate.committers.local_coordinator import coordinator_for, followers_in
from tidegate.committers.opening.open import refuse_if_writer_alive
from tidegate.committers.transfer.export import export as export_version
from tidegate.committers.transfer.export_format import Manifest
from tidegate.committers.transfer.import_rows import Imported, import_rows, imported_before, read_whole
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.reader.rules import no_version_yet
from tidegate.sinks.open_store import open_store

EXPORT_EXAMPLES = examples(
    "tidegate export /backup/flights-41 --at 41",
    "tidegate export airports --table airports",
)
IMPORT_EXAMPLES = examples(
    "tidegate import /backup/flights-41 --namespace flights2",
    "tidegate import airports --store redis://cache:6379 --wal file:///data/wal --namespace flights --yes",
)


def export(
    store: Store,
    namespace: Namespace,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
    at: At = None,
    table: Tables = None,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """Write a version into a folder: Parquet files of rows, and a manifest with schemas and checksums.

    The version is held until all is written; readers and a writer go on meanwhile. Memory does
    not grow with the tables. tidegate import makes a version of it again, in any kind of store.
    """
    options = store_options(store_config)
    with gate_to(store, namespace, options) as gate:
        namespace = gate.namespace
        version = version_at(gate, at) or gate.version()
        if not version:
            raise no_version_yet(namespace)
        if version > gate.version():
            raise ConfigError(f"version {version} is not visible yet, the visible one is {gate.version()}")
    with contextlib.closing(open_store(store, namespace, options)) as kept:
        identity = kept.identity()
        if identity is None:
            raise no_version_yet(namespace)
        manifest = export_version(kept, identity, version, folder, table or None)
    rows = {name: of_table.rows for name, of_table in manifest.tables.items()}
    size = sum(file.bytes for of_table in manifest.tables.values() for file in of_table.files)
    if json:
        facts = {"namespace": namespace, "version": version, "folder": str(folder)}
        print_json({**facts, "rows": rows, "bytes": size})
    else:
        told = ", ".join(f"{name} {count}" for name, count in rows.items()) or "no table"
        print(f"{folder}: version {version} of namespace {namespace}, {shown_bytes(size)}; rows: {told}")


def import_(  # noqa: PLR0913, PLR0917 - its options
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that tidegate export wrote.")],
    wal_config: WalConfig = None,
    key_groups: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=32768, help="Of a new namespace; default: as exported."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="A name of this import: it happens once per name; default: the export's digest.",
        ),
    ] = None,
    jobs: Jobs = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Make one new version of what tidegate export wrote: its tables hold exactly its rows then.

    Into a new namespace, which is made, or into one that is there, whose other tables stay as
    they are: then it asks. Every file is compared with its checksum first. An export is imported
    once into a namespace; a second time writes nothing, unless --token names it otherwise. Large
    exports are dealt into files in the folder for temporary files (TMPDIR).
    """
    token = check_token(token) if token else None
    manifest, digest = read_whole(folder)
    where = endpoints(store, wal, namespace, wal_config, store_config)
    jobs = min(jobs or jobs_here(), key_groups or manifest.key_groups)  # a process needs a key group
    options = Options(allow_unsafe=allow_unsafe, key_groups=key_groups)
    with coordinator_for(where, options, jobs) as coordinator:
        state = coordinator.decisions.catch_up()
        if state is None and coordinator.store.identity() is None and key_groups is None:
            coordinator.options = dataclasses.replace(coordinator.options, key_groups=manifest.key_groups)
        refuse_if_writer_alive(coordinator, "tidegate import", force=force)
        done = imported_before(state, token or digest)
        standings = []
        if done is None:
            replaced = sorted({*manifest.tables} & {*(state.tables if state else ())})
            if replaced and not yes:
                confirm(f"what tables {', '.join(replaced)} of namespace {namespace} hold would be replaced")
            done = import_rows(coordinator, folder, manifest, token or digest)
            standings = [each.catch_up() for each in followers_in(coordinator, jobs)]
    if json:
        facts = {
            "namespace": namespace,
            "version": done.version,
            "new": done.new,
            "recovered": done.recovered,
        }
        print_json(facts | ({"stores": stores_as_json(standings)} if standings else {}))
    else:
        _tell(done, namespace, folder, manifest)
        print_standings(standings)
    fail_if_behind(standings)


def _tell(done: Imported, namespace: str, folder: Path, manifest: Manifest) -> None:
    if not done.new:
        as_which = "" if done.version is None else f" as version {done.version}"
        print(f"{folder} was imported before{as_which}; nothing was written")
        return
    if done.recovered:
        print(f"made visible first: version {', '.join(map(str, done.recovered))}")
    rows, count = sum(table.rows for table in manifest.tables.values()), len(manifest.tables)
    print(
        f"version {done.version} of namespace {namespace} is visible: {rows} rows of {count}"
        f" table{'s' * (count != 1)}, version {manifest.version} of {manifest.namespace} when exported"
    )
