"""The first record of a copy: the state of its source at the version that is copied, without its versions."""

from __future__ import annotations

import contextlib

import msgspec

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.begin_log import new_uuid
from tidegate.committers.opening.open import ensure_made
from tidegate.committers.opening.rekeyed import Source, is_whole, moved_from, own_tokens, source_of
from tidegate.errors import ConfigError, TidegateError, WalGapError
from tidegate.wal.fold import View, decided_for, fold_all, once_key
from tidegate.wal.log import Log
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded, ImportOrigin, digest_after


def state_at(log: Log, version: int) -> Folded:
    """Return the state right after the decision of a version; its lineage is that of a query.

    Raises: WalGapError: the log has no such decision, or no longer.
    """
    view = View()
    for entry in log.decisions():
        view = fold_all(view, [entry], log.where)
        state = view.state
        if state is not None and state.last_version == version:
            moved = moved_from(state)
            return state if moved is None else msgspec.structs.replace(state, lineage=moved.lineage or None)
    raise WalGapError(f"{log.where} has no decision of version {version}, or no longer")


def last_batch(state: Folded) -> DecidedVersion | None:
    """Return the version of the last batch of the lineage, if it is among the recent ones.

    After a restore with ``--reprocess`` it has none, until a batch follows the restore.
    """
    if state.lineage is None or state.last_batch is None or state.last_batch[0] < state.generation:
        return None
    return decided_for(state, BatchOrigin(state.lineage, *state.last_batch, ""))


def makes_again(old: Coordinator, new: Coordinator) -> str:
    """Return the commands that make the copy again, also where its log is gone.

    Another command may have made it whole since: a query's rows may be in it, and nothing is removed then.
    """
    with contextlib.suppress(TidegateError):
        new.decisions.catch_up()
    name, to, state = old.endpoints.namespace, new.endpoints.namespace, new.decisions.view.state
    source = None if state is None else source_of(state)
    if state is not None and source is not None and is_whole(state, source):
        return "another command has made the copy whole meanwhile: remove nothing, and run this command again"
    made = new.store.identity() if state is None else state
    has = old.decisions.view.state  # the source may have been made again, with the copy's key groups
    is_known = made is not None and (has is None or has.key_groups != made.key_groups)
    force, groups = "" if state else " --force", made.key_groups if made and is_known else "N"
    listed = () if state is None else state.stores
    is_more = {*listed} - {ref.name for ref in new.endpoints.stores}
    stores = "".join(f" --store {name}=URL" for name in listed) if is_more else ""
    return (
        f"`tidegate drop --namespace {to}{force}{stores}`, then `tidegate rekey --namespace {name} --to {to}"
        f" --key-groups {groups}` makes it again"
    )


def known_source(old: Coordinator, new: Coordinator) -> Source | None:
    """Return the source of a copy that was begun; None: it was not. Both logs were folded.

    Raises: ConfigError: the new namespace exists, and is no copy of the old one.
    """
    if new.decisions.view.state is None:
        return None
    source, name = source_of(new.folded), new.endpoints.namespace
    if source is None or source.uuid != old.folded.namespace:
        raise ConfigError(
            f"namespace {name} exists, and is no copy of namespace {old.folded.name} with other key groups:"
            " give another name with --to"
        )
    is_begun = new.folded.last_version and not is_whole(new.folded, source)
    if is_begun and _several(new.folded) != _several(old.folded):
        listed, copied = (", ".join(each.folded.stores) or "one store, without a name" for each in (old, new))
        raise ConfigError(
            f"the stores of namespace {old.folded.name} have changed since the copy {name} was begun: its log"
            f" lists {listed}, the copy's {copied}. Nothing was written. {makes_again(old, new)}"
        )
    return source


def _several(state: Folded) -> set[str]:
    """Return the stores of the log's list; none: there is one, listed or not."""
    return {*state.stores} if len(state.stores) > 1 else set()


def begin(old: Coordinator, new: Coordinator, version: int, key_groups: int) -> Source:
    """Create the log and the store of the copy, which will hold this version of the old namespace first.

    The last batch is left out of the state: the first version gets its origin, so that its replay is found.
    Durable: on return both exist. Repeatable: the first record wins. Raises: as ``state_at``
    and ``ensure_made``.
    """
    state = state_at(old.log, version)
    source = Source(state.namespace, version)
    batch, uuid = last_batch(state), new_uuid(new.clock)
    carried = Folded(
        uuid,
        new.endpoints.namespace,
        key_groups,
        digest_after(state.digest, uuid.encode()),
        lineage=state.lineage,
        generation=state.generation,
        batches={name: ids for name, ids in state.batches.items() if batch is None or name != state.lineage},
        decided_at_us=state.decided_at_us,
        once=(*own_tokens(state), once_key(ImportOrigin(source.token))),
    )
    ensure_made(new, carried)
    return source
