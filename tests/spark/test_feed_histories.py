"""I12: a stream's checkpoint is of one history; in another one it ends with an error, for any number."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import StructType

from support.histories import LAST, LATER, WAYS, Histories
from tidegate.errors import WalGapError
from tidegate.spark.source.data_source import TidegateSource

pytestmark = pytest.mark.spark

OTHER = r"version 6 .* is of another history: .*new checkpoint"


@pytest.fixture
def histories(tmp_path):
    made = Histories(tmp_path)
    yield made
    made.close()


@pytest.fixture
def reader(histories):
    """A stream's reader, as Spark's process for it has it; each call is a restart of the query."""
    opened = []

    def restarted(**options):
        opened.append(TidegateSource(histories.source(**options)).streamReader(StructType()))
        return opened[-1]

    yield restarted
    for one in opened:
        one.stop()


def stored(offset):
    """The offset as Spark's checkpoint keeps it."""
    return json.loads(json.dumps(offset))


def given_up_to_last(reader):
    """The offsets of a first batch, which ends at version ``LAST``."""
    first = reader()
    start = first.initialOffset()
    return stored(start), stored(first.latestOffset(start))


def test_an_offset_has_number_uuid_and_digest_and_a_restart_continues_after_it(histories, reader):
    _, end = given_up_to_last(reader)
    pointer = histories.place.driver.store.pointer()
    uuid = histories.place.driver.folded.namespace
    assert end == {"version": LAST, "uuid": uuid, "digest": pointer.digest}
    again = reader()
    assert stored(again.latestOffset(end)) == end  # nothing is new, so Spark makes no batch
    histories.write("old", LATER)
    newer = again.latestOffset(end)
    assert newer["version"] == LATER
    assert len(again.partitions(end, newer)) == 1


def test_an_offset_below_the_visible_version_has_its_own_digest(histories, reader):
    limited = reader(maxVersionsPerTrigger="2").latestOffset(reader().initialOffset())
    (decided,) = [one for one in histories.place.driver.folded.recent if one.version == limited["version"]]
    assert limited["digest"] == decided.digest


@pytest.mark.parametrize("retired", ["fail", "snapshot"])
@pytest.mark.parametrize("way", WAYS)
def test_a_restart_in_another_history_is_an_error_i12(histories, reader, way, retired):
    """Red before: the batch had versions 7 and 8 of the new history, after six of the old one."""
    start, end = given_up_to_last(reader)
    again = reader(namespace=histories.become(way), onRetired=retired)
    with pytest.raises(WalGapError, match=OTHER):
        again.latestOffset(end)
    with pytest.raises(WalGapError, match=OTHER):
        again.partitions(end, again.latestOffset(again.initialOffset()))
    with pytest.raises(WalGapError, match="is of another history"):  # a batch that is replayed
        again.partitions(start, end)


@pytest.mark.parametrize("way", WAYS)
def test_a_history_that_is_shorter_is_another_one_too(histories, reader, way):
    _, end = given_up_to_last(reader)
    end["version"] = LATER + 1
    again = reader(namespace=histories.become(way))
    with pytest.raises(WalGapError, match=r"another history|it went back"):
        again.latestOffset(end)


@pytest.mark.parametrize("way", WAYS)
def test_an_offset_of_an_earlier_release_is_accepted_once_with_a_warning(histories, reader, way, caplog):
    again = reader()
    upgraded = stored(again.latestOffset({"version": LAST}))
    assert [record.levelname for record in caplog.records if "has no history" in record.message] == [
        "WARNING"
    ]
    assert again.partitions({"version": LAST}, upgraded) == []
    with pytest.raises(WalGapError, match=OTHER):
        reader(namespace=histories.become(way)).latestOffset(upgraded)


def test_a_new_checkpoint_starts_after_a_version_of_its_history_alone(histories, reader):
    _, end = given_up_to_last(reader)
    after = ":".join(map(str, end.values()))
    assert stored(reader(startingVersion=after).initialOffset()) == end
    histories.become("copies")
    with pytest.raises(WalGapError, match=OTHER):
        reader(startingVersion=after).initialOffset()
