"""``tidegate export`` and ``tidegate import``: a version as files, and files as a version."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tidegate.base.names import check_token
from tidegate.base.text import cell, shown_bytes
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import Jobs, Json, Namespace, Store, Yes, examples, gate_to
from tidegate.cli.core.output import print_json
from tidegate.cli.core.versions import At, version_at
from tidegate.cli.read.diff import Tables
from tidegate.committers.apply.processes import jobs_here
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.exports.export import export as export_version
from tidegate.committers.exports.export_format import Manifest
from tidegate.committers.exports.import_rows import Imported, import_rows, imported_before, read_whole
from tidegate.committers.opening.lifecycle import ask
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.errors import ConfigError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.visible import no_version_yet

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
    with contextlib.closing(open_store(store, namespace, options)) as opened:
        identity = opened.identity()
        if identity is None:
            raise no_version_yet(namespace)
        manifest = export_version(opened, identity, version, folder, table or None)
    rows = {name: of_table.rows for name, of_table in manifest.tables.items()}
    size = sum(file.bytes for of_table in manifest.tables.values() for file in of_table.files)
    if json:
        facts = {"namespace": namespace, "version": version, "folder": str(folder)}
        print_json({**facts, "rows": rows, "bytes": size})
    else:
        counts = ", ".join(f"{name} {count}" for name, count in rows.items()) or "no table"
        shown = f"{cell(str(folder))}: version {version} of namespace {namespace}"
        print(f"{shown}, {shown_bytes(size)}; rows: {counts}")


@operation("tidegate import")
def import_(
    work: Operation,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that tidegate export wrote.")],
    *,
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
    bytes_max: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="The most bytes of all rows, decompressed; default: 500 times those of the files, or 4 MiB.",
        ),
    ] = None,
    jobs: Jobs = None,
    yes: Yes = False,
) -> None:
    """Make one new version of what tidegate export wrote: its tables hold exactly its rows then.

    Into a new namespace, which is made, or into one that is there, whose other tables stay as
    they are: then it asks. Every file is compared with its checksum first. An export is imported
    once into a namespace; a second time writes nothing, unless --token names it otherwise. Large
    exports are dealt into files in the folder for temporary files (TMPDIR).
    """
    token = check_token(token) if token else None
    manifest, digest = read_whole(folder)
    jobs = min(jobs or jobs_here(), key_groups or manifest.key_groups)  # a process needs a key group
    with work.coordinator(jobs=jobs, key_groups=key_groups) as coordinator:
        state = coordinator.decisions.catch_up()
        ask(coordinator, work.row)
        if state is None and coordinator.store.identity() is None and key_groups is None:
            coordinator.options = dataclasses.replace(coordinator.options, key_groups=manifest.key_groups)
        work.refuse_if_writer_alive(coordinator)
        done = imported_before(state, token or digest)
        if done is not None:  # by a command that may have ended before its version was visible
            others = followers_in(coordinator, jobs)
            finished = finish_decided(coordinator, others, work.command, force=work.force)
            done, standings = done._replace(recovered=finished.recovered), finished.standings
        else:
            replaced = sorted({*manifest.tables} & {*(state.tables if state else ())})
            if replaced and not yes:
                tables = ", ".join(replaced)
                effect = f"the rows of tables {tables} of namespace {work.namespace} would be replaced"
                work.confirm(coordinator, effect)
            done = import_rows(coordinator, folder, manifest, token or digest, bytes_max=bytes_max)
            standings = catch_up_others(coordinator, jobs)
    facts = {"version": done.version, "new": done.new, "recovered": done.recovered}
    work.report(facts, _lines(done, work.namespace, folder, manifest), standings)


def _lines(done: Imported, namespace: str, folder: Path, manifest: Manifest) -> list[str]:
    if not done.new:
        as_which = "" if done.version is None else f" as version {done.version}"
        return [*made_first(done.recovered), f"{folder} was imported before{as_which}; nothing was written"]
    rows, count = sum(table.rows for table in manifest.tables.values()), len(manifest.tables)
    result = (
        f"version {done.version} of namespace {namespace} is visible: {rows} rows of {count}"
        f" table{'s' * (count != 1)}, version {manifest.version} of {manifest.namespace} when exported"
    )
    return [*made_first(done.recovered), result]
