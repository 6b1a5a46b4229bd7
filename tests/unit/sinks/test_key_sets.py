"""The digest of a version's keys: the same for the same keys, none where that is not sure."""

import itertools

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from tidegate.sinks.rules import key_sets
from tidegate.sinks.rules.key_sets import ROWS_LEAST, KeySets
from tidegate.testing.store.harness import binary
from tidegate.wal.frame import Chunk, Run

keys_of_a_group = st.sets(st.binary(max_size=4), min_size=1, max_size=12).map(sorted)


def pieces(keys, cuts, values=None):
    """The keys in chunks, cut at these places, each a slice of a longer array as in a frame."""
    around = pa.array([b"before", *keys, b"behind"], pa.binary())
    stored = binary([b"+", *(values or [b"+v"] * len(keys)), b"-"])
    bounds = [0, *sorted({cut % len(keys) for cut in cuts} - {0}), len(keys)]
    return [
        Chunk(at, [Run(3, "t", around.slice(1 + start, end - start), stored.slice(1 + start, end - start))])
        for at, (start, end) in enumerate(itertools.pairwise(bounds))
    ]


def digest(chunks, rows, least=1):
    sets = KeySets({3: {"t": rows}}, least)
    sets.add(chunks)
    return sets.digest(3, "t")


@given(keys_of_a_group, keys_of_a_group, st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_two_digests_are_equal_exactly_when_the_keys_are(one, other, cuts, others_cuts):
    found = digest(pieces(one, cuts), len(one)), digest(pieces(other, others_cuts), len(other))
    assert all(len(each) == 32 for each in found)
    assert (found[0] == found[1]) == (one == other)


def test_where_one_key_ends_and_the_next_begins_counts():
    assert digest(pieces([b"a", b"bc"], []), 2) != digest(pieces([b"ab", b"c"], []), 2)


@given(keys_of_a_group, st.data())
def test_chunks_may_come_in_any_order_but_each_once(keys, data):
    """A log with several partitions gives them as they come."""
    chunks = pieces(keys, data.draw(st.lists(st.integers(0, 20))))
    came = data.draw(st.lists(st.sampled_from(chunks), max_size=4) | st.permutations(chunks))
    once = sorted(chunk.ordinal for chunk in came) == [chunk.ordinal for chunk in chunks]
    whole = digest(chunks, len(keys))
    assert digest(came, len(keys)) == (whole if once else b"")


def test_frames_that_were_sorted_apart_have_the_digest_of_their_keys():
    """A task that stages more than it holds sorts what it holds, again and again."""
    one, other = pieces([b"a", b"c", b"e"], []), pieces([b"b", b"d"], [])
    assert digest([*one, *other], 5) == digest(pieces([b"a", b"b", b"c", b"d", b"e"], []), 5)
    assert digest([*one, *pieces([b"b", b"c"], [])], 5) == b"", "a key that is in both"


def test_of_more_keys_than_are_held_there_is_none(monkeypatch):
    keys = [b"%04d" % at for at in range(100)]
    monkeypatch.setattr(key_sets, "HELD_BYTES_MAX", 600)
    assert digest(pieces(keys, [90]), 100) == b""
    assert digest(pieces(keys, [50]), 100)
    assert digest(pieces(keys, []), 100), "nothing is held of what comes whole"


@given(keys_of_a_group, st.data())
def test_of_a_version_that_deletes_one_of_them_there_is_none(keys, data):
    kinds = st.sampled_from([b"+", b"+-", b"-", b"d", b"e12345678-"])
    values = data.draw(st.lists(kinds, min_size=len(keys), max_size=len(keys)))
    cuts = data.draw(st.lists(st.integers(0, 20)))
    assert bool(digest(pieces(keys, cuts, values), len(keys))) == (b"-" not in values)


def test_of_few_keys_there_is_none_nor_of_what_is_not_counted():
    keys = [b"%04d" % at for at in range(ROWS_LEAST)]
    assert digest(pieces(keys, [7]), ROWS_LEAST, ROWS_LEAST)
    assert digest(pieces(keys[1:], [7]), ROWS_LEAST - 1, ROWS_LEAST) == b""
    sets = KeySets({3: {"u": ROWS_LEAST}})
    sets.add(pieces(keys, []))
    assert sets.digest(3, "u") == sets.digest(4, "t") == b""
