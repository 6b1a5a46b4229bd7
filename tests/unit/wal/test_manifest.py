"""Manifests: their bytes do not drift, and what no writer puts there is refused by name (T49)."""

import contextlib
import os
import uuid

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.base import failpoints
from tidegate.committers import commit as commit_module
from tidegate.committers.apply.apply import plan, read_manifest
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, CorruptError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.links import links_at
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal import manifest as m
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import BatchOrigin, Column, DecidedVersion, FrameRef, TableAt, TableSchema, checksum

more = settings(max_examples=int(os.environ.get("TIDEGATE_FUZZ", "50")))
FACT = DecidedVersion(1, "a1", BatchOrigin("q", 0, 0, "f"), 0, "at", "digest", 1_000, "d")
SCHEMA = TableSchema((Column("k", "string"),), (Column("v", "int"),))
SCHEMAS = {"s": SCHEMA}
TABLES = ("flights", "alerts")


def manifest_of(*instances, **changes):
    """A manifest of these tasks' frames, right unless ``changes`` say otherwise."""
    component = m.Component(len(instances), {str(i): tuple(frames) for i, frames in enumerate(instances)})
    fields = {
        "namespace": "u1",
        "attempt": "a1",
        "version": 1,
        "key_groups": 8,
        "tables": TABLES,
        "schemas": SCHEMAS,
        "table_schemas": dict.fromkeys(TABLES, TableAt("s")),
        "topology": {"n": {"sink": component}},
        "source_offsets": "",
    }
    return m.Manifest(**fields | changes)


def frame(address, *runs, weighs=1_000):
    groups, tables, rows = zip(*runs, strict=True) if runs else ((), (), ())
    return FrameRef(address, weighs, "0123456789abcdef", groups, tables, rows)


def bytes_of(manifest):
    """A manifest's bytes and digest, whatever it says: as a hostile writer makes them."""
    body = msgspec.msgpack.encode(manifest)
    content = m.MANIFEST_MAGIC + checksum(body) + body
    return content, m.manifest_digest(content)


SAMPLE = manifest_of(
    *[()] * 9,
    [frame("f9", (6, 0, 1), (6, 1, 5)), frame("f9b", (6, 1, 1))],
    [frame("f10", (7, 0, 2))],
)
RUNS = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 1)), max_size=5).flatmap(
    lambda runs: st.tuples(*(st.tuples(*map(st.just, run), st.integers(1, 9)) for run in sorted(runs)))
)


@st.composite
def manifests(draw):
    """Right ones: up to three tasks with up to two frames each."""
    instances = draw(st.lists(st.lists(RUNS, max_size=2), min_size=1, max_size=3))
    return manifest_of(
        *([frame(f"{task}-{at}", *runs) for at, runs in enumerate(of)] for task, of in enumerate(instances))
    )


# -- bytes --------------------------------------------------------------------------------------------


@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest):
    content = m.encode_manifest(manifest)
    assert m.decode_manifest(content, m.manifest_digest(content), "here") == manifest


def test_the_bytes_of_a_manifest_do_not_drift():
    content = m.encode_manifest(SAMPLE)
    assert content[:4] == b"TGM1"
    assert m.manifest_digest(content) == "e96cdd798684a581079c8930c368e006"
    assert m.manifest_digest(b"abc") == "cf4ab791c62b8d2b2109c90275287816"  # BLAKE2b-128 of abc


def test_a_manifest_with_steps_has_bytes_that_do_not_drift():
    steps = (STEP, m.Step("mine", "update", ("alerts", "flights"), 1, 0, 0, 0.0, 0))
    manifest = msgspec.structs.replace(SAMPLE, steps=steps)
    content = m.encode_manifest(manifest)
    assert m.manifest_digest(content) == "835694221fa6e407baa29b20d984e821"
    assert m.decode_manifest(content, m.manifest_digest(content), "here").steps == steps
    assert m.decode_manifest(*bytes_of(SAMPLE), "here").steps is msgspec.UNSET, "an earlier release's"


@given(manifests(), st.data())
def test_a_manifest_with_other_bytes_than_decided_is_refused(manifest, data):
    content = bytearray(m.encode_manifest(manifest))
    digest = m.manifest_digest(bytes(content))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError, match="not the manifest"):
        m.decode_manifest(bytes(content), digest, "here")


# -- what no writer puts there ------------------------------------------------------------------------

