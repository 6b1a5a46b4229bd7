"""A mirror in a file: restarts, refusals of foreign files, and crashes that leave one version whole."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import weakref

import pytest

import tidegate
from support.wait import wait_until
from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreUnavailableError,
    VersionRegressedError,
)
from tidegate.options import Options
from tidegate.reader import open_gate
from tidegate.reader.mirror import file, mirror, reading
from tidegate.reader.mirror import file as mirror_file
from tidegate.testing.example import Example


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch):
    monkeypatch.setattr(mirror, "LOOK_S", 0.02)
    monkeypatch.setattr(mirror, "PAUSE_S", (0.02, 0.02))


@pytest.fixture
def example(tmp_path):
    made = Example(
        f"memory://{tmp_path}", f"memory://{tmp_path}", options=Options(key_groups=4, keep_versions=3)
    )
    made.write({"aircraft": {"N1": aircraft(1)}})
    yield made
    made.close()


@pytest.fixture
def gate(example, tmp_path):
    with tidegate.connect(f"memory://{tmp_path}", "flights") as gate:
        yield gate


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mirror.db"


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_may_write_is_refused(gate, path, mode):
    gate.mirror(["aircraft"], path=path).close()
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may write it: remove it"):
        gate.mirror(["aircraft"], path=path)
    assert path.stat().st_mode & 0o777 == mode


def aircraft(number):
    return {"carrier": "UA", "flights": number}


def content(source):
    return dict(source.table("aircraft").scan())


def made(gate, path, tables="aircraft"):
    gate.mirror(tables, path=path).close()


@contextlib.contextmanager
def opened(path):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def test_it_goes_on_from_the_file_by_the_changes_alone(example, gate, path):
    made(gate, path)
    for number in (2, 3):
        example.write({"aircraft": {f"N{number}": aircraft(number)}})
    with gate.mirror("aircraft", path=path) as mirror:
        mirror.wait_for(3)
        assert (mirror.moves, mirror.full_reads) == (1, 0)
        assert content(mirror) == {f"N{number}": aircraft(number) for number in (1, 2, 3)}
        assert len(mirror.table("aircraft")) == 3
    with gate.mirror("aircraft", path=path) as mirror:
        wait_until(lambda: mirror._snapshot is not None, "the store was asked")
        assert (mirror.version, mirror.moves, mirror.full_reads) == (3, 0, 0)
        assert mirror.wait_for(example.write({"aircraft": {"N1": None}})) == 4
        assert content(mirror) == {f"N{number}": aircraft(number) for number in (2, 3)}
    assert gate._reader.store.leases() == []


def test_tables_are_read_whole_if_the_version_in_the_file_was_retired(example, gate, path, monkeypatch):
    made(gate, path)
    example.write({"aircraft": {"N1": None, "N2": aircraft(2)}})
    plain = gate.snapshot

    def snapshot(version=None):
        if version is not None:
            raise SnapshotExpiredError("version 1 was retired")
        return plain()

    monkeypatch.setattr(gate, "snapshot", snapshot)
    with gate.mirror("aircraft", path=path) as mirror:
        mirror.wait_for(2)
        assert (mirror.moves, mirror.full_reads) == (0, 1)
        assert content(mirror) == {"N2": aircraft(2)}


def test_it_answers_from_the_file_while_the_store_is_away(example, gate, path, monkeypatch):
    made(gate, path)
    with opened(path) as connection:
        connection.execute("UPDATE mirror SET checked_us = checked_us - 3600000000")
    plain, away = gate._reader.store.pointer, StoreUnavailableError("away")

    def pointer():
        raise away

    monkeypatch.setattr(gate._reader.store, "pointer", pointer)
    with gate.mirror("aircraft", path=path) as mirror:
        assert (mirror.version, content(mirror)) == (1, {"N1": aircraft(1)})
        assert 3_600 <= mirror.age_s < 3_700
        wait_until(lambda: mirror.error is away, "the mirror notices")
        monkeypatch.setattr(gate._reader.store, "pointer", plain)
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(2)}}))
        wait_until(lambda: mirror.error is None, "the error is over")
        assert mirror.age_s < 60


def test_it_starts_before_the_store_answers(example, path, tmp_path, monkeypatch):
    def opened():
        return tidegate.connect_mirror(f"memory://{tmp_path}", "flights", ["aircraft"], path=path)

    away = StoreUnavailableError("away")

    def refused(*_):
        raise away

    with monkeypatch.context() as patch:
        patch.setattr(open_gate, "open_store", refused)
        with pytest.raises(StoreUnavailableError, match="away"):  # the file is new
            opened()
    opened().close()
    monkeypatch.setattr(open_gate, "open_store", refused)
    with opened() as mirror:
        wait_until(lambda: mirror.error is away, "the mirror notices")
        assert content(mirror) == {"N1": aircraft(1)}
        assert "not connected yet" in repr(mirror)
        monkeypatch.undo()
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(2)}}))
        assert (content(mirror), mirror.full_reads) == ({"N1": aircraft(2)}, 0)
        gate = mirror._gate._gate
    with pytest.raises(ConfigError, match="closed"):
        gate.version()


def test_another_namespace_that_is_met_later_ends_it(example, gate, path, tmp_path):
    made(gate, path)
    Example(f"memory://{tmp_path}/2", f"memory://{tmp_path}/2").write({"aircraft": {}})
    with tidegate.connect_mirror(f"memory://{tmp_path}/2", "flights", ["aircraft"], path=path) as mirror:
        wait_until(lambda: mirror.error is not None, "it ends")
        with pytest.raises(ConfigError, match=r"file is of namespace flights \(\w+\), and the .*: give"):
            content(mirror)


def test_the_file_notes_that_its_version_is_still_the_newest(gate, path, monkeypatch):
    monkeypatch.setattr(file, "CHECKED_S", 0.0)
    with gate.mirror("aircraft", path=path):
        with opened(path) as connection:
            connection.execute("UPDATE mirror SET checked_us = 1")

        def is_noted():
            with opened(path) as connection:
                return connection.execute("SELECT checked_us > 1 FROM mirror").fetchone()[0]

        wait_until(is_noted, "it is noted")


def test_a_version_that_the_store_lost_is_an_error(example, gate, path):
    """I9 holds across restarts."""
    made(gate, path)
    for change in ('"version":1', '"version":7'), ('"digest":"', '"digest":"f'):
        shutil.copy(path, path.with_name("other.db"))
        with opened(path.with_name("other.db")) as connection:
            connection.execute("UPDATE mirror SET content = replace(content, ?, ?)", change)
        with gate.mirror("aircraft", path=path.with_name("other.db")) as mirror:
            wait_until(lambda mirror=mirror: mirror.error is not None, "the mirror notices")
            with pytest.raises(VersionRegressedError, match=r"shows version 1 .* remove the file"):
                mirror.table("aircraft")


def test_a_store_that_lost_all_versions_is_an_error(path, tmp_path):
    made_of, url = (f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"), f"sqlite://{tmp_path}/store"
    Example(*made_of).close()
    shutil.copytree(tmp_path / "store", tmp_path / "empty")
    example = Example(*made_of)
    example.write({"aircraft": {"N1": aircraft(1)}})
    example.close()
    with tidegate.connect(url, "flights") as gate:
        made(gate, path)
    shutil.rmtree(tmp_path / "store")
    shutil.move(tmp_path / "empty", tmp_path / "store")
    with tidegate.connect_mirror(url, "flights", ["aircraft"], path=path) as mirror:
        wait_until(lambda: mirror.error is not None, "the mirror notices")
        with pytest.raises(VersionRegressedError, match=r"shows version 0 "):
            content(mirror)


# -- files that are refused --------------------------------------------------------------------------------


def test_a_file_of_another_mirror_is_refused(example, gate, path, tmp_path):
    example.write({"airports": {}})
    made(gate, path)
    with pytest.raises(
        ConfigError, match=r"of the tables 'aircraft', and 'airports' was asked for: give another"
    ):
        made(gate, path, "airports")
    Example(f"memory://{tmp_path}/2", f"memory://{tmp_path}/2").write({"aircraft": {}})
    with (
        tidegate.connect(f"memory://{tmp_path}/2", "flights") as other,
        pytest.raises(ConfigError, match=r"a mirror of namespace .*, and .* was asked for: give another"),
    ):
        made(other, path)
    with gate.mirror("aircraft", path=path) as mirror:
        assert content(mirror) == {"N1": aircraft(1)}


def test_a_file_that_is_larger_than_bytes_max_is_refused(gate, path, example):
    """It was read, and ended the mirror at its first change."""
    example.write({"aircraft": {f"N{number}": aircraft(number) for number in range(2_000)}})
    made(gate, path)
    with pytest.raises(ConfigError, match="9,000 bytes, with the rows that are in its file: raise it"):
        gate.mirror("aircraft", path=path, bytes_max=9_000)
    made(gate, path)


def test_a_file_in_use_is_refused(gate, path, monkeypatch):
    monkeypatch.setattr(file, "LOCK_S", 0.0)
    with gate.mirror("aircraft", path=path) as mirror:
        with pytest.raises(ConfigError, match="in use by another mirror: give this one a path of its own"):
            made(gate, path)
        assert content(mirror) == {"N1": aircraft(1)}
    made(gate, path)


def test_another_format_and_another_program_s_file_are_refused(gate, path, tmp_path):
    made(gate, path)
    with opened(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(ConfigError, match=r"has format 9, this release has 1: give another path, or remove"):
        made(gate, path)
    other = tmp_path / "other.db"
    with opened(other) as connection:
        connection.execute("CREATE TABLE mine (one)")
    with pytest.raises(ConfigError, match="another program's database: give another path"):
        made(gate, other)
    with opened(other) as connection:
        assert connection.execute("SELECT * FROM mine").fetchall() == []


def test_a_path_that_cannot_be_used_is_refused(gate, tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; give a path in a folder"):
        made(gate, tmp_path / "nowhere" / "mirror.db")


@pytest.mark.parametrize("name", ["", "folder", "nul\0"])
def test_a_path_that_is_no_file_is_refused(gate, tmp_path, monkeypatch, name):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="give the path of a file"):
        made(gate, name)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder"]


@pytest.mark.parametrize("name", ["a b%20?x=1#f.db", ":memory:", os.fsdecode(b"\xff.db"), "double"])
def test_a_path_means_the_file_of_that_name(example, gate, tmp_path, monkeypatch, name):
    """A relative one means it also after the process has changed its folder."""
    monkeypatch.chdir(tmp_path)
    with gate.mirror("aircraft", path=f"/{tmp_path}/double" if name == "double" else name) as mirror:
        monkeypatch.chdir("/")
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(2)}}), timeout=5)
        assert (tmp_path / name).stat().st_size > 0
        assert (tmp_path / f"{name}-wal").stat().st_size > 0


def test_a_link_means_its_file(example, gate, path, tmp_path, monkeypatch):
    """The -wal beside the file was not found, and not emptied, and a second mirror was not refused."""
    monkeypatch.setattr(file, "TIDY_BYTES", 0)
    monkeypatch.setattr(file, "LOCK_S", 0.0)
    (tmp_path / "folder").mkdir()
    path.symlink_to(tmp_path / "folder" / "real.db")
    wal = tmp_path / "folder" / "real.db-wal"
    with gate.mirror("aircraft", path=path) as mirror:
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(2)}}))
        wait_until(lambda: wal.stat().st_size == 0, "the -wal is empty")
        with pytest.raises(ConfigError, match="in use by another mirror"):
            made(gate, tmp_path / "folder" / "real.db")


@pytest.mark.parametrize("by", ["nothing", "a copy"])
def test_a_file_that_is_removed_or_replaced_is_not_written_and_not_mixed(example, gate, path, by):
    with gate.mirror("aircraft", path=path) as mirror:
        if by == "a copy":
            with opened(path) as connection, opened(path.with_name("copy.db")) as copy:
                connection.backup(copy)
            path.with_name("copy.db").replace(path)
        else:
            path.unlink()
        size = path.with_name("mirror.db-wal").stat().st_size
        example.write({"aircraft": {"N1": aircraft(2)}})
        wait_until(lambda: mirror.error is not None, "the mirror notices")
        assert "was removed or replaced: close this mirror, and make it again" in str(mirror.error)
        assert content(mirror) == {"N1": aircraft(1)}
        assert path.with_name("mirror.db-wal").stat().st_size == size


@pytest.mark.parametrize("damage", ["garbage", "truncated", "content"])
def test_a_damaged_file_is_refused_with_the_files_to_remove(gate, example, path, damage):
    example.write({"aircraft": {f"N{number}": aircraft(number) for number in range(2_000)}})
    made(gate, path)
    if damage == "content":
        with opened(path) as connection:
            connection.execute("UPDATE mirror SET content = '{'")
    else:
        with path.open("r+b") as handle:
            handle.truncate(path.stat().st_size // 2 if damage == "truncated" else 0)
            handle.write(b"garbage" * 1_000 if damage == "garbage" else b"")
    with pytest.raises(CorruptError, match=r"remove mirror.db, mirror.db-wal and mirror.db-shm"):
        made(gate, path)
    path.unlink()
    with gate.mirror("aircraft", path=path) as mirror:
        assert len(content(mirror)) == 2_000


def test_damage_that_a_read_meets_is_raised_there(gate, example, path):
    example.write({"aircraft": {f"N{number}": aircraft(number) for number in range(2_000)}})
    made(gate, path)
    with path.open("r+b") as handle:
        for page in range(4, path.stat().st_size // 4096):
            handle.seek(page * 4096)
            handle.write(b"\xff" * 64)
    with (
        gate.mirror("aircraft", path=path) as mirror,
        pytest.raises(CorruptError, match=r"remove mirror\.db"),
    ):
        content(mirror)


# -- moves -------------------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_and_reads_go_on(example, gate, path):
    with gate.mirror("aircraft", path=path) as mirror:
        connection = mirror._place.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        rows = {f"N{number}": aircraft(number) for number in range(2_000)}
        example.write({"aircraft": rows})
        wait_until(lambda: mirror.error is not None, "the mirror reports it")
        assert "full; make room on its disk" in str(mirror.error)
        assert (mirror.version, content(mirror)) == (1, {"N1": aircraft(1)})
        connection.execute("PRAGMA max_page_count = 1000000")
        mirror.wait_for(2)
        assert (content(mirror), mirror.full_reads) == (rows, 1)


def test_a_move_that_fails_after_its_commit_goes_on_from_the_file(example, gate, path, monkeypatch):
    """The next changes are those since the file's version, not since the version that is still read."""
    with gate.mirror("aircraft", path=path) as mirror:
        plain = mirror._place._read

        def fails():
            monkeypatch.setattr(mirror._place, "_read", plain)
            example.write({"aircraft": {"N1": aircraft(1)}})
            raise StoreUnavailableError("no connection")

        monkeypatch.setattr(mirror._place, "_read", fails)
        example.write({"aircraft": {"N1": aircraft(2)}})
        mirror.wait_for(3)
        assert (content(mirror), mirror.full_reads) == ({"N1": aircraft(1)}, 1)


