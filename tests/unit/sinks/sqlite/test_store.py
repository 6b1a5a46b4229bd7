"""What is special about SQLite: damage, locks, full disks, kills, forks, and what is durable when."""

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreUnavailableError,
    VersionRegressedError,
)
from tidegate.sinks.records import Identity, ReadAt
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.sqlite import drop
from tidegate.sinks.sqlite import rows as sqlite_rows
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.store.harness import (
    chunks_of,
    counts_of,
    entry,
    get,
    put,
    retire_version,
    runs_of,
    scanned,
    stamp,
    write,
)
from tidegate.wal.frame import Chunk

IDENTITY = Identity("uuid-1", "n", 4, format=2)
CHANGES = {"t": {b"%03d" % i: b"v" * 50 for i in range(400)}}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "stores"


@pytest.fixture
def store(root):
    made = make(root)
    yield made
    made.close()


def make(root, identity=IDENTITY, timeout_s=0.05):
    store = SqliteStore(str(root), identity.name, timeout_s=timeout_s)
    store.create(identity)
    store.claim(1, "w")
    return store


def python(code, *arguments):
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *isolated, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# -- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_groups,shards", [(1, 1), (4, 4), (16, 16), (20, 16), (1024, 16)])
def test_shards_hold_contiguous_key_groups(root, key_groups, shards):
    store = make(root, Identity("uuid-1", "Name", key_groups))
    assert len(list((root / "_name").glob("shard-*.sqlite"))) == shards
    put(store, 1, {"t": {b"%d" % i: b"v" for i in range(3_000)}}, key_groups)
    store.close()
    seen = []
    for number in range(shards):
        with contextlib.closing(sqlite3.connect(root / "_name" / f"shard-{number:02d}.sqlite")) as connection:
            groups = {kg for (kg,) in connection.execute("SELECT DISTINCT kg FROM t_t")}
        assert all(group * shards // key_groups == number for group in groups)
        seen += sorted(groups)
    assert seen == sorted(seen)
    assert len(seen) > 0.9 * key_groups


def test_looking_makes_nothing(root):
    store = SqliteStore(str(root), "n")
    assert store.identity() is None
    with pytest.raises(ConfigError, match="tidegate init"):
        store.pointer()
    assert not root.exists()


def test_namespaces_that_differ_in_case_lie_apart(root):
    one, other = make(root, Identity("u1", "ab", 1)), make(root, Identity("u2", "AB", 1))
    put(one, 1, {"t": {b"k": b"1"}}, 1)
    assert other.pointer().visible == 0
    one.close()
    other.close()


def test_a_lock_that_another_process_holds_is_named(root, store):
    with contextlib.closing(sqlite3.connect(root / "n" / "meta.sqlite", isolation_level=None)) as stopped:
        stopped.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreUnavailableError, match="is locked; another process holds its lock: look for"
        ):
            store.claim(2, "w2")
    assert store.claim(2, "w2") == 2


