"""A namespace with other key groups has the same rows, and each batch once, wherever the rekey was killed."""

import contextlib
import re
import uuid

import pytest

from support.cli import done, refused
from support.places import fails, new_place
from support.rekeyed import MORE, NEW, RekeyedPlace, queue_of
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.base.names import RENAME_TOKEN, own_token
from tidegate.committers.apply.apply import chunks_of
from tidegate.committers.commit import commit
from tidegate.committers.exports import dealt_rows
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.rekeyed import source_of, undone_words
from tidegate.committers.operations.adopt import adopt
from tidegate.committers.operations.drop import drop_namespace
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.rename_column import rename_column
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import summarise_if_due
from tidegate.committers.transfer.rekey import move, versions
from tidegate.committers.transfer.rekey.begin import state_at
from tidegate.committers.transfer.rekey.move import finish, follow, is_finished
from tidegate.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    SnapshotExpiredError,
    TidegateError,
    WalGapError,
)
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, parse_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.example import LINEAGE, Example
from tidegate.wal.fold import once_key, replay_of
from tidegate.wal.record import LoadOrigin

FAILPOINTS = (
    "open.before_append",
    "open.after_append",
    "open.after_claim",
    "stage.before_ack",
    "manifest.after_write",
    "decide.before_append",
    "decide.after_append",
    "apply.after_begin",
    "apply.after_chunk",
    "publish.before",
    "publish.after",
    "commit.before_return",
    "retire.after_announce",
    "rekey.after_first_record",
    "rekey.after_copy",
    "rekey.after_version",
    "rekey.after_move",
    "rekey.after_whole",
)


@pytest.fixture
def place():
    name = new_place()
    made = RekeyedPlace(f"memory://{name}", f"memory://{name}")
    yield made
    failpoints.arm(None)
    made.old.close()


def test_every_kind_of_table_and_of_version_survives(place):
    place.load("before", MORE)
    assert place.follow() == 0
    dues = place.write_all_kinds()
    assert place.follow() == 0
    expected = place.rows()
    place.finish()
    assert place.rows(NEW) == expected
    assert queue_of(place) == {key: due.queued_us for key, due in dues.items()}
    with contextlib.closing(place.writer(NEW, key_groups=32)) as new:
        state = new.driver.folded
        assert (state.key_groups, state.tables["aircraft"].apart) == (32, 16)
        assert {once_key(LoadOrigin(token)) for token in ("before", "airports-1")} <= {*state.once}
        assert [replay_of(state, batch(LINEAGE, number)).version for number in (2, 3, 7)] == [1, 2, 7]


def test_a_copy_is_rekeyed_again_to_a_number_that_its_tables_do_not_divide(place):
    place.load("rekey:mine", MORE)
    expected = place.rows()
    place.finish()
    where = [Endpoints.of(name, place.wal, [parse_store(place.store)]) for name in (NEW, "flights_5")]
    with (
        coordinator_for(where[0]) as old,
        coordinator_for(where[1], Options(key_groups=5)) as new,
    ):
        finish(old, new, follow(old, new).source, lambda _, __: None)
        assert new.folded.tables["aircraft"].apart == 1
        tokens = [token for token in new.folded.once if old.folded.namespace not in token]
        assert tokens == ["load:rekey:mine"]
    assert place.rows("flights_5") == expected


def killed_at(place, name, nth, call):
    """Call, and be killed on the way if the failpoint is reached."""
    failpoints.arm(f"{name}=raise@{nth}")
    with contextlib.suppress(FailpointError):
        call()
    failpoints.arm(None)


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAILPOINTS)
def test_a_rekey_that_was_killed_anywhere_is_run_again(place, name, nth):
    """Each version is copied once: a lost one, or one twice, would move the numbers."""
    killed_at(place, name, nth, place.follow)
    place.write_all_kinds()
    killed_at(place, name, nth, place.follow)
    killed_at(place, name, nth, place.finish)
    expected = place.rows()
    place.finish()
    assert place.rows(NEW) == expected
    with contextlib.closing(place.writer(NEW)) as new:
        first = source_of(new.driver.folded).version
        assert new.driver.folded.last_version == 9 - first + 1 + 1
        assert replay_of(new.driver.folded, batch(LINEAGE, 7)) is not None
        new.write(MORE, batch_id=8)
    place.finish()  # once more: nothing is left to do


