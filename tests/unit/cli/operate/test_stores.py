"""Commands over several stores: store add, remove, list; status, recover, verify, vacuum, drop."""

import contextlib
import json
import re
import shutil
import sqlite3

import pytest

import tidegate
from support.cli import ended, run
from support.places import silence_writer, stored_rows
from tidegate.base import failpoints
from tidegate.cli.core.options import split_stores
from tidegate.errors import StoreRemovedError, StoreUnavailableError, WalGapError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import LINEAGE, Example, write_flights


def done(*arguments):
    return ended(0, *arguments).stdout


def done_json(*arguments):
    return json.loads(done(*arguments, "--json"))


def refused(code, *arguments):
    return ended(code, *arguments).stderr


class Place:
    def __init__(self, folder):
        self.folder = folder
        self.log = [f"--wal=file://{folder}/wal", "--namespace=flights"]

    def url(self, name):
        return f"sqlite://{self.folder}/{name}"

    def stores(self, *names):
        return [*(f"--store={name}={self.url(name)}" for name in names), *self.log]

    def silence(self, *names):
        """As if the writer had gone long ago."""
        for name in names:
            silence_writer(self.folder / name)

    def content(self, name):
        return stored_rows(self.url(name))


@pytest.fixture
def place(tmp_path):
    """A namespace of one store, which was never given a name."""
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/main")
    made = Place(tmp_path)
    made.silence("main")
    return made


def test_a_store_is_added_shown_and_removed(place):
    text = done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    assert "its stores are main, copy (the first is the primary)" in text
    assert place.content("copy") == place.content("main")
    rows = done_json("store", "list", *place.stores("main", "copy"))["stores"]
    assert [(row["name"], row["listed"], row["visible"], row["lag"]) for row in rows] == [
        ("main", True, 3, 0),
        ("copy", True, 3, 0),
    ]
    place.silence("main", "copy")
    assert done_json("store", "remove", "copy", *place.stores("main", "copy"))["listed"] == ["main"]
    for unknown in ("copy", "typo"):  # red before: it looked like a removal
        text = refused(2, "store", "remove", unknown, *place.stores("main"))
        assert f"has no store {unknown}, and nothing was written; its stores are main" in text
    assert "nothing was written" in done("store", "remove", "copy", *place.stores("main", "copy"))
    assert "does not have the namespace" in refused(2, "store", "remove", "no", *place.stores("main", "no"))
    assert place.content("copy")[0] == 3  # its data stays
    assert "from these stores" in done("drop", "--only-stores", "--yes", *place.stores("copy"))
    assert place.content("main")[0] == 3
    with contextlib.closing(open_store(place.url("copy"), "flights")) as store:
        assert store.identity() is None


def test_the_alias_of_a_removed_stores_readers_is_dropped_in_that_store_alone(place):
    """Red before: it was asked for, and the page's last step was refused."""
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    done("alias", "set", "live", *place.stores("main", "copy")[:2], "--namespace=flights")
    place.silence("main", "copy")
    done("store", "remove", "copy", *place.stores("main", "copy"))
    done("drop", "--only-stores", "--yes", *place.stores("copy"))
    assert "live" not in done("alias", "list", f"--store=copy={place.url('copy')}")
    with tidegate.connect(place.url("main"), "live") as gate:
        assert gate.version() == 3


def written(place, airport, versions):
    with contextlib.closing(Example(f"file://{place.folder}/wal", place.url("main"))) as example:
        for number in range(versions):
            example.write({"airports": {airport: {"departures": number, "delay": 0.0}}})
    place.silence("main")