def test_older_views_are_read_until_the_wal_is_too_large(example, gate, path, monkeypatch):
    monkeypatch.setattr(file, "TIDY_BYTES", 0)
    wal = path.with_name("mirror.db-wal")
    with gate.mirror("aircraft", path=path) as mirror:
        first = mirror.view()
        for number in (2, 3):
            mirror.wait_for(example.write({"aircraft": {"N1": aircraft(number)}}))
        assert first.table("aircraft").get("N1") == aircraft(1)
        assert wal.stat().st_size > 0
        monkeypatch.setattr(file, "WAL_BYTES_MAX", 0)
        before = mirror._looked_at
        wait_until(lambda: mirror._looked_at > before + 0.1, "the mirror looked again")
        assert content(first) == {"N1": aircraft(1)}  # within GRACE_S
        monkeypatch.setattr(file, "GRACE_S", 0.0)
        wait_until(lambda: wal.stat().st_size == 0, "the -wal is empty")
        for read in (lambda: first.table("aircraft").get("N1"), lambda: content(first)):
            with pytest.raises(SnapshotExpiredError, match="take a new view"):
                read()
        assert content(mirror) == {"N1": aircraft(3)}
        rows = mirror.table("aircraft").scan()
        monkeypatch.setattr(file, "WAL_BYTES_MAX", 1 << 30)
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(4)}}))
        assert dict(rows) == {"N1": aircraft(3)}
        del rows
        wait_until(lambda: wal.stat().st_size == 0, "the -wal is empty without older views")
        assert content(mirror) == {"N1": aircraft(4)}


