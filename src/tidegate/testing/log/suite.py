"""The conformance suite of every log, wrappers included: subclass ``LogSuite`` in a test file.

    class TestMyLog(LogSuite):
        def make_log(self): ...
        def reopen(self, log): ...

Its other hooks are in ``testing/log/harness.py``. Hooks that change a log from outside (cut it, damage it)
must not use the log's own methods, so that nothing is tested with itself. A hook that is not overridden is a
capability that the log does not have: the tests that need it are skipped with that reason, and counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

# Before they are imported: without this their failed asserts would show no values.
pytest.register_assert_rewrite(
    "tidegate.testing.concurrency", f"{__package__}.harness", f"{__package__}.trim_tests"
)

from tidegate.errors import ConfigError, CorruptError, WalGapError, WalUnavailableError  # noqa: E402
from tidegate.testing.concurrency import in_another_process  # noqa: E402
from tidegate.testing.log.harness import Place, contents, entries, in_threads  # noqa: E402
from tidegate.testing.log.trim_tests import TrimTests  # noqa: E402
from tidegate.wal.log import Appended, Blob, Log  # noqa: E402

__all__ = ["LogSuite", "Place"]

OTHER_PROCESS = """
import json, sys
from tidegate.wal.open_log import open_log

url, namespace, options, addresses = json.loads(sys.argv[1])
log = open_log(url, namespace, options)
found = {
    "decisions": [entry.content.hex() for entry in log.decisions()],
    "blobs": {blob.address: blob.content.hex() for blob in log.read(addresses)},
}
log.append_decision(b"by another process")
found["staged"] = log.stage("from-another-process", [b"hello"])
print(json.dumps(found))
"""


class Counted(bytes):
    """Bytes that are counted while they exist."""

    alive = 0
    most = 0

    def __init__(self, *_: object) -> None:
        cls = type(self)
        cls.alive += 1
        cls.most = max(cls.most, cls.alive)

    def __del__(self) -> None:
        type(self).alive -= 1


class LogSuite(TrimTests):
    """The guarantees of ``wal/log.py``, one test each or nearly so."""

    # -- before and after --------------------------------------------------------------------------

    def test_a_log_that_was_not_created_yields_nothing_and_takes_nothing(self) -> None:
        log = self.make_log()
        assert list(log.decisions()) == []
        with pytest.raises(WalUnavailableError):
            log.append_decision(b"x")
        with pytest.raises(WalUnavailableError):
            log.stage("s", [b"x"])
        assert list(log.decisions()) == []

    def test_a_log_is_empty_until_its_first_record(self, log: Log) -> None:
        assert self.make_log().is_empty()
        assert log.is_empty()
        log.append_decision(b"")
        assert not log.is_empty()
        assert not self.reopen(log).is_empty()
        log.drop()
        assert log.is_empty()

    def test_create_may_be_repeated_and_keeps_what_is_there(self, log: Log) -> None:
        log.append_decision(b"x")
        (address,) = log.stage("s", [b"y"])
        log.create()
        again = self.reopen(log)
        again.create()
        assert contents(again) == [b"x"]
        assert list(again.read([address])) == [Blob(address, b"y")]

    def test_close_may_be_repeated_and_changes_nothing_durable(self, log: Log) -> None:
        log.append_decision(b"x")
        log.close()
        log.close()
        assert contents(self.reopen(log)) == [b"x"]

    def test_where_names_the_log(self, log: Log) -> None:
        assert log.where
        assert self.make_log().where != log.where

    # -- the decision log --------------------------------------------------------------------------

    def test_records_come_back_in_order_with_their_positions(self, log: Log) -> None:
        records = [b"first", b"", b"\0\0\0", bytes(range(256)), b"\n" * 40, b"\0" * 5000, b"x" * 200_000]
        appends = [log.append_decision(record) for record in records]
        assert list(log.decisions()) == entries(appends, records)
        assert all(before.next_position <= after.position for before, after in itertools.pairwise(appends))

    def test_decisions_go_on_from_every_position_given_out(self, log: Log) -> None:
        records = [b"%d" % i for i in range(5)]
        appends = [log.append_decision(record) for record in records]
        for index, appended in enumerate(appends):
            assert list(log.decisions(appended.position)) == entries(appends, records)[index:]
            assert list(log.decisions(appended.next_position)) == entries(appends, records)[index + 1 :]

    def test_an_append_is_seen_by_every_other_instance(self, log: Log) -> None:
        other = self.reopen(log)
        first = log.append_decision(b"one")
        second = other.append_decision(b"two")
        assert list(log.decisions()) == entries([first, second], [b"one", b"two"])
        assert list(other.decisions(first.next_position)) == entries([second], [b"two"])

    def test_a_repeated_append_is_another_record(self, log: Log) -> None:
        appends = [log.append_decision(b"same") for _ in range(3)]
        assert len({appended.position for appended in appends}) == 3
        assert list(log.decisions()) == entries(appends, [b"same"] * 3)

    def test_iteration_ends_at_the_end_as_it_was_found(self, log: Log) -> None:
        log.append_decision(b"one")
        for _ in log.decisions():  # an append per record seen must not keep the iteration going without end
            log.append_decision(b"more")
        assert contents(log) == [b"one", b"more"]

    def test_an_iteration_left_half_way_harms_nothing(self, log: Log) -> None:
        for index in range(3):
            log.append_decision(b"%d" % index)
        half = log.decisions()
        assert next(half).content == b"0"
        del half
        log.append_decision(b"3")
        assert contents(log) == [b"0", b"1", b"2", b"3"]

    def test_appends_of_many_threads_are_all_there_each_at_its_position(self, log: Log) -> None:
        instances = [log, self.reopen(log)]
        acked: dict[bytes, Appended] = {}

        def work(worker: int) -> None:
            for index in range(20):
                record = b"%d/%d" % (worker, index)
                acked[record] = instances[worker % 2].append_decision(record)

        in_threads(6, work)
        entries_read = list(log.decisions())
        assert {entry.content: Appended(*entry[:2]) for entry in entries_read} == acked
        assert len(entries_read) == 120
        for worker in range(6):
            mine = [entry.content for entry in entries_read if entry.content.startswith(b"%d/" % worker)]
            assert mine == [b"%d/%d" % (worker, index) for index in range(20)]

    def test_a_reader_beside_appending_threads_sees_a_prefix(self, log: Log) -> None:
        seen: list[list[bytes]] = []

        def work(worker: int) -> None:
            for index in range(20):
                if worker:
                    seen.append(contents(log))
                else:
                    log.append_decision(b"%d" % index)

        in_threads(3, work)
        final = contents(log)
        assert len(final) == 20
        assert all(records == final[: len(records)] for records in seen)

    def test_a_position_behind_the_end_is_a_gap(self, log: Log) -> None:
        log.append_decision(b"one")
        last = log.append_decision(b"two")
        self.lose_last_decision(log)
        with pytest.raises(WalGapError):
            list(self.reopen(log).decisions(last.next_position))

    @pytest.mark.parametrize("nth", [0, 1, 2])
    def test_a_damaged_record_is_never_given_out_nor_skipped(self, log: Log, nth: int) -> None:
        records = [b"first record", b"second record", b"third record"]
        for record in records:
            log.append_decision(record)
        self.damage_decision(log, nth)
        seen: list[bytes] = []
        with pytest.raises(CorruptError, match=r"\d"):
            seen.extend(entry.content for entry in self.reopen(log).decisions())
        assert seen == records[: len(seen)]
        assert len(seen) <= nth

    def test_a_torn_record_is_not_there_and_the_next_append_is(self, log: Log) -> None:
        first = log.append_decision(b"first")
        self.tear(log)
        again = self.reopen(log)
        assert contents(again) == [b"first"]
        second = again.append_decision(b"second")
        assert list(log.decisions()) == entries([first, second], [b"first", b"second"])

    # -- the change-log --------------------------------------------------------------------------------------

    def test_staged_blobs_come_back_by_address_in_any_order(self, log: Log) -> None:
        blobs = [b"%d" % i * i for i in range(10)] + [b"\0" * 1000, b"\n"]
        addresses = log.stage("segment-1", iter(blobs)) + log.stage("segment-2", blobs)
        assert len(set(addresses)) == 2 * len(blobs)
        by_address = dict(zip(addresses, blobs * 2, strict=True))
        for chosen in (addresses, addresses[::-1], addresses[1::3], addresses[:1], []):
            blobs_read = list(self.reopen(log).read(chosen))
            assert sorted(blobs_read) == sorted(Blob(address, by_address[address]) for address in chosen)

    def test_an_address_asked_twice_comes_once(self, log: Log) -> None:
        addresses = log.stage("s", [b"a", b"b"])
        assert sorted(log.read(addresses * 3)) == sorted(map(Blob, addresses, [b"a", b"b"]))

    def test_staging_nothing_gives_no_address(self, log: Log) -> None:
        assert log.stage("s", []) == []
        assert log.stage("t", iter(())) == []

    def test_a_large_blob_comes_back_whole(self, log: Log) -> None:
        large = bytes(range(256)) * (self.large_blob_bytes // 256)
        addresses = log.stage("s", [b"small", large, b"small too"])
        contents_read = {blob.address: blob.content for blob in log.read(addresses[1:])}
        assert contents_read[addresses[1]] == large
        assert contents_read[addresses[2]] == b"small too"

    def test_stage_takes_blobs_one_by_one(self, log: Log) -> None:
        """I11: a task's memory does not grow with its change-log."""
        if self.keeps_blobs_in_memory:
            pytest.skip("this log's blobs live in memory")
        Counted.most = Counted.alive
        log.stage("s", (Counted(b"x" * 100_000) for _ in range(20 * self.look_ahead_max)))
        assert Counted.most <= self.look_ahead_max

    def test_an_error_of_the_source_reaches_the_caller_and_leaves_the_log_usable(self, log: Log) -> None:
        class SourceError(Exception):
            pass

        def source() -> Iterator[bytes]:
            yield b"one"
            raise SourceError

        with pytest.raises(SourceError):
            log.stage("broken", source())
        (address,) = log.stage("whole", [b"one"])
        assert list(log.read([address])) == [Blob(address, b"one")]

    @pytest.mark.parametrize("name", ["", "A", "a/b", "..", "a.b", "a:1", "a b", "a\n", "ä", "a\0"])
    def test_a_segment_name_outside_the_alphabet_is_refused(self, log: Log, name: str) -> None:
        with pytest.raises(ConfigError):
            log.stage(name, [b"x"])

    def test_a_segment_name_is_used_once(self, log: Log) -> None:
        if not self.refuses_used_segments:
            pytest.skip("this log does not know which names were used")
        (address,) = log.stage("s", [b"x"])
        with pytest.raises(ConfigError):
            log.stage("s", [b"y"])
        assert list(log.read([address])) == [Blob(address, b"x")]

    def test_a_blob_that_was_never_staged_is_a_gap(self, log: Log) -> None:
        (elsewhere, *_) = addresses = self._of_another_log()
        with pytest.raises(WalGapError):
            list(log.read([elsewhere]))
        (own,) = log.stage("here", [b"x"])
        with pytest.raises(WalGapError):
            list(log.read([own, *addresses]))

    def test_a_blob_that_was_lost_is_a_gap(self, log: Log) -> None:
        (lost,) = log.stage("lost", [b"x"])
        (other,) = log.stage("kept", [b"y"])
        self.lose_segment(log, "lost")
        with pytest.raises(WalGapError):
            list(self.reopen(log).read([lost]))
        assert list(log.read([other])) == [Blob(other, b"y")]

    @pytest.mark.parametrize(
        "address",
        ["", ":", "s", "s:x:y", "../../etc/passwd:0:10", "/etc/passwd:0:1", "s:0:1:2:3:4", "s:-1:5"],
    )
    def test_an_address_that_no_log_gives_out_is_refused(self, log: Log, address: str) -> None:
        log.stage("s", [b"x" * 100])
        with pytest.raises(CorruptError, match="address"):
            list(log.read([address]))

    def test_a_damaged_blob_is_never_taken_for_the_one_that_was_staged(self, log: Log) -> None:
        blobs = [b"a" * 100, b"b" * 100, b"c" * 100]
        together = [blobs] if not self.batches_share_a_checksum else [[blob] for blob in blobs]
        addresses = [a for nth, batch in enumerate(together) for a in log.stage(f"s-{nth}", batch)]
        self.damage_blob(log, addresses[1])
        again = self.reopen(log)
        try:
            (blob,) = again.read([addresses[1]])
        except CorruptError:
            pass
        else:
            assert blob.content != blobs[1]  # the caller's checksum finds it
        others = [addresses[0], addresses[2]]
        assert {blob.content for blob in again.read(others)} == {blobs[0], blobs[2]}

    def test_many_threads_stage_at_once(self, log: Log) -> None:
        staged: dict[str, bytes] = {}

        def work(worker: int) -> None:
            blobs = [b"%d/%d" % (worker, index) for index in range(20)]
            staged.update(zip(log.stage(f"s-{worker}", blobs), blobs, strict=True))

        in_threads(4, work)
        assert {blob.address: blob.content for blob in log.read(list(staged))} == staged
        assert len(staged) == 80

    # -- the end -----------------------------------------------------------------------------------

    def test_drop_leaves_nothing_and_may_be_repeated(self, log: Log) -> None:
        log.append_decision(b"x")
        (address,) = log.stage("s", [b"y"])
        other = self.reopen(log)
        assert log.drop() is True
        assert log.drop() is False
        for instance in (log, other, self.reopen(log)):
            assert contents(instance) == []
            assert sum(instance.size()) == 0
            with pytest.raises(WalGapError):
                list(instance.read([address]))
            with pytest.raises(WalUnavailableError):
                instance.append_decision(b"z")
            with pytest.raises(WalUnavailableError):
                instance.stage("t", [b"z"])
        assert self.make_log().drop() is False

    def test_after_drop_a_log_is_made_anew(self, log: Log) -> None:
        log.append_decision(b"old")
        last = log.append_decision(b"older").next_position
        log.stage("s", [b"old"])
        log.drop()
        fresh = self.reopen(log)
        fresh.create()
        appends = fresh.append_decision(b"new")
        assert list(fresh.decisions()) == entries([appends], [b"new"])
        (address,) = fresh.stage("s", [b"new"])
        assert list(fresh.read([address])) == [Blob(address, b"new")]
        with pytest.raises(WalGapError):
            list(fresh.decisions(last))

    # -- another process ---------------------------------------------------------------------------

    def test_another_process_reads_all_of_it_and_adds_to_it(self, log: Log) -> None:
        place = self.place(log)
        if place is None:
            pytest.skip("this log lives in one process")
        log.append_decision(b"here")
        blobs = [b"one", b"two"]
        addresses = log.stage("s", blobs)
        seen = in_another_process(OTHER_PROCESS, [*place, addresses])
        assert seen["decisions"] == [b"here".hex()]
        assert seen["blobs"] == {a: blob.hex() for a, blob in zip(addresses, blobs, strict=True)}
        assert contents(log) == [b"here", b"by another process"]
        assert [blob.content for blob in log.read(seen["staged"])] == [b"hello"]

    def _of_another_log(self) -> list[str]:
        other = self.make_log()
        other.create()
        try:
            return other.stage("elsewhere", [b"1", b"2"])
        finally:
            other.close()
