"""What a command has shown before its question is what it does, also if something changed meanwhile."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from support.cli import done, done_json, options_for, refused, run
from support.places import rows_by_table, silence_writer
from tidegate.base.checks import Check
from tidegate.cli.core import operation
from tidegate.cli.operate import alias
from tidegate.committers.exports import import_rows
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.file.log import FileLog
from tidegate.wal.record import Definition

LATER = {"aircraft": {"NB": {"carrier": "B", "flights": 1}}}
NEW = "9a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11"


@pytest.fixture
def during(monkeypatch):
    """Set what happens while a command asks; the answer is yes."""

    def ask(meanwhile):
        for module in (operation, alias):
            monkeypatch.setattr(module, "confirm", lambda _: meanwhile())

    return ask


def write(root, rows, namespace="flights", *, alive=False):
    example = Example(
        f"file://{root}/wal", f"sqlite://{root}/store", namespace, options=Options(key_groups=2)
    )
    for each in rows:
        example.write(each)
    if alive:
        example.driver.store.heartbeat(example.driver.epoch)
    example.close()
    if not alive:
        silence_writer(root / "store", namespace)


@pytest.fixture
def options(tmp_path):
    """A namespace of two versions that are backed up, and a third one."""
    given = options_for(tmp_path)
    write(tmp_path, BATCHES[:2])
    done("backup", tmp_path / "backup", *given)
    write(tmp_path, BATCHES[2:])
    return given


def test_a_batch_that_came_during_the_question_is_not_undone_by_restore_from(options, tmp_path, during):
    """Red before: exit 0, and the next start made the restored version visible over that batch."""
    shutil.rmtree(tmp_path / "store")
    during(lambda: (run("recover", *options), write(tmp_path, [LATER])))
    text = refused_after_question("restore-from", tmp_path / "backup", "--to", "2", *options)
    assert "shows version 4 now, and its log ends at version 4; before, nothing was visible" in text
    done("recover", *options)
    assert "NB" in rows_by_table(options[0].partition("=")[2], "flights")["aircraft"]


def test_a_namespace_that_was_made_during_the_question_is_not_replaced(options, tmp_path, during):
    other = [*options[:2], "--namespace=other"]
    during(lambda: write(tmp_path, [LATER], "other"))
    text = refused_after_question("restore-from", tmp_path / "backup", *other)
    assert "Nothing was restored" in text
    assert rows_by_table(options[0].partition("=")[2], "other") == LATER


def test_a_writer_that_came_during_the_question_is_not_fenced(options, tmp_path, during):
    during(lambda: write(tmp_path, [], alive=True))
    text = refused_after_question("restore", "--to", "1", *options)
    assert "would fence it" in text


def test_an_adoption_starts_after_the_batch_that_was_shown(options, tmp_path, during):
    during(lambda: write(tmp_path, [LATER]))
    text = refused_after_question("adopt", "--lineage", NEW, *options)
    assert "has a later batch now, version 4, not 3 as shown" in text
    assert done_json("status", *options)["lineage"] != NEW


def refused_after_question(*words):
    result = run(*words)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_an_alias_that_was_set_during_the_question_is_not_dropped(options, tmp_path, during):
    write(tmp_path, [LATER], "other")
    store = options[0]
    done("alias", "set", "live", *options[::2])
    during(lambda: done("alias", "set", "live", store, "--namespace=other"))
    assert "was set meanwhile: nothing was dropped" in refused(2, "alias", "drop", "live", store)
    assert "other" in done("alias", "list", store)


# -- names of aliases ----------------------------------------------------------------------------------


def test_a_namespace_gets_no_name_of_an_alias_in_any_store(options, tmp_path):
    """Red before: readers of one name read two namespaces."""
    write(tmp_path, [LATER], "other")
    main, copy = f"main=sqlite://{tmp_path}/new", f"copy={options[0].partition('=')[2]}"
    done("alias", "set", "taken", f"--store={copy}", "--namespace=other")
    with pytest.raises(Exception, match="is an alias of namespace other"):
        Example(options[1].partition("=")[2], [main, copy], "taken")


def test_rekey_says_which_namespace_loses_an_alias(options, tmp_path):
    write(tmp_path, [LATER], "other")
    done("alias", "set", "live", options[0], "--namespace=other")
    words = ["rekey", "--to", "more", "--key-groups", "4", "--finish", "--yes", "--alias", "live", *options]
    assert "store sqlite: alias live named other before" in run(*words).stderr


# -- rights --------------------------------------------------------------------------------------------


def test_a_log_that_this_user_may_not_remove_keeps_its_stores(options, tmp_path, monkeypatch):
    """Red before: the rows were gone when the log refused."""
    lack = Check("rights", "warn", "this user lacks the right Delete on the topic", "the writer can trim")
    monkeypatch.setattr(FileLog, "checks", lambda _: [lack])
    assert "lacks the right Delete on the topic; nothing was removed" in refused(2, "drop", "--yes", *options)
    assert rows_by_table(options[0].partition("=")[2], "flights")


def test_an_export_of_a_derived_table_alone_makes_no_namespace(options, tmp_path, monkeypatch):
    """Red before: it was refused once an empty namespace of that name was there."""
    done("export", tmp_path / "export", *options[::2])
    read = import_rows.read_manifest

    def derived(folder):
        manifest, digest = read(folder)
        schema = manifest.tables["airports"].table_schema
        of = msgspec.structs.replace(schema, derived=Definition("gone", ("origin",), ()))
        table = msgspec.structs.replace(manifest.tables["airports"], table_schema=of)
        tables = {**manifest.tables, "airports": table}
        return msgspec.structs.replace(manifest, tables=tables), digest

    monkeypatch.setattr(import_rows, "read_manifest", derived)
    text = refused(2, "import", tmp_path / "export", *options[:2], "--namespace=other")
    assert "table airports is derived from table gone, which the export lacks" in text
    assert "other" not in done("namespaces", options[0])
