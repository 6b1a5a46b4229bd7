"""``tidegate tail``: changes, version by version, as they become visible."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import msgspec
import typer

from tidegate.base.text import cell
from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.options import For, Json, Namespace, Store, end_of, examples, gate_to
from tidegate.cli.core.output import print_json
from tidegate.cli.core.versions import reference
from tidegate.cli.read.diff import Tables, as_json
from tidegate.errors import ConfigError, WaitTimeoutError
from tidegate.reader.diff import Change
from tidegate.reader.gate import Gate
from tidegate.reader.rules import check_ref
from tidegate.sinks.rules.version_ref import VersionRef

WAIT_S = 5.0
"""The longest single wait for the next version; it is repeated."""

EXAMPLES = examples(
    "tidegate tail",
    "tidegate tail --after VERSION:UUID:DIGEST --json >> changes.jsonl",
    "tidegate tail --table airports --limit 1 --for 60s",
)


def tail(
    store: Store,
    namespace: Namespace,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION:UUID:DIGEST",
            parser=reference,
            help="Begin after this version, as it was printed; default: the newest. A number alone is not"
            " compared with the namespace's history.",
        ),
    ] = None,
    table: Tables = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N versions.")] = None,
    for_: For = None,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """Print what each version changes, as it becomes visible, until Ctrl-C.

    A line for each row that a version added, removed or changed, then one that ends the version.
    Only whole versions are printed unless it is interrupted, so --after with the last version that
    ended continues where another run stopped, while that version is still kept (tidegate history).
    Its uuid and digest are compared, so a namespace that was made again or restored is an error.
    A lease holds the version printed last meanwhile.
    """
    end = end_of(for_)
    with gate_to(store, namespace, store_options(store_config)) as gate:
        visible = gate.version()
        last = VersionRef(visible, gate.uuid)
        if after is not None:
            last = after  # type: ignore[assignment]  # typer calls the parser
            check_ref(last, f"namespace {namespace}", gate.uuid)
        if last.version > visible:
            number = last.version
            raise ConfigError(f"--after {number}: the visible version of namespace {namespace} is {visible}")
        if last.version and not last.has_history:
            print_message(
                f"warning: --after {last.version} is a number alone, which another history of this namespace"
                " may have, too: give VERSION:UUID:DIGEST from the line that ended the version"
            )
        for name in sorted({*(table or ())} - {*gate.tables()}):
            print_message(
                f"warning: there is no table {name} at version {visible}; it is printed once there is one"
            )
        try:
            for changes in _versions(gate, last, table or None, limit, end):
                _print(changes, json=json)
                last = changes.ref
        except KeyboardInterrupt:
            print_message(f"stopped; `tidegate tail --after {last}` continues from there")


class _OfVersion(NamedTuple):
    ref: VersionRef
    decided_at: datetime.datetime | None
    changes: Iterable[Change]


def _versions(
    gate: Gate, last: VersionRef, tables: list[str] | None, limit: int | None, end: float | None
) -> Iterator[_OfVersion]:
    """Yield each version above ``last`` with its changes, in order; pin the one before during the wait."""
    newest = None if limit is None else last.version + limit
    before: set[str] = set()
    with contextlib.ExitStack() as pins:
        if last.version:
            first = pins.enter_context(gate.snapshot(version=last))
            before, last = {*first.tables()}, first.ref
        while newest is None or last.version < newest:
            if not _wait_for(gate, last.next, end):
                return
            with pins.pop_all():  # released only once the next one is pinned: it might be retired in between
                now = pins.enter_context(gate.snapshot(version=last.next))
                existing = before | {*now.tables()}
                names = sorted(existing & {*(tables or existing)})
                with gate.diff(last if last.version else 0, now.ref, names) as changes:
                    yield _OfVersion(now.ref, now.decided_at, changes)
            before, last = {*now.tables()}, now.ref


def _wait_for(gate: Gate, version: VersionRef, end: float | None) -> bool:
    """Wait for the version to become visible; False: the time is over."""
    while True:
        left = WAIT_S if end is None else min(WAIT_S, end - time.monotonic())
        try:
            gate.wait_for(version, timeout=max(left, 0.0))
        except WaitTimeoutError:
            if end is not None and time.monotonic() >= end:
                return False
        else:
            return True


def _print(version: _OfVersion, *, json: bool) -> None:
    number = 0
    for change in version.changes:
        number += 1
        if json:
            print_json({"version": version.ref.version, **as_json(change)})
        else:
            facts = (version.ref.version, change.kind, change.table, change.key, change.before, change.after)
            print("\t".join(map(cell, facts)))
    if json:
        history = msgspec.to_builtins(version.ref)
        print_json({**history, "decided_at": version.decided_at, "changes": number})
    else:
        ref = version.ref
        print(f"{ref.version}\tend\t{number} changes\tdecided {cell(version.decided_at)}\t{ref}")
    sys.stdout.flush()
