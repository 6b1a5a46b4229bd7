"""The store suite: which versions leases hold, for how long, and what revokes them."""

from __future__ import annotations

import functools

import pytest

from tidegate.base.steps import run
from tidegate.errors import (
    ConfigError,
    SnapshotExpiredError,
    StoreUnavailableError,
    VersionRegressedError,
)
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.leases import Lease, of_writer, pin
from tidegate.sinks.store import Store
from tidegate.testing.concurrency import in_threads
from tidegate.testing.store.harness import EPOCH, StoreHarness, get, put, put_each


class LeaseTests(StoreHarness):
    def test_leases_are_listed_with_their_age_until_they_run_out(self, store: Store) -> None:
        put_each(store, 3, "t")
        assert store.leases() == []
        store.lease(Lease("a", 3), 100)
        self.advance(store, 10)
        store.lease(Lease("b", 1), 30)
        self.advance(store, 20)
        leases = self.reopen(store).leases()
        assert [(info.lease_id, info.version) for info in leases] == [("b", 1), ("a", 3)]
        assert [info.age_s for info in leases] == [pytest.approx(20, abs=9), pytest.approx(30, abs=5)]
        assert [info.expires_in_s for info in leases] == [pytest.approx(10, abs=9), pytest.approx(70, abs=5)]
        self.advance(store, 20)
        assert [info.lease_id for info in store.leases()] == ["a"]
        store.release("a")
        assert store.leases() == []

    def test_a_renewal_keeps_the_time_the_lease_was_first_taken(self, store: Store) -> None:
        put_each(store, 2, "t")
        for _ in range(3):
            store.lease(Lease("a", 1), 100)
            self.advance(store, 50)
        (info,) = store.leases()
        assert info.age_s == pytest.approx(150, abs=9)
        store.lease(Lease("a", 2), 100)  # another version: another pin
        (info,) = store.leases()
        assert info.version == 2
        assert info.age_s == pytest.approx(0, abs=9)

    def test_a_lease_holds_no_longer_than_max_lease(self, store: Store) -> None:
        put_each(store, 3, "t")
        store.lease(Lease("a", 1), 3_600)
        self.advance(store, 60)
        assert store.announce(3, max_lease_s=100) == 1
        self.advance(store, 60)
        store.lease(Lease("a", 1), 3_600)  # renewed, and still as old
        assert store.announce(3, max_lease_s=100) == 3

    def test_a_lease_holds_no_more_than_max_layers(self, store: Store) -> None:
        put_each(store, 5, "t")
        store.lease(Lease("a", 1), 3_600)
        store.lease(Lease("b", 2), 3_600)
        assert store.announce(5, max_layers=4) == 1
        assert store.announce(5, max_layers=3) == 2
        assert [info.lease_id for info in store.leases()] == ["b"]
        assert store.announce(5, max_layers=0) == 5

    def test_t28_who_is_revoked_is_refused_at_once(self, store: Store) -> None:
        """I8: one step moves the horizon and ends the lease."""
        put_each(store, 4, "t")
        store.lease(Lease("a", 2), 3_600)
        scan = store.scan(ReadAt("t", 2), 0)
        assert store.announce(4, max_lease_s=0.000_001, max_layers=1) == 4
        assert store.leases() == []
        for ask in (
            lambda: store.lease(Lease("a", 2), 3_600),
            lambda: store.get_many(ReadAt("t", 2), [b"k"]),
            lambda: list(scan),
        ):
            with pytest.raises(SnapshotExpiredError):
                ask()

    def test_limits_revoke_nothing_that_the_horizon_does_not_pass(self, store: Store) -> None:
        put_each(store, 5, "t")
        store.lease(Lease("a", 3), 3_600)
        self.advance(store, 1_000)
        assert store.announce(2, max_lease_s=10, max_layers=1) == 2
        store.lease(Lease("a", 3), 3_600)
        assert get(store, "t", [b"k"], 3) == [b"3"]
        assert store.announce(9) == 3  # without limits it holds

    def test_t41_a_lease_from_a_clock_that_went_back_holds_within_the_limit(self, store: Store) -> None:
        put_each(store, 3, "t")
        self.advance(store, 10_000)
        store.lease(Lease("a", 1), 3_600)
        self.advance(store, -10_000)
        assert store.announce(3, max_lease_s=600) == 3

    def test_a_late_announce_moves_nothing_back_and_nothing_past_a_lease(self, store: Store) -> None:
        """T1: a call of an older driver, with limits of its own."""
        put_each(store, 6, "t")
        assert store.announce(4) == 4
        store.lease(Lease("a", 4), 3_600)
        for late in (1, 3, 4, 6):
            assert self.reopen(store).announce(late, max_lease_s=600, max_layers=100) == 4
        store.lease(Lease("a", 4), 3_600)
        assert get(store, "t", [b"k"], 4) == [b"4"]

    def test_a_late_renewal_of_what_was_given_back_only_runs_out_later(self, store: Store) -> None:
        put_each(store, 3, "t")
        store.lease(Lease("a", 1), 60)
        store.release("a")
        store.lease(Lease("a", 1), 60)
        assert store.announce(3) == 1
        self.advance(store, 61)
        assert store.announce(3) == 3
        with pytest.raises(SnapshotExpiredError):
            store.lease(Lease("a", 1), 60)

    def test_renewal_and_revocation_are_atomic(self, store: Store) -> None:
        """Either the renewal was too late and raises, or the horizon stopped at the lease."""
        put_each(store, 1, "t")
        for version in range(1, 8):
            assert store.announce(version) == version
            put(store, version + 1, {"t": {b"k": b"%d" % (version + 1)}})
            store.lease(Lease("a", version), 3_600)
            store.release("a")
            renewed, horizon = in_threads(
                functools.partial(self.reopen(store).lease, Lease("a", version), 3_600),
                functools.partial(store.announce, version + 1, max_lease_s=600),
            )
            assert (horizon == version) == (renewed is None)
            store.release("a")

    def test_readers_together_hold_a_version_no_longer_than_max_lease(self, store: Store) -> None:
        """T57: each lease is new, but the version has been held for long."""
        put_each(store, 4, "t")
        for reader in range(3):
            store.lease(Lease(f"reader-{reader}", 1), 3_600)
            assert store.announce(2, max_lease_s=100, keep_versions=3) == 1
            self.advance(store, 40)
        store.lease(Lease("late", 1), 3_600)
        store.lease(Lease("newer", 2), 3_600)
        assert store.announce(3, max_lease_s=100, keep_versions=3) == 2, "version 5 is not visible yet"
        with pytest.raises(SnapshotExpiredError):
            store.lease(Lease("late", 1), 3_600)

    def test_a_lease_of_the_writer_is_not_limited_by_time(self, store: Store) -> None:
        """The duration of a fill of a large store has no limit; only ``max_layers`` limits it."""
        put_each(store, 4, "t")
        store.lease(Lease(of_writer("fill"), 1), 3_600)
        self.advance(store, 200)
        assert store.announce(4, max_lease_s=100, keep_versions=1) == 1
        assert [info.lease_id for info in store.leases()] == [of_writer("fill")]
        assert store.announce(4, max_lease_s=100, keep_versions=1, max_layers=2) == 4
        assert store.leases() == []
        store.lease(Lease(of_writer("fill"), 4), 3_600)
        store.release(of_writer("fill"))
        assert store.leases() == []

    def test_above_the_most_leases_a_version_is_read_without_one(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Readers that hold all leases there may be refuse no other reader."""
        put_each(store, 4, "t")
        self.allow_leases(store, 3, monkeypatch)
        for name in "abc":
            store.lease(Lease(name, 3), 60)
        other, late = self.reopen(store), Lease("late", 3)
        with pytest.raises(StoreUnavailableError, match="the most that the store allows") as refused:
            other.lease(late, 60)
        assert refused.value.writes_refused
        assert run(pin(other, late, 60)) is not None
        store.lease(Lease("a", 3), 60)  # a renewal
        assert get(other, "t", [b"k"], 3) == [b"3"]
        assert {info.lease_id for info in store.leases()} == {*"abc"}
        for name in "abc":
            store.release(name)
        assert run(pin(other, late, 60)) is None
        store.release("late")
        for name in "abc":
            store.lease(Lease(name, 4), 60)
        assert store.announce(4, max_leases=3) == 4
        with pytest.raises(SnapshotExpiredError):
            run(pin(other, late, 60))

    def test_what_cannot_be_a_lease_is_refused(self, store: Store) -> None:
        put_each(store, 3, "t")
        with pytest.raises(VersionRegressedError):
            store.lease(Lease("a", 4), 60)
        for lease_id in ("", "a b", "x" * 65, "é", "a\n"):
            with pytest.raises(ConfigError, match="cannot be a lease"):
                store.lease(Lease(lease_id, 3), 60)
        with pytest.raises(ConfigError, match="cannot be a lease"):
            store.lease(Lease("a", 3), 100_000)
        assert store.leases() == []

    def test_a_claim_is_no_heartbeat(self, store: Store) -> None:
        """The pointer's last sign of life stays that of an older writer."""
        assert store.pointer().heartbeat_age_s is None
        store.claim(EPOCH + 1, "writer-2")
        assert store.pointer().heartbeat_age_s is None
