"""The version that a Spark read holds, without Spark: chosen and leased where the read is planned."""

from __future__ import annotations

import shutil

import pytest

from support.cli import done
from support.places import silence_writer
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreNotVerifiedError, StoreRemovedError
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
    assert lease_table(asked(writer)).at.version == 2
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


@pytest.fixture
def moved(writer, tmp_path):
    """The query's store was removed; its successor is another one."""
    writer.close()
    silence_writer(tmp_path / "store")
    old, new = f"main=sqlite://{tmp_path}/store", f"new=sqlite://{tmp_path}/new"
    log = [f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    done("store", "add", new, f"--store={old}", *log)
    for name in ("store", "new"):
        silence_writer(tmp_path / name)
    done("store", "remove", "main", "--redirect=new", f"--store={old}", f"--store={new}", *log)
    return writer


def test_a_removed_store_is_left_for_its_successor_on_request_only(moved, tmp_path):
    with pytest.raises(StoreRemovedError, match="its successor is "):
        lease_table(asked(moved))
    leased = lease_table(asked(moved, followRedirects="true"))
    assert (leased.at.version, leased.url) == (1, f"sqlite://{tmp_path}/new")
    with pytest.raises(ConfigError, match="followRedirects: server 1 of it is not host:port"):
        asked(moved, followRedirects="yes")


def test_a_successor_with_another_namespace_or_an_older_version_is_refused(moved, tmp_path):
    shutil.move(tmp_path / "new", tmp_path / "moved")
    other = Example(f"file://{tmp_path}/other", f"sqlite://{tmp_path}/new", options=Options(key_groups=8))
    other.write({"aircraft": {"N1": UA}})
    other.close()
    with pytest.raises(ConfigError, match="another namespace is here"):
        lease_table(asked(moved, followRedirects="true"))
    shutil.rmtree(tmp_path / "new")
    store, old = (SqliteStore(f"{tmp_path}/{name}", "flights") for name in ("new", "store"))
    store.create(old.identity())
    store.close()
    with pytest.raises(StoreNotVerifiedError, match="is being rebuilt or filled"):
        lease_table(asked(moved, followRedirects="true"))