def test_an_unfinished_copy_and_a_moved_source_refuse_queries(place):
    """Red without the refusals: a query that was started too early, or again, loses versions (I6)."""
    place.follow()
    for lineage in (LINEAGE, None):
        with pytest.raises(ConfigError, match="is being made by a rekey"):
            opened_by(place, NEW, lineage)
    place.finish()
    with pytest.raises(FencedError):
        place.old.write(MORE)
    for lineage in (LINEAGE, None):
        with pytest.raises(ConfigError, match="was moved to namespace flights_32"):
            opened_by(place, "flights", lineage)


def opened_by(place, namespace, lineage):
    with place.coordinators(None) as both:
        open_namespace(both[namespace == NEW], lineage)


def test_batches_after_an_adoption_are_followed(place):
    place.follow()
    with place.coordinators() as (old, _):
        adopt(old, "q2")
    place.follow()
    with place.coordinators(None) as (_, new):
        assert new.decisions.catch_up().lineage == LINEAGE  # until its first batch, or the end
    with contextlib.closing(place.writer(lineage="q2")) as other:
        other.write(MORE)
    place.follow()
    with place.coordinators() as (old, new):
        adopt(old, "q3")
        finish(old, new, follow(old, new).source, lambda _, __: None)
        assert new.folded.lineage == "q3"
        assert new.folded.batches == {LINEAGE: (0, 2), "q2": (0, 0)}


# -- refusals: the source is as it was --------------------------------------------------------------


def test_a_restore_during_the_copy_ends_it_and_a_new_copy_follows_again(place):
    place.follow()
    place.old.write(MORE)
    restored(place, 2)
    with pytest.raises(ConfigError, match="version 5 cannot be followed; `tidegate drop"):
        place.follow()
    with place.coordinators() as (_, new):
        drop_namespace(new)
    expected = place.rows()
    place.finish()
    assert place.rows(NEW) == expected


def restored(place, version, *, reprocess=False):
    with place.coordinators(None) as (old, _):
        restore(old, plan_restore(old, version, reprocess=reprocess))


def test_a_namespace_with_undone_batches_is_refused_until_the_next_one(place):
    restored(place, 2, reprocess=True)
    with pytest.raises(ConfigError, match="the undone batches were not replayed"):
        place.follow()
    with contextlib.closing(place.writer()) as again:
        again.write(MORE, batch_id=2)
        expected = place.rows()
        place.finish()
    assert place.rows(NEW) == expected
    with place.coordinators(None) as (_, new):
        assert new.decisions.catch_up().batches == {LINEAGE: (1, 2)}


def test_a_version_that_the_log_no_longer_has_ends_the_copy(place):
    place.follow()
    place.old.write(MORE)
    with place.coordinators() as (old, new):
        old.log.read = fails(WalGapError("the blob is gone"))
        with pytest.raises(WalGapError, match="version 4 of namespace flights cannot be"):
            follow(old, new)
    assert place.follow() == 0


def test_a_version_that_was_retired_before_it_was_copied_ends_the_copy(place):
    killed_at(place, "rekey.after_first_record", 1, place.follow)
    for number in range(3):
        place.old.write({"airports": {"LGA": {"departures": number, "delay": 0.0}}})
    driver = place.old.driver
    retire_up_to(driver.log, driver.store, driver.folded, Options(keep_versions=1), lambda: False)
    with pytest.raises(
        SnapshotExpiredError, match="`tidegate drop --namespace flights_32`, then `tidegate re"
    ):
        place.follow()


def test_a_log_that_was_cut_above_the_version_before_it_was_copied_ends_the_copy(place):
    """Red before: the store still has the version, and the error of the log named no next step."""
    killed_at(place, "rekey.after_first_record", 1, place.follow)
    place.old.write(MORE)
    decisions = place.old.driver.decisions
    summarise_if_due(decisions, 1)
    decisions.catch_up()
    decisions.log.trim_decisions(decisions.view.summaries[-1].position)
    with pytest.raises(WalGapError, match="`tidegate drop --namespace flights_32`, then `tidegate rekey "):
        place.follow()


def test_another_namespace_is_no_copy(place):
    place.writer(NEW, key_groups=32).close()
    with pytest.raises(ConfigError, match="exists, and is no copy of namespace flights"):
        place.follow()


def test_a_namespace_without_versions_is_refused():
    name = new_place()
    empty = RekeyedPlace(f"memory://{name}", f"memory://{name}", batches=())
    with pytest.raises(ConfigError, match="so there is nothing to copy: start"):
        empty.follow()


