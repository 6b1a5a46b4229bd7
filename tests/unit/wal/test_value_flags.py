"""The flags byte of a value: one table, no byte twice."""

from tidegate.wal import value_flags


def test_value_flags_are_one_byte_each_and_differ():
    flags = [*value_flags.STORED, *value_flags.TRANSIENT]
    assert {len(flag) for flag in flags} == {1}
    assert len(set(flags)) == len(flags) == 11


def test_value_flags_of_stored_values_are_those_of_the_format_page():
    """They may never change: stores hold them."""
    assert b"".join(sorted(value_flags.STORED)) == b"+-desx"
    assert (value_flags.VALUE, value_flags.DELETE, value_flags.EXPIRING) == (b"+", b"-", b"e")
    assert (value_flags.SEQUENCED, value_flags.EXPIRING_SEQUENCED) == (b"s", b"x")
    assert value_flags.DELETE_SEQUENCED == b"d"
