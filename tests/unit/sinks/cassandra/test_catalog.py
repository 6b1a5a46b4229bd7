"""The catalog in Cassandra where a flip is on one node alone, seen without a server."""

import datetime
import types

import pytest

from tidegate.sinks.cassandra.namespace import Seen
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.reads import encode
from tidegate.testing.store.harness import entry

AT = datetime.datetime(2026, 11, 23)  # noqa: DTZ001 - as the driver gives it


def row(version):
    return encode(entry(version)).decode(), AT


class HalfDone:
    """Shows version 3 as visible; its entry is told as ``meanwhile`` until somebody reads at SERIAL."""

    where = "store cassandra"

    def __init__(self, meanwhile):
        self.meanwhile, self.settled = meanwhile, 0

    def look(self, *, settle=False):
        self.settled += settle
        return Seen(Pointer(3, "", 1, "w", 2), None, 0)

    def rows(self, name, first, last):
        assert name == "catalog"
        newest = [row(3)] if self.settled else self.meanwhile
        return [*(newest if last == 3 else []), *(row(at) for at in range(last, first - 1, -1) if at < 3)]


@pytest.mark.parametrize("meanwhile", [[], [(None, None)]], ids=["no row", "a row without values"])
def test_the_entry_of_a_visible_version_is_settled(meanwhile):
    """I10: nothing is damaged, and nobody is told so: a reader's pointer was repaired, the row beside not."""
    store = CassandraStore("cassandra://c/k", "n")
    store._space = space = HalfDone(meanwhile)
    assert [one.version for one in store.catalog()] == [2, 3]
    assert [one.version for one in store.catalog(3, 3)] == [3]
    assert space.settled == 1, "once it is there nothing more is asked for"


@pytest.mark.parametrize("bounds, versions", [((1, 2), [2]), ((3, 2), []), ((0, None), [2, 3])])
def test_what_is_there_is_read_once(bounds, versions):
    store = CassandraStore("cassandra://c/k", "n")
    store._space = space = HalfDone([row(3)])
    assert [one.version for one in store.catalog(*bounds)] == versions
    assert space.settled == 0


def test_what_is_missing_for_good_is_left_out():
    store = CassandraStore("cassandra://c/k", "n")
    store._space = space = HalfDone([])
    space.rows = lambda *_: [(None, AT), row(2)]
    assert [one.version for one in store.catalog()] == [2]


def test_the_clock_of_the_server_is_told():
    store = CassandraStore("cassandra://c/k", "n")
    store._space = types.SimpleNamespace(look=HalfDone([]).look, rows=lambda *_: [row(3), row(2)], where="")
    told = {one.published_at_us for one in store.catalog()}
    assert told == {int(AT.replace(tzinfo=datetime.timezone.utc).timestamp()) * 1_000_000}