def test_a_copy_that_lost_a_row_is_found_before_the_switch(place, monkeypatch):
    """Red without the comparison."""

    def lossy(work, log):
        for chunk in chunks_of(work, log):
            yield chunk._replace(runs=chunk.runs[1:])

    place.follow()
    place.old.write(MORE)
    monkeypatch.setattr(versions, "chunks_of", lossy)
    with pytest.raises(CorruptError, match="of which it is a copy, in table airports"):
        place.finish()
    with pytest.raises(ConfigError, match="is being made by"):
        opened_by(place, NEW, None)


def test_a_copy_that_somebody_wrote_into_is_refused(place):
    place.follow()
    place.old.write(MORE)
    with place.coordinators() as (_, new):
        open_namespace(new, None, command="rekey --to")
        commit(new, ArrowBarrier(new.log, {}, LoadOrigin("foreign"), 32))
    place.old.write(MORE)
    with pytest.raises(ConfigError, match="version 2 of namespace flights_32 is no copy of version 4"):
        place.follow()


def test_a_source_moves_once(place):
    place.finish()
    with (
        place.coordinators() as (old, _),
        coordinator_for(
            Endpoints.of("other", place.wal, [parse_store(place.store)]), Options(key_groups=16)
        ) as other,
    ):
        for step in (follow, is_finished):
            with pytest.raises(ConfigError, match="Give --to flights_32"):
                step(old, other)
        assert other.decisions.catch_up() is None


def test_a_copy_that_another_command_made_whole_meanwhile_is_not_to_be_removed(place, monkeypatch):
    """Red before: the advice was a drop of the copy, into which a query had written since."""
    place.old.write(MORE)
    followed = iter([move.follow])

    def late(old, new, report):
        first = next(followed, None)
        if first is not None:
            monkeypatch.setattr(move, "follow", first)
            place.finish()
            with contextlib.closing(place.writer(NEW)) as query:
                query.write(MORE, batch_id=4)
        return move.follow(old, new, report)

    with place.coordinators() as (old, new):
        source = follow(old, new).source
        monkeypatch.setattr(move, "follow", late)
        with pytest.raises(TidegateError, match="made the copy whole meanwhile: remove nothing"):
            finish(old, new, source, lambda *_: None)
    with place.coordinators() as (_, new):
        assert new.decisions.catch_up().batches[LINEAGE] == (0, 4)


def test_stores_that_changed_since_the_copy_was_begun_are_named(tmp_path):
    """Red before: one advice led to the other, and each was refused."""
    stores = [f"{name}=sqlite://{tmp_path}/{name}" for name in ("main", "copy")]
    urls = {"main=URL": stores[0], "copy=URL": stores[1]}
    where = ["--namespace=flights", f"--wal=file://{tmp_path}/wal"]
    for begun, then in (stores[:1], stores), (stores, stores[:1]):
        example = Example(f"file://{tmp_path}/wal", begun)
        example.write(MORE)
        example.driver.store.end_heartbeat(example.driver.epoch)
        example.close()
        given, after = ([f"--store={each}" for each in some] for some in (begun, then))
        done("rekey", "--to", NEW, "--key-groups", "32", *where, *given)
        change = ("add", stores[1]) if begun == stores[:1] else ("remove", "copy")
        done("store", *change, *where, *given)
        advice = refused(2, "rekey", "--to", NEW, "--finish", "--yes", *where, *after)
        assert "the stores of namespace flights have changed since the copy flights_32 was begun" in advice
        for command in re.findall("`tidegate ([^`]*)`", advice):
            words = [urls.get(word, word) for word in command.split()]
            own = [] if "--store" in words else after
            done(*words, where[1], *own, *["--yes"] * (words[0] == "drop"))
        done("rekey", "--to", NEW, "--finish", "--yes", *where, *after)
        done("drop", "--yes", f"--namespace={NEW}", where[1], *after)
        done("drop", "--yes", "--force", *where, *after)


# -- tokens ------------------------------------------------------------------------------------------


def test_versions_of_tidegates_own_are_made_in_the_copy_too(place):
    """Red before: the copy counts from 1 again, and the token of such a version was used up."""
    for number in range(2):
        rename_column(place.old.driver, "airports", f"delay{number or ''}", f"delay{number + 1}")
    place.finish()
    with place.coordinators() as (_, new):
        open_namespace(new, None, command="recover")
        last = new.folded.last_version
        tokens = [own_token(RENAME_TOKEN, new.folded.namespace, at, "x") for at in range(1, 9)]
        assert not {once_key(LoadOrigin(token)) for token in tokens} & {*new.folded.once}
    for number in range(last, 6):
        with place.coordinators() as (_, new):
            assert rename_column(new, "airports", f"delay{number + 2 - last}", f"delay{number + 3 - last}")


