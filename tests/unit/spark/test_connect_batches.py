"""The identity of a batch of Spark Connect, from the files of a checkpoint, and what is refused."""

from __future__ import annotations

import json
import socket
import types
from unittest import mock

import pytest

from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink, batch

QUERY = "6b46e4dc-b191-4bb0-923e-2fd7301527b3"
FILES = {
    "metadata": f'{{"id":"{QUERY}"}}',
    "offsets/0": "v1\n{}\n7",
    "commits/0": "v1\n{}",
    "offsets/1": 'v1\n{"conf":{}}\n{"logOffset":1}\n-\n{"t":{"0":9}}',
    "sources/0/1": '{"path":"file:///b","batchId":1}',
}
ROWS = types.SimpleNamespace(
    sparkSession=types.SimpleNamespace(read=types.SimpleNamespace(format=lambda _: None))
)


@pytest.fixture
def files(monkeypatch):
    """The files of the one checkpoint, each with its text."""
    files = dict(FILES)

    def read(_session, _checkpoint, names, _column, *_):
        return [(files[name].encode(), f"file:/c/{name}", 0) for name in names if name in files]

    def noted(_session, _checkpoint, place, number):
        return [files[f"sources/{place}/{number}"]]

    monkeypatch.setattr(batch, "_read", read)
    monkeypatch.setattr(batch, "noted_files", noted)
    monkeypatch.setattr(batch, "_seen", {})
    return files


def test_a_batch_is_that_of_the_checkpoint(files):
    found = batch.batch_context(ROWS, 1, "/c")
    assert found[0] == QUERY
    assert found.source_offsets == '[{"logOffset":1}, -, {"t":{"0":9}}]'
    files["sources/0/1"] = '{"path":"file:///other","batchId":1}'
    assert batch.batch_context(ROWS, 1, "/c").fingerprint != found.fingerprint


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"metadata": None}, "has no file metadata"),
        ({"offsets/1": None}, r"has no file offsets/1.*put the query's own checkpoint back"),
        ({"commits/1": "v1\n{}"}, "has the file commits/1, so it is past batch 1"),
        ({"offsets/2": "v1\n{}\n8"}, "has the file offsets/2, so it is past batch 1"),
        ({"offsets/1": "v2\n{}\n8"}, "in the form v2, of which tidegate knows v1 alone"),
    ],
)
def test_a_checkpoint_that_is_not_of_the_batch_is_refused(files, changes, words):
    files.update(changes)
    for name in [name for name, text in files.items() if text is None]:
        del files[name]
    with pytest.raises(ConfigError, match=f"(?i){words}"):
        batch.batch_context(ROWS, 1, "/c")


def test_a_checkpoint_that_is_replaced_while_the_query_runs_is_refused(files):
    batch.batch_context(ROWS, 1, "/c")
    files["metadata"] = '{"id":"another"}'
    with pytest.raises(ConfigError, match="is of query another now: it was replaced"):
        batch.batch_context(ROWS, 1, "/c")


def test_a_batch_of_a_query_that_start_did_not_start_is_refused():
    with pytest.raises(ConfigError, match=r"has to know the query's checkpoint: .* sink\.start"):
        batch.batch_context(ROWS, 0)


def test_a_file_whose_name_has_a_separator_of_lines_is_one_line_of_the_note():
    """Spark writes JSON, in which U+2028 is a character like others."""
    session, system = mock.MagicMock(), mock.MagicMock()
    notes = [
        json.dumps({"path": f"file:///{name}", "batchId": 3}, ensure_ascii=False)
        for name in ("a\u2028b", "c")
    ]
    session._jvm.org.apache.commons.io.IOUtils.toString.return_value = "\n".join(["v1", *notes])
    system.getFileStatus().getLen.return_value = 200
    assert batch._lines_of(session, system, "/c/sources/0/3", 3) == notes


class Writer:
    """A DataStreamWriter of Spark Connect, as far as ``start`` calls it."""

    def __init__(self):
        self.function, self.options = None, {}

    def foreachBatch(self, function):  # noqa: N802 - Spark's name
        self.function = function
        return self

    def option(self, name, value):
        self.options[name] = value
        return self

    def start(self):
        return self


@pytest.fixture
def sink(tmp_path):
    def make(**arguments):
        return VersionedSink(
            namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store", **arguments
        )

    return make


@pytest.mark.parametrize("own", [False, True])
def test_start_names_the_checkpoint_to_spark_and_to_the_sink_that_is_sent_there(sink, tmp_path, own):
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    made = sink(ttl={"t": "1 day"}, **({} if own else {"table": "t", "key": "k"}))
    query = made.start(Writer(), tmp_path / "c", (lambda _txn, _rows: None) if own else None)
    assert query.options == {"checkpointLocation": f"{tmp_path}/c"}
    sent = cloudpickle.loads(cloudpickle.dumps(query.function))
    there = sent.__closure__[0].cell_contents if own else sent
    assert (repr(there), there._writing.settings.options) == (repr(made), made._writing.settings.options)
    assert there._checkpoint == f"{tmp_path}/c"
    assert made._checkpoint is None, "it may be started again with another one"


@pytest.mark.parametrize(
    "arguments, start, words",
    [
        ({"commit": "pipelined"}, ("/c",), "ends with the query, without waiting for versions in flight"),
        ({}, ("",), "must be the path or URL of a folder"),
        ({}, (7,), "must be the path or URL of a folder"),
        ({}, ("/c/run-10:00",), "has a colon in its path"),
        ({}, ("s3a://c/run:1/",), "has a colon in its path"),
        ({"table": None, "key": None}, ("/c",), "has no table"),
    ],
)
def test_start_refuses_before_a_query_is_started(sink, arguments, start, words):
    writer = Writer()
    with pytest.raises(ConfigError, match=words):
        sink(**{"table": "t", "key": "k", **arguments}).start(writer, *start)
    assert writer.function is None


def test_start_wants_a_writer_of_a_stream(sink):
    with pytest.raises(ConfigError, match=r"give df\.writeStream"):
        sink(table="t", key="k").start(ROWS, "/c")


def test_metrics_are_served_where_batches_are_committed(sink, tmp_path):
    """Red before: a server on the client's machine found the port taken at each start."""
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = sink(table="t", key="k", metrics_port=port)
    made.start(Writer(), tmp_path / "c")
    assert made._reporter.metrics_url is None
    socket.create_server(("127.0.0.1", port)).close()


class ConnectSession:
    """A session without a JVM, of which only that is asked."""


def test_a_version_of_the_client_does_not_end_the_query(sink):
    """Red before: ``load`` took the namespace over, and the query ended with a FencedError."""
    query, client = sink(parallelism=1), sink(parallelism=1)
    try:
        query._writing.open(None, "q")
        with pytest.raises(
            ConfigError, match=r"from a client of Spark Connect would fence it: stop the query"
        ):
            client._writing.open(ConnectSession())
        assert query._writing.now.coordinator.epoch == 1
        query.close()
        client._writing.open(ConnectSession())
    finally:
        query.close()
        client.close()