def test_a_file_in_the_folders_place(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        store = SqliteStore(str(path), "n")
        with pytest.raises(ConfigError, match="Not a directory; give a folder"):
            store.identity()
        with pytest.raises(ConfigError, match="cannot be created"):
            store.create(IDENTITY)


def test_a_creation_cut_short_is_finished_by_the_next(root, monkeypatch):
    monkeypatch.setattr(sqlite_rows.Shards, "create", lambda _: 1 / 0)
    first = SqliteStore(str(root), "n")
    with pytest.raises(ZeroDivisionError):
        first.create(IDENTITY)
    assert first.identity() is None
    monkeypatch.undo()
    assert SqliteStore(str(root), "n").create(Identity("uuid-2", "n", 8)) == IDENTITY
    put(first, 1, CHANGES)
    first.close()


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(ConfigError, match="closed"):
        store.pointer()


# -- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["meta.sqlite", "shard-02.sqlite"])
@pytest.mark.parametrize("harm", ["header", "middle", "missing", "empty"])
def test_a_damaged_file_is_named(root, name, harm):
    store = make(root)
    put(store, 1, CHANGES)
    store.close()
    path = root / "n" / name
    content = bytearray(path.read_bytes())
    if harm == "header":
        content[:16] = b"not SQLite at all"[:16]
    elif harm == "middle":
        content[110 : len(content)] = b"\xa5" * (len(content) - 110)
    elif harm == "empty":
        content = b""
    path.unlink() if harm == "missing" else path.write_bytes(content)
    store = SqliteStore(str(root), "n")
    if name == "meta.sqlite" and harm in ("missing", "empty"):
        assert store.identity() is None  # its shards are not taken for another namespace's
        with pytest.raises(CorruptError, match=r"shard-00\.sqlite"):
            store.create(Identity("uuid-2", "n", 4))
    else:
        with pytest.raises(CorruptError, match=name.replace(".", r"\.")):
            get(store, "t", list(CHANGES["t"]), 1)
        with pytest.raises(CorruptError, match=name.replace(".", r"\.")):
            write(store, 2, CHANGES)
    store.close()


def test_a_shard_of_another_namespace_is_refused(root):
    store, other = make(root), make(root, Identity("uuid-2", "m", 4))
    put(store, 1, CHANGES)
    store.close()
    other.close()
    shutil.copy(root / "m" / "shard-01.sqlite", root / "n" / "shard-01.sqlite")
    again = SqliteStore(str(root), "n")
    with pytest.raises(CorruptError, match=r"shard-01\.sqlite.*uuid-2"):
        get(again, "t", list(CHANGES["t"]), 1)
    again.close()


def test_an_older_copy_put_back_under_a_reader_is_noticed(root, tmp_path):
    """I9: the version asked for is above what the store now shows."""
    store = make(root)
    put(store, 1, CHANGES)
    store.close()
    shutil.copytree(root, tmp_path / "copy")
    store = SqliteStore(str(root), "n")
    put(store, 2, CHANGES)
    reader = SqliteStore(str(root), "n")
    assert get(reader, "t", [b"001"], 2) == [b"v" * 50]
    store.close()
    reader._files.close()
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    reader._files._closed = False
    with pytest.raises(VersionRegressedError):
        get(reader, "t", [b"001"], 2)
    reader.close()


# -- the order of reads -----------------------------------------------------------------------


def test_what_becomes_visible_during_a_read_is_not_half_shown(store, monkeypatch):
    """I1: the rows were read while version 2 was half applied; it is visible when the read ends."""
    put(store, 1, CHANGES)
    second = {"t": dict.fromkeys(CHANGES["t"], b"2")}
    store.apply(stamp(2), chunks_of(second)[0])
    original = sqlite_rows.Shards.look_up

    def look_up(*arguments):
        rows = list(original(*arguments))
        put(store, 2, second)
        return rows

    monkeypatch.setattr(sqlite_rows.Shards, "look_up", look_up)
    reader = SqliteStore(str(store._files.folder.parent), "n")
    with pytest.raises(VersionRegressedError):
        get(reader, "t", list(CHANGES["t"]), 2)
    reader.close()


def test_what_is_retired_during_a_read_is_refused(store, monkeypatch):
    """T28: the shards are read one after the other; the first one before the retirement, the rest after."""
    put(store, 1, CHANGES)
    put(store, 2, CHANGES)
    original = sqlite_rows.Shards.look_up

    def look_up(*arguments):
        rows = list(original(*arguments))
        store.announce(2)
        return rows

    monkeypatch.setattr(sqlite_rows.Shards, "look_up", look_up)
    with pytest.raises(SnapshotExpiredError):
        get(store, "t", list(CHANGES["t"]), 1)


def test_a_floor_refuses_by_itself(store):
    """The horizon is in another file, which may be an older copy: the floor lies beside the rows."""
    put(store, 1, CHANGES)
    put(store, 2, CHANGES)
    store.announce(2)
    retire_version(store, 2, chunks_of(CHANGES))
    with store._files.connection("meta.sqlite") as connection:
        connection.execute("UPDATE pointer SET horizon = 0")
    with pytest.raises(SnapshotExpiredError, match="key group"):
        get(store, "t", [b"001"], 1)
    with pytest.raises(SnapshotExpiredError, match="key group 2"):
        list(store.scan(ReadAt("t", 1), 2))


def test_a_floor_refuses_where_an_emptied_table_lost_rows(store):
    put(store, 1, CHANGES)
    put(store, 2, {}, t=2)
    store.announce(2)
    retire_version(store, 2, [])
    with store._files.connection("meta.sqlite") as connection:
        connection.execute("UPDATE pointer SET horizon = 0")
    with pytest.raises(SnapshotExpiredError, match="key group"):
        get(store, "t", [b"001"], 1)


# -- waiting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,use",
    [
        ("meta.sqlite", lambda store: store.claim(2, "w")),
        ("meta.sqlite", lambda store: store.publish(entry(2), 1)),
        ("meta.sqlite", lambda store: store.lease(Lease("l", 1), 10)),
        ("meta.sqlite", lambda store: store.announce(1)),
        ("shard-01.sqlite", lambda store: store.apply(stamp(2), Chunk(0, runs_of(CHANGES)))),
        ("shard-01.sqlite", lambda store: store.seal(stamp(1), counts_of(CHANGES))),
        ("shard-01.sqlite", lambda store: retire_version(store, 1, chunks_of(CHANGES))),
    ],
)
def test_a_lock_held_until_the_deadline(root, store, name, use):
    """Writes give up with the error that says "repeat"; readers do not wait for writers."""
    put(store, 1, CHANGES)
    holder = python(
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True);"
        "import signal; signal.pause()",
        root / "n" / name,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreUnavailableError, match=name.replace(".", r"\.")):
            use(store)
        assert scanned(store, "t", 1) == CHANGES["t"]
    finally:
        holder.kill()
        holder.communicate()
    use(store)


