"""A query whose checkpoint is lost: what adopt shows before it acts, and a checkpoint made from the log."""

import json

import pytest

from support.cli import done, done_json, options_for, refused, run
from tidegate.cli.checkpoints.recipes import starts
from tidegate.committers.commit import commit
from tidegate.committers.operations.resume import last_batch
from tidegate.options import Options
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.example import LINEAGE, Example

NEW = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"
CALLS = {"sums": "reduce", "visits": "update", "users": "patch"}


def offsets(end):
    return f'[{{"orders":{{"0":{end},"1":7}}}}]'


@pytest.fixture
def example(tmp_path):
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    yield example
    example.close()


@pytest.fixture
def options(tmp_path):
    return options_for(tmp_path)


def write(example, batch_id, source_offsets, calls=None, drops=frozenset()):
    """A batch that writes a plain table, and those of the calls, and drops others."""
    driver = example.driver
    rows = {name: {b"k": b"\0v"} for name in ("plain", *(calls or {}))}
    barrier = ArrowBarrier(
        driver.log,
        rows,
        batch(LINEAGE, batch_id, generation=driver.folded.generation),
        driver.folded.key_groups,
        source_offsets=source_offsets,
        state_calls=calls or {},
        drops=drops,
    )
    commit(driver, barrier)


def test_adopt_shows_what_a_new_checkpoint_does_and_needs_yes(example, options):
    write(example, 0, offsets(40), CALLS)
    write(example, 1, offsets(50))
    before = len(list(example.driver.log.decisions()))
    result = run("adopt", "--lineage", NEW, *options)
    assert result.exit_code == 2
    assert "sums (reduce): sum and count add the rows a second time" in result.stderr
    for table, call in CALLS.items():
        assert f"  {table} ({call}): " in result.stderr
    assert "plain (-): keys go back to older rows" in result.stderr
    assert """.option("startingOffsets", '{"orders":{"0":50,"1":7}}')""" in result.stderr
    assert "rebuild-checkpoint" in result.stderr
    assert "add --yes" in result.stderr
    assert len(list(example.driver.log.decisions())) == before
    text = done("adopt", "--lineage", NEW, "--yes", *options)
    assert '"startingOffsets"' in text
    assert "follows query" in text


def test_adopt_shows_no_table_that_was_dropped_nor_calls_from_before_its_drop(example, options):
    write(example, 0, offsets(40), CALLS)
    write(example, 1, offsets(50), drops=frozenset({"sums", "users"}))
    write(example, 2, offsets(60), {"users": "reduce"})
    result = run("adopt", "--lineage", NEW, *options)
    assert "sums" not in result.stderr
    assert "  visits (update): " in result.stderr
    assert "  users (reduce): " in result.stderr


def test_adopt_shows_the_calls_of_a_dropped_table_that_a_restore_brought_back(example, options):
    write(example, 0, offsets(40), CALLS)
    write(example, 1, offsets(50), drops=frozenset({"sums"}))
    write(example, 2, offsets(60))
    example.driver.store.end_heartbeat(example.driver.epoch)
    done("restore", "--to", "1", "--yes", *options)
    assert "  sums (reduce): " in run("adopt", "--lineage", NEW, *options).stderr


def test_adopt_of_a_namespace_without_batches_asks_nothing(example, options):
    assert done_json("adopt", "--lineage", NEW, *options)["lineage"] == NEW


def test_adopt_of_the_followed_query_asks_nothing_and_writes_nothing(example, options):
    write(example, 0, offsets(40), CALLS)
    assert "already" in done("adopt", "--lineage", LINEAGE, *options)


@pytest.mark.parametrize(
    "offset, words",
    [
        ("-", "it had read nothing yet"),
        ('{"logOffset":7}', "no option to start there"),
        ("7", "it makes new rows"),
        ('{"version":41}', '.option("startingVersion", 42)'),
        ('{"version":41,"uuid":"7d5c","digest":"90ab"}', '.option("startingVersion", "41:7d5c:90ab")'),
        ('{"reservoirId":"a","reservoirVersion":5,"index":-1}', '.option("startingVersion", 5)'),
        ('{"reservoirId":"a","reservoirVersion":5,"index":3}', "read in part"),
        ('{"shard":"x"}', "skip the rows"),
    ],
)
def test_each_kind_of_source_has_its_step(example, offset, words):
    write(example, 0, f"[{offset}]")
    (line,) = starts(last_batch(example.driver.decisions))
    assert words in line


