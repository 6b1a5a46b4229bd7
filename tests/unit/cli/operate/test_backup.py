"""The commands backup and restore-from: what they print, refuse, and leave to the query."""

import contextlib
import json
import re
import shutil

import pytest

from support.cli import done, done_json, options_for, readers_only, refused, run
from support.clocks import ClockAhead
from support.places import rows_by_table, silence_writer
from tidegate.base import failpoints
from tidegate.errors import CorruptError, StoreLostError, TidegateError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.testing.example import BATCHES, LINEAGE, Example

OFFSETS = '[{"orders":{"0":%d}}]'


@pytest.fixture
def options(tmp_path):
    """A namespace of three versions, and a full backup at version 2."""
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    for number, rows in enumerate(BATCHES):
        example.write(rows, source_offsets=OFFSETS % number)
        if number == 1:
            done("backup", tmp_path / "backup", *options_for(tmp_path))
    example.close()
    silence_writer(tmp_path / "store")
    return options_for(tmp_path)


def test_a_backup_continues_and_is_checked_without_a_server(options, tmp_path):
    folder = tmp_path / "backup"
    made = done_json("backup", folder, *options)
    assert (made["kind"], made["version"], [link["after"] for link in made["links"]]) == (
        "increment",
        3,
        [0, 2],
    )
    assert "has version 3 of namespace flights already" in done("backup", folder, *options)
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "wal")
    text = done("backup", folder, "--check")
    assert "every byte fits; 1 full and 1 incremental backups" in text
    assert "restored in memory: every row of version 3, some rows of 1 older ones" in text
    checked = done_json("backup", folder, "--check")
    assert (checked["links"], checked["restored"], checked["sampled"]) == (made["links"], [3], [2])
    (blobs,) = folder.rglob("blobs")
    blobs.write_bytes(blobs.read_bytes()[:-1] + b"?")
    assert "blobs has" in refused(CorruptError.exit_code, "backup", folder, "--check")
    assert "--store, --wal, --namespace must be given" in refused(2, "backup", folder)
    assert "holds no backup" in refused(2, "backup", tmp_path / "empty", "--check")


def test_a_store_that_shows_a_version_is_refused(options, tmp_path):
    assert "nothing was lost there" in refused(2, "restore-from", tmp_path / "backup", *options, "--yes")


def test_a_lost_store_goes_on_where_the_log_has_the_rest(options, tmp_path):
    url = f"sqlite://{tmp_path}/store"
    before = rows_by_table(url)
    shutil.rmtree(tmp_path / "store")
    asked = run("restore-from", tmp_path / "backup", *options)
    assert asked.exit_code == 2
    assert "nothing is lost, and the query continues" in asked.stderr
    assert "add --yes" in asked.stderr
    made = done_json("restore-from", tmp_path / "backup", *options, "--yes")
    assert (made["way"], made["backup"], made["visible"], made["lost"]) == ("continue", 2, 3, [])
    assert rows_by_table(url) == before


def test_without_a_log_the_losses_are_shown_and_the_checkpoint_can_be_made(options, tmp_path):
    url = f"sqlite://{tmp_path}/store"
    before = rows_by_table(url, version=2)
    for name in ("store", "wal"):
        shutil.rmtree(tmp_path / name)
    text = done("restore-from", tmp_path / "backup", *options, "--yes")
    assert "everything after version 2 of the backup is lost" in text
    assert f"follows batch 1 of query {LINEAGE}" in text
    assert OFFSETS % 1 in text
    assert "remove the files 2 and above" in text
    assert "version 3 of namespace flights is visible, and holds what version 2 of the backup held" in text
    assert rows_by_table(url) == before
    silence_writer(tmp_path / "store")
    made = done_json("rebuild-checkpoint", tmp_path / "checkpoint", *options)
    assert made["batch"] == 1
    assert json.loads((tmp_path / "checkpoint/offsets/1").read_text().splitlines()[-1]) == {
        "orders": {"0": 1}
    }


def test_another_name_is_made_beside_a_namespace_that_is_there(options, tmp_path):
    beside = options_for(tmp_path, "flights2")
    made = done_json("restore-from", tmp_path / "backup", *beside, "--to", "2", "--yes")
    assert (made["way"], made["visible"]) == ("new", 3)
    url = f"sqlite://{tmp_path}/store"
    assert rows_by_table(url, "flights2") == rows_by_table(url, version=2)


