"""What calls of a sink refuse before a session is asked for anything."""

from __future__ import annotations

import math
from unittest import mock

import pytest

from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink, loads
from tidegate.spark.calls.collected import CollectedCalls


def test_a_stream_is_no_load_and_is_told_where_it_goes(tmp_path):
    """It was told to use "the one the function is given", and a load has no function."""
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    rows = mock.Mock(spec=loads.DataFrame, isStreaming=True)
    with pytest.raises(ConfigError, match=r"table t: a load takes a static DataFrame.*foreachBatch"):
        sink.load({"t": rows}, token="once", key="id")


@pytest.mark.parametrize("timeout_s", [None, "5", math.nan, math.inf])
def test_a_drain_has_an_end(tmp_path, timeout_s):
    """None waited for ever; a NaN and an infinity ended as errors of Python's own."""
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    with pytest.raises(ConfigError, match=r"timeout_s is .* every wait has an end"):
        sink.drain(timeout_s)


@pytest.mark.parametrize("token", [3, b"once", ["once"], "\udc80"])
def test_a_token_that_no_log_can_hold_is_refused(tmp_path, token):
    """I10: 3 was decided, in a record that nobody could read back: the namespace was lost with it."""
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    rows = mock.Mock(spec=loads.DataFrame, isStreaming=False)
    with pytest.raises(ConfigError, match=r"token=.* a text of 1 to 200 printable"):
        sink.load({"t": rows}, token=token, key="id")


@pytest.mark.parametrize(
    "given,told",
    [
        ({"wal_options": "x"}, "wal_options is str"),
        ({"store_options": 3}, "store_options is int"),
        ({"locality": "x"}, "locality is 'x'"),
    ],
)
def test_a_sink_names_what_is_no_such_thing(tmp_path, given, told):
    with pytest.raises(ConfigError, match=told):
        VersionedSink(
            namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store", **given
        )


def test_each_takes_a_function(tmp_path):
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    with pytest.raises(ConfigError, match="give a function"):
        sink.each(None)


def test_an_import_that_would_end_another_local_state_is_refused():
    known = dict.fromkeys(["_local", "_local.one", "_local.two"], mock.Mock())
    collected = CollectedCalls(0, known)
    with pytest.raises(ConfigError, match=r"the export lacks _local\.two, which this namespace has"):
        collected.begin_import(["_local", "_local.one"])
    collected.begin_import([*known, "t"])


@pytest.mark.parametrize("named", [{}, {"token": ""}, {"token": None}])
def test_an_import_without_a_token_is_named_by_its_digest(tmp_path, monkeypatch, named):
    """None, as an option that was not given has it, named none before either."""
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    table = mock.Mock(expires=False, table_schema=mock.Mock(derived=None))
    frames = mock.Mock(tables={"t": table}, key_groups=4)
    monkeypatch.setattr(loads, "read_manifest", lambda *_: (frames, "its-digest"))
    monkeypatch.setattr(loads, "check_files", lambda *_: None)
    monkeypatch.setattr(loads, "frame_of", lambda *_: None)
    monkeypatch.setattr(VersionedSink, "_write_once", lambda _self, once: once.origin.digest)
    assert sink.import_folder(mock.Mock(), "/exported", **named) == "its-digest"


def test_a_migration_without_a_session_names_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)  # an earlier test's
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    with pytest.raises(ConfigError, match="start a SparkSession in this thread first"):
        sink.migrate_state("t", migrate=lambda state, _: state, state_version=2)
    assert not [*tmp_path.iterdir()], "nothing was made"
