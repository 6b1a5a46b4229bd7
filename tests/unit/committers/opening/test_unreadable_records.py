"""A record that nobody could read is not written: it would end the log, and the namespace with it."""

from __future__ import annotations

import enum
import uuid

import pytest

from tidegate.base.clock import Clock
from tidegate.base.names import check_token
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.stored_rows import StoredRowsBarrier
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.wal.manifest import TableChange
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import Column, LoadOrigin, TableSchema, decode_record

SCHEMA = TableSchema((Column("k", "string"),), (Column("v", "int"),))


def opened(name):
    driver = Coordinator(
        Endpoints("flights", f"memory://{name}", f"memory://{name}"),
        MemoryLog(name, "flights"),
        MemoryStore(name, "flights"),
        Options(key_groups=4, allow_unsafe=True),
    )
    open_namespace(driver, None)
    return driver


def load(driver, token):
    rows = StoredRowsBarrier(
        driver.log, LoadOrigin(token), {"t": TableChange(SCHEMA)}, lambda: iter(()), Clock()
    )
    return commit(driver, rows).version


def test_a_token_of_another_type_does_not_end_the_namespace():
    """It was written as a number, which no reader takes for one: nobody could open the namespace again."""
    name = uuid.uuid4().hex
    driver = opened(name)
    with pytest.raises(
        ConfigError, match=r"Decided record that cannot be decoded: Expected `str`, got `int`.*origin.token"
    ):
        load(driver, 20261121)
    assert all(decode_record(entry.content, "here") for entry in driver.log.decisions())
    assert load(opened(name), "20261121") == 1


@pytest.mark.parametrize("token", ["", 20261121, None, b"2026", "a\nb", "\ud800", "x" * 201, ["a"]])
def test_what_cannot_be_a_token_is_refused(token):
    with pytest.raises(ConfigError, match=r"token=.*a text of 1 to 200 printable characters"):
        check_token(token)


def test_a_token_is_a_plain_text():
    class Day(str, enum.Enum):
        FIRST = "2026-11-21"

    assert check_token("refused until 2026-11-21 \u00e9") == "refused until 2026-11-21 \u00e9"
    assert check_token("x" * 200) == "x" * 200
    assert type(check_token(Day.FIRST)) is str
    assert check_token(Day.FIRST) == "2026-11-21"
