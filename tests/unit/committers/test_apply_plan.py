"""A version is cut into works: each key group in one, with all its frames, and no work for nothing."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidegate.committers.apply.apply import gathered, plan
from tidegate.keys.groups import groups_of
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.manifest import Component, Manifest
from tidegate.wal.record import BatchOrigin, DecidedVersion, FrameRef, TableAt

KEY_GROUPS = 12
FACT = DecidedVersion(3, "a", BatchOrigin("q", 0, 2, "f"), 2, "at", "digest", 1_000, "d")
RUNS = st.lists(st.tuples(st.integers(0, KEY_GROUPS - 1), st.integers(0, 1), st.integers(1, 9)), max_size=6)


def manifest_of(frames):
    refs = []
    for number, runs in enumerate(frames):
        groups, tables, rows = zip(*sorted(runs), strict=True) if runs else ((), (), ())
        refs.append(FrameRef(f"at-{number}", 10, "c", groups, tables, rows))
    topology = {"n": {"sink": Component(2, {"0": tuple(refs[::2]), "1": tuple(refs[1::2])})}}
    tables = {"t": TableAt("s"), "u": TableAt("s")}
    return Manifest("uuid", "a", 3, KEY_GROUPS, ("t", "u"), {}, tables, topology, "")


@given(st.lists(RUNS, max_size=8), st.integers(1, KEY_GROUPS))
def test_works_are_what_looking_at_every_frame_for_every_task_gives(frames, tasks):
    manifest = manifest_of(frames)
    works = plan(manifest, FACT, tasks)
    expected = []
    for task in range(tasks):
        groups = groups_of(task, tasks, KEY_GROUPS)
        counts = {group: of for group, of in manifest.counts().items() if group in groups}
        touching = [(at, ref) for at, ref in enumerate(manifest.frames()) if {*ref.groups} & {*groups}]
        if counts:
            expected.append((groups.start, groups.stop, tuple(touching), counts))
    assert [(w.first_group, w.end_group, w.frames, w.counts) for w in works] == expected
    assert {(w.namespace, w.attempt, w.stamp.version, w.stamp.decided_at_us) for w in works} <= {
        ("uuid", "a", 3, 1_000)
    }


@given(st.lists(RUNS, max_size=8))
def test_changes_by_table_are_those_of_all_key_groups(frames):
    manifest = manifest_of(frames)
    by_group = manifest.counts().values()
    assert manifest.changes() == {name: sum(of.get(name, 0) for of in by_group) for name in ("t", "u")}


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 30))
def test_chunks_are_gathered_in_order_up_to_so_many_bytes(sizes, at_once_bytes):
    value = pa.array([b""], pa.binary())
    chunks = [Chunk(at, [Run(0, "t", pa.array([b"k" * size]), value)]) for at, size in enumerate(sizes)]

    def bytes_of(some):
        return sum(run.keys.nbytes + run.values.nbytes for chunk in some for run in chunk.runs)

    found = list(gathered(iter(chunks), at_once_bytes))
    assert [chunk for some in found for chunk in some] == chunks
    for some in found[:-1]:
        assert bytes_of(some) >= at_once_bytes
    for some in found:
        assert some
        assert len(some) == 1 or bytes_of(some[:-1]) < at_once_bytes