def test_too_many_older_views_end(example, gate, path, monkeypatch):
    monkeypatch.setattr(file, "OLDER_MAX", 1)
    with gate.mirror("aircraft", path=path) as mirror:
        views = [mirror.view()]
        for number in (2, 3):
            mirror.wait_for(example.write({"aircraft": {"N1": aircraft(number)}}))
            views.append(mirror.view())
        wait_until(lambda: len(mirror._place._readings) == 2, "the oldest one ends")
        assert [content(view)["N1"]["flights"] for view in views[1:]] == [2, 3]
        with pytest.raises(SnapshotExpiredError):
            content(views[0])


def test_pages_of_a_scan_are_of_one_version(example, gate, path, monkeypatch):
    monkeypatch.setattr(reading, "PAGE_ROWS", 7)
    example.write({"aircraft": {f"N{number}": aircraft(2) for number in range(100)}})
    with gate.mirror("aircraft", path=path) as mirror:
        rows = mirror.table("aircraft").scan()
        seen = dict([next(rows)])
        mirror.wait_for(example.write({"aircraft": {f"N{number}": aircraft(3) for number in range(50)}}))
        assert seen | dict(rows) == {f"N{number}": aircraft(2) for number in range(100)}


@pytest.mark.parametrize("in_file", [True, False])
def test_a_forked_child_is_refused(gate, path, monkeypatch, in_file):
    """It has no thread that follows: one in memory answered for good at the version of the fork."""
    with gate.mirror("aircraft", path=path if in_file else None) as mirror, monkeypatch.context() as patch:
        view = mirror.view()
        patch.setattr(os, "getpid", lambda: -1)
        refused = "a forked child needs a mirror of its own"
        for read in (lambda: content(mirror), mirror.view, lambda: mirror.wait_for(view.version)):
            with pytest.raises(ConfigError, match=refused):
                read()
        assert refused in str(mirror.error)


