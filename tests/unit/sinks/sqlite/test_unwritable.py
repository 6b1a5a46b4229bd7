"""A SQLite store whose folder or disk takes no writes is read, and never at another version (I1, I8).

The child process has a file system of its own mounted, and reads when it is asked to. The parent writes.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
import tidegate.aio
from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.sqlite.disk import unwritable
from tidegate.testing.example import Example


def mounted(command: str) -> tuple[str, ...]:
    """Run a command of a shell first, in a mount namespace of its own."""
    return ("unshare", "-rm", "sh", "-c", f'{command} && exec "$@"', "sh")


MOUNTS = (
    shutil.which("unshare")
    and subprocess.run([*mounted("mount -t tmpfs none /mnt"), "true"], check=False).returncode == 0
)
needs_mounts = pytest.mark.skipif(not MOUNTS, reason="no file system can be mounted here")


def answers(url: str) -> dict[str, object]:
    """Do every call of a reader; the rows by call."""
    with tidegate.connect(url, namespace="flights") as gate:
        version = gate.version()
        table = gate.table("notes")
        with gate.snapshot() as snapshot:
            found = {
                "version": version,
                "get": table.get(b"a"),
                "get_many": table.get_many([b"a", b"b"]),
                "scan": dict(table.scan()),
                "snapshot": dict(snapshot.table("notes").scan()),
                "diff": sum(1 for _ in gate.diff(0, version)),
                "history": len(gate.history()),
            }
    return found | asyncio.run(async_answers(url))


async def async_answers(url: str) -> dict[str, object]:
    async with await tidegate.aio.connect(url, namespace="flights") as gate:
        rows = dict([row async for row in gate.table("notes").scan()])
        async with gate.snapshot() as snapshot:
            pinned = dict([row async for row in snapshot.table("notes").scan()])
        return {"aio scan": rows, "aio snapshot": pinned, "aio get": await gate.table("notes").get(b"a")}


def expected(version: int) -> dict[str, object]:
    rows = notes_of(version)
    whole = ("get_many", "scan", "snapshot", "aio scan", "aio snapshot")
    return (
        dict.fromkeys(whole, rows)
        | dict.fromkeys(("get", "aio get"), rows[b"a"])
        | {"version": version, "diff": len(rows), "history": version}
    )


def notes_of(version: int) -> dict[bytes, bytes]:
    return {b"a": b"%d" % version, b"b": b"%d" % version}


def new_writer(folder: Path) -> Example:
    return Example(f"file://{folder}/wal", f"sqlite://{folder}/store")


def write(example: Example, version: int) -> None:
    assert example.write({"notes": notes_of(version)}) == version


class Child:
    """A reader in a process that has its own mounts."""

    def __init__(self, url: str, mount: str) -> None:
        command = [*mounted(mount), sys.executable, __file__, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answers(self) -> dict[str, object]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("read\n")
        self._process.stdin.flush()
        return dict(ast.literal_eval(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=30)


def main(url: str) -> None:
    for _ in sys.stdin:
        print(answers(url), flush=True)


@pytest.fixture
def readonly(tmp_path) -> Iterator[Child]:
    """A reader whose folder is mounted read-only."""
    store, there = tmp_path / "store", tmp_path / "readonly"
    store.mkdir()
    there.mkdir()
    mount = f"mount --bind {store} {there} && mount -o remount,bind,ro {there}"
    with contextlib.closing(Child(f"sqlite://{there}", mount)) as child:
        yield child


@needs_mounts
def test_a_read_only_mount_is_read_with_and_without_a_writer(readonly, tmp_path):
    """The writer works past the mount: open with its own files, closed, and open again."""
    with contextlib.closing(new_writer(tmp_path)) as example:
        write(example, 1)
        assert readonly.answers() == expected(1)
        write(example, 2)
        assert readonly.answers() == expected(2)
    assert not list((tmp_path / "store" / "flights").glob("*-shm"))
    assert readonly.answers() == expected(2)
    with contextlib.closing(new_writer(tmp_path)) as example:
        write(example, 3)
        assert readonly.answers() == expected(3)
    assert readonly.answers() == expected(3)


@needs_mounts
@pytest.mark.parametrize("killed", [False, True])
def test_a_full_disk_is_read(killed, tmp_path):
    """After a clean end, and with the ``-wal`` files of a writer that was killed."""
    copy, small = tmp_path / "copy", tmp_path / "small"
    small.mkdir()
    with contextlib.closing(new_writer(tmp_path)) as example:
        write(example, 1)
        write(example, 2)
        if killed:
            shutil.copytree(tmp_path / "store", copy, ignore=shutil.ignore_patterns("*-shm"))
    if not killed:
        shutil.copytree(tmp_path / "store", copy)
    assert bool(list((copy / "flights").glob("*-wal"))) == killed
    fill = f"cp -r {copy} {small}/store && ! dd if=/dev/zero of={small}/ballast bs=4k 2>/dev/null"
    mount = f"mount -t tmpfs -o size=8m none {small} && {fill}"
    with contextlib.closing(Child(f"sqlite://{small}/store", mount)) as child:
        assert child.answers() == expected(2)
        assert child.answers() == expected(2)


def test_a_version_that_is_retired_meanwhile_is_refused(tmp_path, monkeypatch):
    """Without a lease the store's own rule holds: the horizon is read after the rows (I8)."""
    with contextlib.closing(new_writer(tmp_path)) as example:
        for version in (1, 2, 3):
            write(example, version)
        store = example.driver.store
        with tidegate.connect(f"sqlite://{tmp_path}/store", "flights") as gate:
            refuse_writes(monkeypatch, gate)
            snapshot = gate.snapshot(version=1)
            assert dict(snapshot.table("notes").scan()) == notes_of(1)
            assert store.leases() == []
            assert store.announce(3) == 3
            with pytest.raises(SnapshotExpiredError):
                dict(snapshot.table("notes").scan())
            with pytest.raises(SnapshotExpiredError):
                gate.snapshot(version=1)


