"""Spark Connect: the sink says that it cannot work there, whichever way it is handed over."""

from __future__ import annotations

import types

import pytest
from pyspark import cloudpickle

from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink
from tidegate.spark.batch import batch_context

pytestmark = pytest.mark.spark


def sink(folder):
    return VersionedSink(namespace="flights", wal=f"file://{folder}/wal", store=f"sqlite://{folder}/store")


def test_a_connect_client_cannot_pickle_the_sink_nor_what_each_gives(tmp_path):
    """A Connect client pickles the function of foreachBatch, to run it beside the server."""
    mine = sink(tmp_path)
    for function in (mine, mine.each(lambda _txn, _rows: None)):
        with pytest.raises(ConfigError, match=r"stays in the driver's process.*Spark Connect"):
            cloudpickle.dumps(function)


def test_a_batch_of_a_connect_session_is_refused_with_what_to_do():
    """A Connect session has no py4j object; a sink made on the server's side would meet this."""
    rows = types.SimpleNamespace(sparkSession=types.SimpleNamespace(client=object()))
    with pytest.raises(ConfigError, match=r"not one of a classic Spark session.*builder\.master"):
        batch_context(rows, 0)