@pytest.fixture
def two(tmp_path):
    """Three versions in stores a and b, a backup at version 2; a is lost then."""
    wal = f"file://{tmp_path}/wal"
    a, b = (f"--store={name}=sqlite://{tmp_path}/{name}" for name in "ab")
    where = [f"--wal={wal}", "--namespace=flights"]
    example = Example(wal, f"sqlite://{tmp_path}/a", options=Options(key_groups=2))
    for number, rows in enumerate(BATCHES):
        example.write(rows, source_offsets=OFFSETS % number)
        if number == 1:
            done("backup", tmp_path / "backup", *where, a)
    example.close()
    silence_writer(tmp_path / "a")
    done("store", "add", b.removeprefix("--store="), *where, a)
    shutil.rmtree(tmp_path / "a")
    return where, a, b


def test_a_second_store_that_shows_more_is_not_undone(two, tmp_path):
    where, a, b = two
    before = rows_by_table(f"sqlite://{tmp_path}/b")
    text = refused(2, "restore-from", tmp_path / "backup", *where, a, b, "--to", "2", "--yes")
    assert "still shows version 3" in text
    assert "put it first" in text
    assert "store a: version 3 is visible" in run("recover", *where, b, a, "--force").stdout
    assert rows_by_table(f"sqlite://{tmp_path}/a") == rows_by_table(f"sqlite://{tmp_path}/b") == before


@pytest.mark.parametrize("kept", [True, False])
def test_without_a_log_a_second_store_that_shows_a_version_is_kept_or_removed(two, tmp_path, kept):
    where, a, b = two
    shutil.rmtree(tmp_path / "wal")
    before = rows_by_table(f"sqlite://{tmp_path}/b")
    text = refused(2, "restore-from", tmp_path / "backup", *where, a, b, "--yes")
    assert "tidegate relog --namespace flights --to NEW" in text
    if kept:
        done("relog", "--to", "flights2", *where, b, "--yes", "--force")
        assert rows_by_table(f"sqlite://{tmp_path}/b", "flights2") == before
        return
    done("drop", "--only-stores", *where, b, "--yes", "--force")
    made = run("restore-from", tmp_path / "backup", *where, a, b, "--yes")
    assert "store b: version 3 is visible" in made.stdout
    assert rows_by_table(f"sqlite://{tmp_path}/a") == rows_by_table(f"sqlite://{tmp_path}/b") != before


def test_a_primary_without_a_version_is_removed_alone(two, tmp_path):
    """Red before: the advice had no --store, so it removed the second store's versions, too."""
    where, a, b = two
    shutil.rmtree(tmp_path / "wal")
    with contextlib.closing(open_store(f"sqlite://{tmp_path}/a", "flights")) as store:
        store.create(Identity("another", "flights", 2))
    advice = refused(2, "restore-from", tmp_path / "backup", *where, a, b, "--yes")
    assert "`tidegate drop --only-stores --store a=URL --namespace flights`" in advice
    done("drop", "--only-stores", *where, a, "--yes")
    assert "tidegate relog" in refused(2, "restore-from", tmp_path / "backup", *where, a, b, "--yes")


def test_a_killed_restore_of_an_older_version_is_named_by_the_next_one(options, tmp_path):
    shutil.rmtree(tmp_path / "store")
    failpoints.arm("fill.after_begin=raise")
    run("restore-from", tmp_path / "backup", *options, "--to", "2", "--yes")
    failpoints.arm(None)
    done("backup", tmp_path / "backup", "--check")
    more = ["--yes", "--force"]
    text = run("restore-from", tmp_path / "backup", *options, *more).stdout
    assert "a restore has undone its last batches, and they may come again" in text
    assert "set its checkpoint back to batch" in text
    assert done_json("restore", "--to", "2", "--reprocess", *options, *more)["generation"] == 1


