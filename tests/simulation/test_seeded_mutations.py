"""The simulation must find what it is there to find: rules of the protocol, broken on purpose (T50)."""

import contextlib

import msgspec
import pytest

from simulation import schedule
from simulation.invariants import Violation
from simulation.plays import actors, state_hosts
from simulation.run import run_schedules
from simulation.schedule import parts_of
from tidegate.committers import commit, states
from tidegate.committers.apply import apply
from tidegate.committers.background import fill, follower, pipeline
from tidegate.committers.opening import open as opening
from tidegate.committers.states import Event
from tidegate.committers.steps import trim
from tidegate.sinks.cache import links, state_at
from tidegate.sinks.memory import store as memory_store
from tidegate.sinks.memory.namespace import MemoryNamespace
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.rules import reads
from tidegate.sinks.rules.layout import payloads
from tidegate.wal import fold
from tidegate.wal.record import Decided, Folded, Summary
from tidegate.wal.staging import changelog

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
                except actors.TidegateError:
                    return [f"{segment}:{index}" for index in range(len(blobs))]

        return plain(batches, spec, Hasty(), **task)

    patch.setattr(actors, "stage_task", acks_at_once)


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
    plain = opening.refuse_other_history
    patch.setattr(
        opening,
        "refuse_other_history",
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
    patch.setattr(MemoryNamespace, "raise_floor", lambda *_: None)


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


def a_cache_of_any_attempt(patch):
    """A cache of state is taken for its version and key groups, whoever kept it."""

    def anyone(_namespace, _attempt, version, groups, _frames):
        return links.Link(version, groups.start, groups.stop, "anyone")

    patch.setattr(links, "link_of", anyone)
    patch.setattr(state_hosts, "link_of", anyone)


def version_1_is_filled(patch):
    """Also where an apply of it from the log had begun."""
    for module in (fill, follower, reads):
        patch.setattr(module, "FILLED_FROM", 1)


def a_fill_leaves_what_lies_there(patch):
    """The mark moves; floors and rows stay."""

    def begin_fill(store, entry, epoch):
        pointer = store._space.pointer
        if pointer.visible or pointer.epoch > epoch:
            return 0
        stands = max(pointer.horizon, entry.version)
        store._space.pointer = msgspec.structs.replace(pointer, horizon=stands)
        return stands

    patch.setattr(MemoryStore, "begin_fill", begin_fill)


def a_fill_ends_whatever_version_is_marked(patch):
    def publish_filled(store, entry, epoch):
        pointer = store._space.pointer
        if pointer.visible:
            return False
        store._space.catalog[entry.version] = entry
        store._space.pointer = type(pointer)(
            entry.version, entry.digest, epoch, pointer.writer, entry.version
        )
        return True

    patch.setattr(MemoryStore, "publish_filled", publish_filled)


def a_follower_reads_the_pointer_after_the_log(patch):
    plain = follower.refuse_other_history
    patch.setattr(
        follower,
        "refuse_other_history",
        lambda driver, state, _: plain(driver, state, driver.store.pointer()),
    )


def rows_expire_by_the_clock(patch):
    def get_many(store, at, keys):
        now_us = None if at.at_us is None else store._clock.now_us()
        return payloads(store.get_stored(at, keys), now_us)

    patch.setattr(MemoryStore, "get_many", get_many)


def decided_before_its_attempt(patch):
    plain = commit.decided_of
    patch.setattr(commit, "decided_of", lambda *arguments: plain(*arguments[:-1]))


def attempts_go_by_the_clock(patch):
    plain = commit.stage_spec

    def spec_of(driver, barrier, attempt):
        spec = plain(driver, barrier, attempt)
        return msgspec.structs.replace(spec, at_us=driver.clock.now_us())

    patch.setattr(commit, "stage_spec", spec_of)


def rows_are_dropped_before_they_have_expired(patch):
    plain = memory_store.is_hidden
    patch.setattr(memory_store, "is_hidden", lambda head, at_us: plain(head, at_us + 1_000_000))


def replays_are_run_again(patch):
    """Every batch is a new one, and every Decided valid."""
    plain = fold.why_void
    patch.setattr(actors, "replay_of", lambda *_: None)
    patch.setattr(
        fold,
        "why_void",
        lambda state, record: None if state and isinstance(record, Decided) else plain(state, record),
    )


def what_reads_state_does_not_wait(patch):
    """The tasks read at the base version, and nobody waited for it."""
    patch.setitem(schedule.PARTS, "pipelined", 1.0)
    plain = pipeline.until_decided
    patch.setattr(actors.SimulatedBarrier, "needs_visible_base", _Late())

    def decided(driver, barrier, room):
        barrier.__dict__["late"] = True
        return plain(driver, barrier, room)

    patch.setattr(pipeline, "until_decided", decided)


def frames_in_flight_are_not_read(patch):
    """State is read from the store alone, at the visible version."""
    patch.setitem(schedule.PARTS, "pipelined", 1.0)
    patch.setattr(state_at, "read_changes", lambda *_: iter(()))


def the_oldest_frame_in_flight_counts(patch):
    """Of a key that two versions in flight changed, the older value is taken."""
    patch.setitem(schedule.PARTS, "pipelined", 1.0)
    plain = state_at.newest
    patch.setattr(state_at, "newest", lambda batches: plain(batches[::-1]))


class _Late:
    """Says no until the barrier is staged."""

    def __get__(self, barrier, _):
        return barrier is not None and "late" in barrier.__dict__

    def __set__(self, *_):
        pass


def the_line_completes_the_newest_first(patch):
    patch.setitem(schedule.PARTS, "pipelined", 1.0)
    plain = pipeline.Pipeline.complete_next

    def newest_first(line):
        line._line.rotate(1)
        plain(line)

    patch.setattr(pipeline.Pipeline, "complete_next", newest_first)


def an_error_in_the_background_is_forgotten(patch):
    patch.setitem(schedule.PARTS, "pipelined", 1.0)
    patch.setattr(pipeline.Pipeline, "_complete", _forgetful(pipeline.Pipeline._complete))


def _forgetful(plain):
    def complete(line, in_flight_version):
        with contextlib.suppress(actors.TidegateError):
            plain(line, in_flight_version)

    return complete


def any_number_may_be_in_flight(patch):
    patch.setitem(schedule.PARTS, "pipelined", 1.0)
    patch.setattr(pipeline.Pipeline, "_wait_for_room", lambda _: None)


def a_table_made_again_starts_before_its_drop(patch):
    patch.setitem(schedule.PARTS, "drops", 1.0)
    patch.setattr(Folded, "first_start", 0)


def a_drop_leaves_the_rows(patch):
    patch.setitem(schedule.PARTS, "drops", 1.0)
    plain = MemoryStore.publish

    def publish(store, entry, epoch):
        return plain(store, msgspec.structs.replace(entry, dropped=msgspec.UNSET), epoch)

    patch.setattr(MemoryStore, "publish", publish)


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
    a_cache_of_any_attempt,
    what_reads_state_does_not_wait,
    frames_in_flight_are_not_read,
    the_oldest_frame_in_flight_counts,
    the_line_completes_the_newest_first,
    an_error_in_the_background_is_forgotten,
    any_number_may_be_in_flight,
    a_table_made_again_starts_before_its_drop,
    a_drop_leaves_the_rows,
    retirement_ignores_leases,
    retirement_deletes_before_it_announces,
    a_summary_moves_the_digest,
    trimming_goes_by_age_alone,
    trimming_forgets_what_is_decided,
]
FIRST = {trimming_goes_by_age_alone: 1_000, trimming_forgets_what_is_decided: 500}
"""From which schedule on to look for what few of them show."""


