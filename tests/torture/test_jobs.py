"""What the processes beside drivers and readers are given, and what they leave behind."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from tidegate.cli.core.config_files import store_options, wal_options
from tidegate.torture.cell import jobs
from tidegate.torture.driver.driver import Where


def test_options_come_to_the_command_line_as_they_were(tmp_path):
    store = {"timeout_s": 2.5, "functions": False, "password": "12 # 34=x", "create": True}
    wal = {"sasl.password": "s3cret", "timeout_s": 4}
    option, path = jobs.config_file("--store-config", store, tmp_path / "store")
    assert (option, store_options(tmp_path / "store")) == ("--store-config", store)
    jobs.config_file("--wal-config", wal, tmp_path / "wal")
    assert wal_options(tmp_path / "wal") == wal
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert jobs.config_file("--wal-config", {}, tmp_path / "none") == []


def test_recover_leaves_no_password_behind_and_asks_nothing_of_the_environment(tmp_path, monkeypatch):
    elsewhere = {"TIDEGATE_STORE_CONFIG": str(tmp_path / "of another cluster")}
    monkeypatch.setattr(os, "environ", {**os.environ, **elsewhere})
    where = Where(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", "torture-x", {}, {"timeout_s": 3.0})
    (tmp_path / "work").mkdir()
    with pytest.raises(SystemExit) as ended:
        jobs.recover(msgspec.json.encode(where).decode(), str(tmp_path), "recover")
    assert ended.value.code == 2  # there is no such namespace
    assert list((tmp_path / "work").iterdir()) == []


def test_only_the_clients_that_are_needed_are_imported():
    assert "tidegate.sinks.redis.store" in jobs.preloaded("file:///w", "rediss+cluster://h:1")
    assert "tidegate.wal.kafka.log" in jobs.preloaded("kafka://h:1", "sqlite:///s")
    assert not {"tidegate.wal.kafka.log", "tidegate.sinks.cassandra.store"} & {
        *jobs.preloaded("file:///w", "redis://h:1")
    }