def test_a_full_disk_is_unavailable_and_ends(store):
    put(store, 1, CHANGES)
    more = {"t": dict.fromkeys(CHANGES["t"], b"w" * 20_000)}
    for shard in range(4):
        with store._files.connection(f"shard-{shard:02d}.sqlite") as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(StoreUnavailableError, match="full"):
        write(store, 2, more)
    assert scanned(store, "t", 1) == CHANGES["t"]  # and the refused connection was not kept:
    for _ in range(4):
        with contextlib.suppress(StoreUnavailableError):
            write(store, 2, more)
    put(store, 2, more)
    assert scanned(store, "t", 2) == more["t"]


# -- killed -----------------------------------------------------------------------------------

WRITER = """
import sys
import traceback
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.store.harness import chunks_of, counts_of, stamp

store = SqliteStore(sys.argv[1], "n", timeout_s=20)
version = int(sys.argv[2])
changes = {"t": {b"%03d" % i: b"%d" % version * 500 for i in range(400)}}
for chunk in chunks_of(changes, rows_max=5):
    store.apply(stamp(version), chunk)
    print("applied", flush=True)
store.seal(stamp(version), counts_of(changes))
print("sealed", flush=True)
"""


def test_a_writer_killed_in_the_middle_again_and_again(root):
    """Each version: the writer is killed somewhere in its apply; another one repeats it and goes on."""
    store = make(root, timeout_s=20)
    for version, lines in enumerate([1, 3, 17, 40, 79, 81], start=1):
        changes = {"t": {b"%03d" % i: b"%d" % version * 500 for i in range(400)}}
        before = scanned(store, "t", version - 1)
        writer = python(WRITER, root, version)
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert store.pointer().visible == version - 1
        assert scanned(store, "t", version - 1) == before
        assert_counts_are_rows(root / "n")
        for chunk in chunks_of(changes, rows_max=5):
            store.apply(stamp(version), chunk)
        store.seal(stamp(version), counts_of(changes))
        assert store.publish(entry(version), 1)
        assert scanned(store, "t", version) == changes["t"]
        assert store.verify(stamp(version), counts_of(changes)) == []
    store.close()