def test_a_child_does_not_keep_the_lock_of_a_closed_mirror(gate, path, monkeypatch):
    monkeypatch.setattr(file, "LOCK_S", 0.0)
    mirror = gate.mirror("aircraft", path=path)
    kept = os.dup(mirror._place._lock)  # as a forked child has it
    mirror.close()
    made(gate, path)
    os.close(kept)
    with gate.mirror("aircraft", path=path) as mirror:
        kept = os.dup(mirror._place._lock)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            mirror._place.close()  # as a forked child does: its parent has the lock
        with pytest.raises(ConfigError, match="in use by another mirror"):
            made(gate, path)
        os.close(kept)


def test_a_busy_wal_costs_no_memory(example, gate, path, monkeypatch):
    """Each look kept a closed connection while another program read the file."""
    monkeypatch.setattr(file, "TIDY_BYTES", 0)
    with gate.mirror("aircraft", path=path) as mirror, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM mirror").fetchall()
        mirror._place.connection.execute("PRAGMA busy_timeout = 0")
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(2)}}))
        finalizers = lambda: len(weakref.finalize._registry)  # noqa: E731
        before, looked_at = finalizers(), mirror._looked_at
        wait_until(lambda: mirror._looked_at > looked_at + 0.2, "the mirror looked several times")
        assert finalizers() <= before + 1


