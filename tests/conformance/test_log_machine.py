"""Any sequence of calls on a log against plain lists, with instances that come and go and crashes between."""

import os
import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tidegate.errors import WalGapError
from tidegate.wal.file.log import FileLog
from tidegate.wal.memory_log import MemoryLog, forget

CONTENT = st.binary(max_size=60) | st.sampled_from([b"\0" * 50, b"\n", b"x" * 5000])


class LogMachine(RuleBasedStateMachine):
    addresses = Bundle("addresses")

    def __init__(self):
        super().__init__()
        self.records = []  # (position, next position, content), in order
        self.blobs = {}
        self.trimmed = set()  # addresses
        self.forgotten = []  # records before the cut
        self.segments = 0

    @initialize()
    def start(self):
        self.instances = [self.make()]
        self.instances[0].create()

    @rule(content=CONTENT, which=st.integers(0, 3))
    def append(self, content, which):
        appended = self.instance(which).append_decision(content)
        self.records.append((*appended, content))

    @rule(which=st.integers(0, 3), start=st.integers(0, 30), after=st.booleans())
    def read_on(self, which, start, after):
        if not self.records:
            return
        start %= len(self.records)
        found = self.instance(which).decisions(self.records[start][1 if after else 0])
        assert [tuple(entry) for entry in found] == self.records[start + after :]

    @rule(target=addresses, blobs=st.lists(CONTENT, max_size=4), which=st.integers(0, 3))
    def stage(self, blobs, which):
        self.segments += 1
        given = self.instance(which).stage(f"s-{self.segments}", iter(blobs))
        assert len(given) == len(blobs)
        assert not set(given) & set(self.blobs)
        self.blobs.update(zip(given, blobs, strict=True))
        return tuple(given)

    @rule(blobs=st.lists(CONTENT, max_size=3), which=st.integers(0, 3))
    def stage_from_a_source_that_fails(self, blobs, which):
        def source():
            yield from blobs
            raise ZeroDivisionError

        self.segments += 1
        with pytest.raises(ZeroDivisionError):
            self.instance(which).stage(f"s-{self.segments}", source())

    @rule(asked=st.lists(addresses, max_size=4), which=st.integers(0, 3), backwards=st.booleans())
    def read(self, asked, which, backwards):
        wanted = [address for group in asked for address in group][:: -1 if backwards else 1]
        if self.trimmed.intersection(wanted):
            with pytest.raises(WalGapError):
                list(self.instance(which).read(wanted))
            return
        found = list(self.instance(which).read(wanted))
        assert len(found) == len(set(wanted))
        assert dict(found) == {address: self.blobs[address] for address in wanted}

    @rule(which=st.integers(0, 3), at=st.integers(0, 30))
    def cut(self, which, at):
        if not self.records:
            return
        everything = [*self.forgotten, *self.records]
        at %= len(everything)
        self.instance(which).trim_decisions(everything[at][0])
        if at > len(self.forgotten):  # else it was cut there, or further, before
            self.forgotten, self.records = everything[:at], everything[at:]

    @rule(which=st.integers(0, 3), at=st.integers(0, 30))
    def read_what_was_cut_off(self, which, at):
        if at < len(self.forgotten) and self.forgotten[at][0]:
            with pytest.raises(WalGapError):
                list(self.instance(which).decisions(self.forgotten[at][0]))

    @rule(needed=st.lists(addresses, max_size=4), which=st.integers(0, 3), old=st.booleans())
    def trim(self, needed, which, old):
        kept = [address for group in needed for address in group]
        before = self.instance(which).size().changelog_bytes
        trimmed = self.instance(which).trim_blobs(kept, 2**60 if old else 1)
        assert self.instance(which).size().changelog_bytes == before - trimmed.bytes
        if old:
            segments = {address.partition(":")[0] for address in kept}
            self.trimmed |= {a for a in self.blobs if a.partition(":")[0] not in segments}

    @rule()
    def open_another(self):
        if len(self.instances) < 4:
            self.instances.append(self.make())

    @rule(which=st.integers(0, 3))
    def close_one(self, which):
        self.instance(which).close()
        self.instances.remove(self.instance(which))
        if not self.instances:
            self.instances.append(self.make())

    @rule(which=st.integers(0, 3))
    def create_again(self, which):
        self.instance(which).create()

    @invariant()
    def everything_is_there(self):
        for instance in getattr(self, "instances", []):
            assert [tuple(entry) for entry in instance.decisions()] == self.records

    def instance(self, which):
        return self.instances[which % len(self.instances)]


class MemoryLogMachine(LogMachine):
    def __init__(self):
        super().__init__()
        self.name = uuid.uuid4().hex

    def make(self):
        return MemoryLog(self.name, "n")

    def teardown(self):
        forget(self.name)


class FileLogMachine(LogMachine):
    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp())

    def make(self):
        return FileLog(self.root, "n")

    @rule(content=CONTENT, part=st.floats(0, 1), zeros=st.sampled_from([0, 0, 1, 40, 6000]))
    def crash_in_an_append(self, content, part, zeros):
        """Leave what a process leaves that dies within its write; a later append must not mind.

        The frame is a real one, made by another log.
        """
        other = FileLog(self.root / "other", "n")
        other.create()
        appended = other.append_decision(content)
        frame = (other.folder / "decisions.log").read_bytes()[appended.position :]  # its base is 0
        shutil.rmtree(self.root / "other")
        kept = min(int(part * len(frame)), len(frame) - 1)
        path = self.root / "n" / "decisions.log"
        base = self.records[0][0] - 21 if self.forgotten else 0
        end = self.records[-1][1] - base if self.records else 21
        os.truncate(path, end)  # the next holder of the lock would have cut an earlier torn tail
        with path.open("ab") as file:
            file.write(frame[:kept] + bytes(zeros))

    def teardown(self):
        shutil.rmtree(self.root)


SMALL = settings(max_examples=80, stateful_step_count=30)
TestMemoryLogMachine = MemoryLogMachine.TestCase
TestMemoryLogMachine.settings = SMALL
TestFileLogMachine = FileLogMachine.TestCase
TestFileLogMachine.settings = SMALL
