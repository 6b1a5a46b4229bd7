"""Addresses of blobs in Kafka, and how a blob is cut into messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptError
from tidegate.wal.kafka.address import PIECES_MAX, Address, parse_address, pieces

TOPIC_ID = "CrtHDbE6TXiLDB+HB06w2g"

offsets = st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=30, unique=True).map(sorted).map(tuple)
addresses = st.builds(
    Address, st.just(TOPIC_ID), st.integers(0, 10**9 - 1), st.integers(0, 10**10 - 1), offsets
)


@given(addresses)
def test_an_address_comes_back_from_its_text(address):
    assert parse_address(str(address), "here") == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s:0:10",
        f"{TOPIC_ID}:0:10",
        f"{TOPIC_ID}:0:10:",
        f"{TOPIC_ID}:0:10:5,",
        f"{TOPIC_ID}:0:10:5,4",
        f"{TOPIC_ID}:0:10:5,5",
        f"{TOPIC_ID}:-1:10:5",
        f"{TOPIC_ID}:0:10:-5",
        f"{TOPIC_ID}:0:10:5\n",
        f"{TOPIC_ID[:-1]}:0:10:5",
        f"{TOPIC_ID}:0:10:{'1' * 19}",
        f"{TOPIC_ID}:٣:10:5",
        f"{TOPIC_ID}:0:10:" + ",".join(map(str, range(PIECES_MAX + 1))),
    ],
)
def test_what_no_log_gave_out_is_refused_with_its_place(text):
    with pytest.raises(CorruptError, match=r"(?s)here: .* is not an address"):
        parse_address(text, "here")


def test_a_refusal_does_not_repeat_all_of_a_hostile_address():
    with pytest.raises(CorruptError) as caught:
        parse_address("x" * 1_000_000, "here")
    assert len(str(caught.value)) < 400


@given(st.binary(max_size=200), st.integers(1, 50))
def test_pieces_make_up_the_blob(blob, length_max):
    cut = list(pieces(blob, length_max))
    assert b"".join(cut) == blob
    assert all(len(piece) <= length_max for piece in cut)
    assert len(cut) == max(1, -(-len(blob) // length_max))