def test_after_a_power_cut_counts_and_rows_still_agree(root, tmp_path):
    """What is lost is a suffix of the -wal file. Cut it anywhere: a chunk is there with its count, or not."""
    store = make(root)
    name = "shard-01.sqlite"
    seen = set()
    for chunk in chunks_of(CHANGES, rows_max=10):
        store.apply(stamp(1), chunk)
    wal = (root / "n" / f"{name}-wal").read_bytes()
    for cut in range(0, len(wal), max(1, len(wal) // 40)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        shutil.copy(root / "n" / name, folder / name)
        (folder / f"{name}-wal").write_bytes(wal[:cut])
        seen.add(assert_counts_are_rows(folder))
    assert len(seen) > 3
    store.close()


def assert_counts_are_rows(folder):
    rows = 0
    for path in sorted(folder.glob("shard-*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("BEGIN")
            counted = dict(
                connection.execute("SELECT version, SUM(rows) FROM applied GROUP BY version").fetchall()
            )
            table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 't_t'").fetchone()
            held = (
                connection.execute("SELECT version, COUNT(*) FROM t_t GROUP BY version").fetchall()
                if table
                else []
            )
            assert counted == dict(held), path
            rows += sum(counted.values())
    return rows


# -- what is durable when ---------------------------------------------------------------------


def test_which_commits_wait_for_the_disk(store):
    """I3: an apply does not fsync, a seal and whatever moves the pointer do."""
    durable = {
        "shard-01.sqlite": {
            "apply": (False, lambda: store.apply(stamp(1), Chunk(0, runs_of(CHANGES)))),
            "seal": (True, lambda: store.seal(stamp(1), counts_of(CHANGES))),
            "seal again": (True, lambda: store.seal(stamp(1), counts_of(CHANGES))),
        },
        "meta.sqlite": {
            "publish": (True, lambda: store.publish(entry(1), 1)),
            "claim": (True, lambda: store.claim(1, "w")),
            "claim again": (True, lambda: store.claim(1, "w")),
            "announce": (True, lambda: store.announce(1)),
            "announce again": (True, lambda: store.announce(1)),
            "lease": (True, lambda: store.lease(Lease("l", 1), 10)),
            "heartbeat": (False, lambda: store.heartbeat(1)),
        },
    }
    for name, steps in durable.items():
        for step, (waits, act) in steps.items():
            statements = []
            with store._files.connection(name) as connection:
                connection.set_trace_callback(statements.append)
                (before,) = connection.execute("SELECT times FROM durable").fetchone()
            act()
            with store._files.connection(name) as connection:
                connection.set_trace_callback(None)
                (after,) = connection.execute("SELECT times FROM durable").fetchone()
            begin = statements.index("BEGIN IMMEDIATE")
            assert statements[begin - 1] == f"PRAGMA synchronous = {'FULL' if waits else 'NORMAL'}", step
            # Without a changed page SQLite would not fsync at all.
            assert after - before == waits, step


def test_what_was_dropped_is_on_disk_before_the_horizon_moves_on_i11(root, store):
    """Behind it nobody would drop again what a power cut brings back; who starts does not know of others."""

    def durable_commits():
        with store._files.connection("shard-01.sqlite") as connection:
            return connection.execute("SELECT times FROM durable").fetchone()[0]

    for version in (1, 2, 3, 4):
        put(store, version, CHANGES)
    store.announce(2)
    sealed = durable_commits()
    retire_version(store, 2, chunks_of(CHANGES))
    assert durable_commits() == sealed
    store.announce(3)
    assert durable_commits() == sealed + 1
    store.announce(3)  # nothing was dropped since
    assert durable_commits() == sealed + 1
    another = SqliteStore(str(root), "n")
    another.announce(4)
    another.close()
    assert durable_commits() == sealed + 2


def test_the_cost_of_apply_and_seal_does_not_grow_with_the_table(root):
    """I11, counted in steps of SQLite's machine."""

    def steps(number, version):
        counted = 0

        def count():
            nonlocal counted
            counted += 1

        changes = {"t": {b"%06d" % (7 * i): b"v" for i in range(200)}}
        with store._files.connection("shard-00.sqlite") as connection:
            connection.set_progress_handler(count, 1)
        write(store, version, changes, 1)
        with store._files.connection("shard-00.sqlite") as connection:
            connection.set_progress_handler(None, 1)
        assert store.publish(entry(version), 1)
        return counted

    store = make(root, Identity("uuid-1", "n", 1))
    put(store, 1, {"t": {b"x": b"1"}}, 1)
    small = steps(200, 2)
    put(store, 3, {"t": {b"%06d" % i: b"v" for i in range(20_000)}}, 1)
    large = steps(200, 4)
    assert small > 200
    assert large < 1.3 * small
    store.close()


def test_a_page_of_a_scan_reads_no_more_than_its_rows(store):
    """Neither a sort nor a temporary table stands between the primary key and the page."""
    put(store, 1, CHANGES)
    with store._files.connection("shard-00.sqlite") as connection:
        sql = "EXPLAIN QUERY PLAN " + sqlite_rows.PAGE.format(table="t_t")
        plan = " ".join(row[3] for row in connection.execute(sql, (0, b"", 0, 1, 10)))
        look_up = "EXPLAIN QUERY PLAN " + sqlite_rows.LOOK_UP.format(table="t_t", asked="(?, ?, ?)")
        plan_of_look_up = " ".join(row[3] for row in connection.execute(look_up, (0, 0, b"", 0, 1)))
    assert "USING PRIMARY KEY (kg=? AND key>?)" in plan
    assert "kg=? AND key=? AND version>? AND version<?" in plan_of_look_up
    assert "TEMP B-TREE" not in plan + plan_of_look_up


def test_who_made_it_makes_another_after_others_dropped_it(store, root):
    """Its connections are to files that are there no more: what these say is not told on."""
    other = SqliteStore(str(root), "n")
    assert other.create(Identity("uuid-2", "n", 4)) == IDENTITY
    store.drop()
    fresh = Identity("uuid-3", "n", 2, format=2)
    assert other.create(fresh) == fresh
    assert store.identity() == fresh
    other.close()


# -- processes --------------------------------------------------------------------------------

FORKING = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, when Arrow's threads run
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.store.harness import put, get

store = SqliteStore(sys.argv[1], "n", timeout_s=20)
put(store, 1, {"t": {b"k": b"parent"}})
mine = {id(c) for file in store._files._connections._files.values() for c in file.idle}
child = os.fork()
if child == 0:
    assert not store._files._connections._files
    put(store, 2, {"t": {b"k": b"child"}})
    assert get(store, "t", [b"k"], 1) == [b"parent"]
    store.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert get(store, "t", [b"k"], 2) == [b"child"]
put(store, 3, {"t": {b"k": b"parent again"}})
assert mine <= {id(c) for file in store._files._connections._files.values() for c in file.idle}
store.close()
print("fine")
"""


def test_a_forked_child_leaves_its_parents_connections_alone(root):
    """T13."""
    make(root).close()
    out, err = python(FORKING, root).communicate(timeout=60)
    assert (out, err) == ("fine\n", "")


@pytest.mark.parametrize("fails", ["rename", "remove"])
def test_a_drop_that_fails_says_whether_the_namespace_is_there(root, store, monkeypatch, fails):
    """A folder that cannot be renamed, as on a read-only mount, has lost nothing."""

    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    if fails == "rename":
        monkeypatch.setattr(Path, "rename", refused)
    else:
        monkeypatch.setattr(drop, "remove_folder", refused)
    words = {"rename": "nothing was removed", "remove": "the rest is no namespace any more"}[fails]
    with pytest.raises(StoreUnavailableError, match=f"Read-only file system; {words}: remove the cause"):
        store.drop()


@pytest.mark.parametrize(
    "change, why",
    [
        ("UPDATE t_t SET value = CAST(x'7365637265742dff' AS TEXT)", "a text is not UTF-8"),
        ("UPDATE t_t SET key = CAST(x'7365637265742dff' || key AS TEXT)", "a text is not UTF-8"),
        ("ALTER TABLE t_t ADD COLUMN more", "columns"),
    ],
)
def test_changed_rows_are_damage_that_is_told_without_them(root, store, change, why):
    """SQLite's own message quotes the text; and such a store was retried as one that is away."""
    put(store, 1, {"t": {b"%d" % n: b"+1" for n in range(40)}})
    for path in root.rglob("shard-*.sqlite"):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(change)

    def used():
        if "ALTER" in change:
            put(store, 2, {"t": {b"%d" % n: b"+2" for n in range(40)}})
        return [list(store.scan(ReadAt("t", 1), group)) for group in range(4)]

    with pytest.raises(CorruptError, match=why) as caught:
        used()
    shown = "".join(traceback.format_exception(caught.value))
    assert "secret" not in shown
