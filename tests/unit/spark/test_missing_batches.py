"""A first batch that does not follow the log's last one: left out by the function, or lost with a copy."""

import contextlib
import logging

import pytest

from support.cli import done, options_for, run
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.errors import LineageError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, parse_store
from tidegate.sinks.open_store import open_store
from tidegate.spark.batch import BatchContext, refuse_without_past, warn_of_missing_batches
from tidegate.testing.arrow_barrier import ArrowBarrier
from tidegate.testing.example import Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import LoadOrigin

LINEAGE, OTHER = "8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11", "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"


def log_of(folder):
    with contextlib.closing(open_log(f"file://{folder}/wal", "flights")) as log:
        return [entry.content for entry in log.decisions()]


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
    assert "the restore of version 2 has undone batches 2 to 3," in undone
    assert "disks" not in undone
    undone, lost = warnings(6)
    assert "has undone batches 2 to 3," in undone
    assert "no version of batches 4 to 5:" in lost


def test_a_restore_to_a_version_before_the_querys_first_batch_undoes_all_of_its_batches(tmp_path, caplog):
    """Red before: the query's next batch followed without a warning."""
    where = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    with contextlib.closing(Example(*where)) as example:
        example.write(ROWS)
    run("adopt", "--lineage", OTHER, "--yes", *options_for(tmp_path))
    with contextlib.closing(Example(*where, lineage=OTHER)) as example:
        for _ in range(2):
            example.write(ROWS)
    with coordinator_for(Endpoints.of("flights", where[0], [parse_store(where[1])])) as driver:
        restore(driver, plan_restore(driver, 1))
        state = driver.folded
    warn_of_missing_batches("flights", later_batch(2, OTHER), state)
    (undone,) = [each.getMessage() for each in caplog.records if "is the next one" in each.getMessage()]
    assert "the restore of version 1 has undone batches 0 to 1," in undone


def later_batch(number=5, lineage=LINEAGE):
    return BatchContext(lineage, "run", number, "", "")


def opened_for(folder, batch):
    """A coordinator that opens the namespace for this batch, as a query does."""
    where = Endpoints.of("flights", f"file://{folder}/wal", f"sqlite://{folder}/store")
    log, store = open_log(where.wal, "flights"), open_store(where.store, "flights")
    coordinator = Coordinator(where, log, store, Options())
    try:
        open_namespace(coordinator, batch.lineage, lambda state: refuse_without_past("flights", batch, state))
    finally:
        store.close()
        log.close()


def test_a_later_batch_makes_no_namespace_t79(tmp_path):
    """Its log and store were lost, or the name has a typing error: the mirror case of a lost checkpoint."""
    with pytest.raises(LineageError, match=r"has no batch of query .* continues with batch 5: "):
        opened_for(tmp_path, later_batch())
    assert list(tmp_path.iterdir()) == []
    opened_for(tmp_path, later_batch(0))


@pytest.mark.parametrize("made_by", ["init", "load"])
def test_a_later_batch_is_refused_in_a_namespace_without_batches_until_it_is_adopted(tmp_path, made_by):
    """A function may leave batches out, and an old query may be new to tidegate: an operator says so."""
    if made_by == "init":
        done("init", *options_for(tmp_path))
    else:
        example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", lineage=None)
        commit(example.driver, ArrowBarrier(example.driver.log, {"t": {b"k": b"v"}}, LoadOrigin("once"), 8))
        example.close()
    before = log_of(tmp_path)
    with pytest.raises(LineageError, match=f"`tidegate adopt --lineage {LINEAGE}`, and restart the query"):
        opened_for(tmp_path, later_batch())
    assert log_of(tmp_path) == before
    run("adopt", "--lineage", LINEAGE, "--yes", *options_for(tmp_path))
    opened_for(tmp_path, later_batch())
    with pytest.raises(LineageError):
        opened_for(tmp_path, later_batch(lineage=OTHER))


def test_a_query_that_has_opened_the_namespace_may_go_on_with_any_batch(tmp_path):
    """Its function swallowed the error of its first batch: that is reported otherwise."""
    opened_for(tmp_path, later_batch(0))
    opened_for(tmp_path, later_batch(1))