def test_a_checkpoint_is_made_again_with_the_offsets_of_the_last_batch(example, options, tmp_path):
    for batch_id, end in enumerate((40, 50, 60)):
        write(example, batch_id, offsets(end))
    folder = tmp_path / "again"
    made = done_json("rebuild-checkpoint", folder, *options)
    assert (made["lineage"], made["batch"], made["source_offsets"]) == (LINEAGE, 2, offsets(60))
    assert json.loads((folder / "metadata").read_text()) == {"id": LINEAGE}
    assert sorted(path.name for path in (folder / "offsets").iterdir()) == ["1", "2"]
    assert [path.name for path in (folder / "commits").iterdir()] == ["2"]
    version, of_batch, source = (folder / "offsets" / "2").read_text().splitlines()
    assert (version, json.loads(source)) == ("v1", {"orders": {"0": 60, "1": 7}})
    assert json.loads(of_batch)["conf"] == {}
    assert "is not an empty folder" in refused(2, "rebuild-checkpoint", folder, *options)


def test_a_checkpoint_after_a_restore_is_of_the_last_batch_that_counts(example, options, tmp_path):
    for batch_id, end in enumerate((40, 50, 60)):
        write(example, batch_id, offsets(end))
    done("restore", "--to", 2, "--yes", *options)
    assert done_json("rebuild-checkpoint", tmp_path / "a", *options)["batch"] == 2  # it is not run again
    done("restore", "--to", 2, "--yes", "--reprocess", *options)
    made = done_json("rebuild-checkpoint", tmp_path / "b", *options)
    assert (made["batch"], made["source_offsets"]) == (1, offsets(50))


@pytest.mark.parametrize(
    "source_offsets, words",
    [
        ('[{"logOffset":7}]', "source 0 is a file source"),
        ('[{"orders":{"0":1}}, 7]', "source 1 is a source that counts"),
        ("", "no longer has the offsets"),
        ("[Offset(7)]", "no longer has the offsets"),
    ],
)
def test_no_checkpoint_is_made_where_the_offset_is_not_the_position(
    example, options, tmp_path, source_offsets, words
):
    write(example, 0, source_offsets)
    assert words in refused(2, "rebuild-checkpoint", tmp_path / "again", *options)
    assert not (tmp_path / "again").exists()


def test_no_checkpoint_is_made_for_a_query_without_a_batch(example, options, tmp_path):
    assert "has no batch" in refused(2, "rebuild-checkpoint", tmp_path / "again", *options)
    write(example, 0, offsets(40))
    done("adopt", "--lineage", NEW, "--yes", *options)
    assert "decided no batch yet" in refused(2, "rebuild-checkpoint", tmp_path / "again", *options)
    assert "s3://" in refused(2, "rebuild-checkpoint", "s3://bucket/x", *options)


def test_restore_lists_the_batches_that_will_not_come_again_and_the_files_to_remove(example, options):
    for batch_id, end in enumerate((40, 50, 60)):
        write(example, batch_id, offsets(end))
    result = run("restore", "--to", 1, *options)
    assert result.exit_code == 2
    assert "batch 2 (version 3): 1 changes (plain 1)" in result.stderr
    text = done("restore", "--to", 1, "--yes", *options)
    assert "these batches will not be processed again" in text
    assert f"batch 1 (version 2): 1 changes (plain 1), up to the source offsets {offsets(50)}" in text
    assert "`tidegate restore --to 1 --reprocess --namespace flights`" in text
    text = done("restore", "--to", 1, "--yes", "--reprocess", *options)
    assert "batches above 0 may be replayed" in text
    assert "rm -f offsets/{1..3} offsets/.{1..3}.crc commits/{1..3} commits/.{1..3}.crc" in text


def test_many_undone_batches_are_listed_in_json_and_in_short(example, options):
    for batch_id in range(30):
        write(example, batch_id, offsets(batch_id))
    text = done("restore", "--to", 1, "--yes", *options)
    assert "... 9 more: --json lists all" in text
    undone = done_json("restore", "--to", 1, "--yes", "--reprocess", *options)["undone"]
    assert [each["batch"] for each in undone] == list(range(1, 30))


def test_a_restore_to_before_an_adopt_names_the_query_that_may_replay_and_its_files(
    example, options, tmp_path
):
    """The namespace refuses the query of the restored state until that one is adopted again."""
    for batch_id in range(3):
        write(example, batch_id, offsets(batch_id))
    example.driver.store.end_heartbeat(example.driver.epoch)
    done("adopt", "--lineage", NEW, "--yes", *options)
    other = Example(
        f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", lineage=NEW, options=Options(key_groups=2)
    )
    for number in range(9):
        other.write({"notes": {b"n": b"%d" % number}})
    other.driver.store.end_heartbeat(other.driver.epoch)
    other.close()
    text = done("restore", "--to", "2", "--reprocess", "--yes", *options)
    adopt = f"the namespace follows query {NEW}: first run `tidegate adopt --lineage {LINEAGE} --namespace"
    assert adopt in text
    assert "rm -f offsets/{2..3} " in text
    done("adopt", "--lineage", LINEAGE, "--yes", *options)
    again = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    assert again.write({"notes": {b"n": b"again"}}, batch_id=2) == 14
    again.close()
