"""What a reader's calls refuse of their arguments, in threads and in an event loop."""

from __future__ import annotations

import asyncio

import pytest

import tidegate
import tidegate.aio
from tidegate.errors import ConfigError
from tidegate.testing.example import write_flights


@pytest.fixture
def url(tmp_path):
    made = f"memory://{tmp_path.name}"
    write_flights(made, made)
    return made


async def in_a_loop(url, ask):
    async with await tidegate.aio.connect(url, namespace="flights") as gate:
        return await ask(gate)


@pytest.mark.parametrize("keys", ["N14228", b"N14228", 7, None])
def test_one_key_is_not_taken_for_several(url, keys):
    """Its letters were looked up, and none of them is there: an empty answer, without a word."""
    with tidegate.connect(url, "flights") as gate, pytest.raises(ConfigError, match="several keys"):
        gate.table("aircraft").get_many(keys)
    with pytest.raises(ConfigError, match="several keys"):
        asyncio.run(in_a_loop(url, lambda gate: gate.table("aircraft").get_many(keys)))


def test_a_diff_says_that_neither_version_has_the_table(url):
    with tidegate.connect(url, "flights") as gate:
        with (
            gate.diff(2, 3) as diff,
            pytest.raises(ConfigError, match=r"no table 'no' at version 2 nor at 3"),
        ):
            diff.schema("no")
        with gate.diff(0, 0) as diff, pytest.raises(ConfigError, match=r"the tables there are: none"):
            diff.schema("aircraft")