STEP = m.Step("reduce.flights", "reduce", ("flights",), 2, 7, 300, 0.25, 1)
IMPOSSIBLE = {
    "a key group beyond the last": (manifest_of([frame("f", (8, 0, 1))]), "key group 8, there are 8"),
    "a key group below the first": (manifest_of([frame("f", (-1, 0, 1))]), ">= 0"),
    "a table that has no name": (manifest_of([frame("f", (1, 2, 1))]), "table number 2, the version has 2"),
    "a table below the first": (manifest_of([frame("f", (1, -1, 1))]), ">= 0"),
    "a negative count": (manifest_of([frame("f", (1, 0, 5), (2, 0, -4))]), ">= 0"),
    "an empty run": (manifest_of([frame("f", (1, 0, 0))]), "a run without rows"),
    "runs out of order": (manifest_of([frame("f", (2, 0, 1), (1, 0, 1))]), "not in the order"),
    "tables out of order": (manifest_of([frame("f", (2, 1, 1), (2, 0, 1))]), "not in the order"),
    "a run twice": (manifest_of([frame("f", (2, 1, 1), (2, 1, 1))]), "not in the order"),
    "lists of other lengths": (
        manifest_of([FrameRef("f", 1_000, "c", (1, 2), (0,), (1, 1))]),
        "2 key groups, 1 tables and 2 counts",
    ),
    "more rows than bytes": (manifest_of([frame("f", (1, 0, 2**50))]), "rows in 1000 bytes"),
    "a count beyond all bounds": (manifest_of([frame("f", (1, 0, 2**63))]), "<= 9007199254740992"),
    "a frame of negative weight": (manifest_of([frame("f", (1, 0, 1), weighs=-1)]), ">= 0"),
    "a frame twice": (manifest_of([frame("f", (1, 0, 1))], [frame("f", (2, 0, 1))]), "is listed twice"),
    "no key groups": (manifest_of(key_groups=0), ">= 1"),
    "too many key groups": (manifest_of(key_groups=2**40), "<= 32768"),
    "a negative version": (manifest_of(version=-1), ">= 0"),
    "a table twice": (manifest_of(tables=("flights", "flights")), "names a table twice"),
    "a name that SQL would read": (manifest_of(tables=('t"; DROP TABLE x; --',)), "matching regex"),
    "a table without a schema": (manifest_of(schemas={}), "table flights has no schema"),
    "a table that is not listed": (manifest_of(table_schemas={}), "table flights has no schema"),
    "a table of the future": (
        manifest_of(table_schemas=dict.fromkeys(TABLES, TableAt("s", 9))),
        "starts at version 9",
    ),
    "tasks without end": (
        manifest_of(topology={"n": {"sink": m.Component(2**50, {"0": ()})}}),
        "parallelism 1125899906842624 and 1 instances",
    ),
    **{
        f"an instance {name!r}": (
            manifest_of(topology={"n": {"sink": m.Component(1, {name: ()})}}),
            "not numbered from 0 on",
        )
        for name in ("x", "-1", "٣", "1", "00", "")
    },
    "two steps of one name": (manifest_of([], steps=(STEP, STEP)), "it names a step twice"),
}


BY_TYPE = {">=", "<=", "regex"}
"""The words of what the types of fields refuse; a driver's own are checked where they come from."""
BY_SENSE = [name for name, (_, cause) in IMPOSSIBLE.items() if not BY_TYPE & {*cause.split()}]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_manifest_that_cannot_be_right_is_refused_by_name(name):
    """Its digest fits, so it is what was decided; nobody could apply it."""
    manifest, cause = IMPOSSIBLE[name]
    content, digest = bytes_of(manifest)
    with pytest.raises(CorruptError, match=r"^log x, manifest of version 1\b.*restore the log") as error:
        m.decode_manifest(content, digest, "log x, manifest of version 1")
    assert cause in str(error.value)


@pytest.mark.parametrize("name", BY_SENSE)
def test_it_is_not_written_either(name):
    """What decoding refuses by its sense must not be decided: nobody could finish it."""
    with pytest.raises(TidegateError, match="nothing was decided"):
        m.encode_manifest(IMPOSSIBLE[name][0])


def listed(manifest):
    """Everything that anybody asks a manifest."""
    works = plan(manifest, FACT, 2)
    frames, counts = manifest.frames(), manifest.counts()
    total = sum(ref.changes for ref in frames)
    assert total == sum(manifest.changes().values()) == sum(sum(of.values()) for of in counts.values())
    assert {group for work in works for group in work.counts} == set(counts)
    assert all(0 <= group < manifest.key_groups for group in counts)
    links_at(manifest)


VALUES = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 9) | st.text(max_size=3) | st.none()
PARTS = st.lists(VALUES | st.lists(VALUES, max_size=3), max_size=7)


