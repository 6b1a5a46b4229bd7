"""The store suite: identity, pointer, catalog, heartbeat, other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tidegate.base.steps import run
from tidegate.errors import (
    ConfigError,
    StoreLostError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    VersionRegressedError,
)
from tidegate.reader.table import TableReader, view_of
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Identity, Pointer, ReadAt
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.rules.removal import Removal, removal_in
from tidegate.sinks.store import Store
from tidegate.testing.concurrency import in_another_process, in_threads
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    StoreHarness,
    chunks_of,
    entry,
    get,
    put,
    put_each,
    scanned,
    stamp,
    write,
)
from tidegate.wal.record import (
    JSON_RENAMED,
    BatchOrigin,
    Column,
    ImportOrigin,
    Origin,
    RestoreOrigin,
    TableAt,
    TableSchema,
)

OTHER_PROCESS = """
import json, sys
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.store.harness import put

url, namespace, options = json.loads(sys.argv[1])
store = open_store(url, namespace, options)
print(json.dumps([store.identity().uuid, store.pointer().visible, store.pointer().digest,
    [value.decode() for value in store.get_many(ReadAt("t", 1), [b"a", b"b"]).to_pylist()]]))
put(store, 2, {"t": {b"a": b"by another process"}})
store.close()
"""

SCHEMA = TableSchema((Column("id", "long"),), (Column("name", "string"),))


def _content(store: Store, at: CatalogEntry) -> dict[str, Any]:
    """Read the rows k and l of table t as a gate does at this entry's version."""
    identity = store.identity()
    assert identity is not None
    view = view_of("suite", identity, at, "t", store.schemas_of([at.tables["t"].schema_id]))
    assert view is not None
    return run(TableReader(store, view, lambda: None).get_many(["k", "l"]))


