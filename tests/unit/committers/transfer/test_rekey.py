"""A namespace with other key groups has the same rows, and each batch once, wherever the rekey was killed."""

import contextlib

import pytest

from support.places import new_place
from support.rekeyed import MORE, NEW, RekeyedPlace, queue_of
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.rekeyed import source_of
from tidegate.committers.operations.adopt import adopt
from tidegate.errors import ConfigError, FencedError
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import LINEAGE
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
        assert once_key(LoadOrigin("airports-1")) in state.once
        assert [replay_of(state, batch(LINEAGE, number)).version for number in (2, 3, 7)] == [1, 2, 7]


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
        with pytest.raises(ConfigError, match="is being made by `tidegate rekey`"):
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
    place.finish()
    with place.coordinators(None) as (_, new):
        assert new.decisions.catch_up().lineage == "q2"
