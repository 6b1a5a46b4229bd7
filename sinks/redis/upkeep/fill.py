"""The fill of a new store on Redis from another one, and losses of servers during and after it.

The pointer is marked first, then every key group is emptied below the version. Rows that are
applied and sealed form a layer like any other. At the end of the fill it becomes the base. The log
does not have the filled rows, so a loss of them cannot be repaired: while nothing is visible
everything is filled again, later the store is refused. docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.base.names import FILL_AGAIN
from tidegate.errors import StoreNotVerifiedError, WalGapError
from tidegate.sinks.records import ABOVE_ALL, Pointer
from tidegate.sinks.redis.client.replies import plain
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import AnotherServerError, number, number_in, readable
from tidegate.sinks.redis.seals import Header, headers

FROM_SCRATCH = f"nothing was put back; it has to be filled from scratch: {FILL_AGAIN}"


class Fill:
    """The fills of one store instance: the server of each key group when its fill began."""

    def __init__(self, space: RedisNamespace) -> None:
        self._space = space
        self._began: tuple[int, dict[int, bytes]] = (0, {})

    def begin(self, version: int, attempt: str, epoch: int) -> int:
        """Mark the pointer, then empty every key group below the version in force; return it, or 0: refused.

        Raises: StoreNotVerifiedError: a server was not compared with the log. WalGapError: key
        groups have versions that the pointer does not know.
        """
        space = self._space
        if changed := space.changed_servers():
            raise space.unlisted(changed)
        by_group = headers(space)
        pointer = space.pointer()  # after the headers: without a mark by now, no fill had written to them
        if not pointer.visible and not pointer.horizon:
            _refuse_used(space, by_group)
        marked = int(space.ask("mark", number(epoch), number(version), attempt.encode()))
        if not marked:
            return 0
        groups = range(space.made.key_groups)
        began = {group: space.calls.node_of(header_key(space.namespace, group)).server_id for group in groups}
        self._ask_each("begin_fill", marked, began)
        self._began = marked, began
        return marked

    def end(self, version: int) -> None:
        """Turn the filled layer at this version into the base of every key group.

        Raises: StoreNotVerifiedError: a key group is not at the server where its fill began, so it
        may lack a part.
        """
        if changed := self._space.changed_servers():  # before any key group is marked as whole
            raise self._space.unlisted(changed)
        marked, began = self._began
        if marked != version or 0 in self._ask_each("end_fill", version, began):
            raise self._elsewhere(version)

    def _ask_each(self, name: str, version: int, began: Mapping[int, bytes]) -> list[int]:
        """Call each only at the server where its fill began: another one may have lost a seal since."""
        space = self._space
        calls = [
            space.of_group(group, name, number(version))._replace(server=began[group]) for group in began
        ]
        try:
            return [int(reply) for reply in space.asked(calls)]
        except AnotherServerError as other:
            raise self._elsewhere(version) from other

    def _elsewhere(self, version: int) -> StoreNotVerifiedError:
        return StoreNotVerifiedError(
            f"{self._space.where}: its servers changed since its fill at version {version} began: they may"
            " lack a part of it; it has to be filled again, which a running query does by itself, or"
            " `tidegate recover`"
        )


def refuse_half_filled(space: RedisNamespace) -> None:
    """Check, before version 1 is published, that no fill has begun.

    Raises: WalGapError: a fill began, and the pointer went back to before its mark.
    """
    half = [group for group, header in headers(space).items() if header.filling]
    if half and not space.pointer().horizon:
        raise WalGapError(
            f"{space.where}: {len(half)} key groups were being filled from another store, and the pointer's"
            f" server lost the mark: they have no versions to continue from; {FROM_SCRATCH}"
        )


def lost_while_filled(space: RedisNamespace) -> WalGapError:
    """Return the error for a pointer that was lost while the store was being filled."""
    return WalGapError(
        f"{space.where}: it was being filled from another store when its pointer was lost; {FROM_SCRATCH}"
    )


def oldest_after_fill(space: RedisNamespace, pointer: Pointer, by_group: Mapping[int, Header]) -> int:
    """Return the oldest version that, after a fill, is compared with the log; for repair.

    A key group that lost its header does not affect it: repair searches the log for all of its
    rows. ``pointer`` was read before the headers. Raises: WalGapError: filled rows, or the progress
    of a fill, are lost. StoreNotVerifiedError: a fill begins or ends at this moment, repeat.
    """
    if pointer.visible:
        (stored,) = space.calls.run([plain(space.meta, b"HGET", space.meta, b"filled")])
        with readable(space.where, "the version that the store was filled at", stored):
            filled = number_in(stored or b"0")
        lost = [group for group, header in by_group.items() if header.floor < filled and header.since != 0]
        if lost:
            raise WalGapError(
                f"{space.where}: servers lost rows that were filled from another store at version"
                f" {filled}, in {len(lost)} key groups, and the log does not have them; {FROM_SCRATCH}"
            )
        return filled + 1 if filled else 0
    after = space.pointer()
    if (after.visible, after.horizon) != (0, pointer.horizon):
        raise StoreNotVerifiedError(f"{space.where}: a fill ran during the repair; repeat it")
    # On one server, pointer and key groups are of the same moment.
    if space.servers.settings.kind == "cluster":
        _refuse_ahead(space, pointer.horizon, by_group)
    return ABOVE_ALL if pointer.filling_at else 0


def _refuse_ahead(space: RedisNamespace, mark: int, by_group: Mapping[int, Header]) -> None:
    """Refuse key groups filled beyond the pointer's version: something may have been visible before."""
    ahead = [
        group
        for group, header in by_group.items()
        if header.filling > mark or (mark and header.floor >= mark)
    ]
    if ahead:
        raise WalGapError(
            f"{space.where}: the pointer's server went back to a fill at version {mark}, {len(ahead)} key"
            f" groups on other servers are beyond it; {FROM_SCRATCH}"
        )


def _refuse_used(space: RedisNamespace, by_group: Mapping[int, Header]) -> None:
    used = [
        group
        for group, header in by_group.items()
        if header.filling or header.newest > 1 or header.floor or header.bases
    ]
    if used:
        raise WalGapError(
            f"{space.where}: nothing is visible, and {len(used)} key groups hold versions: the pointer's"
            f" server lost it; {FROM_SCRATCH}"
        )