def test_a_fill_that_was_begun_in_a_history_which_the_log_lost_is_not_continued(place):
    """Red before: the new store had the rows of both histories, and no error."""
    for name in ("main", "wal"):
        shutil.copytree(place.folder / name, place.folder / f"{name}-before")
    written(place, "LOST", 2)
    failpoints.arm("fill.after_group=raise@6")
    add = ("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    assert run(*add).exit_code != 0
    failpoints.arm(None)
    for name in ("main", "wal"):
        shutil.rmtree(place.folder / name)
        (place.folder / f"{name}-before").rename(place.folder / name)
    written(place, "KEPT", 4)
    for _ in range(3):  # each takes one epoch more than the one before
        place.silence("main", "copy")
        told = run(*add).stderr
    assert "the log lost a decision" in told
    done("recover", "--discard-lost", *place.stores("main", "copy"))
    assert place.content("copy") == place.content("main")


def test_a_command_that_has_filled_a_store_counts_as_no_running_writer_there(place):
    """The move to a new store was refused for 30 s, with the ended command named as the writer."""
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    assert done_json("store", "remove", "main", *place.stores("copy"))["listed"] == ["copy"]


def test_doctor_fails_where_a_query_with_these_stores_is_refused(place):
    """It passed all along, and status and the query's open said no."""
    many = place.stores("main", "copy")
    list_of = "log and stores: the list"
    assert list_of not in done("doctor", *place.stores("main"))
    assert f"failed: {list_of}" in refused(1, "doctor", *many)
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main", "copy")
    assert f"{list_of}\tpass\tmain, copy, as the log lists them" in done("doctor", *many)
    result = run("doctor", *place.stores("main"))
    assert result.exit_code == 1
    assert "store copy is not given: give it as copy=URL" in result.stdout


@pytest.mark.parametrize(
    "name", ["open.after_append", "follow.after_claim", "fill.after_group", "publish.before"]
)
def test_an_addition_that_was_cut_short_is_repeated(place, name):
    failpoints.arm(f"{name}=raise")
    assert run("store", "add", f"copy={place.url('copy')}", *place.stores("main")).exit_code == 1
    failpoints.arm(None)
    done("store", "add", "--force", f"copy={place.url('copy')}", *place.stores("main"))
    assert place.content("copy") == place.content("main")


def test_later_leaves_the_filling_to_the_query(place):
    text = done("store", "add", "--later", f"copy={place.url('copy')}", *place.stores("main"))
    assert "it fills the new one" in text
    with contextlib.closing(open_store(place.url("copy"), "flights")) as store:
        assert store.identity() is None
    status = refused(10, "status", *place.stores("main"))
    assert "copy is in the log's list and was not given" in status
    place.silence("main")
    recovered = done_json("recover", *place.stores("main", "copy"))
    assert recovered["stores"] == [{"name": "copy", "visible": 3, "error": None}]
    assert place.content("copy") == place.content("main")
    assert "nothing to recover" in done("recover", *place.stores("main", "copy"))


def test_status_has_a_row_for_each_store(place):
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    text = done("status", *place.stores("main", "copy"))
    assert [line.split("\t")[0] for line in text.splitlines() if "at the log's end" in line] == [
        "main",
        "copy",
    ]
    shutil.rmtree(place.folder / "copy")
    assert "empty: " in done("status", *place.stores("main", "copy"))
    quick = place.folder / "quick"
    quick.write_text("timeout_s=0.2\nsocket_timeout=0.1\nsocket_connect_timeout=0.1\n")
    away = ["--store=copy=redis://127.0.0.1:1/0", f"--store-config=copy={quick}"]
    rows = done_json("status", *place.stores("main"), *away)["stores"]
    assert rows[0]["error"] is None
    assert "StoreUnavailableError" in rows[1]["error"]
    stranger = refused(10, "status", *place.stores("main", "copy"), f"--store=other={place.url('other')}")
    assert "store other is not in the log's list" in stranger
    # The first that answers stands for the namespace.
    assert done_json("status", *away, *place.stores("main"))["visible"] == 3


def test_status_tells_of_a_second_store_where_the_log_has_no_list(place):
    """A query with it is refused, and status said that all is well, in either order."""
    for order in (("main", "other"), ("other", "main")):
        told = refused(10, "status", *place.stores(*order))
        assert (
            "store other is not in the log's list: run `tidegate store add other=URL --namespace flights`"
            in told
        )
        assert "store main" not in told
    rows = done_json("store", "list", *place.stores("main", "other"))["stores"]
    assert [row["listed"] for row in rows] == [None, False]
    assert done_json("status", *place.stores("main"))["problems"] == []


def test_without_the_log_the_store_that_has_the_namespace_stands_for_it(place):
    """It said that there is no namespace, for the first one had none."""
    stores = [option for option in place.stores("other", "main") if not option.startswith("--wal")]
    assert done_json("status", *stores)["visible"] == 3
    nowhere = [option for option in place.stores("other", "third") if not option.startswith("--wal")]
    told = refused(2, "status", *nowhere)
    assert "/other nor in sqlite://" in told
    assert "/third: check URLs and name" in told


def test_recover_tells_of_a_store_that_is_down_and_brings_the_others_to_the_end(place):
    done("store", "add", "--later", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main")
    (place.folder / "copy").write_text("no folder")
    told = refused(2, "recover", *place.stores("main", "copy"))
    assert "store copy: ConfigError" in told
    assert "Not a directory; give a folder" in told
    (place.folder / "copy").unlink()
    place.silence("main")
    done("recover", *place.stores("main", "copy"))
    assert place.content("copy")[0] == 3


def test_adopt_tells_of_a_store_that_is_down_by_its_exit_code(place):
    """As all others do; the adoption stands."""
    done("store", "add", "--later", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main")
    (place.folder / "copy").write_text("no folder")
    lineage = LINEAGE.replace("8", "9")
    result = run("adopt", "--yes", "--lineage", lineage, *place.stores("main", "copy"))
    assert (result.exit_code, "store copy: ConfigError" in result.stderr) == (2, True)
    assert f"follows query {lineage} from now on" in result.stdout


def test_a_store_is_not_added_under_a_second_name(place):
    """To rename it, say: removing the old name is told with the command that drops its data."""
    told = refused(2, "store", "add", f"better={place.url('main')}/", *place.stores("main"))
    assert "stores main and better are one" in told


def test_what_a_query_writes_under_another_name_is_not_dropped(place):
    """The name is not in the log's list, and the URL was that of the only store."""
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    with contextlib.closing(open_store(place.url("main"), "flights")) as store:
        store.heartbeat(store.pointer().epoch)
    wrong = [f"--store=old={place.url('main')}", *place.log]
    told = refused(2, "drop", "--only-stores", "--yes", *wrong)
    assert "a store that a query writes: check --store" in told
    assert place.content("main")[0] == 3


def test_commands_that_open_want_every_store_of_the_list(place):
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main", "copy")
    for command in (["recover"], ["repair"], ["adopt", "--yes", "--lineage", LINEAGE.replace("8", "9")]):
        assert "tidegate store remove copy" in refused(2, *command, *place.stores("main"))
        assert "tidegate store add other=URL" in refused(2, *command, *place.stores("main", "copy", "other"))


def test_verify_vacuum_repair_and_adopt_work_over_all_stores_or_one(place):
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main", "copy")
    both = place.stores("main", "copy")
    assert [one["findings"] for one in done_json("verify", *both)["stores"]] == [[], []]
    assert done_json("verify", *place.stores("copy"))["findings"] == []
    readers = [option for option in both if not option.startswith("--wal")]
    assert [one["store"] for one in done_json("vacuum", *readers)["stores"]] == ["main", "copy"]
    assert "nothing was lost" in done("repair", *both)
    place.silence("main", "copy")
    done("adopt", "--yes", "--lineage", LINEAGE.replace("8", "9"), *both)
    with contextlib.closing(sqlite3.connect(next((place.folder / "copy/flights").glob("shard-*")))) as shard:
        shard.execute("DELETE FROM applied")
    for path in (place.folder / "copy" / "flights").glob("shard-*.sqlite"):
        with (
            contextlib.closing(sqlite3.connect(path)) as shard,
            contextlib.suppress(sqlite3.OperationalError),
        ):
            shard.execute("DELETE FROM t_airports")
            shard.commit()
    assert "copy" in run("verify", *both).stdout


def test_drop_takes_all_stores_and_refuses_to_forget_one(place):
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main", "copy")
    assert "also has store copy" in refused(2, "drop", "--yes", *place.stores("main"))
    assert "follows the log" in refused(2, "drop", "--only-stores", "--yes", *place.stores("copy"))
    done("drop", "--yes", *place.stores("main", "copy"))
    for name in ("main", "copy"):
        assert not (place.folder / name / "flights").exists()


def test_what_cannot_be_added_or_removed(place):
    add = ["store", "add", f"copy={place.url('copy')}"]
    assert "--store is missing" in refused(2, *add, *place.log)
    unnamed = ["store", "add", place.url("copy"), "--store", place.url("main"), *place.log]
    assert "two stores are called sqlite: give each a name" in refused(2, *unnamed)
    assert "give the stores that remain" in refused(2, "store", "remove", "main", *place.stores("main"))
    write_flights(f"file://{place.folder}/wal2", place.url("copy"))
    assert "does not belong to" in refused(10, *add, *place.stores("main"))
    rows = done_json("store", "list", *place.stores("main"))["stores"]
    assert [row["listed"] for row in rows] == [None]  # nothing was appended
    done("store", "add", f"third={place.url('third')}", *place.stores("main"))
    shutil.rmtree(place.folder / "third")


def test_stores_from_the_environment(place, monkeypatch):
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    monkeypatch.setenv("TIDEGATE_STORE", f"main={place.url('main')} copy={place.url('copy')}")
    assert len(done_json("status", *place.log)["stores"]) == 2
    assert json.loads(done("get", "airports", "LGA", "--json", place.log[1]))["value"]["departures"] == 1
    assert split_stores("sqlite:///with a space/x") == ["sqlite:///with a space/x"]
    assert split_stores("a=redis://h:1,j:2/0 sqlite:///b") == ["a=redis://h:1,j:2/0", "sqlite:///b"]


# -- the note of a removed store ---------------------------------------------------------------------


@pytest.fixture
def two(place):
    done("store", "add", f"copy={place.url('copy')}", *place.stores("main"))
    place.silence("main", "copy")
    return place


def test_readers_of_a_removed_store_are_refused_and_sent_to_the_successor(two):
    got = ["get", "aircraft", "N14228", "--namespace=flights", f"--store={two.url('main')}"]
    assert "UA" in done(*got)
    text = done("store", "remove", "main", "--redirect=copy", *two.stores("main", "copy"))
    assert f"readers of store main continue at {two.url('copy')}" in text
    assert f"its successor is {two.url('copy')}" in refused(StoreRemovedError.exit_code, *got)
    with tidegate.connect(two.url("main"), "flights", follow_redirects=True) as gate:
        assert gate.table("aircraft").get("N14228")["flights"] == 2


def test_a_removed_store_is_neither_written_nor_backed_up_as_a_living_one(two):
    """Its note is not overwritten by a query that gives its URL under the name of one that remained."""
    done("store", "remove", "main", "--redirect=copy", *two.stores("main", "copy"))
    driver = Example(two.log[0].removeprefix("--wal="), f"copy={two.url('copy')}")
    driver.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    driver.close()
    two.silence("copy")
    as_copy = [f"--store=copy={two.url('main')}", *two.log]
    advice = refused(StoreRemovedError.exit_code, "recover", *as_copy)
    assert "`tidegate store add NAME=URL --namespace flights`" in advice
    with pytest.raises(StoreRemovedError, match="was removed from the namespace: nothing was written"):
        Example(two.log[0].removeprefix("--wal="), f"copy={two.url('main')}")
    folder = two.folder / "backup"
    for _ in range(2):
        text = refused(StoreRemovedError.exit_code, "backup", folder, f"--store={two.url('main')}", *two.log)
        assert "gets no newer version, so its backups end with version 3" in text
    done("backup", folder, "--check")
    assert "under another name" in refused(
        2, "drop", "--only-stores", "--yes", f"--store=main={two.url('copy')}", *two.log
    )


def test_status_and_doctor_of_a_removed_store_name_the_removal(two):
    """They said "not visible yet: recover, or wait"."""
    done("store", "remove", "main", "--redirect=copy", *two.stores("main", "copy"))
    driver = Example(two.log[0].removeprefix("--wal="), f"copy={two.url('copy')}")
    driver.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    driver.close()
    result = run("status", *two.stores("main"))
    assert result.exit_code == WalGapError.exit_code
    assert "not visible yet: see the problem below" in result.stdout
    assert "none: the store was removed" in result.stdout
    assert "it keeps version 3, and no later one becomes visible there" in result.stderr
    shown = json.loads(run("status", "--json", *two.stores("main")).stdout)
    assert (shown["removed"], shown["writer"]) == (True, None)
    assert "it keeps version 3" in run("doctor", *two.stores("main")).stdout
    assert "it keeps version 3" in done("store", "list", *two.stores("copy", "main"))


def test_a_note_that_was_not_written_is_written_by_the_same_command_later(two, monkeypatch):
    without = done("store", "remove", "main", *two.stores("copy"))
    assert "store main has no note for its readers" in without
    with tidegate.connect(two.url("main"), "flights") as gate:
        assert gate.version() == 3
    repeated = ["store", "remove", "main", "--force", *two.stores("main", "copy")]
    with monkeypatch.context() as down:
        down.setattr(SqliteStore, "claim", lambda *_: (_ for _ in ()).throw(StoreUnavailableError("is down")))
        assert "repeat this command when it answers" in refused(StoreUnavailableError.exit_code, *repeated)
    for _ in range(2):
        assert done_json(*repeated)["noted"]
    with tidegate.connect(two.url("main"), "flights") as gate, pytest.raises(StoreRemovedError):
        gate.version()
    two.silence("copy")
    done("store", "add", f"main={two.url('main')}", *two.stores("copy"))
    with tidegate.connect(two.url("main"), "flights") as gate:
        assert gate.version() == 3


def test_a_successor_by_its_url_is_opened_and_compared_first(two):
    """A wrong URL led readers nowhere, or to another namespace of the same name."""
    removing = ["store", "remove", "main", *two.stores("main", "copy"), "--redirect"]
    assert "has no namespace of that name" in refused(2, *removing, two.url("elsewhere"))
    write_flights(f"file://{two.folder}/other-wal", two.url("other"))
    assert "has another one" in refused(2, *removing, two.url("other"))
    assert done_json("store", "list", *two.stores("main", "copy"))["stores"][0]["listed"]
    shutil.copytree(two.folder / "main", two.folder / "older")
    both = [f"main={two.url('main')}", f"copy={two.url('copy')}"]
    driver = Example(two.log[0].removeprefix("--wal="), both)
    driver.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    driver.close()
    two.silence("main", "copy")
    text = refused(2, *removing, two.url("older"))
    assert f"the successor {two.url('older')} shows version 3, the removed one 4: no note was written" in text
    shutil.rmtree(two.folder / "older")
    shutil.copytree(two.folder / "copy", two.folder / "older")
    assert f"continue at {two.url('older')}" in done(*removing, two.url("older"), "--force")


def test_a_redirect_without_a_place_for_its_note_is_refused(two):
    assert "--redirect is for the note" in refused(
        2, "store", "remove", "main", "--redirect=copy", *two.stores("copy")
    )
    text = refused(2, "store", "remove", "main", "--redirect=elsewhere", *two.stores("main", "copy"))
    assert "that is no store of --store (copy), and no URL" in text
    assert done_json("store", "list", *two.stores("main", "copy"))["stores"][0]["listed"]


def test_a_successor_that_lacks_an_alias_is_refused_before_anything_is_written(two):
    """Red before: readers by the alias found nothing there, and the advice made a namespace of its name."""
    remove = ["store", "remove", "main", "--redirect=copy", *two.stores("main", "copy")]
    done("alias", "set", "live", "--namespace=flights", f"--store={two.url('main')}")
    text = refused(2, *remove)
    assert "store main has the alias live, which its successor lacks" in text
    (command,) = re.findall("`tidegate ([^`]*)`", text)
    done(*command.split())
    done(*remove)
    with tidegate.connect(two.url("main"), "live", follow_redirects=True) as gate:
        assert gate.table("aircraft").get("N14228")["flights"] == 2
    done("drop", "--only-stores", "--yes", f"--store=main={two.url('main')}", *two.log)
    assert "live" not in done("alias", "list", f"--store={two.url('main')}")


def test_a_listed_store_that_is_given_without_its_name_is_told_so(two):
    """Red before: each of the two printed commands was refused, and led to the other one."""
    text = refused(2, "recover", f"--store={two.url('main')}", f"--store=copy={two.url('copy')}", *two.log)
    assert (
        "store main is not given: give it as main=URL; store sqlite is not in the list: it may be main"
        in text
    )
    assert "`tidegate" not in text
