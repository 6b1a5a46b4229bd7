"""Readers of a Cassandra store that was removed: an error with the successor, or on at another store."""

import contextlib
import uuid

import pytest

import tidegate
from support.cli import done
from tidegate.errors import StoreRemovedError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.testing.example import Example

OPTIONS = Options(key_groups=4, allow_unsafe=True)


class Place:
    """A namespace in Cassandra that moves to another keyspace."""

    def __init__(self, old, new, folder):
        self.old, self.new, self.wal = old, new, f"file://{folder}/wal"
        self.namespace = f"n{uuid.uuid4().hex[:8]}"

    def write(self, *stores, number):
        with contextlib.closing(Example(self.wal, list(stores), self.namespace, options=OPTIONS)) as example:
            rows = {f"N{key}": {"carrier": "UA", "flights": number} for key in range(20)}
            example.write({"aircraft": rows})
            for store in (example.driver.store, *example.driver.others):
                store.end_heartbeat(example.driver.epoch)

    def move(self):
        log = ("--wal", self.wal, "--namespace", self.namespace)
        done("store", "add", f"new={self.new}", "--store", f"old={self.old}", *log)
        both = ("--store", f"new={self.new}", "--store", f"old={self.old}")
        done("store", "remove", "old", "--redirect", "new", *both, *log)


@pytest.fixture(scope="module")
def successor(cassandra):
    """The URL of another keyspace with the tables in it."""
    url = cassandra.url_for(f"k{uuid.uuid4().hex[:8]}")
    with contextlib.closing(
        open_store(url, "nothing", {"create": True, "replication": 1, "timeout_s": 60})
    ) as store:
        store.create(Identity("u", "nothing", 1))
    return url


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{}, {"leases": False}], ids=["leases", "no-leases"])
def test_readers_of_a_removed_store_are_refused_or_go_on_at_the_successor(
    cassandra_tables, successor, tmp_path, options
):
    place = Place(cassandra_tables, successor, tmp_path)
    place.write(f"old={place.old}", number=1)
    with (
        tidegate.connect(place.old, place.namespace, options) as gate,
        tidegate.connect(place.old, place.namespace, options, follow_redirects=True) as following,
    ):
        tables = gate.table("aircraft"), following.table("aircraft")
        assert [table.get("N1")["flights"] for table in tables] == [1, 1]
        scan = tables[0].scan()
        next(scan)
        place.move()
        place.write(f"new={place.new}", number=2)
        assert {row["flights"] for _, row in scan} == {1}, "an open scan keeps its version (I8)"
        for look in (gate.version, lambda: tables[0].get("N1"), lambda: tables[0].get_many(["N1"])):
            with pytest.raises(StoreRemovedError, match="version 1 was the newest") as refused:
                look()
            assert refused.value.successor == place.new
        assert (following.version(), tables[1].get("N1")["flights"]) == (2, 2)
        assert {row["flights"] for _, row in tables[1].scan()} == {2}
    with tidegate.connect(place.old, place.namespace, options, follow_redirects=True) as late:
        assert late.table("aircraft").get("N1")["flights"] == 2
