"""A backup after every kind of version, restored in each way: with the log, with a part of it, without it."""

import pytest

from support.committers.backups import place_in, stored
from tidegate.committers.operations.verify import verify
from tidegate.committers.transfer.backup.restore_from import Way
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import LINEAGE
from tidegate.wal.fold import replay_of
from tidegate.wal.record import Column, TableSchema

AIRPORT = {"A9": {"departures": 9, "delay": 1.0}}
BATCHES = 3


def replaced(place, _):
    return place.load("airports-1", {"airports": AIRPORT}, starts=frozenset({"airports"}))


def emptied(place, _):
    return place.load("airports-1", {"airports": {}}, starts=frozenset({"airports"}))


def imported(place, folder):
    place.export(folder)
    return place.imported(folder, "exported")


def restored(place, _):
    return place.restore_older(BATCHES - 1)


def replayable(place, _):
    return place.restore_older(BATCHES - 1, reprocess=True)


def dropped(place, _):
    return place.load("drop", {}, drops=frozenset({"airports"}))


def made_again(place, _):
    dropped(place, _)
    return place.load("made", {"airports": AIRPORT})


def made_again_with_another_key(place, _):
    dropped(place, _)
    place.example.schemas["airports"] = TableSchema((Column("id", "int"),), (Column("departures", "bigint"),))
    return place.load("made", {"airports": {7: {"departures": 1}}})


def renamed(place, _):
    return place.rename("airports", "delay", "delay_min")


def widened(place, _):
    place.example.schemas["airports"] = TableSchema(
        (Column("origin", "string"),),
        (Column("departures", "bigint"), Column("delay", "double"), Column("gates", "int")),
    )
    return place.load("wide", {"airports": {"A9": {"departures": 9, "delay": 1.0, "gates": 3}}})


def replaced_twice(place, folder):
    replaced(place, folder)
    return place.load(
        "aircraft-1",
        {"aircraft": {}},
        starts=frozenset(
            {
                "aircraft",
            }
        ),
    )


KINDS = (
    replaced,
    emptied,
    imported,
    restored,
    replayable,
    dropped,
    made_again,
    made_again_with_another_key,
    renamed,
    widened,
    replaced_twice,
)


def lose(place, way):
    """Lose the store, and as much of the log as makes this the way of the restore."""
    if way is Way.AGAIN:
        place.example.write({"aircraft": {"lost": {"carrier": "L", "flights": 0}}})
        place.trim(place.driver.folded.last_version)
    elif way is Way.NEW:
        place.lose_log()
    place.lose_store()


@pytest.mark.parametrize("to", [False, True], ids=["newest", "to"])
@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_version_of_every_kind_is_restored_in_each_way(tmp_path, kind, way, to):
    place = place_in(tmp_path, "memory", keep_versions=9)
    for number in range(1, BATCHES + 1):
        place.write(number)
        if number == 1:
            place.backup()
    version = kind(place, tmp_path / "export")
    wanted = stored(place.driver.store)
    if to:  # the version that is restored is in the middle of an increment
        place.example.write({"aircraft": {"later": {"carrier": "L", "flights": 0}}})
    place.backup()
    lose(place, way)
    plan = place.restore(version if to else None)
    assert plan.way is (Way.AGAIN if to and way is Way.CONTINUE else way)
    driver = place.again().driver
    assert stored(driver.store) == wanted
    assert verify(driver.log, driver.store).findings == []
    state = driver.folded
    last = BATCHES - 1 - (kind in (restored, replayable))
    assert replay_of(state, batch(LINEAGE, last, generation=state.generation)) is not None
    made = place.example.write({"aircraft": {"next": None}}, batch_id=last + 2 + to)
    assert made == state.last_version + 1
