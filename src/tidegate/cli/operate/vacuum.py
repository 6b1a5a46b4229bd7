"""``tidegate vacuum``: removal of what no reader can reach any more."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from tidegate.base.text import shown_bytes
from tidegate.cli.core.config_files import StoreConfigs, stores_given
from tidegate.cli.core.options import Json, Namespace, Stores, examples
from tidegate.cli.core.output import print_json, print_table
from tidegate.errors import StoreUnavailableError, TidegateError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Usage, Vacuumed
from tidegate.sinks.store import Store
from tidegate.status.stores import no_namespace
from tidegate.status.usage import full_share, usage_of

EXAMPLES = examples(
    "tidegate vacuum --dry-run --store sqlite:///data/store --namespace flights",
    "tidegate vacuum --store sqlite:///data/store --namespace flights",
)


class Done(NamedTuple):
    """The vacuum of one store. ``refusal``: it is full, and nothing was dropped, or it refused to."""

    gone: Vacuumed
    horizon: int
    unsearched: str
    usage: list[Usage]
    refusal: TidegateError | None

    @property
    def has_dropped(self) -> bool:
        """Whether anything was dropped, or would be."""
        return self.gone != Vacuumed()


def vacuum(
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Redis: scan all keys of the server.")] = False,
    json: Json = False,
) -> None:
    """Drop what no reader can reach any more and retirement has missed.

    Rows that were replaced at or below the horizon, the writer's notes of retired versions,
    leases that ran out. Readers and a writer may go on meanwhile. No version becomes
    unreadable: the horizon does not move. The files keep their size; the room is used again.

    With --dry-run, or if nothing is dropped, it also lists what takes the room, each with the way to
    free it. Exit code 7 if the store is full and nothing was dropped.
    """
    refs = stores_given(store, store_config)
    every: list[dict[str, Any]] = []
    refusal = None
    for ref in refs:
        with contextlib.closing(open_store(ref.url, namespace, ref.options)) as opened:
            if opened.identity() is None:
                raise no_namespace(namespace, ref.url)
            done = _vacuumed(opened, dry_run=dry_run, thorough=thorough)
        facts = {"namespace": namespace, "dry_run": dry_run, "horizon": done.horizon}
        every.append(
            facts
            | msgspec.structs.asdict(done.gone)
            | ({"unsearched": done.unsearched} if done.unsearched else {})
            | ({"usage": done.usage} if done.usage else {})
        )
        if not json:
            _print(done, ref, "would go" if dry_run else "gone", named=len(refs) > 1)
        refusal = refusal or done.refusal
    if json:
        of_each = [{"store": ref.name, **one} for ref, one in zip(refs, every, strict=True)]
        print_json(every[0] if len(refs) == 1 else {"namespace": namespace, "stores": of_each})
    if refusal is not None:
        raise refusal


def _vacuumed(store: Store, *, dry_run: bool, thorough: bool) -> Done:
    refusal: TidegateError | None = None
    try:
        removed = store.vacuum(dry_run=dry_run, thorough=thorough)
    except TidegateError as error:
        if not error.writes_refused:
            raise
        removed, refusal = Vacuumed(), error
    unsearched = "" if thorough else store.unsearched
    done = Done(removed, store.pointer().horizon, unsearched, [], refusal)
    if done.has_dropped and not dry_run:
        return done
    if refusal is None and not done.has_dropped and (share := full_share(store)) is not None:
        refusal = StoreUnavailableError(
            f"{store.where} is full ({share:.0%} used), and there is nothing to drop: free one of the parts"
            " listed above"
        )
    return done._replace(usage=usage_of(store), refusal=refusal)


def _print(done: Done, at: StoreRef, verb: str, *, named: bool) -> None:
    removed = done.gone
    whose = f"store {at.name}: " * named
    print(
        f"{whose}{verb}: {removed.rows} rows, notes of {removed.notes} sealed versions of key groups,"
        f" {removed.leases} leases, {removed.entries} catalog entries (horizon: version {done.horizon})"
    )
    if done.unsearched:
        print(f"not looked for: {done.unsearched}")
    if done.usage:
        columns = ["contents", "rows", "bytes", "the way to free it"]
        print_table(columns, [_cells(part) for part in done.usage])


def _cells(part: Usage) -> tuple[Any, ...]:
    rows = "not known" if part.rows is None else f"{part.rows:,}"
    size = "not known" if part.bytes is None else shown_bytes(part.bytes)
    return part.contents, rows, size, part.way
