"""A first batch that does not follow the log's last one: left out by the function, or lost with a copy."""

import contextlib
import logging

import pytest

from tidegate.committers.local_coordinator import coordinator_for
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.options import Endpoints, parse_store
from tidegate.spark.batch import BatchContext, warn_of_missing_batches
from tidegate.testing.example import Example
from tidegate.wal.record import Folded

LINEAGE = "query-1"
ROWS = {"airports": {"EWR": {"departures": 1, "delay": 0.0}}}


@pytest.fixture
def state(tmp_path):
    """Batches 0 to 2, and a load after them."""
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    for _ in range(3):
        example.write(ROWS)
    yield example.driver.folded
    example.close()


@pytest.mark.parametrize(
    "batch_id, missing",
    [(2, None), (3, None), (4, "batch 3:"), (9, "batches 3 to 8:")],
)
def test_batches_between_the_last_one_of_the_log_and_a_drivers_first_are_warned_of(
    state, caplog, batch_id, missing
):
    caplog.set_level(logging.WARNING, "tidegate")
    warn_of_missing_batches("flights", BatchContext(state.lineage, "run", batch_id, "", ""), state)
    assert [record.getMessage().count(missing or "") for record in caplog.records] == [1] * bool(missing)


def test_batches_that_a_restore_has_undone_are_not_called_lost(tmp_path, caplog):
    """Red before: the warning asked to stop the query, and named no restore."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    with contextlib.closing(Example(wal, store)) as example:
        for _ in range(4):
            example.write(ROWS)
        lineage = example.lineage
    with coordinator_for(Endpoints.of("flights", wal, [parse_store(store)])) as driver:
        restore(driver, plan_restore(driver, 2))
        state = driver.folded

    def warnings(batch_id):
        caplog.clear()
        warn_of_missing_batches("flights", BatchContext(lineage, "run", batch_id, "", ""), state)
        return [record.getMessage() for record in caplog.records]

    (undone,) = warnings(4)
    assert "batches 2 to 3 were undone by the restore of version 2" in undone
    assert "disks" not in undone
    undone, lost = warnings(6)
    assert "batches 2 to 3 were undone" in undone
    assert "no version of batches 4 to 5:" in lost


def test_so_is_a_namespace_that_begins_with_a_later_batch(caplog):
    new = Folded("uuid", "flights", 4, "")
    for batch_id in (0, 1):
        warn_of_missing_batches("flights", BatchContext(LINEAGE, "run", batch_id, "", ""), new)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the log has no version of batch 0: " in warning