OF_A_PART = [
    ("second", 6_500, version_1_is_filled),
    ("second", 5_000, a_fill_leaves_what_lies_there),
    ("second", 1_225, a_fill_ends_whatever_version_is_marked),
    ("second", 5_750, a_follower_reads_the_pointer_after_the_log),
    ("expiry", 0, rows_expire_by_the_clock),
    ("expiry", 4_850, decided_before_its_attempt),
    ("expiry", 0, attempts_go_by_the_clock),
    ("expiry", 0, rows_are_dropped_before_they_have_expired),
]
"""What only schedules with this part show, and from where on to look: some take a thousand to find."""


@pytest.mark.one_in(40)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_seeded_mutation_is_found(monkeypatch, mutation):
    mutation(monkeypatch)
    first = FIRST.get(mutation, 0)
    with pytest.raises(Violation) as found:
        run_schedules(SEED, range(first, first + SCHEDULES))
    print(str(found.value)[:1_500])


@pytest.mark.slow
@pytest.mark.parametrize(
    "part,first,mutation", OF_A_PART, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_a_seeded_mutation_of_a_part_is_found(monkeypatch, part, first, mutation):
    mutation(monkeypatch)
    with_it = [index for index in range(first, first + SCHEDULES) if part in parts_of(SEED, index)]
    with pytest.raises(Violation) as found:
        run_schedules(SEED, with_it)
    print(str(found.value)[:1_500])