def test_a_backup_of_a_lost_store_names_the_loss(options, tmp_path):
    shutil.rmtree(tmp_path / "store")
    text = refused(StoreLostError.exit_code, "backup", tmp_path / "backup", *options)
    assert "has 3 decided versions of namespace flights" in text
    assert "is the store's disk mounted" in text
    assert "version 3 is visible" in run("recover", *options).stdout
    assert "version 3 of namespace flights" in done("backup", tmp_path / "backup", *options)


def test_restore_from_without_a_log_asks_for_the_right_one_and_for_the_listed_stores(two, tmp_path):
    where, a, b = two
    for name in ("wal", "b"):
        shutil.rmtree(tmp_path / name)
    asked = run("restore-from", tmp_path / "backup", *where, a).stderr
    assert f"there is no log at file://{tmp_path}/wal: is --wal right" in asked
    assert "not given" not in asked
    run("restore-from", tmp_path / "backup", *where, a, b, "--yes")
    done("backup", tmp_path / "both", *where, a)
    for name in ("wal", "a"):
        shutil.rmtree(tmp_path / name)
    asked = run("restore-from", tmp_path / "both", *where, a).stderr
    assert "store b of the backup's list is not given" in asked
    made = done_json("restore-from", tmp_path / "both", *where, a, "--yes")
    assert made["stores_not_given"] == ["b"]
    silence_writer(tmp_path / "a")
    stranger = refused(2, "store", "remove", "b", *where, a, b)
    assert "store b shows version 3 of another namespace flights" in stranger
    assert "`tidegate drop --only-stores --store b=URL --force --namespace flights`" in stranger
    listed = refused(2, "drop", "--only-stores", *where, b, "--yes")
    assert "`tidegate drop --namespace flights --only-stores --store b=URL --force`" in listed
    done("drop", "--only-stores", *where, b, "--force", "--yes")
    assert "version 4 is visible" in run("recover", *where, a).stdout


def test_lost_imports_are_listed_by_their_tokens(options, tmp_path):
    done("export", tmp_path / "export", *readers_only(options))
    done("import", tmp_path / "export", "--token", "of-tuesday", *options, "--yes")
    shutil.rmtree(tmp_path / "store")
    text = done("restore-from", tmp_path / "backup", "--to", "2", *options, "--yes")
    assert "version 3, batch 2, decided at" in text
    assert "version 4, import of-tuesday, decided at" in text
    assert "an import by `tidegate import DIR --token TEXT --namespace flights`" in text


KILLS = ["open.before_append", "open.after_claim", "decide.before_append", "decide.after_append"]


@pytest.mark.parametrize("killed", KILLS)
def test_a_killed_restore_without_a_log_is_named_by_every_command(options, tmp_path, killed):
    done("backup", tmp_path / "backup", *options)
    for name in ("store", "wal"):
        shutil.rmtree(tmp_path / name)
    failpoints.arm(f"{killed}=raise")
    run("restore-from", tmp_path / "backup", *options, "--to", "2", "--yes")
    failpoints.arm(None)
    more = ["--yes", "--force"]
    commands = [["recover"], ["repair"], ["relog", "--yes"], ["restore", "--to", "1", "--yes"]]
    commands += [["adopt", "--lineage", f"9{LINEAGE[1:]}", "--yes"], ["backup", tmp_path / "elsewhere"]]
    for command in commands:
        ended = run(*command, *options)
        assert ended.exit_code, command
        assert "restore-from" in ended.stderr, command
    other = refused(2, "restore-from", tmp_path / "backup", *options, *more)
    assert f"was begun by a restore of version 2 of {tmp_path}/backup" in other
    assert f"`tidegate restore-from {tmp_path}/backup --to 2 --namespace flights`" in other
    made = done_json("restore-from", tmp_path / "backup", *options, *more, "--to", "2")
    assert made["visible"] == 3


@pytest.mark.parametrize("lineage, words", [("0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10", "has taken over since")])
def test_an_adoption_after_the_last_version_is_backed_up_and_shown(options, tmp_path, lineage, words):
    folder, more = tmp_path / "backup", ["--yes", "--force"]
    done("backup", folder, *options)
    done("adopt", "--lineage", lineage, *options, *more)
    assert "increment without versions" in done("backup", folder, *options)
    for name in ("store", "wal"):
        shutil.rmtree(tmp_path / name)
    text = done("restore-from", folder, *options, "--yes")
    assert f"the namespace follows {lineage}, which {words}" in text
    assert "remove the files" not in text


