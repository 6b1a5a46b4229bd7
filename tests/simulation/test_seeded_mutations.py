"""The simulation must find what it is there to find: rules of the protocol, broken on purpose (T50)."""

import msgspec
import pytest

from tidegate.committers import apply, commit, states, trim
from tidegate.committers import open as opening
from tidegate.committers.states import Event
from tidegate.sinks.memory_store import MemoryStore
from tidegate.testing import scenario
from tidegate.testing.history import Violation
from tidegate.testing.simulation import run_schedules
from tidegate.wal import changelog, fold
from tidegate.wal.record import Decided, Summary

SCHEDULES = 3_000
SEED = 50


def flip_before_apply(patch):
    patch.setattr(apply, "do", lambda *_: None)


def a_part_is_enough(patch):
    """Apply out of the manifest's frames only the first."""
    plain = apply.chunks_of
    patch.setattr(apply, "chunks_of", lambda work, log: list(plain(work, log))[:1])
    patch.setattr(MemoryStore, "seal", lambda *_: None)


def ack_before_durable(patch):
    plain = changelog.stage_task

    def acks_at_once(batches, spec, log, **task):
        class Hasty:
            def stage(self, segment, blobs):
                blobs = list(blobs)
                try:
                    return log.stage(segment, blobs)
                except scenario.TidegateError:
                    return [f"{segment}:{index}" for index in range(len(blobs))]

        return plain(batches, spec, Hasty(), **task)

    patch.setattr(scenario, "stage_task", acks_at_once)


def the_store_ignores_epochs(patch):
    plain = MemoryStore.publish
    patch.setattr(MemoryStore, "publish", lambda store, entry, _: plain(store, entry, 1_000_000))


def the_store_ignores_the_predecessor(patch):
    def publish_anything(store, entry, epoch):
        space = store._space
        pointer = space.pointer
        if pointer.epoch <= epoch and pointer.visible != entry.version:
            space.catalog[entry.version] = entry
            space.pointer = type(pointer)(entry.version, entry.digest, epoch, pointer.writer, pointer.horizon)
            return True
        return False

    patch.setattr(MemoryStore, "publish", publish_anything)


def no_claim(patch):
    patch.setattr(opening, "claim_epoch", lambda _: None)


def no_recovery_at_open(patch):
    patch.setattr(opening, "recover", lambda _: [])


def a_lost_append_means_undecided(patch):
    patch.setattr(states, "TABLE", _table(states.State.DECIDING, Event.APPEND_LOST, states.State.UNDECIDED))


def absence_is_proof(patch):
    patch.setattr(states, "TABLE", _table(states.State.FOLDING, Event.DEADLINE, states.State.UNDECIDED))


def a_lost_flip_is_taken_for_done(patch):
    patch.setattr(states, "TABLE", _table(states.State.SEALED, Event.NOT_FLIPPED, states.State.VISIBLE))


def the_own_attempt_is_applied_whichever_won(patch):
    """Everything but the manifest is the winner's."""
    plain = commit.complete
    patch.setattr(commit, "complete", lambda driver, fact, _, machine: plain(driver, fact, OWN[0], machine))
    encode = commit.encode_manifest

    def remember(manifest):
        OWN[:] = [manifest]
        return encode(manifest)

    patch.setattr(commit, "encode_manifest", remember)


OWN = []


def the_pointer_is_read_after_the_log(patch):
    plain = opening._refuse_other_history
    patch.setattr(
        opening,
        "_refuse_other_history",
        lambda driver, state, _: plain(driver, state, driver.store.pointer()),
    )


def retirement_ignores_leases(patch):
    plain = MemoryStore.announce

    def announce_first(store, horizon, **limits):
        store._space.leases.clear()
        return plain(store, horizon, **limits)

    patch.setattr(MemoryStore, "announce", announce_first)


def retirement_deletes_before_it_announces(patch):
    def too_late(store, horizon, **limits):
        return max(store._space.pointer.horizon, min(horizon, store._space.pointer.visible))

    patch.setattr(MemoryStore, "announce", too_late)
    patch.setattr(MemoryStore, "_raise_floor", staticmethod(lambda *_: None))


def a_summary_moves_the_digest(patch):
    """Then one that lands late voids what was decided on the digest before it."""
    plain = fold.fold

    def moving(state, record, content=None):
        after = plain(state, record, content)
        if isinstance(record, Summary) and state is not None and fold.why_void(state, record) is None:
            return msgspec.structs.replace(after, digest=fold.digest_after(state.digest, content or b""))
        return after

    patch.setattr(fold, "fold", moving)


def trimming_goes_by_age_alone(patch):
    patch.setattr(trim, "keep_from_us", lambda _state, folded_at_us, _retain_s: folded_at_us)


def trimming_forgets_what_is_decided(patch):
    patch.setattr(trim.Trimmer, "_needed", lambda *_: set())


def replays_are_run_again(patch):
    """Every batch is a new one, and every Decided valid."""
    plain = fold.why_void
    patch.setattr(scenario, "replay_of", lambda *_: None)
    patch.setattr(
        fold,
        "why_void",
        lambda state, record: None if state and isinstance(record, Decided) else plain(state, record),
    )


def _table(state, event, then):
    return {**states.TABLE, state: {**states.TABLE[state], event: then}}


MUTATIONS = [
    flip_before_apply,
    a_part_is_enough,
    ack_before_durable,
    the_store_ignores_epochs,
    the_store_ignores_the_predecessor,
    no_claim,
    no_recovery_at_open,
    a_lost_append_means_undecided,
    absence_is_proof,
    a_lost_flip_is_taken_for_done,
    the_own_attempt_is_applied_whichever_won,
    the_pointer_is_read_after_the_log,
    replays_are_run_again,
    retirement_ignores_leases,
    retirement_deletes_before_it_announces,
    a_summary_moves_the_digest,
    trimming_goes_by_age_alone,
    trimming_forgets_what_is_decided,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_seeded_mutation_is_found(monkeypatch, mutation):
    mutation(monkeypatch)
    with pytest.raises(Violation) as found:
        run_schedules(SEED, range(SCHEDULES))
    print(str(found.value)[:1_500])
