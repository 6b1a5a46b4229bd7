"""The commands recover and adopt: what they finish, refuse, and fence."""

import json

import pytest

from support.cli import decisions, done, done_json, options_for, readers_only, refused, run
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import LINEAGE

NEW = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"


# -- recover ----------------------------------------------------------------------------------------


def test_recover_finishes_what_was_decided(stuck):
    assert done_json("recover", *stuck.options) == {"namespace": "flights", "recovered": [2], "visible": 2}
    options = readers_only(stuck.options)
    assert done("get", "airports", "EWR", *options) == "departures\t2\ndelay\t1.5\n"
    before = decisions(stuck.driver)
    assert "nothing to recover: version 2 is visible" in done("recover", *stuck.options)
    assert done_json("recover", *stuck.options)["recovered"] == []
    assert decisions(stuck.driver) == before  # success, and nothing appended


def test_recover_refuses_while_a_writer_lives_unless_forced(stuck):
    stuck.driver.store.heartbeat(1)
    before = decisions(stuck.driver)
    message = refused(2, "recover", *stuck.options)
    assert stuck.driver.writer in message
    assert "--force" in message
    assert decisions(stuck.driver) == before
    assert "made visible: version 2; version 2 is visible now" in done("recover", "--force", *stuck.options)


def test_recover_of_a_lost_store_keeps_as_many_versions_as_it_is_given(flights, tmp_path, monkeypatch):
    """A command does not know the query's keep_versions: it takes it, or names the default and the remedy."""
    monkeypatch.setattr(SqliteStore, "keep_versions_default", 1)
    elsewhere = [f"--store=sqlite://{tmp_path}/elsewhere", *flights[1:]]
    text = run("recover", *elsewhere).stdout
    assert "versions 3 to 3 are readable there, by its default of 1" in text
    dropped = run("drop", "--only-stores", "--force", "--yes", *elsewhere)
    assert dropped.exit_code == 0, dropped.output
    result = run("recover", "--keep-versions", "2", *elsewhere)
    assert "it is rebuilt, with versions 2 to 3 readable" in result.stderr
    assert "readable there" not in result.stdout


def test_recover_refuses_a_log_that_is_not_the_stores(stuck, flights):
    assert "does not belong to" in refused(10, "recover", flights[0], *stuck.options[1:])


@pytest.mark.parametrize("command", [("recover",), ("verify",), ("adopt", "--lineage", NEW)])
def test_a_log_that_is_gone_is_not_a_namespace_that_was_never_made_i10(flights, tmp_path, command):
    gone = [flights[0], f"--wal=file://{tmp_path}/gone", flights[2]]
    assert "restore the log" in refused(10, *command, *gone)
    assert not (tmp_path / "gone").exists()


# -- adopt ------------------------------------------------------------------------------------------


def test_adopt_by_lineage(stuck):
    text = done("adopt", "--lineage", NEW, "--yes", *stuck.options)
    assert f"follows query {NEW} from now on (before: {LINEAGE})" in text
    assert "made visible first: version 2" in text
    assert done_json("status", *stuck.options)["lineage"] == NEW
    assert "already" in done("adopt", "--lineage", NEW, *stuck.options)
    back = done_json("adopt", "--yes", "--lineage", LINEAGE, *stuck.options)
    assert back == {
        "namespace": "flights",
        "lineage": LINEAGE,
        "before": NEW,
        "recovered": [],
        "continued": {},
        "source_offsets": "",
    }


@pytest.mark.parametrize("as_url", [False, True])
def test_adopt_by_checkpoint_folder(stuck, tmp_path, as_url):
    folder = tmp_path / "check point"
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": NEW}))
    given = folder.as_uri() if as_url else folder
    assert done_json("adopt", "--yes", "--checkpoint", given, *stuck.options)["lineage"] == NEW


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"id": 7}', "\x00"])
def test_adopt_of_a_folder_that_is_no_checkpoint(stuck, tmp_path, content):
    assert "has started" in refused(2, "adopt", "--checkpoint", tmp_path, *stuck.options)
    (tmp_path / "metadata").write_text(content)
    assert "--lineage ID" in refused(2, "adopt", "--checkpoint", tmp_path, *stuck.options)


def test_adopt_refuses_what_cannot_be(stuck, tmp_path):
    before = decisions(stuck.driver)
    assert "either" in refused(2, "adopt", *stuck.options)
    assert "looks like" in refused(2, "adopt", "--lineage", "flights", *stuck.options)
    assert "either" in refused(2, "adopt", "--lineage", NEW, "--checkpoint", tmp_path, *stuck.options)
    assert "s3://" in refused(2, "adopt", "--checkpoint", "s3://bucket/x", *stuck.options)
    assert "no namespace" in refused(2, "adopt", "--lineage", NEW, *options_for(tmp_path, "nowhere"))
    stuck.driver.store.heartbeat(1)
    assert "--force" in refused(2, "adopt", "--lineage", NEW, *stuck.options)
    assert decisions(stuck.driver) == before
    assert done_json("adopt", "--yes", "--force", "--lineage", NEW, *stuck.options)["lineage"] == NEW
