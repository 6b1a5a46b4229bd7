"""Records and acks: bytes that round-trip, do not drift, and harm nobody who reads them."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError, CorruptError
from tidegate.keys.groups import KEY_GROUPS_MAX
from tidegate.wal import record as r
from tidegate.wal.staging.acks import Ack, Refusal, decode_ack, encode_ack

TEXT = st.text(max_size=12)
COUNT = st.integers(0, 2**53)
SMALL = st.integers(0, 2**31)
GROUPS = st.integers(1, KEY_GROUPS_MAX)
HEAD = {"namespace": TEXT, "writer": TEXT, "epoch": COUNT, "prev_digest": TEXT}
TABLE = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
TABLES = st.dictionaries(TABLE, st.builds(r.TableAt, TEXT, COUNT), max_size=3)
ORIGINS = st.one_of(
    st.builds(r.BatchOrigin, TEXT, COUNT, COUNT, TEXT),
    st.builds(r.LoadOrigin, TEXT),
    st.builds(r.ImportOrigin, TEXT),
    st.builds(r.RestoreOrigin, COUNT),
)
FACTS = st.builds(r.DecidedVersion, COUNT, TEXT, ORIGINS, COUNT, TEXT, TEXT, COUNT, TEXT)
FOLDED = st.builds(
    r.Folded,
    namespace=TEXT,
    name=TEXT,
    key_groups=GROUPS,
    digest=TEXT,
    epoch=COUNT,
    writer=TEXT,
    lineage=st.none() | TEXT,
    generation=COUNT,
    batches=st.dictionaries(TEXT, st.tuples(COUNT, COUNT), max_size=2),
    last_version=COUNT,
    decided_at_us=COUNT,
    tables=TABLES,
    once=st.lists(TEXT, max_size=3).map(tuple),
    stores=st.lists(TEXT, max_size=3).map(tuple),
    recent=st.lists(FACTS, max_size=3).map(tuple),
)
RECORDS = {
    "genesis": st.builds(r.Genesis, **HEAD, key_groups=GROUPS, name=TEXT, created_at_us=COUNT),
    "open": st.builds(r.Open, **HEAD, lineage=st.none() | TEXT),
    "decided": st.builds(
        r.Decided,
        **HEAD,
        attempt=TEXT,
        version=COUNT,
        origin=ORIGINS,
        base_version=COUNT,
        manifest_address=TEXT,
        manifest_digest=TEXT,
        tables=TABLES,
        parallelism=st.dictionaries(TEXT, st.dictionaries(TEXT, SMALL, max_size=2), max_size=2),
        source_offsets=TEXT,
        decided_at_us=COUNT,
    ),
    "adopted": st.builds(r.Adopted, **HEAD, lineage=TEXT),
    "rewound": st.builds(r.Rewound, **HEAD, lineage=TEXT, generation=COUNT),
    "store_added": st.builds(r.StoreAdded, **HEAD, store=TEXT),
    "store_removed": st.builds(r.StoreRemoved, **HEAD, store=TEXT),
    "summary": st.builds(r.Summary, **HEAD, state=FOLDED),
}

FRAMES = st.lists(
    st.builds(
        r.FrameRef,
        TEXT,
        SMALL,
        TEXT,
        *[st.lists(st.integers(0, 9), max_size=3).map(tuple)] * 3,
    ),
    max_size=2,
).map(tuple)
REFUSALS = st.none() | st.builds(Refusal, TEXT, TEXT)
RUNS = st.dictionaries(TEXT, TEXT, max_size=3)
ACKS = st.builds(Ack, TEXT, SMALL, TEXT, TEXT, FRAMES, SMALL, REFUSALS, runs=RUNS)


def framed(body, file_format=r.FORMAT):
    """A record's bytes around any body, with the right checksum."""
    return bytes([file_format]) + r.checksum(body) + body


