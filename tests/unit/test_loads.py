"""What ``sink.load`` refuses before a session is asked for anything."""

from __future__ import annotations

from unittest import mock

import pytest

from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink, loads


def test_a_stream_is_no_load_and_is_told_where_it_goes(tmp_path):
    """It was told to use "the one the function is given", and a load has no function."""
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    rows = mock.Mock(spec=loads.DataFrame, isStreaming=True)
    with pytest.raises(ConfigError, match=r"table t: a load takes a static DataFrame.*foreachBatch"):
        sink.load({"t": rows}, token="once", key="id")
