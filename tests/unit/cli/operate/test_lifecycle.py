"""A command's mark in a namespace, and each later command that it concerns."""

import contextlib
import json
import re
import shutil

import pytest

from support.cli import ended, refused, run
from support.places import rows_by_table, silence_writer
from support.rekeyed import LGA, MORE, NEW, RekeyedPlace
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.base.names import escape
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.rekeyed import moved_from
from tidegate.committers.operations.adopt import adopt
from tidegate.committers.steps.append import append_adopted
from tidegate.committers.transfer.rekey import move
from tidegate.errors import ConfigError
from tidegate.testing.example import LINEAGE

REFUSED = ConfigError.exit_code
WORDS = ("rekey", "--namespace=flights", f"--to={NEW}", "--key-groups=32")
FINISH = (*WORDS, "--finish", "--yes")


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = RekeyedPlace(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    monkeypatch.setenv("TIDEGATE_STORE", made.store)
    monkeypatch.setenv("TIDEGATE_WAL", made.wal)
    silence_writer(tmp_path / "store", "flights")
    yield made
    failpoints.arm(None)
    made.old.close()


def write(place, namespace="flights", batches=1):
    with contextlib.closing(place.writer(namespace)) as query:
        for _ in range(batches):
            query.write(MORE)
        query.driver.store.end_heartbeat(query.driver.epoch)


def moved_and_taken_back(place):
    """As after an adopt that did not look at the copy: the source is written again, and the copy is whole."""
    ended(0, *FINISH, "--alias=live")
    with place.coordinators(None) as (old, _):
        open_namespace(old, None, command="recover")
        append_adopted(old.decisions, LINEAGE)
    write(place, batches=10)


# -- a way back, and the same rekey again -------------------------------------------------------------


def test_a_moved_namespace_is_not_taken_back_while_its_copy_is_whole(place):
    """Red before: the source and the copy took batches, and the next --finish switched to the copy."""
    ended(0, *FINISH, "--alias=live")
    adopt = ("adopt", f"--lineage={LINEAGE}", "--namespace=flights", "--yes")
    advice = refused(REFUSED, *adopt)
    assert f"`tidegate drop --namespace {NEW}`" in advice
    ended(0, "alias", "set", "live", "--namespace=flights")
    ended(0, "drop", f"--namespace={NEW}", "--yes")
    ended(0, *adopt)
    write(place, batches=10)
    ended(0, *FINISH)
    assert rows_by_table(place.store, "live")["airports"]["LGA"] == LGA
    write(place, NEW)  # the next batch follows: none is lost
    assert json.loads(ended(0, "status", f"--namespace={NEW}", "--json").stdout)["visible"] == 3


def test_a_copy_that_took_batches_is_not_dropped_for_the_way_back(place):
    ended(0, *FINISH)
    write(place, NEW, batches=2)
    message = refused(REFUSED, "adopt", f"--lineage={LINEAGE}", "--namespace=flights", "--yes")
    assert f"set namespace='{NEW}'" in message
    assert "tidegate drop" not in message


def test_finished_once_is_not_finished_for_ever(place):
    """Red before: exit 0, and the aliases named a copy without the last ten batches."""
    moved_and_taken_back(place)
    expected = rows_by_table(place.store)
    for words in (FINISH, WORDS):
        assert "Give another name with --to" in refused(REFUSED, *words)
    again = [word.replace(NEW, "flights_33") for word in FINISH]
    ended(0, *again, "--alias=live")
    assert rows_by_table(place.store, "live") == expected


def test_a_namespace_that_is_taken_back_before_its_copy_is_whole_is_followed_again(place):
    failpoints.arm("rekey.after_move=raise@1")
    with pytest.raises(FailpointError):
        place.finish()
    failpoints.arm(None)
    message = refused(REFUSED, "drop", "--namespace=flights", "--yes")
    assert f"`tidegate rekey --namespace flights --to {NEW} --finish`" in message
    ended(0, "adopt", f"--lineage={LINEAGE}", "--namespace=flights", "--yes")
    write(place, batches=10)
    ended(0, *FINISH, "--alias=live")
    assert rows_by_table(place.store, "live") == rows_by_table(place.store)
    write(place, NEW)


@pytest.mark.parametrize("step", ["follow", "compare"])
def test_a_copy_whose_source_is_taken_back_meanwhile_does_not_become_whole(place, monkeypatch, step):
    """Red before: the copy was whole without the source's next batches, and accepted a query."""
    real, calls = getattr(move, step), []

    def taken_back(old, *more):
        done = real(old, *more)
        if (step == "compare" or moved_from(old.folded)) and not calls:
            with place.coordinators(None) as (other, _):
                calls.append(adopt(other, LINEAGE))
        return done

    monkeypatch.setattr(move, step, taken_back)
    assert run(*FINISH, "--alias=live").exit_code != 0
    assert calls
    assert json.loads(ended(0, "alias", "list", "--json").stdout)["aliases"] == []
    with pytest.raises(ConfigError, match="lacks versions of its source"):
        place.writer(NEW)
    write(place)
    ended(0, *FINISH, "--alias=live")
    assert rows_by_table(place.store, "live") == rows_by_table(place.store)
    write(place, NEW)


def test_a_copy_that_was_moved_on_gets_no_alias_again(place):
    ended(0, *FINISH, "--alias=live")
    on = ("rekey", f"--namespace={NEW}", "--to=flights_5", "--key-groups=5", "--finish", "--yes")
    ended(0, *on)
    assert "was moved to namespace flights_5" in refused(REFUSED, *FINISH, "--alias=live")
    assert json.loads(ended(0, "alias", "list", "--json").stdout)["aliases"][0]["namespace"] == "flights_5"


# -- backups --------------------------------------------------------------------------------------


def test_a_backup_of_a_moved_namespace_is_made_and_ends_with_an_error(place, tmp_path):
    """Red before: exit 0 each time, while the batches are in another namespace."""
    assert "tidegate backup" in ended(0, *FINISH).stdout
    for wrote in ("full backup", "already; nothing was written"):
        result = ended(REFUSED, "backup", tmp_path / "backups", "--namespace=flights")
        assert wrote in result.stdout
        assert f"`tidegate backup NEW_FOLDER --namespace {NEW}`" in result.stderr
    ended(0, "backup", tmp_path / "others", f"--namespace={NEW}")


def test_a_backup_of_a_namespace_whose_move_was_interrupted_names_the_end_of_the_rekey_first(place, tmp_path):
    """Red before: the copy was to be backed up, which refuses that until it is whole."""
    failpoints.arm("rekey.after_move=raise@1")
    with pytest.raises(FailpointError):
        place.finish()
    failpoints.arm(None)
    advice = ended(REFUSED, "backup", tmp_path / "backups", "--namespace=flights").stderr
    first, then = re.findall("`tidegate ([^`]+)`", advice)[:2]
    assert (first, then) == (
        f"rekey --namespace flights --to {NEW} --finish",
        f"backup NEW_FOLDER --namespace {NEW}",
    )
    ended(0, *first.split(), "--yes")
    ended(0, *then.replace("NEW_FOLDER", str(tmp_path / "others")).split())


def test_a_backup_of_an_unfinished_copy_is_refused(place, tmp_path):
    """Red before: it could be restored nowhere."""
    ended(0, *WORDS)
    message = refused(REFUSED, "backup", tmp_path / "backups", f"--namespace={NEW}")
    assert "is being made by a rekey" in message
    assert not (tmp_path / "backups").exists()


def test_the_rows_of_an_unfinished_copy_whose_source_is_gone_are_exported(place, tmp_path):
    """Red before: the advice was to back up the source, and to finish a rekey that has none."""
    ended(0, *WORDS)
    ended(0, "drop", "--namespace=flights", "--yes", "--force")
    message = refused(REFUSED, "backup", tmp_path / "backups", f"--namespace={NEW}")
    (export,) = re.findall("`tidegate (export [^`]+)`", message)
    ended(0, *export.replace("FOLDER", str(tmp_path / "export")).split())


@pytest.mark.parametrize("batches", [0, 1])
def test_a_backup_of_an_unfinished_copy_is_restored_as_one(place, tmp_path, monkeypatch, batches):
    """Of an earlier release. Red before: without a batch, the restored version counted as the next one."""
    ended(0, *WORDS)
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.cli.operate.backup.refuse", lambda *_, **__: None)
        ended(0, "backup", tmp_path / "backups", f"--namespace={NEW}")
    shutil.rmtree(tmp_path / "wal" / escape(NEW))
    ended(0, "drop", "--only-stores", f"--namespace={NEW}", "--yes", "--force")
    ended(0, "restore-from", tmp_path / "backups", f"--namespace={NEW}", "--yes")
    with pytest.raises(ConfigError, match="lacks versions of its source"):
        place.writer(NEW)
    write(place, batches=batches)
    assert f"`tidegate drop --namespace {NEW}`" in refused(REFUSED, *FINISH)
    with pytest.raises(ConfigError, match="lacks versions of its source"):
        place.writer(NEW)
    ended(0, "drop", f"--namespace={NEW}", "--yes", "--force")
    ended(0, *FINISH)
    assert rows_by_table(place.store, NEW) == rows_by_table(place.store)


# -- relog ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["gone", "behind"])
def test_an_unfinished_copy_is_not_saved_by_a_relog(place, tmp_path, log):
    """Red before: an ordinary namespace, which took the query's batches without those between."""
    ended(0, *WORDS)
    if log == "behind":
        shutil.copytree(tmp_path / "wal" / escape(NEW), tmp_path / "older")
    write(place)
    ended(0, *WORDS)
    shutil.rmtree(tmp_path / "wal" / escape(NEW))
    if log == "behind":
        (tmp_path / "older").rename(tmp_path / "wal" / escape(NEW))
    message = refused(REFUSED, "relog", f"--namespace={NEW}", "--to=saved", "--yes", "--force")
    assert f"`tidegate drop --namespace {NEW}`" in message
    assert run("status", "--namespace=saved").exit_code != 0


def test_a_whole_copy_with_a_log_of_before_is_saved_by_a_relog(place, tmp_path):
    """Its log does not know that it became whole; its store does."""
    ended(0, *WORDS)
    shutil.copytree(tmp_path / "wal" / escape(NEW), tmp_path / "older")
    ended(0, *FINISH)
    shutil.rmtree(tmp_path / "wal" / escape(NEW))
    (tmp_path / "older").rename(tmp_path / "wal" / escape(NEW))
    ended(0, "relog", f"--namespace={NEW}", "--to=saved", "--yes", "--force")
    assert rows_by_table(place.store, "saved") == rows_by_table(place.store)


def test_a_moved_namespace_whose_copy_lost_its_log_is_not_taken_back(place, tmp_path):
    ended(0, *FINISH)
    shutil.rmtree(tmp_path / "wal" / escape(NEW))
    message = refused(REFUSED, "adopt", f"--lineage={LINEAGE}", "--namespace=flights", "--yes")
    assert "or lost its log" in message


def test_a_namespace_that_a_relog_has_begun_is_no_querys_until_it_has_a_version(place, tmp_path):
    """Red before: a query began there with its own versions, and the relog could not be continued."""
    expected = rows_by_table(place.store)
    shutil.rmtree(tmp_path / "wal" / "flights")
    words = ("relog", "--namespace=flights", "--to=saved", "--yes")
    failpoints.arm("open.before_append=raise@1")
    assert run(*words).exit_code != 0
    failpoints.arm(None)
    with pytest.raises(ConfigError, match="`tidegate relog --namespace SOURCE --to saved` again"):
        place.writer("saved")
    ended(0, *words)
    assert rows_by_table(place.store, "saved") == expected
    write(place, "saved")


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["rekey:ab:1", "relog:ab:1", "rename column 3 x", "quarantine drop 1 x"])
def test_a_token_that_looks_like_a_commands_own_is_refused(place, tmp_path, token):
    """Red before: the namespace was taken for one that a rekey is making."""
    ended(0, "export", tmp_path / "out", "--namespace=flights")
    message = refused(REFUSED, "import", tmp_path / "out", "--namespace=other", "--token", token)
    assert re.search(r"begins? like a token of tidegate's own", message)
    assert run("status", "--namespace=other").exit_code != 0
