"""The end of a query: a stop, or an error outside of the sink, as Spark shows it."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from tidegate.spark import batch


@pytest.mark.parametrize("error, told", [(True, 1), (False, 0)])
def test_only_an_error_is_reported_and_not_a_stop(monkeypatch, error, told):
    session = MagicMock()
    session._jsparkSession.sharedState().activeStreamingQueries().get.return_value = None
    query = SimpleNamespace(isActive=lambda: True, exception=lambda: SimpleNamespace(isDefined=lambda: error))
    monkeypatch.setattr(batch, "_runs", {(session._jvm, "q"): batch.Run(query, None, "run")})
    failed = MagicMock()
    assert batch.is_running(session, "q", failed)
    query.isActive = lambda: False
    assert not batch.is_running(session, "q", failed)
    assert failed.call_count == told
