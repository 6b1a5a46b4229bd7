"""The room for tables in a Decided record: what is admitted fits for all later versions."""

import pytest

from tidegate.errors import ConfigError
from tidegate.wal import table_room
from tidegate.wal.record import DECIDED_BYTES_MAX, BatchOrigin, Decided, LoadOrigin, TableAt, decided_bytes

HEADER = {"namespace": "f" * 32, "writer": "f" * 32, "epoch": 2**53, "prev_digest": "f" * 32}


def largest(names, origin=None, steps=()):
    """Return the largest record that a namespace with these tables ever has, without source offsets."""
    return Decided(
        **HEADER,
        attempt="f" * 32,
        version=2**53,
        origin=origin or BatchOrigin("f" * 36, 2**53, 2**53, "f" * 64),
        base_version=2**53,
        manifest_address="a" * 2_000,
        manifest_digest="f" * 32,
        tables={name: TableAt("f" * 16, 9_999_999_999, expires=True) for name in names},
        parallelism={"n" * 64: {"sink": 32_768, **dict.fromkeys(steps, 32_768)}},
        source_offsets="",
        decided_at_us=2**53,
    )


@pytest.mark.parametrize("length", [4, 8, 20, 64])
def test_tables_that_are_admitted_fit_at_their_longest(length):
    names = [f"{number:0{length}}" for number in range(table_room.tables_max(length))]
    room = table_room.check_room({}, dict.fromkeys(names, 1))
    assert room.most == len(names)
    assert decided_bytes(largest(names)) <= DECIDED_BYTES_MAX
    assert decided_bytes(largest(names, LoadOrigin('"' * 200))) <= DECIDED_BYTES_MAX


@pytest.mark.parametrize("length", [8, 64])
def test_the_reserve_is_no_larger_than_a_sixteenth(length):
    """One more table than admitted would fit today, but not after it was emptied and given an expiry."""
    names = [f"{number:0{length}}" for number in range(table_room.tables_max(length) * 17 // 16)]
    assert decided_bytes(largest(names)) > DECIDED_BYTES_MAX


def test_local_states_have_room_for_their_parallelism():
    steps = [f"{number:050}" for number in range(318)]
    names = [f"_local.{step}" for step in steps]
    assert table_room.check_room({}, dict.fromkeys(names, 1)).fits
    assert decided_bytes(largest(names, steps=steps)) <= DECIDED_BYTES_MAX


def test_a_table_too_many_is_refused_with_the_numbers():
    existing = {f"table-{number:04}": TableAt("") for number in range(764)}
    assert table_room.check_room(existing, {"table-0000": 1}) is None
    with pytest.raises(
        ConfigError, match=r"has 764 tables, and about 770 .* a, b, c and 17 more are refused"
    ):
        table_room.check_room(existing, dict.fromkeys("abcdefghijklmnopqrst", 1))


def test_a_namespace_beyond_the_room_keeps_its_tables():
    """An earlier release admitted more tables, as long as none was emptied."""
    existing = {f"table-{number:04}": TableAt("") for number in range(1_000)}
    assert table_room.check_room(existing, dict.fromkeys(existing, 1)) is None
    with pytest.raises(ConfigError, match="new tables t are refused"):
        table_room.check_room(existing, dict.fromkeys([*existing, "t"], 1))


def test_the_room_is_short_from_three_quarters_on():
    names = [f"table-{number:04}" for number in range(1_000)]
    assert not table_room.room_for(dict.fromkeys(names[:570], 1)).is_short
    assert table_room.room_for(dict.fromkeys(names[:580], 1)).is_short
    assert (
        str(table_room.room_for(dict.fromkeys(names[:580], 1)))
        == "580 tables of about 768 with names of this length"
    )
    assert table_room.room_for(dict.fromkeys([], 1)).tables == 0
