"""Tests of cutting and trimming, which every log passes. Part of ``log_suite.LogSuite``."""

from __future__ import annotations

import pytest

from tidegate.errors import CorruptError, WalGapError, WalUnavailableError
from tidegate.testing.log.harness import LogHarness, contents, entries, in_threads
from tidegate.wal.fold import Entry
from tidegate.wal.log import Appended, Blob, Log, LogSize

LONG_AGO_US, FAR_AHEAD_US = 1, 2**60
HOUR_S = 3_600


class TrimTests(LogHarness):
    """Tests of ``trim_decisions``, ``trim_blobs`` and ``size``."""

    # -- the decision log ----------------------------------------------------------------------------

    @pytest.mark.parametrize("at", range(5))
    def test_a_cut_log_starts_with_the_record_it_was_cut_at(self, log: Log, at: int) -> None:
        appends, records = self._appended(log, 5)
        log.trim_decisions(appends[at].position)
        for instance in (log, self.reopen(log)):
            assert list(instance.decisions()) == entries(appends, records)[at:]
            for index in range(at, 5):
                assert list(instance.decisions(appends[index].position)) == entries(appends, records)[index:]
            assert list(instance.decisions(appends[-1].next_position)) == []

    def test_records_before_the_cut_are_a_gap(self, log: Log) -> None:
        appends, _ = self._appended(log, 4)
        log.trim_decisions(appends[2].position)
        for position in (appends[0].next_position, appends[1].position):
            for instance in (log, self.reopen(log)):
                with pytest.raises(WalGapError):
                    list(instance.decisions(position))

    def test_appends_go_on_behind_a_cut_at_positions_that_go_on(self, log: Log) -> None:
        other = self.reopen(log)
        appends, records = self._appended(log, 3)
        other.append_decision(b"by the other")
        log.trim_decisions(appends[2].position)
        for instance in (other, log, self.reopen(log)):
            before = list(log.decisions())
            appended = instance.append_decision(b"more")
            assert appended.position >= before[-1].next_position
            assert list(log.decisions()) == [*before, Entry(*appended, b"more")]
        assert contents(other)[:2] == [records[2], b"by the other"]

    def test_a_cut_may_be_repeated_and_an_earlier_one_changes_nothing(self, log: Log) -> None:
        """A zombie cuts late, at the place that it believes to be the log's begin."""
        appends, records = self._appended(log, 5)
        for index in (1, 3, 3, 1, 0, 2):
            self.reopen(log).trim_decisions(appends[index].position)
        assert list(log.decisions()) == entries(appends, records)[3:]
        log.trim_decisions(appends[4].position)
        assert list(log.decisions()) == entries(appends, records)[4:]

    def test_a_cut_where_no_record_stands_is_refused(self, log: Log) -> None:
        appends, records = self._appended(log, 2)
        with pytest.raises(WalGapError):
            log.trim_decisions(appends[1].next_position)
        with pytest.raises(WalGapError):
            log.trim_decisions(appends[1].next_position + 1_000)
        assert list(log.decisions()) == entries(appends, records)

    def test_an_iteration_that_has_begun_is_not_torn(self, log: Log) -> None:
        appends, records = self._appended(log, 4)
        half = log.decisions()
        first = next(half)
        log.trim_decisions(appends[3].position)
        log.append_decision(b"more")
        assert [first, *half] == entries(appends, records)
        assert contents(log) == [records[3], b"more"]

    def test_no_append_is_lost_beside_cuts_and_readers_see_runs_without_holes(self, log: Log) -> None:
        instances = [log, self.reopen(log), self.reopen(log)]
        log.append_decision(b"0")
        acked: dict[Appended, bytes] = {}
        runs: list[list[Entry]] = []

        def work(worker: int) -> None:
            mine = instances[worker]
            for number in range(1, 30):
                if worker == 0:
                    acked[mine.append_decision(b"%d" % number)] = b"%d" % number
                elif worker == 1:
                    mine.trim_decisions(list(mine.decisions())[-1].position)
                else:
                    runs.append(list(mine.decisions()))

        in_threads(3, work)
        runs.append(list(log.decisions()))
        assert runs[-1][-1].content == b"29"
        for run in runs:
            numbers = [int(entry.content) for entry in run]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            for position, following, content in run:
                assert content == b"0" or acked[Appended(position, following)] == content

    # -- the change-log --------------------------------------------------------------------------------

    def test_old_blobs_that_nobody_needs_go(self, log: Log) -> None:
        needed = log.stage("kept", [b"1", b"22"])
        removed = log.stage("gone", [b"333", b"4444"])
        before = log.size().changelog_bytes
        trimmed = log.trim_blobs(needed[1:], FAR_AHEAD_US)
        assert trimmed.bytes >= 7
        assert log.size().changelog_bytes == before - trimmed.bytes
        again = self.reopen(log)
        assert list(again.read(needed[1:])) == [Blob(needed[1], b"22")]
        for address in removed:
            with pytest.raises(WalGapError):
                list(again.read([address]))
        assert log.trim_blobs(needed[1:], FAR_AHEAD_US).bytes == 0
        assert list(again.read(needed[1:])) == [Blob(needed[1], b"22")]

    def test_young_blobs_stay_whoever_needs_them(self, log: Log) -> None:
        """They may be of an attempt that another driver is staging."""
        addresses = log.stage("young", [b"1"])
        assert log.trim_blobs([], LONG_AGO_US).bytes == 0
        assert list(log.read(addresses)) == [Blob(addresses[0], b"1")]

    def test_age_is_told_from_the_time_of_staging(self, log: Log) -> None:
        (old,), (young,) = log.stage("old", [b"1"]), log.stage("young", [b"2"])
        self.make_old(log, "old", 2 * HOUR_S)
        log.trim_blobs([], self.clock.now_us() - HOUR_S * 1_000_000)
        assert list(log.read([young])) == [Blob(young, b"2")]
        with pytest.raises(WalGapError):
            list(log.read([old]))

    def test_a_needed_blob_stays_however_old(self, log: Log) -> None:
        addresses = log.stage("s", [b"1", b"2"])
        self.make_old(log, "s", 1_000 * HOUR_S)
        log.trim_blobs(addresses[:1], self.clock.now_us())
        assert list(log.read(addresses[:1])) == [Blob(addresses[0], b"1")]

    def test_staging_goes_on_behind_a_trim(self, log: Log) -> None:
        log.stage("a", [b"1"])
        log.trim_blobs([], FAR_AHEAD_US)
        (address,) = log.stage("b", [b"2"])
        assert list(log.read([address])) == [Blob(address, b"2")]

    def test_an_address_of_no_log_drops_nothing(self, log: Log) -> None:
        (address,) = log.stage("s", [b"1"])
        with pytest.raises(CorruptError, match="address"):
            log.trim_blobs([address, "../../etc/passwd:0:10"], FAR_AHEAD_US)
        log.stage("t", [b"2"])
        assert list(log.read([address])) == [Blob(address, b"1")]

    def test_needed_addresses_that_are_gone_or_foreign_do_no_harm(self, log: Log) -> None:
        (removed,) = log.stage("gone", [b"1"])
        log.trim_blobs([], FAR_AHEAD_US)
        (address,) = log.stage("s", [b"2"])
        log.trim_blobs([removed, address], FAR_AHEAD_US)
        assert list(log.read([address])) == [Blob(address, b"2")]

    def test_trims_of_many_threads_beside_staging_drop_nothing_needed(self, log: Log) -> None:
        groups = [log.stage(f"w-{index}", [b"%d" % index]) for index in range(5)]
        needed = [address for addresses in groups for address in addresses]
        staged: dict[str, bytes] = {}

        def work(worker: int) -> None:
            for index in range(10):
                if worker == 0:
                    (address,) = log.stage(f"n-{index}", [b"%d" % index])
                    staged[address] = b"%d" % index
                else:
                    log.trim_blobs(needed, LONG_AGO_US)

        for index in range(5):
            log.stage(f"orphan-{index}", [b"x"])
            self.make_old(log, f"orphan-{index}", HOUR_S)
        in_threads(3, work)
        assert len(list(log.read(needed))) == 5
        assert {blob.address: blob.content for blob in log.read(list(staged))} == staged

    # -- before and around ---------------------------------------------------------------------------------

    def test_a_log_that_was_not_created_is_not_trimmed(self) -> None:
        log = self.make_log()
        assert log.size() == LogSize(0, 0)
        with pytest.raises(WalUnavailableError):
            log.trim_decisions(0)
        with pytest.raises(WalUnavailableError):
            log.trim_blobs([], FAR_AHEAD_US)

    def test_the_size_follows_what_is_in_the_log(self, log: Log) -> None:
        empty = log.size()
        appends, _ = self._appended(log, 3)
        decisions = log.size()
        assert decisions.decisions_bytes >= empty.decisions_bytes + sum(len(b"record 0") for _ in appends)
        log.stage("s", [b"x" * 1_000])
        assert log.size().changelog_bytes >= empty.changelog_bytes + 1_000
        log.trim_decisions(appends[2].position)
        assert log.size().decisions_bytes < decisions.decisions_bytes
        assert log.size() == self.reopen(log).size()

    def _appended(self, log: Log, count: int) -> tuple[list[Appended], list[bytes]]:
        records = [b"record %d" % index for index in range(count)]
        return [log.append_decision(record) for record in records], records