def places(part, at=()):
    """Where a value of a manifest's plain form stands: each can be another one."""
    yield at
    children = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, child in children:
        yield from places(child, (*at, name))


@more
@given(manifests(), st.data())
def test_a_manifest_with_any_value_somewhere_is_right_or_refused(manifest, data):
    """Its digest fits, its content is hostile: one that everybody can use, or CorruptError, nothing else."""
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest))
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from([place for place in places(plain) if place]))
        part = plain
        for name in way:
            part = part[name]
        part[last] = data.draw(VALUES | PARTS)
    content, digest = bytes_of(plain)
    with contextlib.suppress(CorruptError):
        listed(m.decode_manifest(content, digest, "here"))


@more
@given(st.binary(max_size=300))
def test_bytes_that_are_no_manifest_are_refused(content):
    around = m.MANIFEST_MAGIC + checksum(content) + content
    for given_content in (content, around):
        with pytest.raises(TidegateError):
            m.decode_manifest(given_content, m.manifest_digest(given_content), "here")


def test_a_manifest_of_a_newer_format_and_one_with_a_wrong_checksum():
    """Both have the digest that was decided."""
    content = m.encode_manifest(SAMPLE)
    newer = b"TGM2" + content[4:]
    with pytest.raises(ConfigError, match="upgrade tidegate"):
        m.decode_manifest(newer, m.manifest_digest(newer), "here")
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(CorruptError, match="here: the manifest's checksum does not fit"):
        m.decode_manifest(flipped, m.manifest_digest(flipped), "here")


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",  # an array that claims 4,294,967,295 entries
        b"\xc6\xff\xff\xff\xff",  # bytes that claim 4 GB
        b"\x91" * 100_000,
        b"\x81\xa1k" * 50_000,
    ],
)
def test_a_manifest_that_lies_about_its_size_is_refused(body):
    content = m.MANIFEST_MAGIC + checksum(body) + body
    with pytest.raises(CorruptError):
        m.decode_manifest(content, m.manifest_digest(content), "here")


# -- in a log -----------------------------------------------------------------------------------------


def driver_at(place):
    endpoints = Endpoints("n", f"memory://{place}", f"memory://{place}")
    return Coordinator(endpoints, MemoryLog(place, "n"), MemoryStore(place, "n"), Options(key_groups=8))


@pytest.mark.parametrize("name", BY_SENSE[:3])
def test_a_decided_version_whose_manifest_cannot_be_right_stops_the_line(name, monkeypatch):
    """I7, I10: recovery names the record, the cause and what to do; nothing becomes visible."""
    place = uuid.uuid4().hex
    driver = driver_at(place)
    open_namespace(driver, "q")

    def hostile(manifest):
        return bytes_of(msgspec.structs.replace(manifest, topology=IMPOSSIBLE[name][0].topology))[0]

    monkeypatch.setattr(commit_module, "encode_manifest", hostile)
    failpoints.arm("decide.after_append=raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            commit(driver, ArrowBarrier(driver.log, {"flights": {b"k": b"v"}}, batch("q", 0), 8, 1))
    finally:
        failpoints.arm(None)

    second = driver_at(place)
    with pytest.raises(CorruptError, match=r"manifest of version 1 at .*cannot be right.*restore the log"):
        open_namespace(second, "q")
    assert second.store.pointer().visible == 0


def test_a_manifest_of_another_version_is_refused():
    log = MemoryLog(uuid.uuid4().hex, "n")
    log.create()
    content = m.encode_manifest(SAMPLE)
    (address,) = log.stage("a1-manifest", [content])
    fact = msgspec.structs.replace(FACT, manifest_address=address, manifest_digest=m.manifest_digest(content))
    assert read_manifest(log, fact) == SAMPLE
    for change in ({"version": 2}, {"attempt": "a2"}):
        with pytest.raises(CorruptError, match="it is of version 1, attempt a1"):
            read_manifest(log, msgspec.structs.replace(fact, **change))
    log.read = lambda _: iter(())
    with pytest.raises(CorruptError, match="returned nothing"):
        read_manifest(log, fact)


# -- the manifest's questions -------------------------------------------------------------------------


def test_frames_are_listed_in_the_order_of_their_instances_numbers():
    assert [ref.address for ref in SAMPLE.frames()] == ["f9", "f9b", "f10"]
    assert [ref.changes for ref in SAMPLE.frames()] == [6, 1, 2]


def test_counts_add_up_per_key_group_and_table():
    assert SAMPLE.counts() == {6: {"flights": 1, "alerts": 6}, 7: {"flights": 2}}


@given(manifests())
def test_every_manifest_that_is_valid_can_be_listed(manifest):
    listed(manifest)