def test_a_load_that_a_restore_has_undone_is_told_so_in_the_copy_too(place):
    """Red before: it counted as loaded, and its rows were nowhere."""
    place.load("once", MORE)
    place.load("undone", MORE)
    restored(place, 4)
    place.finish()
    with place.coordinators() as (old, new):
        for at in (old, new):
            at.decisions.catch_up()
        kept = [undone_words(at.folded, LoadOrigin("once")) for at in (old, new)]
        undone = [undone_words(at.folded, LoadOrigin("undone")) for at in (old, new)]
    assert kept == ["", ""]
    assert undone[0] == "version 5, which version 6 has undone, a restore"
    assert undone[1] == "a version of the namespace of which this is a copy, where a restore has undone it"


# -- the rest ---------------------------------------------------------------------------------------


def test_a_namespace_of_loads_alone_is_copied_and_taken_back():
    """Red before: it followed no query, and the refusal named no adopt, without which it stays moved."""
    name = new_place()
    place = RekeyedPlace(f"memory://{name}", f"memory://{name}", batches=(), lineage=None)
    place.load("one", MORE)
    place.finish()
    assert place.rows(NEW) == place.rows()
    with pytest.raises(ConfigError, match="was moved to namespace flights_32") as refusal:
        opened_by(place, "flights", None)
    (back,) = re.findall(
        "`tidegate adopt --namespace flights --lineage ([^`]+)`, the id of no query", str(refusal.value)
    )
    assert str(uuid.UUID(back)) == back  # the command takes only such an id
    with place.coordinators(None) as (old, new):
        drop_namespace(new)
        adopt(old, back)
    with contextlib.closing(place.writer(lineage=None)) as place.old:
        place.load("two", {"airports": {}})


def test_versions_that_become_visible_meanwhile_are_followed_too(place):
    place.follow()
    place.write_all_kinds()
    left = [MORE]
    with place.coordinators() as (old, new):

        def report(copied, behind):
            if left:
                place.old.write(left.pop())

        assert follow(old, new, report)[1:] == (10, 0)


def test_a_copy_that_falls_behind_ends_and_shows_by_how_much(place):
    place.follow()
    place.old.write(MORE)
    with place.coordinators() as (old, new):
        assert follow(old, new, lambda _, __: place.old.write(MORE))[1:] == (4, 1)


def test_two_rekeys_at_once_copy_the_rows_once(place, monkeypatch):
    real, others = move.open_namespace, [place.follow]

    def slow(*arguments, **how):
        while others:
            others.pop()()
        return real(*arguments, **how)

    monkeypatch.setattr(move, "open_namespace", slow)
    place.follow()
    with place.coordinators(None) as (_, new):
        assert new.decisions.catch_up().last_version == 1


def test_a_small_share_of_the_rows_is_in_memory(place, monkeypatch):
    monkeypatch.setattr(dealt_rows, "AT_ONCE_BYTES", 1)
    place.finish()
    assert place.rows(NEW) == place.rows()


def test_only_keys_with_a_due_time_are_queued(place):
    dues = place.write_all_kinds()
    place.old.write({"_due.aircraft": {"N8": None}})
    place.finish()
    assert queue_of(place) == {key: due.queued_us for key, due in dues.items() if key != "N8"}


def test_a_due_time_that_cannot_be_read_is_an_error(place):
    place.write_all_kinds()
    place.old.schemas["_due.aircraft"] = place.old.schemas["airports"]
    place.old.write({"_due.aircraft": {"N9": {"departures": 1}}})
    with pytest.raises(CorruptError, match=r"table _due\.aircraft has a row that cannot be read"):
        place.finish()


def test_a_log_without_the_decision_and_a_store_without_a_schema_are_errors(place, monkeypatch):
    with pytest.raises(WalGapError, match="has no decision of version 9"):
        state_at(place.old.driver.log, 9)
    with place.coordinators() as (old, new):
        monkeypatch.setattr(old.store, "schemas", dict)
        with pytest.raises(TidegateError, match="schema"):
            follow(old, new)
    place.follow()
    place.old.write(MORE)
    monkeypatch.setattr(move, "decided_versions", lambda *_: iter(()))
    with pytest.raises(WalGapError, match="no longer has the decision of version 4"):
        place.follow()


def test_the_same_number_of_key_groups_is_refused(place):
    with place.coordinators(8) as (old, new), pytest.raises(ConfigError, match="give another number"):
        follow(old, new)