def decided(**changes):
    fields = {
        "namespace": "u1",
        "writer": "w1",
        "epoch": 3,
        "prev_digest": "d0",
        "attempt": "a1",
        "version": 7,
        "origin": r.BatchOrigin("q1", 0, 6, "f6"),
        "base_version": 6,
        "manifest_address": "m:5:100",
        "manifest_digest": "md",
        "tables": {"t": r.TableAt("s1")},
        "parallelism": {"spark": {"stage": 2}},
        "source_offsets": "",
        "decided_at_us": 1_700_000_000_000_000,
    }
    return r.Decided(**fields | changes)


# -- round trips ------------------------------------------------------------------------------


def test_every_kind_of_record_is_covered_here():
    assert set(RECORDS) == r.KINDS == {cls.__struct_config__.tag for cls in r.AnyRecord.__args__}


@pytest.mark.parametrize("kind", sorted(RECORDS))
@given(data=st.data())
def test_a_record_comes_back_as_it_was(kind, data):
    record = data.draw(RECORDS[kind])
    content = r.encode_record(record)
    assert r.decode_record(content, "here") == record
    assert json.loads(content[9:])["kind"] == kind
    assert r.encode_record(r.decode_record(content, "here")) == content


@given(ACKS)
def test_an_ack_comes_back_as_it_was(ack):
    assert decode_ack(encode_ack(ack)) == ack


def test_the_same_record_always_gives_the_same_bytes():
    one = decided(tables={"a": r.TableAt("s1"), "b": r.TableAt("s2")})
    other = decided(tables={"b": r.TableAt("s2"), "a": r.TableAt("s1")})
    assert r.encode_record(one) == r.encode_record(other)


# -- pinned bytes -------------------------------------------------------------------------------

PINNED = {
    "genesis": (
        r.Genesis(
            namespace="u1",
            writer="w1",
            epoch=0,
            prev_digest="",
            key_groups=128,
            name="flights",
            created_at_us=5,
        ),
        "e3b1d8e5bbc3c00c",
        (
            '{"kind":"genesis","namespace":"u1","writer":"w1","epoch":0,"prev_digest":"","key_groups":128,'
            '"name":"flights","created_at_us":5}'
        ),
    ),
    "open": (
        r.Open(namespace="u1", writer="w1", epoch=3, prev_digest="d0", lineage=None),
        "bf69506a0d9e7c99",
        ('{"kind":"open","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0","lineage":null}'),
    ),
    "decided": (
        decided(),
        "840b0d8f4432d474",
        (
            '{"kind":"decided","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0","attempt":"a1",'
            '"version":7,"origin":{"from":"batch","lineage":"q1","generation":0,"batch_id":6,'
            '"fingerprint":"f6"},"base_version":6,"manifest_address":"m:5:100","manifest_digest":"md",'
            '"tables":{"t":{"schema_id":"s1","start":0}},"parallelism":{"spark":{"stage":2}},'
            '"source_offsets":"","decided_at_us":1700000000000000}'
        ),
    ),
    "adopted": (
        r.Adopted(namespace="u1", writer="w1", epoch=3, prev_digest="d0", lineage="q2"),
        "82e1cb43b3d710a7",
        ('{"kind":"adopted","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0","lineage":"q2"}'),
    ),
    "rewound": (
        r.Rewound(namespace="u1", writer="w1", epoch=3, prev_digest="d0", lineage="q1", generation=1),
        "565b700323226def",
        (
            '{"kind":"rewound","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0","lineage":"q1",'
            '"generation":1}'
        ),
    ),
    "store_added": (
        r.StoreAdded(namespace="u1", writer="w1", epoch=3, prev_digest="d0", store="redis"),
        "516f6ccebd65386b",
        (
            '{"kind":"store_added","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0",'
            '"store":"redis"}'
        ),
    ),
    "store_removed": (
        r.StoreRemoved(namespace="u1", writer="w1", epoch=3, prev_digest="d0", store="redis"),
        "28cb8e44421a5cea",
        (
            '{"kind":"store_removed","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0",'
            '"store":"redis"}'
        ),
    ),
    "summary": (
        r.Summary(
            namespace="u1",
            writer="w1",
            epoch=3,
            prev_digest="d0",
            state=r.Folded(
                namespace="u1", name="flights", key_groups=128, digest="d0", batches={"q": (0, 1)}
            ),
        ),
        "04ca5a63bff25bda",
        (
            '{"kind":"summary","namespace":"u1","writer":"w1","epoch":3,"prev_digest":"d0",'
            '"state":{"namespace":"u1","name":"flights","key_groups":128,"digest":"d0","epoch":0,'
            '"writer":"","lineage":null,"generation":0,"batches":{"q":[0,1]},"last_version":0,'
            '"decided_at_us":0,"tables":{},"once":[],"stores":[],"recent":[]}}'
        ),
    ),
}


