"""A file log that is dropped, and made anew, while somebody waits to write into it."""

from __future__ import annotations

import fcntl

import pytest

from tidegate.errors import WalUnavailableError
from tidegate.wal.file import lock
from tidegate.wal.file import log as file_log
from tidegate.wal.file.log import FileLog


@pytest.fixture
def late(tmp_path):
    """A log's writer, which has the log's lock file open and waits for it when ``then`` is run."""
    log = FileLog(tmp_path, "n")
    log.create()
    return FileLog(tmp_path, "n")


def run_before_its_lock(monkeypatch, then):
    real, ran = fcntl.flock, []

    def flock(fd, how):
        if not ran:
            ran.append(True)
            then()
        real(fd, how)

    monkeypatch.setattr(lock.fcntl, "flock", flock)


def test_who_waited_for_the_lock_of_a_dropped_log_shuts_out_the_writers_of_the_new_one(
    late, tmp_path, monkeypatch
):
    new = FileLog(tmp_path, "n", lock_timeout_s=0.05)
    acked = []

    def made_anew():
        new.drop()
        new.create()
        new.append_decision(b"first")
        acked.append(b"first")

    real = file_log.write_all

    def write_beside(fd, content, offset=None):
        monkeypatch.setattr(file_log, "write_all", real)
        try:
            new.append_decision(b"second")
            acked.append(b"second")
        except WalUnavailableError:
            pass  # it has to wait
        real(fd, content, offset)

    def then():
        made_anew()
        monkeypatch.setattr(file_log, "write_all", write_beside)

    run_before_its_lock(monkeypatch, then)
    late.append_decision(b"late")
    there = [entry.content for entry in new.decisions()]
    assert there == [*acked, b"late"]


def test_who_waited_for_the_lock_of_a_dropped_log_finds_none(late, tmp_path, monkeypatch):
    run_before_its_lock(monkeypatch, FileLog(tmp_path, "n").drop)
    with pytest.raises(WalUnavailableError, match="the log was removed"):
        late.append_decision(b"late")
    assert not late.folder.exists()


def test_a_folder_that_is_away_is_first_a_question_of_its_disk(tmp_path):
    log = FileLog(tmp_path / "disk", "n")
    log.create()
    log.append_decision(b"x")
    (tmp_path / "disk").rename(tmp_path / "away")
    with pytest.raises(WalUnavailableError, match="is its disk mounted"):
        FileLog(tmp_path / "disk", "n").append_decision(b"y")
