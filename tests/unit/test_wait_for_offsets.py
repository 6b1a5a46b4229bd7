"""wait_for(offsets=...): a producer learns when what it wrote is visible."""

from __future__ import annotations

import asyncio

import pytest

import tidegate.aio
from tidegate.errors import ConfigError, WaitTimeoutError
from tidegate.source_offsets import checked_offsets, offsets_in, passed
from tidegate.testing.example import Example

UA = {"carrier": "UA", "flights": 1}


@pytest.fixture
def place(tmp_path):
    return {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}


def write(example, offsets):
    example.write({"aircraft": {"N1": UA}}, source_offsets=offsets)


def test_a_record_is_visible_once_a_visible_batch_has_read_past_it(place):
    example = Example(**place)
    with tidegate.connect(place["store"], "flights") as gate:
        write(example, '[{"orders":{"0":42,"1":7}}]')
        assert gate.wait_for(offsets={"orders": {0: 41, "1": 6}}, timeout=0) == 1
        with pytest.raises(WaitTimeoutError, match="reads from orders-0@42 was not visible within 0 s"):
            gate.wait_for(offsets={"orders": {0: 42}}, timeout=0)
        write(example, "")  # no offsets: the last batch's stand
        assert gate.wait_for(offsets={"orders": {0: 41}}, timeout=0) == 2
        write(example, '[{"orders":{"0":43,"1":7}}]')
        assert gate.wait_for(offsets={"orders": {0: 42}}, timeout=60) == 3

    async def later():
        async with await tidegate.aio.connect(place["store"], "flights") as gate:
            return await gate.wait_for(offsets={"orders": {0: 42}}, timeout=60)

    assert asyncio.run(later()) == 3
    example.close()


@pytest.mark.parametrize(
    "given", [{}, {"orders": 1}, {"orders": {0: -1}}, {"orders": {"x": 1}}, [1], {1: {0: 1}}]
)
def test_offsets_of_another_form_are_refused(given):
    with pytest.raises(ConfigError, match="by topic and partition"):
        checked_offsets(given)


def test_wait_for_takes_one_of_the_two(place):
    example = Example(**place)
    with tidegate.connect(place["store"], "flights") as gate:
        for given in ({}, {"version": 1, "offsets": {"orders": {0: 1}}}):
            with pytest.raises(ConfigError, match="a version or offsets"):
                gate.wait_for(**given)
    example.close()


def test_several_sources_and_other_kinds_beside_them():
    text = '[{"logOffset":3}, -, {"orders":{"0":5}}, {"orders":{"0":9,"1":2}}, 7]'
    assert len(list(offsets_in(text))) == 5
    assert passed(text, {("orders", 0): 8, ("orders", 1): 1})
    assert not passed(text, {("orders", 1): 2})
    assert not passed(text, {("others", 0): 0})