@pytest.mark.parametrize("kind", sorted(RECORDS))
def test_the_bytes_of_a_record_do_not_drift(kind):
    """What an older release wrote must stay readable, and a digest depends on every byte."""
    record, stamp, body = PINNED[kind]
    content = bytes.fromhex("01" + stamp) + body.encode()
    assert r.encode_record(record) == content
    assert r.decode_record(content, "here") == record


def test_digests_do_not_drift():
    assert r.digest_after("", b"abc") == "cf4ab791c62b8d2b2109c90275287816"  # BLAKE2b-128 of abc
    schema = r.TableSchema((r.Column("k", "string"),), (r.Column("v", "int"),))
    assert schema.schema_id == "11b57328b2a3c130"
    assert r.TableSchema((r.Column("k", "string"),), (r.Column("v", "long"),)).schema_id != schema.schema_id
    assert r.digest_after("0", b"abc") != r.digest_after("", b"abc")


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(RECORDS))
def test_every_flipped_bit_of_a_record_is_refused(kind):
    content = r.encode_record(PINNED[kind][0])
    for at in range(len(content)):
        for bit in (1, 128):
            damaged = bytearray(content)
            damaged[at] ^= bit
            with pytest.raises((CorruptError, ConfigError), match="decision log, position 5"):
                r.decode_record(bytes(damaged), "decision log, position 5")
    for count in range(len(content)):
        with pytest.raises(CorruptError):
            r.decode_record(content[:count], "here")


@pytest.mark.parametrize(
    "content", [b"hello world", b"2222222222", b"\xed" + b"abc" * 50, b'{"a": [1, 2, 3]}']
)
def test_the_bytes_of_another_program_are_damage_and_of_no_newer_release(content):
    """`relog` saves what the store shows of a damaged log, and never that of a newer release."""
    with pytest.raises(CorruptError, match="checksum does not fit"):
        r.decode_record(content, "here")


def test_a_format_of_a_newer_release_is_refused_not_ignored():
    with pytest.raises(ConfigError, match=r"format 2.*upgrade"):
        r.decode_record(framed(b'{"kind":"open"}', file_format=r.FORMAT + 1), "here")


@pytest.mark.parametrize(
    "body", [b'{"kind":"trimmed"}', b'{"kind":"Genesis","namespace":"u"}', b'{"kind":""}']
)
def test_an_unknown_kind_is_refused_not_ignored(body):
    with pytest.raises(ConfigError, match=r"kind.*upgrade"):
        r.decode_record(framed(body), "here")


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"kind":7}',
        b'{"kind":"open"}',
        b'{"kind":"open","namespace":"u","writer":"w","epoch":"1","prev_digest":"","lineage":null}',
        b'{"kind":"open","namespace":"u","writer":"w","epoch":1,"prev_digest":"","lineage":null,"more":1}',
        b'{"kind":"open","namespace":"u","writer":"w","epoch":1,"prev_digest":"","lineage":null} x',
        b"\xff" * 20,
        b"[" * 100_000,
        b'{"kind":"open","namespace":' + b"[" * 100_000,
    ],
)
def test_a_body_that_fits_its_checksum_but_no_record_is_corrupt(body):
    with pytest.raises(CorruptError, match="here"):
        r.decode_record(framed(body), "here")


