"""Records, acks and manifests: bytes that round-trip, do not drift, and harm nobody who reads them."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError, CorruptError
from tidegate.wal import record as r

TEXT = st.text(max_size=12)
COUNT = st.integers(0, 2**53)
SMALL = st.integers(0, 2**31)
HEAD = {"namespace": TEXT, "writer": TEXT, "epoch": COUNT, "prev_digest": TEXT}
TABLES = st.dictionaries(TEXT, st.builds(r.TableAt, TEXT, COUNT), max_size=3)
ORIGINS = st.one_of(
    st.builds(r.BatchOrigin, TEXT, COUNT, COUNT, TEXT),
    st.builds(r.LoadOrigin, TEXT),
    st.builds(r.ImportOrigin, TEXT),
    st.builds(r.RestoreOrigin, COUNT),
)
FACTS = st.builds(r.VersionFact, COUNT, TEXT, ORIGINS, COUNT, TEXT, TEXT, COUNT, TEXT)
FOLDED = st.builds(
    r.Folded,
    namespace=TEXT,
    name=TEXT,
    key_groups=SMALL,
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
    "genesis": st.builds(r.Genesis, **HEAD, key_groups=SMALL, name=TEXT, created_at_us=COUNT),
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
REFUSALS = st.none() | st.builds(r.Refusal, TEXT, TEXT)
RUNS = st.dictionaries(TEXT, TEXT, max_size=3)
ACKS = st.builds(r.Ack, TEXT, SMALL, TEXT, TEXT, FRAMES, SMALL, REFUSALS, runs=RUNS)
COLUMNS = st.lists(st.builds(r.Column, TEXT, TEXT), max_size=2).map(tuple)
MANIFESTS = st.builds(
    r.Manifest,
    namespace=TEXT,
    attempt=TEXT,
    version=COUNT,
    key_groups=SMALL,
    tables=st.lists(TEXT, max_size=2).map(tuple),
    schemas=st.dictionaries(TEXT, st.builds(r.TableSchema, COLUMNS, COLUMNS), max_size=2),
    table_schemas=TABLES,
    topology=st.dictionaries(
        TEXT,
        st.dictionaries(
            TEXT,
            st.builds(r.Component, SMALL, st.dictionaries(SMALL.map(str), FRAMES, max_size=2)),
            max_size=2,
        ),
        max_size=2,
    ),
    source_offsets=TEXT,
)


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
    assert r.decode_ack(r.encode_ack(ack)) == ack


@given(MANIFESTS)
def test_a_manifest_comes_back_as_it_was(manifest):
    content = r.encode_manifest(manifest)
    assert r.decode_manifest(content, r.manifest_digest(content), "here") == manifest


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
    assert r.manifest_digest(b"abc") == "cf4ab791c62b8d2b2109c90275287816"
    assert r.digest_after("0", b"abc") != r.digest_after("", b"abc")


def test_the_bytes_of_a_manifest_do_not_drift():
    content = r.encode_manifest(SAMPLE)
    assert content[:4] == b"TGM1"
    assert r.manifest_digest(content) == "6cb68413c808aa43dd49c6387681c7ee"


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


def test_a_format_of_a_newer_release_is_refused_not_ignored():
    with pytest.raises(ConfigError, match=r"format 2.*upgrade"):
        r.decode_record(framed(b'{"kind":"open"}', file_format=2), "here")


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


@given(st.binary(max_size=300), st.booleans())
def test_hostile_bytes_end_in_an_error_that_says_so(content, with_checksum):
    """T49."""
    with pytest.raises((CorruptError, ConfigError)):
        r.decode_record(framed(content) if with_checksum else content, "here")
    with pytest.raises(CorruptError):
        r.decode_manifest(content, "0" * 32, "here")
    manifest = r.MANIFEST_MAGIC + r.checksum(content) + content if with_checksum else content
    with pytest.raises((CorruptError, ConfigError)):
        r.decode_manifest(manifest, r.manifest_digest(manifest), "here")
    with pytest.raises(CorruptError):
        r.decode_ack(content)


@given(MANIFESTS, st.data())
def test_a_manifest_with_other_bytes_than_decided_is_refused(manifest, data):
    content = bytearray(r.encode_manifest(manifest))
    digest = r.manifest_digest(bytes(content))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError, match="not the manifest"):
        r.decode_manifest(bytes(content), digest, "here")


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
        r.decode_ack(content)
    manifest = r.MANIFEST_MAGIC + r.checksum(content) + content
    with pytest.raises(CorruptError):
        r.decode_manifest(manifest, r.manifest_digest(manifest), "here")


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


# -- the manifest's questions -----------------------------------------------------------------------

SAMPLE = r.Manifest(
    namespace="u1",
    attempt="a1",
    version=1,
    key_groups=8,
    tables=("flights", "alerts"),
    schemas={},
    table_schemas={},
    topology={
        "spark": {
            "stage": r.Component(
                11,
                {
                    "10": (r.FrameRef("f10", 1, "", (7,), (0,), (2,)),),
                    "9": (
                        r.FrameRef("f9", 1, "", (6, 6), (0, 1), (1, 5)),
                        r.FrameRef("f9b", 1, "", (6,), (1,), (1,)),
                    ),
                },
            )
        }
    },
    source_offsets="",
)


def test_frames_are_listed_in_the_order_of_their_instances_numbers():
    assert [frame.address for frame in SAMPLE.frames()] == ["f9", "f9b", "f10"]
    assert [frame.changes for frame in SAMPLE.frames()] == [6, 1, 2]


def test_counts_add_up_per_key_group_and_table():
    assert SAMPLE.counts() == {6: {"flights": 1, "alerts": 6}, 7: {"flights": 2}}


def test_row_ranges_say_where_a_key_groups_changes_lie():
    """topology -> component -> instance, its frames, and in each frame the rows of a key group."""
    at = "spark", "stage"
    assert SAMPLE.row_ranges() == {
        6: [
            r.RowRange(*at, 9, "f9", "flights", 0, 1),
            r.RowRange(*at, 9, "f9", "alerts", 1, 6),
            r.RowRange(*at, 9, "f9b", "alerts", 0, 1),
        ],
        7: [r.RowRange(*at, 10, "f10", "flights", 0, 2)],
    }


@given(MANIFESTS.filter(lambda m: len(m.tables) > 1))
def test_row_ranges_cover_every_row_of_every_frame_once(manifest):
    def fitting(frame):  # hypothesis draws the three lists apart
        runs = list(zip(frame.groups, frame.tables, frame.rows, strict=False))
        columns = zip(*runs, strict=True) if runs else ((), (), ())
        groups, tables, rows = map(tuple, columns)
        return msgspec.structs.replace(
            frame, groups=groups, tables=tuple(t % len(manifest.tables) for t in tables), rows=rows
        )

    topology = {
        name: {
            part: msgspec.structs.replace(
                one, instances={i: tuple(map(fitting, frames)) for i, frames in one.instances.items()}
            )
            for part, one in components.items()
        }
        for name, components in manifest.topology.items()
    }
    manifest = msgspec.structs.replace(manifest, topology=topology)
    found = [one for of_group in manifest.row_ranges().values() for one in of_group]
    assert sum(one.end - one.first for one in found) == sum(f.changes for f in manifest.frames())
    counted = {}
    for group, ranges in manifest.row_ranges().items():
        for one in ranges:
            of_group = counted.setdefault(group, {})
            of_group[one.table] = of_group.get(one.table, 0) + one.end - one.first
    assert counted == manifest.counts()
