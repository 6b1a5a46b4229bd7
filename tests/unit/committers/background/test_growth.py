"""A driver that lives for months, on files and SQLite: after any number of versions it keeps the same."""

from __future__ import annotations

import pytest

from support.growth import check_versions

SIZES = [pytest.param(False, id="few"), pytest.param(True, id="many", marks=pytest.mark.slow)]


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("many", SIZES)
@pytest.mark.parametrize("how", ["sync", "pipelined"])
def test_versions_leave_nothing(tmp_path, monkeypatch, how, many):
    check_versions(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", how, monkeypatch, many=many)