def test_a_finding_of_a_restore_in_memory_names_the_way(options, tmp_path, monkeypatch):
    def impossible(*_):
        raise TidegateError("the manifest of version 1 cannot be right")

    monkeypatch.setattr("tidegate.committers.transfer.backup.restore_from._placed_again", impossible)
    for words in (["--check"], options):
        text = refused(CorruptError.exit_code, "backup", tmp_path / "backup", *words)
        assert "cannot be restored where the log is gone: TidegateError: the manifest" in text


def test_a_restore_that_ended_before_its_last_record_is_completed_by_the_named_command(options, tmp_path):
    for name in ("store", "wal"):
        shutil.rmtree(tmp_path / name)
    failpoints.arm("publish.after=raise")
    run("restore-from", tmp_path / "backup", *options, "--yes")
    failpoints.arm(None)
    more = ["--yes", "--force"]
    assert "nothing was lost there" in refused(2, "restore-from", tmp_path / "backup", *options, *more)
    assert done_json("restore", "--to", "2", "--reprocess", *options, *more)["generation"] == 1


@pytest.mark.parametrize("kind", ["full", "increment", "increments"])
def test_a_restored_version_is_backed_up_with_the_offsets_that_its_query_has_reached(options, tmp_path, kind):
    """Red before: they were not known any more, and the printed `rebuild-checkpoint` was refused."""
    folder = tmp_path / ("after" if kind == "full" else "backup")
    if kind == "increments":
        done("backup", folder, *options)
    done("restore", "--to", "1", "--yes", *options)
    done("backup", folder, *options)
    for lost in ("store", "wal"):
        shutil.rmtree(tmp_path / lost)
    text = done("restore-from", folder, "--yes", *options)
    assert "the next batch follows batch 2 of query" in text
    assert OFFSETS % 2 in text
    silence_writer(tmp_path / "store")
    made = done_json("rebuild-checkpoint", tmp_path / "checkpoint", *options)
    assert (made["batch"], made["source_offsets"]) == (2, OFFSETS % 2)


@pytest.mark.parametrize("log", ["kept", "lost"])
def test_batches_that_a_restore_has_undone_are_not_asked_for_again(options, tmp_path, log):
    """Red before: with the log the checkpoint was to be set back before the undone batches."""
    done("restore", "--to", "1", "--yes", *options)
    done("backup", tmp_path / "after", *options)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    example.write(BATCHES[0], source_offsets=OFFSETS % 9)
    example.close()
    silence_writer(tmp_path / "store")
    for lost in ("store", "wal")[: 1 + (log == "lost")]:
        shutil.rmtree(tmp_path / lost)
    text = done("restore-from", tmp_path / "after", "--to", "4", "--yes", *options)
    assert "the next batch follows batch 2 of query" in text
    assert "remove the files 3 and above" in text
    assert ("undone the batches after 0: set it back no further" in text) == (log == "kept")
    assert ("rebuild-checkpoint" in text) == (log == "lost")  # after batch 2, too
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    assert example.write(BATCHES[1], batch_id=3) == (7 if log == "kept" else 6)
    example.close()


@pytest.mark.parametrize("days", [3, 3650])
def test_a_clock_that_was_ahead_is_no_damage_of_a_backup(tmp_path, days):
    """Red before: CorruptError, whose advice was a new folder, which was refused, too."""
    example = Example(
        f"file://{tmp_path}/wal",
        f"sqlite://{tmp_path}/store",
        clock=ClockAhead(days * 86_400),
        options=Options(key_groups=2),
    )
    example.write(BATCHES[0])
    example.close()
    silence_writer(tmp_path / "store")
    for words, made in ((options_for(tmp_path), ("version", 1)), (["--check"], ("restored", [1]))):
        told = run("backup", tmp_path / "backup", *words, "--json")
        assert made in json.loads(told.stdout).items()
        hours = re.search(r"decided ([\d.]+) h ahead of this clock", told.stderr)[1]
        assert float(hours) == pytest.approx(24 * days, abs=0.5)
