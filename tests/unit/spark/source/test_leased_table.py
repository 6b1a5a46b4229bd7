"""The version that a Spark read holds, without Spark: chosen and leased where the read is planned."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.options import Options
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.spark.source.leased_table import lease_table
from tidegate.spark.source.options import SourceOptions
from tidegate.testing.example import Example

UA = {"carrier": "UA", "flights": 1}


@pytest.fixture
def writer(tmp_path):
    with_files = Example(
        f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=8)
    )
    with_files.write({"aircraft": {"N1": UA}})
    yield with_files
    with_files.close()


def asked(writer, **options):
    given = {"namespace": "flights", "store": writer.driver.endpoints.store, "table": "aircraft", **options}
    return SourceOptions.of(given)


@pytest.fixture
def retired_meanwhile(writer, monkeypatch):
    """Between looking and leasing there is a newer version, and the one before is retired. Once."""
    lease = SqliteStore.lease

    def late(store, *args):
        monkeypatch.setattr(SqliteStore, "lease", lease)
        newest = writer.write({"aircraft": {"N2": UA}})
        assert writer.driver.store.announce(newest) == newest
        return lease(store, *args)

    monkeypatch.setattr(SqliteStore, "lease", late)


@pytest.mark.usefixtures("retired_meanwhile")
def test_t28_a_newest_version_that_is_retired_before_it_is_held_gives_way_to_the_newer_one(writer):
    assert lease_table(asked(writer)).version == 2
    assert [info.version for info in writer.driver.store.leases()] == [2]


@pytest.mark.usefixtures("retired_meanwhile")
def test_a_version_that_was_asked_for_does_not(writer):
    with pytest.raises(SnapshotExpiredError):
        lease_table(asked(writer, versionAsOf="1"))
    assert writer.driver.store.leases() == []


def test_a_read_that_is_refused_holds_nothing(writer):
    with pytest.raises(ConfigError, match="no_such"):
        lease_table(asked(writer, table="no_such"))
    assert writer.driver.store.leases() == []