@pytest.mark.parametrize(
    "changes, cause",
    [
        ({"version": -1}, ">= 0"),
        ({"epoch": -1}, ">= 0"),
        ({"base_version": -1}, ">= 0"),
        ({"origin": r.BatchOrigin("q", -1, 0, "f")}, ">= 0"),
        ({"origin": r.BatchOrigin("q", 0, -1, "f")}, ">= 0"),
        ({"origin": r.RestoreOrigin(-1)}, ">= 0"),
        ({"decided_at_us": 2**60}, "<= 9007199254740992"),
        ({"tables": {"t": r.TableAt("s", -1)}}, ">= 0"),
        ({"tables": {'t" (x); --': r.TableAt("s")}}, "matching regex"),
        ({"tables": {"t\n": r.TableAt("s")}}, "matching regex"),
        ({"parallelism": {"n": {"sink": -1}}}, ">= 0"),
    ],
)
def test_a_record_beyond_all_bounds_is_corrupt_and_says_what_to_do(changes, cause):
    """T49: no writer makes such a one, so nobody behind has to expect it."""
    with pytest.raises(CorruptError, match=r"^here: .*restore the log from a copy") as error:
        r.decode_record(r.encode_record(decided(**changes)), "here")
    assert cause in str(error.value)


@pytest.mark.parametrize("key_groups", [-1, 0, KEY_GROUPS_MAX + 1])
def test_a_namespace_of_no_key_groups_is_corrupt(key_groups):
    genesis = msgspec.structs.replace(PINNED["genesis"][0], key_groups=key_groups)
    state = msgspec.structs.replace(PINNED["summary"][0].state, key_groups=key_groups)
    for record in (genesis, msgspec.structs.replace(PINNED["summary"][0], state=state)):
        with pytest.raises(CorruptError, match="key_groups"):
            r.decode_record(r.encode_record(record), "here")


@given(st.binary(max_size=300), st.booleans())
def test_hostile_bytes_end_in_an_error_that_says_so(content, with_checksum):
    """T49."""
    with pytest.raises((CorruptError, ConfigError)):
        r.decode_record(framed(content) if with_checksum else content, "here")
    with pytest.raises(CorruptError):
        decode_ack(content)


@pytest.mark.parametrize(
    "content",
    [
        msgspec.msgpack.encode({"attempt": "a"}),
        msgspec.msgpack.encode(["a"] * 7),
        b"\xdd\xff\xff\xff\xff",  # an array that claims 4,294,967,295 entries
        b"\xc6\xff\xff\xff\xff",  # bytes that claim 4 GB
        b"\x91" * 100_000,
        b"\x81\xa1k" * 50_000,
    ],
)
def test_an_ack_that_lies_about_its_size_is_refused(content):
    with pytest.raises(CorruptError):
        decode_ack(content)


def test_a_decision_with_too_many_tables_is_refused_before_it_is_written():
    tables = {f"table-{index:05}": r.TableAt("0123456789abcdef") for index in range(2_000)}
    with pytest.raises(ConfigError, match="2000 tables"):
        r.encode_record(decided(tables=tables))
    assert len(r.encode_record(decided(tables=dict(list(tables.items())[:900])))) <= r.DECIDED_BYTES_MAX


def test_a_decided_record_never_exceeds_its_limit():
    """The limit is on the record as a whole, format byte and checksum included."""
    length = r.DECIDED_BYTES_MAX - len(r.encode_record(decided(source_offsets="")))
    assert len(r.encode_record(decided(source_offsets="x" * length))) == r.DECIDED_BYTES_MAX
    with pytest.raises(ConfigError):
        r.encode_record(decided(source_offsets="x" * (length + 1)))