# -- crashes -----------------------------------------------------------------------------------------------

SWEEP = """
    import collections, json, os, shutil, signal, sqlite3, sys
    from pathlib import Path
    import tidegate
    from tidegate.reader.mirror import file, mirror

    mirror.LOOK_S = 0.01
    store, pristine, folder, every = sys.argv[1:]

    def killed_at(number, path):
        plain, count = file.connected, 0

        def traced(statement):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def connected(path, mode, *more):
            connection = plain(path, mode, *more)
            if mode == "rwc":
                connection.set_trace_callback(traced)
            return connection

        file.connected = connected
        move(path)

    def move(path):
        with tidegate.connect(store, "flights") as gate, gate.mirror("aircraft", path=path) as mirror:
            mirror.wait_for(2)
            rows = {key: row["flights"] for key, row in mirror.table("aircraft").scan()}
        assert collections.Counter(rows.values()) == {1: 3, 2: 5}, rows

    def check(path):
        with sqlite3.connect(path) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                for content, in connection.execute("SELECT content FROM mirror"):
                    version = json.loads(content)["at"]["version"]
                    flights = "json_extract(CAST(value AS TEXT), '$.flights')"
                    values = connection.execute(f"SELECT {flights}, count(*) FROM rows GROUP BY 1")
                    assert dict(values) == {1: {1: 8}, 2: {1: 3, 2: 5}}[version], version
        move(path)

    def child(work, *arguments):
        pid = os.fork()
        if not pid:
            try:
                work(*arguments)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    move(Path(folder, "warm.db"))  # imports everything, once for all children
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        number += int(every)
        path = Path(folder, f"{number}.db")
        if pristine:
            shutil.copy(pristine, path)
        code = child(killed_at, number, path)
        if child(check, path):
            sys.exit(f"after a kill at statement {number}")
    print(number)
    sys.exit(code)
"""


