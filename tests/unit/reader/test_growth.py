"""What gates and snapshots leave behind in a process: objects, descriptors, threads and tasks, by count."""

from __future__ import annotations

import uuid

import pytest

from support.growth import CHECKS, windows_of
from tidegate.testing.example import write_flights


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The URL of a store with three versions."""
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/store"
    write_flights(f"file://{tmp_path}/wal", url)
    return url


@pytest.mark.one_in(4)
@pytest.mark.parametrize("check, size", [pytest.param(*each[:2], id=each[0].__name__) for each in CHECKS])
def test_readers_leave_nothing(url, check, size):
    check(url, size)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("check, size", [pytest.param(*each[::2], id=each[0].__name__) for each in CHECKS])
def test_many_readers_leave_nothing(url, check, size):
    check(url, size)


def test_one_object_a_window_is_noticed():
    """A check that measures windows has to see the smallest leak."""
    kept = []
    with pytest.raises(AssertionError, match=r"builtins\.set"):
        windows_of(lambda _: kept.append(set()), 10)
