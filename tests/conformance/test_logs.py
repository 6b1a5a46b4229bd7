"""Every log passes the shipped suite."""

import itertools
import os
import uuid

import pytest

from tidegate.testing.log.suite import LogSuite, Place
from tidegate.wal.file.log import FileLog
from tidegate.wal.memory_log import MemoryLog, _contents, forget


class TestMemoryLog(LogSuite):
    keeps_blobs_in_memory = True

    @pytest.fixture(autouse=True)
    def _name(self):
        self.name = uuid.uuid4().hex
        self.namespaces = itertools.count()
        yield
        forget(self.name)

    def make_log(self):
        return self._instance(f"n{next(self.namespaces)}")

    def reopen(self, log):
        return self._instance(log.test_namespace)

    def lose_segment(self, log, segment):
        del self._content(log).segments[segment]

    def lose_last_decision(self, log):
        self._content(log).records.pop()

    def make_old(self, log, segment, seconds):
        self._content(log).staged_at_us[segment] -= int(seconds * 1_000_000)

    def _instance(self, namespace):
        log = MemoryLog(self.name, namespace)
        log.test_namespace = namespace
        return log

    def _content(self, log):
        return _contents[self.name, log.test_namespace]


class TestFileLog(LogSuite):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root = tmp_path / "wal"
        self.namespaces = itertools.count()

    def make_log(self):
        return FileLog(self.root, f"n{next(self.namespaces)}")

    def reopen(self, log):
        return FileLog(self.root, log.folder.name)

    def place(self, log):
        return Place(self.root.as_uri(), log.folder.name, {"lock_timeout_s": 5})

    def damage_decision(self, log, nth):
        path = log.folder / "decisions.log"
        content = bytearray(path.read_bytes())
        at = content.index(b"record")
        for _ in range(nth):
            at = content.index(b"record", at + 1)
        content[at] ^= 4
        path.write_bytes(content)

    def damage_blob(self, log, address):
        segment, offset, length = address.split(":")
        path = log.folder / "changelog" / f"{segment}.seg"
        content = bytearray(path.read_bytes())
        content[int(offset) + 16 + int(length) // 2] ^= 1
        path.write_bytes(content)

    def tear(self, log):
        path = log.folder / "decisions.log"
        whole = path.read_bytes()
        # Half of a copy of the record that is there.
        path.write_bytes(whole + whole[21 : 21 + (len(whole) - 21) // 2])

    def lose_segment(self, log, segment):
        (log.folder / "changelog" / f"{segment}.seg").unlink()

    def lose_last_decision(self, log):
        path = log.folder / "decisions.log"
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rindex(b"two") - 16])

    def make_old(self, log, segment, seconds):
        path = log.folder / "changelog" / f"{segment}.seg"
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))