@pytest.mark.parametrize(
    "begins,every",
    [
        ("from version 1", 6),
        pytest.param("from version 1", 1, marks=pytest.mark.slow),
        pytest.param("from nothing", 1, marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_any_statement_leaves_one_version_whole(tmp_path, begins, every):
    store = f"sqlite://{tmp_path}/store"
    example = Example(f"file://{tmp_path}/wal", store, options=Options(key_groups=4, keep_versions=3))
    example.write({"aircraft": {f"N{number}": aircraft(1) for number in range(8)}})
    pristine = tmp_path / "pristine.db" if begins == "from version 1" else ""
    if pristine:
        with tidegate.connect(store, "flights") as gate:
            made(gate, pristine)
    rows = {f"N{number}": aircraft(2) for number in (0, 1, 2, 8, 9)}
    example.write({"aircraft": rows | dict.fromkeys(("N3", "N4"))})
    example.close()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SWEEP), store, pristine, tmp_path, str(every)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


# -- columns of a wrong type ------------------------------------------------------------------------------

COLUMNS = {
    "mirror": {"content": str, "checked_us": int},
    "rows": {"tbl": int, "kg": int, "key": bytes, "value": bytes},
}
ODD = [None, "abc", "", b"\xff", b"", 1e400, -1e400, 0.5, 5, -1, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("table, column", [(of, name) for of in COLUMNS for name in COLUMNS[of]])
def test_a_column_of_a_wrong_type_is_damage_with_the_files_to_remove(gate, path, monkeypatch, table, column):
    made(gate, path)
    as_made = " UNION ALL ".join(f"SELECT '{sql}'" for sql in mirror_file.TABLES)
    monkeypatch.setattr(mirror_file, "MADE", as_made)  # such rows need another table than a mirror's
    for odd in [*ODD, "not UTF-8"]:
        copy = path.with_name("copy.db")
        shutil.copy(path, copy)
        with opened(copy) as connection:
            names = ", ".join(COLUMNS[table])
            connection.executescript(
                f"CREATE TABLE loose ({names}); INSERT INTO loose SELECT {names} FROM {table};"
                f"DROP TABLE {table}; ALTER TABLE loose RENAME TO {table};"
            )
            value = "CAST(x'ff41' AS TEXT)" if odd == "not UTF-8" else "?"
            connection.execute(f"UPDATE {table} SET {column} = {value}", () if odd == "not UTF-8" else (odd,))
        try:
            with gate.mirror("aircraft", path=copy) as mirror:
                content(mirror)
                mirror.table("aircraft").get("N1")
        except CorruptError as error:
            refusal = str(error)
        else:
            refusal = ""
        fits = type(odd) is COLUMNS[table][column] and odd != "not UTF-8"
        assert fits or "remove copy.db, copy.db-wal and copy.db-shm" in refusal, f"{odd!r}: {refusal}"
        for name in ("", "-wal", "-shm", "-lock"):
            copy.with_name(f"copy.db{name}").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE rows ADD COLUMN more",
        "ALTER TABLE mirror DROP COLUMN checked_us",
        "CREATE TABLE more (n)",
        "CREATE INDEX more ON rows (key)",
        "DROP TABLE rows; CREATE TABLE rows (tbl, kg, key, value CHECK (tbl < 0))",
    ],
)
def test_other_tables_than_a_mirrors_are_damage(gate, path, sql):
    made(gate, path)
    with opened(path) as connection:
        connection.executescript(sql)
    with pytest.raises(CorruptError, match=r"remove mirror\.db"):
        made(gate, path)


@pytest.mark.parametrize(
    "changes",
    [
        {"at.version": 0},
        {"at.digest": "\x1b[31m"},
        {"at.namespace": "\n"},
        {"tables.aircraft.stride": 0},
        {"tables.aircraft.stride": 3, "key_groups": 2},
        {"tables.aircraft.schema.value": [{"name": "n", "type": "decimal(99,-5)"}]},
        {"tables.aircraft.schema.value": [{"name": "n", "type": "array<" * 200 + "int" + ">" * 200}]},
        {"tables.more": "tables.aircraft"},
    ],
)
def test_a_content_that_cannot_be_is_damage(gate, path, changes):
    """Its JSON is right: what it says is not."""
    made(gate, path)
    with opened(path) as connection:
        content = json.loads(connection.execute("SELECT content FROM mirror").fetchone()[0])
        for place, value in changes.items():
            *parts, last = place.split(".")
            at = content
            for part in parts:
                at = at[part]
            at[last] = content["tables"]["aircraft"] if value == "tables.aircraft" else value
        connection.execute("UPDATE mirror SET content = ?", (json.dumps(content),))
    with pytest.raises(CorruptError, match=r"is damaged: .*remove mirror\.db"):
        made(gate, path)
