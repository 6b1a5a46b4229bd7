"""The stored form of a value, against bytes written by hand."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptError
from tidegate.sinks.rules.layout import Stored, pack, payload, payloads, unpack
from tidegate.wal.value_flags import STORED

VECTORS = [
    (b"+", Stored(b"")),
    (b"+value", Stored(b"value")),
    (b"+-", Stored(b"-")),
    (b"-", Stored(None)),
    (b"e\0\0\0\0\0\0\0\x05v", Stored(b"v", 5)),
    (b"e\xff\xff\xff\xff\xff\xff\xff\xff", Stored(b"", -1)),
    (b"s\x02abv", Stored(b"v", None, b"ab")),
    (b"s\0v", Stored(b"v", None, b"")),
    (b"x\0\0\0\0\0\0\0\x05\x01av", Stored(b"v", 5, b"a")),
    (b"d\x02ab", Stored(None, None, b"ab")),
    (b"d\0", Stored(None, None, b"")),
]
stored_values = st.builds(
    Stored,
    st.none() | st.binary(max_size=40),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=255),
).map(lambda one: one._replace(expiry_us=None) if one.value is None else one)


@pytest.mark.parametrize("content,stored", VECTORS)
def test_vectors(content, stored):
    assert pack(stored) == content
    assert unpack(content) == stored


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"?",
        b"\0",
        b"-x",
        b"e",
        b"e1234567",
        b"s",
        b"s\x05abc",
        b"x\0\0\0\0\0\0\0\x05",
        b"d",
        b"d\x01",
        b"d\x01ab",
        b"{}",
    ],
)
def test_what_we_never_write_is_refused(content):
    """T49."""
    with pytest.raises(CorruptError, match="not a form"):
        unpack(content)


@given(stored_values)
def test_round_trip(stored):
    assert unpack(pack(stored)) == stored
    assert pack(stored)[:1] in STORED


@given(st.binary(max_size=40))
def test_any_bytes_are_one_form_or_refused(content):
    try:
        stored = unpack(content)
    except CorruptError:
        return
    assert pack(stored) == content


times = st.sampled_from([0, 1, 255, 256, 2**62]) | st.integers(-(2**63), 2**63 - 1)
plain_or_expiring = st.builds(Stored, st.none() | st.binary(max_size=9), st.none() | times).map(
    lambda one: one._replace(expiry_us=None) if one.value is None else one
)


@given(
    st.lists(st.none() | stored_values, max_size=30)
    | st.lists(st.none() | plain_or_expiring, min_size=17, max_size=40),
    times,
)
def test_payloads_are_the_values_that_have_not_expired(many, at_us):
    array = pa.array([None if one is None else pack(one) for one in many], pa.binary())
    found = payloads(array, at_us)
    assert found.type == pa.binary()
    expected = [
        None if one is None or (one.expiry_us is not None and at_us >= one.expiry_us) else one.value
        for one in many
    ]
    assert found.to_pylist() == expected
    assert [payload(one, at_us) for one in array.to_pylist()] == expected


@pytest.mark.parametrize("times", [1, 20])
def test_a_time_is_needed_where_values_expire(times):
    with pytest.raises(ValueError, match="decided_at_us"):
        payloads(pa.array([b"+v", pack(Stored(b"v", 5))] * times, pa.binary()))


@given(st.lists(st.binary(max_size=9) | st.none(), min_size=3, max_size=30))
def test_payloads_of_plain_values_and_slices(values):
    array = pa.array([b"-" if value is None else b"+" + value for value in values], pa.binary())
    assert payloads(array).to_pylist() == values
    assert payloads(array.slice(1, 2)).to_pylist() == values[1:3]


def test_payloads_refuse_what_we_never_write():
    for content in (b"", b"?", b"e1", b"-x", b"d\x01ab"):
        with pytest.raises(CorruptError):
            payloads(pa.array([b"+v", content], pa.binary()), 0)
        with pytest.raises(CorruptError):
            payloads(pa.array([b"+v", content] * 20, pa.binary()), 0)


@pytest.mark.parametrize("special", [False, True])
def test_few_and_many_values_are_taken_apart_alike(special):
    """Few go one by one, many in columns: both must say the same."""
    forms = [b"+", b"+a", b"-", None, b"+" + b"x" * 300]
    if special:
        forms += [pack(Stored(b"v", 7, b"s")), pack(Stored(None, None, b"s"))]
    many = forms * 20
    few = [payloads(pa.array([one], pa.binary()), 6)[0].as_py() for one in many]
    assert payloads(pa.array(many, pa.binary()), 6).to_pylist() == few
    assert payloads(pa.array([None] * 50, pa.binary())).to_pylist() == [None] * 50
