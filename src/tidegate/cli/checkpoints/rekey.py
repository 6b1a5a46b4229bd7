"""``tidegate rekey``: a namespace moved to another number of key groups, under another name."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from typing import Annotated, NamedTuple

import typer

from tidegate.base.names import check_name
from tidegate.cli.core.app import print_message
from tidegate.cli.core.operation import Operation, catch_up_others, operation, require_namespace
from tidegate.cli.core.options import Jobs, Yes, examples
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.background.follower import Standing
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import refuse_lost, writer_is_alive
from tidegate.committers.opening.store_list import refuse_other_stores
from tidegate.committers.operations.alias import aliases_of, refuse_taken, set_alias
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.committers.transfer.rekey.begin import known_source
from tidegate.committers.transfer.rekey.move import finish as finish_copy
from tidegate.committers.transfer.rekey.move import follow, is_finished
from tidegate.errors import ConfigError, StoreUnavailableError, TidegateError
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.wal.fold import decided_for

EXAMPLES = examples(
    "tidegate rekey --namespace flights --to flights_512 --key-groups 512",
    "tidegate rekey --namespace flights --to flights_512 --finish --alias live   # the query is stopped",
)
SHOWN_EACH = 100
"""The number of versions between two lines of progress."""


@operation("tidegate rekey")
def rekey(
    work: Operation,
    to: Annotated[str, typer.Option(metavar="NAME", help="The new namespace.")],
    key_groups: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=32768, help="Its number of key groups; the first time."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ALIAS", help="Let it name the new namespace, as all aliases of the old one; repeatable."
        ),
    ] = None,
    *,
    finish: Annotated[
        bool, typer.Option("--finish", help="The query is stopped: copy the rest, and switch the aliases.")
    ] = False,
    jobs: Jobs = None,
    yes: Yes = False,
) -> None:
    """Move a namespace to another number of key groups, under another name, while its query runs.

    Without --finish it copies a version into the new namespace, then each later version from the log, until
    it has the visible one. The old namespace is only read. Repeat it until few versions are missing. Then
    stop the query, and run it with --finish: the old namespace takes no more versions, even if its
    query is started again; the rest is copied, both are compared row by row, and aliases are switched last.
    The query continues with its checkpoint under the new name: no batch is lost, and none counts twice.

    May be repeated after an interruption. Before --finish, tidegate drop of the new namespace ends it all.
    """
    if check_name("namespace", to) == work.namespace:
        raise ConfigError(
            f"--to {to} is the namespace itself: give another name; or, to finish it, as --namespace the one"
            " that it is made of"
        )
    for ref, each in itertools.product(work.stores(), alias or ()):
        refuse_taken(ref, each)
    with work.coordinator() as old:
        require_namespace(old)
        refuse_lost(old.log, old.store, old.folded)
        refuse_other_stores(old, old.folded)  # the new namespace gets the stores of the old one
        where = dataclasses.replace(old.endpoints, namespace=to)
        with work.coordinator(where, jobs, key_groups) as new:
            done = _done(work, old, new, finish=finish, yes=yes)
            standings = _catch_up_others(work, new, jobs)
            if finish:
                standings += [each for each in _catch_up_others(work, old, jobs) if each.error]
            switched, missed = (
                _switch(work, old.store.identity(), to, alias or [], _whole_version(old, new))
                if finish
                else ({}, [])
            )
            visible = new.store.pointer().visible
    facts = {"to": to, "visible": visible, "behind": done.behind, "rows": done.rows, "aliases": switched}
    copied = f"version {visible} of namespace {to} holds version {done.copied} of namespace {work.namespace}"
    if not finish:
        lines = [f"{copied}, which has {done.behind} later versions"]
    else:
        lines = [] if done.rows is None else [f"{copied}: {sum(done.rows.values())} rows were compared"]
        lines += [
            f"alias {name} names {to} in store {store}" for store, names in switched.items() for name in names
        ]
    others = [each for each in standings if each.name not in {standing.name for standing in missed}]
    work.report(facts, lines, [*others, *missed], _next_step(work, to, finish=finish))


class _Done(NamedTuple):
    """``copied``: the version that the copy holds; 0: it was whole before. ``rows``: those compared."""

    copied: int = 0
    behind: int = 0
    rows: dict[str, int] | None = None


def _done(work: Operation, old: Coordinator, new: Coordinator, *, finish: bool, yes: bool) -> _Done:
    if is_finished(old, new):
        if finish:
            return _Done()
        raise ConfigError(f"namespace {new.endpoints.namespace} is whole: --finish switches the aliases")
    if finish:
        work.refuse_if_writer_alive(old)
        if not yes:
            work.confirm(old, f"namespace {work.namespace} would take no more versions")
    source, copied, behind = follow(old, new, _report)
    if not finish:
        return _Done(copied, behind)
    rows = finish_copy(old, new, source, _report)
    return _Done(old.folded.last_version, 0, rows)


def _report(copied: int, behind: int) -> None:
    if behind % SHOWN_EACH == 0:
        print(f"version {copied} is copied, {behind} more are visible", file=sys.stderr)


def _whole_version(old: Coordinator, new: Coordinator) -> int:
    """Return the version from which on the copy is whole; 1: it is not among the recent ones."""
    source = known_source(old, new)
    decided = None if source is None else decided_for(new.folded, source.last)
    return 1 if decided is None else decided.version


def _catch_up_others(work: Operation, new: Coordinator, jobs: int | None) -> list[Standing]:
    """Bring the other stores of the copy to its log's end; return their standings.

    If an earlier run made it whole, it is opened again only if a store is behind. While a query writes into
    it, that query brings the stores up to date.
    """
    if new.epoch:
        return catch_up_others(new, jobs)
    if writer_is_alive(new):
        return []
    return finish_decided(new, followers_in(new, jobs), work.command).standings


def _switch(
    work: Operation, source: Identity | None, to: str, given: list[str], least: int
) -> tuple[dict[str, list[str]], list[Standing]]:
    """Let the aliases of the old namespace, the source, and the given ones name the new one.

    Return the aliases by store, and the stores in which none was switched: those that have an error, or do
    not show version ``least`` yet.
    """
    switched, missed = dict[str, list[str]](), list[Standing]()
    for ref in work.stores():
        with contextlib.closing(open_store(ref.url, to, ref.options)) as new:
            try:
                identity = new.identity()
                if identity is None or new.pointer().visible < least:
                    raise StoreUnavailableError(f"version {least} is not visible here yet")
                names = sorted({*aliases_of(new, source), *given})
                for name in names:
                    before = set_alias(ref, name, Target(identity.name, identity.uuid))
                    if before is not None and before.namespace not in (work.namespace, to):
                        print_message(f"store {ref.name}: alias {name} named {before.namespace} before")
            except TidegateError as error:
                why = (
                    f"{type(error).__name__}: no alias was switched here, run the same command again: {error}"
                )
                missed.append(Standing(ref.name, new.where, error=why))
            else:
                switched[ref.name] = names
    return switched, missed


def _next_step(work: Operation, to: str, *, finish: bool) -> str:
    old = work.namespace
    if not finish:
        return (
            "next: run this command again until few versions are missing; then stop the query, and run it"
            f" with --finish. `tidegate drop --namespace {to}` ends the attempt instead"
        )
    return (
        f"next: in the query's options set namespace={to!r} in place of {old!r}, keep its checkpoint and its"
        f" stores, and start it. Readers of the name {old}, which is no alias, stay on its last version: let"
        f" them connect to {to}. Its backups end there: let their job run `tidegate backup NEW_FOLDER"
        f" --namespace {to}`. Then `tidegate drop --namespace {old}` removes the old namespace"
    )
