"""A diff is bounded by bytes, not by rows, whichever side has the large values."""

import pytest

import tidegate
from tidegate.options import Options
from tidegate.sinks import diff
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.example import Example
from tidegate.wal.record import Column, TableSchema

ROWS, MIB = 150, 1024 * 1024
LARGE = {"v": "x" * MIB}


@pytest.fixture
def example(tmp_path):
    made = Example(f"memory://{tmp_path}/wal", f"memory://{tmp_path}/store", options=Options(key_groups=1))
    made.schemas["big"] = TableSchema((Column("k", "int"),), (Column("v", "string"),))
    yield made
    made.close()


@pytest.fixture
def asked(monkeypatch):
    """The bytes of the older values that each call of the store returned."""
    found, read = [], MemoryStore.get_many

    def get_many(self, *arguments, **named):
        values = read(self, *arguments, **named)
        found.append(values.nbytes)
        return values

    monkeypatch.setattr(MemoryStore, "get_many", get_many)
    return found


@pytest.mark.parametrize(
    "before,after",
    [(LARGE, None), (LARGE, {"v": "small"}), ({"v": "small"}, LARGE), (LARGE, {"v": "y" * MIB})],
    ids=["removed", "made small", "made large", "large both times"],
)
def test_a_call_returns_a_few_large_values(example, asked, before, after):
    example.write({"big": dict.fromkeys(range(ROWS), before)})
    example.write({"big": dict.fromkeys(range(ROWS), after)})
    with tidegate.connect(example.driver.endpoints.store, example.driver.endpoints.namespace) as gate:
        asked.clear()
        assert sum(1 for _ in gate.diff(1, 2)) == ROWS
    most = 1.1 * max(diff.KEYS_FIRST * MIB, 2 * diff.BYTES_AT_ONCE)
    assert max(asked) <= most
    assert max(asked[1:]) <= 2 * diff.BYTES_AT_ONCE


def test_many_small_rows_take_few_calls(example, asked):
    example.write({"big": {n: {"v": "a"} for n in range(2_000)}})
    example.write({"big": {n: {"v": "b"} for n in range(2_000)}})
    with tidegate.connect(example.driver.endpoints.store, example.driver.endpoints.namespace) as gate:
        asked.clear()
        assert sum(1 for _ in gate.diff(1, 2)) == 2_000
    assert len(asked) <= 2_000 // diff.KEYS_AT_ONCE + 4