def refuse_writes(monkeypatch, gate) -> None:
    """Let the leases of this gate fail as on a full disk."""
    store = gate._reader.store

    def full(*_: object) -> None:
        with store._files._explaining("meta.sqlite"):
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "lease", full)


REFUSAL = sqlite3.OperationalError("unable to open database file")


@pytest.mark.parametrize("error", [None, ValueError("torn")])
@pytest.mark.parametrize("ends", [False, True])
def test_a_file_that_a_writer_opens_during_the_read_is_refused(error, ends, tmp_path, monkeypatch):
    """What was read then may be of two states, also where it looks damaged (I1, I10)."""
    path = tmp_path / "a.sqlite"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE t (x)")
    writer.close()
    monkeypatch.setattr(unwritable, "_has_index", lambda _: False)

    def connect(parameters: str) -> sqlite3.Connection:
        assert "immutable" in parameters
        return sqlite3.connect(f"file:{path}?{parameters}", uri=True)

    with unwritable.reading_only(path, connect, REFUSAL) as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == []

    def read() -> None:
        with unwritable.reading_only(path, connect, REFUSAL):
            writers.append(sqlite3.connect(path, isolation_level=None))
            writers[0].execute("INSERT INTO t VALUES (1)")
            if ends:
                writers[0].close()
            if error is not None:
                raise error

    writers: list[sqlite3.Connection] = []
    with pytest.raises(sqlite3.OperationalError, match="a writer opened the file"):
        read()
    writers[0].close()
    with unwritable.reading_only(path, connect, REFUSAL) as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]


def test_a_wal_without_its_index_is_no_file_that_stays(tmp_path, monkeypatch):
    """Its commits are in the ``-wal`` alone: reading the file would be reading an old version (I9)."""
    path = tmp_path / "a.sqlite"
    path.touch()
    path.with_name("a.sqlite-wal").touch()
    monkeypatch.setattr(unwritable, "_has_index", lambda _: False)
    with pytest.raises(sqlite3.OperationalError) as raised, unwritable.reading_only(path, fail, REFUSAL):
        pass
    assert raised.value is REFUSAL


def fail(parameters: str) -> sqlite3.Connection:
    raise AssertionError(parameters)


if __name__ == "__main__":
    main(sys.argv[1])


def read_as(user: int, url: str, *, killed: bool) -> int:
    """Read in a child that is another user; return how it ended. The modules are imported before."""
    assert answers_of(url)
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        with tidegate.connect(url, "flights") as gate, gate.snapshot() as snapshot:
            assert dict(snapshot.table("aircraft").scan())
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
    except BaseException:  # noqa: BLE001 - nothing may run behind it in a forked test
        os._exit(1)
    os._exit(0)


def answers_of(url: str) -> dict[object, object]:
    with tidegate.connect(url, "flights") as gate, gate.snapshot() as snapshot:
        return dict(snapshot.table("aircraft").scan())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    "folders, files, reads",
    [
        (0o755, 0o600, False),
        (0o777, 0o600, False),
        (0o777, 0o640, False),
        (0o755, 0o644, True),
        (0o777, 0o644, True),
    ],
)
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_reader_of_another_user_leaves_no_file_that_locks_the_writer_out(folders, files, reads, killed):
    """SQLite makes ``-shm`` for a reader, with the reader as its owner."""
    root = Path(tempfile.mkdtemp(dir="/tmp"))  # not tmp_path: others may not enter that
    try:
        url = f"sqlite://{root}/store"
        with contextlib.closing(Example(f"file://{root}/wal", url)) as writer:
            writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
        for path in [root, *root.rglob("*")]:
            path.chmod(folders if path.is_dir() else files)
            os.chown(path, 1, 1)
        ended = read_as(65_534, url, killed=killed)
        assert (ended == (-signal.SIGKILL if killed else 0)) == reads
        assert [path for path in root.rglob("*") if path.stat().st_uid == 65_534] == []
    finally:
        shutil.rmtree(root)