class PointerTests(StoreHarness):
    # -- identity ------------------------------------------------------------------------------

    def test_where_nothing_was_created_there_is_no_identity(self) -> None:
        store = self.make_store()
        assert store.identity() is None
        assert self.reopen(store).identity() is None

    @pytest.mark.parametrize(
        "use",
        [
            lambda store: store.pointer(),
            lambda store: store.catalog(),
            lambda store: store.schemas(),
            lambda store: store.get_many(ReadAt("t", 1), [b"k"]),
            lambda store: list(store.scan(ReadAt("t", 1), 0)),
            lambda store: store.claim(1, "w"),
            lambda store: store.publish(entry(1), 1),
            lambda store: store.apply(stamp(1), chunks_of({"t": {b"k": b"v"}})[0]),
            lambda store: store.seal(stamp(1), {}),
            lambda store: store.lease(Lease("l", 1), 10),
            lambda store: store.announce(1),
        ],
    )
    def test_using_what_was_not_created_says_how_to_create_it(self, use: Callable[[Store], Any]) -> None:
        store = self.make_store()
        with pytest.raises(ConfigError, match="tidegate init"):
            use(store)
        assert self.reopen(store).identity() is None

    def test_the_first_create_wins_and_is_what_stands(self) -> None:
        store = self.make_store()
        second = Identity("uuid-2", "suite", 16)
        first = store.create(Identity("uuid-1", "suite", 8))
        assert (first.uuid, first.name, first.key_groups) == ("uuid-1", "suite", 8)
        assert store.create(first) == first
        assert self.reopen(store).create(second) == first
        assert self.reopen(store).identity() == first

    def test_raced_creates_agree(self) -> None:
        store = self.make_store()
        identities = [Identity(f"uuid-{i}", "suite", 4 + i) for i in range(4)]
        answers = in_threads(*(lambda one=one: self.reopen(store).create(one) for one in identities))
        assert answers[0].uuid in {one.uuid for one in identities}
        assert answers == [answers[0]] * 4
        assert store.identity() == answers[0]

    def test_a_new_namespace_shows_nothing(self) -> None:
        store = self.make_store()
        store.create(Identity("uuid-1", "suite", KEY_GROUPS))
        assert store.pointer() == Pointer()
        assert store.catalog() == []
        assert store.schemas() == {}
        assert get(store, "t", [b"k"], 0) == [None]
        assert scanned(store, "t", 0) == {}

    def test_i8_readers_are_refused_from_the_creation_after_a_loss_on(self) -> None:
        """A snapshot from before the loss is open in some reader: no row that was lost is absent for it."""
        store = self.make_store()
        store.create(Identity("uuid-1", "suite", KEY_GROUPS), lost_at=5)
        for read in (lambda: get(store, "t", [b"k"], 5), lambda: scanned(store, "t", 5)):
            with pytest.raises((StoreLostError, StoreNotVerifiedError, VersionRegressedError)):
                read()

    def test_create_again_changes_nothing(self, store: Store) -> None:
        put(store, 1, {"t": {b"k": b"v"}})
        before = store.pointer()
        store.create(Identity("uuid-1", "suite", KEY_GROUPS))
        assert store.pointer() == before
        assert get(store, "t", [b"k"], 1) == [b"v"]

    # -- claim ---------------------------------------------------------------------------------

    def test_claim_is_the_maximum_and_may_be_repeated(self, store: Store) -> None:
        assert store.claim(5, "five") == 5
        assert store.claim(5, "five") == 5
        assert store.claim(3, "three") == 5
        pointer = self.reopen(store).pointer()
        assert (pointer.epoch, pointer.writer) == (5, "five")

    def test_raced_claims_end_at_the_highest(self, store: Store) -> None:
        def claim(epoch: int) -> int:
            return self.reopen(store).claim(epoch, f"writer-{epoch}")

        answers = in_threads(*(lambda epoch=epoch: claim(epoch) for epoch in (7, 9, 8, 6)))
        assert all(epoch >= own for epoch, own in zip(answers, (7, 9, 8, 6), strict=True))
        assert (store.pointer().epoch, store.pointer().writer) == (9, "writer-9")

    # -- publish -------------------------------------------------------------------------------

    def test_publish_moves_the_pointer_by_one(self, store: Store) -> None:
        write(store, 1, {"t": {b"k": b"v"}})
        assert store.pointer().visible == 0
        assert store.publish(entry(1), EPOCH) is True
        assert self.reopen(store).pointer() == Pointer(1, "digest-1", EPOCH, "writer-1", 0, None)

    @pytest.mark.parametrize("version", [1, 2, 4, 5, 100])
    def test_publish_only_from_the_exact_predecessor(self, store: Store, version: int) -> None:
        """I7. With 2 visible, only 3 may follow; False changes nothing."""
        put(store, 1, {})
        put(store, 2, {})
        before = store.pointer(), store.catalog()
        impostor = msgspec.structs.replace(entry(version), digest="another")
        assert store.publish(impostor, EPOCH + 1) is False
        assert (store.pointer(), store.catalog()) == before
        assert store.publish(entry(3), EPOCH) is True

    def test_no_publish_under_a_higher_epoch(self, store: Store) -> None:
        """I6, T1: the zombie wakes after the new driver has claimed."""
        put(store, 1, {})
        store.claim(EPOCH + 1, "writer-2")
        before = store.pointer(), store.catalog()
        assert store.publish(entry(2), EPOCH) is False
        assert (store.pointer(), store.catalog()) == before
        assert store.publish(entry(2), EPOCH + 1) is True

    def test_publish_sets_the_epoch(self, store: Store) -> None:
        assert store.publish(entry(1), EPOCH + 4) is True
        assert store.pointer().epoch == EPOCH + 4
        assert store.publish(entry(2), EPOCH) is False

    def test_of_raced_publishes_one_wins_whole(self, store: Store) -> None:
        entries = [msgspec.structs.replace(entry(1), digest=f"d{i}", attempt=f"a{i}") for i in range(4)]
        done = in_threads(*(lambda one=one: self.reopen(store).publish(one, EPOCH) for one in entries))
        unknown = [each for each in done if isinstance(each, StoreUnavailableError)]
        winner = next(each for each in entries if each.digest == store.pointer().digest)
        assert done.count(True) == 1 or (done.count(True) == 0 and unknown)
        assert done.count(True) + done.count(False) + len(unknown) == len(entries)
        assert True not in done or done.index(True) == entries.index(winner)
        assert [each.attempt for each in store.catalog()] == [winner.attempt]

    def test_the_catalog_entry_is_readable_whenever_its_version_is(self, store: Store) -> None:
        last = 30

        def publish_all() -> None:
            for version in range(1, last + 1):
                assert store.publish(entry(version), EPOCH)

        def look() -> list[str]:
            reader, wrong, seen = self.reopen(store), [], 0
            while seen < last:
                pointer = reader.pointer()
                wrong += [f"{pointer.visible} after {seen}"] if pointer.visible < seen else []
                seen = pointer.visible
                entries = reader.catalog(seen, seen)
                if seen and (len(entries) != 1 or entries[0].digest != pointer.digest):
                    wrong.append(f"version {seen}: {entries}")
            reader.close()
            return wrong

        assert in_threads(publish_all, look, look) == [None, [], []]

    # -- catalog and schemas -------------------------------------------------------------------

    @pytest.mark.parametrize(
        "origin",
        [BatchOrigin("query-1", 2, 3, "f" * 64), ImportOrigin("d" * 32), RestoreOrigin(7)],
        ids=lambda origin: type(origin).__name__,
    )
    def test_the_catalog_gives_back_what_was_published(self, store: Store, origin: Origin) -> None:
        published = msgspec.structs.replace(entry(1, {"t": {b"k": b"v"}}, u=1), origin=origin)
        store.publish(published, EPOCH)
        (stored,) = self.reopen(store).catalog()
        assert stored.published_at_us > 0
        assert msgspec.structs.replace(stored, published_at_us=0) == published

    def test_the_catalog_is_ascending_and_bounded(self, store: Store) -> None:
        put_each(store, 11)

        def versions(*bounds: int) -> list[int]:
            return [one.version for one in store.catalog(*bounds)]

        assert versions() == list(range(1, 12))
        assert versions(9) == [9, 10, 11]
        assert versions(0, 2) == [1, 2]
        assert versions(4, 6) == [4, 5, 6]
        assert versions(12) == []

    def test_published_at_is_the_stores_clock(self, store: Store) -> None:
        store.publish(entry(1), EPOCH)
        self.advance(store, 100)
        store.publish(entry(2), EPOCH)
        first, second = store.catalog()
        assert second.published_at_us - first.published_at_us == pytest.approx(100e6, abs=9e6)

    def test_schemas_are_kept_by_id(self, store: Store) -> None:
        other = TableSchema((Column("id", "binary"),), (Column("v", "binary"),), "bytes")
        store.put_schemas([SCHEMA, other])
        store.put_schemas(iter([SCHEMA]))
        store.put_schemas([])
        assert self.reopen(store).schemas() == {SCHEMA.schema_id: SCHEMA, other.schema_id: other}

    def test_rows_are_decoded_by_the_columns_of_the_version_that_is_read(self, store: Store) -> None:
        narrow = TableSchema((Column("id", "string"),), (Column("a", "int"),))
        wide = TableSchema(narrow.key, (Column("a", "bigint"), Column("s", "struct<x:int>")))
        other_name = TableSchema(narrow.key, (Column("b", "bigint", "a"), wide.value[1]), JSON_RENAMED)
        first, second = b'{"a":1}', b'{"a":1099511627776,"s":{"x":2}}'
        versions = [(narrow, {b"k": first, b"l": first}), (wide, {b"l": second}), (other_name, {})]
        for version, (schema, rows) in enumerate(versions, 1):
            store.put_schemas([schema])
            write(store, version, {"t": rows} if rows else {})
            published = entry(version, {"t": rows})
            tables = {"t": TableAt(schema.schema_id)}
            assert store.publish(msgspec.structs.replace(published, tables=tables), EPOCH)
        reopened, big = self.reopen(store), 1_099_511_627_776
        assert [_content(reopened, one) for one in reopened.catalog()] == [
            {"k": {"a": 1}, "l": {"a": 1}},
            {"k": {"a": 1, "s": None}, "l": {"a": big, "s": {"x": 2}}},
            {"k": {"b": 1, "s": None}, "l": {"b": big, "s": {"x": 2}}},
        ]

    # -- heartbeat -----------------------------------------------------------------------------

    def test_without_a_heartbeat_there_is_no_age(self, store: Store) -> None:
        assert store.pointer().heartbeat_age_s is None

    def test_only_the_claimed_epoch_beats(self, store: Store) -> None:
        store.claim(5, "five")
        store.heartbeat(4)
        store.heartbeat(6)
        assert store.pointer().heartbeat_age_s is None
        store.heartbeat(5)
        age_s = self.reopen(store).pointer().heartbeat_age_s
        assert age_s is not None
        assert 0 <= age_s < 60

    def test_age_is_counted_by_the_stores_clock(self, store: Store) -> None:
        store.heartbeat(EPOCH)
        self.advance(store, 12)
        assert store.pointer().heartbeat_age_s == pytest.approx(12, abs=9)
        store.claim(EPOCH + 1, "writer-2")
        store.heartbeat(EPOCH)  # the old driver's, which proves nothing about the new one
        assert store.pointer().heartbeat_age_s == pytest.approx(12, abs=9)
        store.heartbeat(EPOCH + 1)
        assert store.pointer().heartbeat_age_s == pytest.approx(0, abs=9)

    def test_a_closed_writer_has_no_heartbeat(self, store: Store) -> None:
        store.heartbeat(EPOCH)
        store.end_heartbeat(EPOCH)
        store.end_heartbeat(EPOCH)
        pointer = self.reopen(store).pointer()
        assert pointer.heartbeat_age_s is None
        assert pointer.closed_age_s is not None
        assert 0 <= pointer.closed_age_s < 60
        store.heartbeat(EPOCH)  # it opens again, or a late request lands
        assert store.pointer().heartbeat_age_s is not None
        assert store.pointer().closed_age_s is None
        store.claim(EPOCH + 1, "writer-2")
        store.heartbeat(EPOCH + 1)
        store.end_heartbeat(EPOCH)  # the fenced one's end is not the new one's
        assert store.pointer().heartbeat_age_s is not None

    # -- after this process --------------------------------------------------------------------

    def test_close_may_be_repeated_and_loses_nothing(self, store: Store) -> None:
        put(store, 1, {"t": {b"k": b"v"}})
        store.close()
        store.close()
        again = self.reopen(store)
        assert again.pointer().visible == 1
        assert get(again, "t", [b"k"], 1) == [b"v"]
        again.close()

    def test_another_process_sees_and_goes_on(self, store: Store) -> None:
        place = self.place(store)
        if place is None:
            pytest.skip("other processes cannot open this store")
        put(store, 1, {"t": {b"a": b"1", b"b": b"2"}})
        seen = in_another_process(OTHER_PROCESS, place)
        assert seen == ["uuid-1", 1, "digest-1", ["1", "2"]]
        assert store.pointer().visible == 2
        assert get(store, "t", [b"a", b"b"], 2) == [b"by another process", b"2"]

    # -- the note of a removed store --------------------------------------------------------------

    def test_the_note_of_a_removed_store_comes_with_each_pointer_and_fences(self, store: Store) -> None:
        removal = Removal(7, 1_000_000, "redis://elsewhere:6379")
        put(store, 1, {"t": {b"a": b"1"}})
        assert not store.pointer().is_removed
        assert store.claim(9, removal.as_writer()) == 9
        for seen in (store, self.reopen(store)):
            assert removal_in(seen.where, seen.pointer()) == removal
            assert seen.pointer().visible == 1
            assert get(seen, "t", [b"a"], 1) == [b"1"]
        if isinstance(store, SupportsReadWithPointer):
            assert store.get_with_pointer(ReadAt("t", 1), b"a")[1].is_removed
        assert store.claim(8, "older") == store.claim(9, "same") == 9
        assert not store.publish(entry(2), 8)
        store.heartbeat(8)
        assert store.pointer().is_removed
        assert store.claim(10, "newer") == 10
        assert not self.reopen(store).pointer().is_removed
