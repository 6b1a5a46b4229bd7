"""``tidegate rekey`` on files: what it prints and switches, and how it refuses."""

import contextlib
import itertools
import json
import re
import shutil
import sqlite3

import pytest

from support.cli import ended, refused, run
from support.places import rows_by_table, silence_writer
from support.rekeyed import LGA, MORE, NEW, OFFSETS, RekeyedPlace
from tidegate.base.names import escape
from tidegate.committers.background import follower
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.errors import ConfigError, StoreUnavailableError, WalGapError
from tidegate.options import Options
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import BATCHES, LINEAGE, Example
from tidegate.wal.fold import replay_of

WORDS = ("rekey", "--namespace=flights", f"--to={NEW}")


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = RekeyedPlace(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    monkeypatch.setenv("TIDEGATE_STORE", made.store)
    monkeypatch.setenv("TIDEGATE_WAL", made.wal)
    yield made
    made.old.close()


def test_a_namespace_moves_while_its_query_runs_and_its_aliases_are_switched_last(place, tmp_path):
    ended(0, "alias", "set", "live", "--namespace=flights")
    copied = ended(0, *WORDS, "--key-groups=32")  # below a living writer
    assert (
        "version 1 of namespace flights_32 holds version 3 of namespace flights, which has 0" in copied.stdout
    )
    place.old.write({"aircraft": {"N14228": {"carrier": "UA", "flights": 3}}}, source_offsets=OFFSETS)
    expected = place.rows()
    place.old.driver.store.heartbeat(place.old.driver.epoch)
    assert "seems to be running" in refused(ConfigError.exit_code, *WORDS, "--finish", "--yes")
    silence_writer(tmp_path / "store", "flights")
    done = json.loads(ended(0, *WORDS, "--finish", "--yes", "--alias=current", "--json").stdout)
    assert (done["visible"], done["behind"]) == (3, 0)
    assert list(done["aliases"].values()) == [["current", "live"]]
    assert place.rows(NEW) == expected
    assert rows_by_table(place.store, "live") == expected[0]
    with pytest.raises(ConfigError, match="was moved to namespace flights_32"):
        place.writer()
    assert "nothing wrong: versions 1 to 3" in ended(0, "verify", f"--namespace={NEW}").stdout
    with contextlib.closing(place.writer(NEW)) as new:
        assert replay_of(new.driver.folded, batch(LINEAGE, 3)).version == 2  # given again: skipped
        new.write(MORE, batch_id=4)
    assert rows_by_table(place.store, "live")["airports"]["LGA"] == LGA
    assert json.loads(ended(0, *WORDS, "--finish", "--json").stdout)["rows"] is None  # only the aliases


def test_an_attempt_is_ended_by_a_drop_and_the_old_namespace_goes_on(place, tmp_path):
    ended(0, *WORDS, "--key-groups=32")
    ended(0, "drop", f"--namespace={NEW}", "--yes")
    place.old.write(MORE)
    assert rows_by_table(place.store)["airports"]["LGA"] == LGA


@pytest.mark.parametrize("groups", [(), ("--key-groups=32",)])
def test_a_copy_whose_log_is_gone_is_made_again_as_the_error_has_it(place, tmp_path, groups):
    """Red before: another number of key groups was asked for; with it the advice was `tidegate init`."""
    silence_writer(tmp_path / "store", "flights")
    ended(0, *WORDS, "--key-groups=32")
    shutil.rmtree(tmp_path / "wal" / escape(NEW))
    advice = refused(WalGapError.exit_code, *WORDS, *groups, "--finish", "--yes")
    assert "shows an unfinished copy, and the log" in advice
    drop, again = re.findall("`tidegate ([^`]+)`", advice)
    assert again == f"rekey --namespace flights --to {NEW} --key-groups 32"
    ended(0, *drop.split(), "--yes")
    ended(0, *again.split())
    ended(0, *WORDS, "--finish", "--yes")
    assert place.rows(NEW) == place.rows()


def test_a_moved_namespace_is_taken_back_by_an_adopt(place, tmp_path):
    silence_writer(tmp_path / "store", "flights")
    ended(0, *WORDS, "--key-groups=32", "--finish", "--yes")
    ended(0, "drop", f"--namespace={NEW}", "--yes")
    ended(0, "adopt", f"--lineage={LINEAGE}", "--namespace=flights", "--yes")
    with contextlib.closing(place.writer()) as again:
        again.write(MORE)


def test_a_moved_namespace_is_repaired_and_recovered_and_decides_nothing_more(place, tmp_path):
    """Red before: both named the new namespace, and readers of the old one's last version were refused."""
    silence_writer(tmp_path / "store", "flights")
    ended(0, *WORDS, "--key-groups=32", "--finish", "--yes")
    expected = rows_by_table(place.store)
    assert "nothing was lost" in ended(0, "repair", "--namespace=flights").stdout
    shutil.rmtree(tmp_path / "store" / "flights")
    assert "version 3 is visible now" in ended(0, "recover", "--namespace=flights").stdout
    assert rows_by_table(place.store) == expected
    with pytest.raises(ConfigError, match="was moved to namespace flights_32"):
        place.writer()


@pytest.mark.parametrize(
    "words, message",
    [
        (("--key-groups=8",), "has 8 key groups: give another number"),
        ((), "give another number with --key-groups"),
        (("--key-groups=32", "--alias=flights"), "flights"),
    ],
)
def test_a_wrong_request_is_refused_and_nothing_is_made(place, words, message):
    assert message in refused(ConfigError.exit_code, *WORDS, *words)
    assert run("status", f"--namespace={NEW}").exit_code != 0


@pytest.mark.slow
def test_a_store_that_was_away_is_switched_by_the_same_command(tmp_path, monkeypatch):
    """Red before: the second run caught no store up, switched no alias, and ended with 0."""
    monkeypatch.setattr(follower, "COMMAND_TRIES", 1)
    stores = [f"a=sqlite://{tmp_path}/a", f"b=sqlite://{tmp_path}/b"]
    wal = f"file://{tmp_path}/wal"
    with contextlib.closing(Example(wal, stores, options=Options(key_groups=4))) as example:
        example.write(BATCHES[0])
        followers_in(example.driver)[0].catch_up()
    silence_writer(tmp_path / "a")
    words = (*WORDS, f"--wal={wal}", *(f"--store={store}" for store in stores), "--finish", "--yes")
    away = tmp_path / "b" / escape(NEW)
    away.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(away / "meta.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        moved = ended(StoreUnavailableError.exit_code, *words, "--key-groups=8", "--alias=live")
    assert "store b: StoreUnavailableError: no alias was switched here, run the same" in moved.stderr
    assert "alias live names flights_32 in store a" in moved.stdout
    shutil.rmtree(away)
    with contextlib.closing(Example(wal, stores, NEW)) as query:
        query.driver.store.heartbeat(query.driver.epoch)
        assert "version 2 is not visible" in ended(StoreUnavailableError.exit_code, *words).stderr
        query.driver.store.end_heartbeat(query.driver.epoch)
    ended(0, *words, "--alias=live")
    assert rows_by_table(f"sqlite://{tmp_path}/b", "live") == rows_by_table(f"sqlite://{tmp_path}/a")


@pytest.mark.slow
def test_the_copy_follows_in_every_store_and_is_rebuilt_from_its_own_log(tmp_path):
    stores = [f"a=sqlite://{tmp_path}/a", f"b=sqlite://{tmp_path}/b"]
    wal = f"file://{tmp_path}/wal"
    with contextlib.closing(Example(wal, stores)) as example:
        for rows in BATCHES:
            example.write(rows)
            if rows is BATCHES[0]:
                followers_in(example.driver)[0].catch_up()
    silence_writer(tmp_path / "a")
    words = (*WORDS, f"--wal={wal}", "--key-groups=32")
    assert "store b is not given" in refused(ConfigError.exit_code, *words, f"--store={stores[0]}")
    given = [f"--store={store}" for store in stores]
    ended(0, *words, *given)
    ended(0, *words, *given, "--finish", "--yes", "--alias=live")
    expected = rows_by_table(f"sqlite://{tmp_path}/a")
    for store, name in itertools.product(("a", "b"), ("live", "flights")):  # red before: b under the old one
        assert rows_by_table(f"sqlite://{tmp_path}/{store}", name) == expected
    shutil.rmtree(tmp_path / "a" / escape(NEW))
    ended(0, "recover", f"--namespace={NEW}", f"--wal={wal}", *given)
    assert rows_by_table(f"sqlite://{tmp_path}/a", NEW) == expected
