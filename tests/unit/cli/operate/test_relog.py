"""A namespace whose log is gone, whole or in part: the first advice of its error, followed, saves it."""

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess

import pytest

import tidegate
from support.cli import ended, refused, run
from support.clocks import ClockAhead
from support.places import rows_by_table, silence_writer
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.base.names import escape
from tidegate.committers.commit import commit
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.transfer.relog import fence
from tidegate.errors import FencedError, TidegateError, WalUnavailableError
from tidegate.options import Options
from tidegate.options.endpoints import parse_stores
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import BATCHES, LINEAGE, Example, TypedBarrier
from tidegate.ui.facts import Facts
from tidegate.wal.file.log import FileLog
from tidegate.wal.fold import replay_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import LoadOrigin

FAILPOINTS = (
    "open.before_append",
    "open.after_append",
    "open.after_claim",
    "stage.before_ack",
    "manifest.after_write",
    "decide.before_append",
    "decide.after_append",
    "apply.after_begin",
    "apply.after_chunk",
    "publish.before",
    "publish.after",
    "commit.before_return",
)
OFFSETS = '[{"numbers":{"0":7}}]'
MORE = {"airports": {"LGA": {"departures": 2, "delay": 3.0}}}


class Place:
    """Namespace ``flights`` in files, with three batches; its log is then damaged."""

    def __init__(self, folder, monkeypatch, batches=BATCHES):
        self.folder, self.wal, self.store = folder, f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.log = folder / "wal" / "flights"
        monkeypatch.setenv("TIDEGATE_STORE", self.store)
        monkeypatch.setenv("TIDEGATE_WAL", self.wal)
        self.old = self.writer()
        for rows in batches:
            self.old.write(rows, source_offsets=OFFSETS)
        self.rows = rows_by_table(self.store) if batches else {}
        self.silence()

    def writer(self, namespace="flights"):
        return Example(self.wal, self.store, namespace, options=Options(key_groups=8, apply_deadline_s=0.01))

    def silence(self, namespace="flights"):
        silence_writer(self.folder / "store", escape(namespace))

    def first_advice(self):
        """The first command that is quoted in the error of the next driver, or of its first batch."""
        with pytest.raises(TidegateError) as raised, contextlib.closing(self.writer()) as example:
            example.write(MORE)
        return re.findall("`tidegate ([^`]*)`", str(raised.value))[0].split()

    def relog(self, *more):
        return json.loads(ended(0, "relog", "--namespace=flights", "--json", "--yes", *more).stdout)


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path, monkeypatch)
    yield made
    made.old.close()


def gone(place):
    shutil.rmtree(place.log)


def made_again_empty(place):
    """As brokers do that create a topic which somebody asks for."""
    gone(place)
    open_log(place.wal, "flights").create()


def decisions_gone(place):
    (place.log / "decisions.log").unlink()


def changes_gone(place):
    shutil.rmtree(place.log / "changelog")


def cut_in_the_middle(place):
    log = place.old.driver.log
    log.trim_decisions(list(log.decisions())[3].position)


def end_lost(place):
    entries = list(place.old.driver.log.decisions())
    file = place.log / "decisions.log"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - (entries[-1].next_position - entries[-1].position)])


def cut_below(place):
    """A version is decided and not visible, and its rows are lost."""
    failpoints.arm("apply.before_chunk=raise")
    with pytest.raises(FailpointError):
        place.old.write(MORE)
    failpoints.arm(None)
    for segment in (place.log / "changelog").iterdir():
        segment.unlink()
    place.silence()


LOSSES = (gone, made_again_empty, decisions_gone, changes_gone, cut_in_the_middle, end_lost, cut_below)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_the_first_advice_saves_the_visible_version_and_the_query_continues(place, lose):
    lose(place)
    words = place.first_advice()
    assert words[0] == "relog"
    ended(0, *words, "--namespace=flights", "--yes")
    assert rows_by_table(place.store, "flights_2") == place.rows
    with contextlib.closing(place.writer("flights_2")) as new:
        assert replay_of(new.driver.folded, batch(LINEAGE, 2)).version == 1  # given again: skipped
        new.write(MORE, batch_id=3)
    assert rows_by_table(place.store, "flights_2")["airports"]["LGA"] == MORE["airports"]["LGA"]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_status_doctor_and_page_show_the_loss_and_what_saves_it(place, lose):
    lose(place)
    command = "`tidegate relog --namespace flights --to flights_2` saves version 3"
    status = run("status", "--namespace=flights")
    assert status.exit_code in (10, 14)
    assert command in status.stderr
    assert "visible version\t3" in status.stdout
    doctor = run("doctor", "--namespace=flights", "--json")
    failed = [check["found"] for check in json.loads(doctor.stdout) if check["outcome"] == "fail"]
    assert any("tidegate relog" in found for found in failed), failed
    facts = Facts("flights", parse_stores([place.store]), place.wal)
    with contextlib.closing(facts):
        problems = facts.look()["problems"]
    assert any("tidegate relog" in problem for problem in problems), problems


@pytest.mark.parametrize("lose", [gone, made_again_empty, decisions_gone], ids=lambda lose: lose.__name__)
def test_init_over_a_store_without_its_log_is_refused_with_that_advice(place, lose):
    lose(place)
    message = refused(10, "init", "--namespace=flights")
    assert re.findall("`tidegate ([^` ]*)", message)[0] == "relog"
    assert not (place.log / "decisions.log").exists() or not list(place.old.driver.log.decisions())


def test_a_clock_that_was_ahead_and_rows_that_expired_meanwhile(tmp_path, monkeypatch):
    """The driver's clock was 59 minutes ahead: a row of 30 minutes had expired at the saved version."""
    clock = ClockAhead(0)
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    monkeypatch.setenv("TIDEGATE_STORE", store)
    monkeypatch.setenv("TIDEGATE_WAL", wal)
    options = Options(key_groups=8, ttl={"airports": "30 min", "legs": "2 h"})
    example = Example(wal, store, options=options, clock=clock)
    example.write(BATCHES[0])
    clock.ahead_us = 3_540_000_000
    example.write({"airports": {"JFK": {"departures": 1, "delay": 0.5}}})
    with tidegate.connect(store, "flights") as gate:
        saved, rows = gate.history()[-1].decided_at, rows_by_table(store)
    assert rows["airports"].keys() == {"JFK"}
    example.close()
    shutil.rmtree(tmp_path / "wal")
    silence_writer(tmp_path / "store")
    for _ in range(2):
        done = json.loads(ended(0, "relog", "--namespace=flights", "--json", "--yes").stdout)
        assert (done["visible"], rows_by_table(store, "flights_2")) == (1, rows)
    with tidegate.connect(store, "flights_2") as gate:
        assert gate.history()[-1].decided_at > saved
    again = Example(wal, store, "flights_2", options=options)
    again.write(MORE)
    again.close()
    assert rows_by_table(store, "flights_2")["airports"].keys() == {"JFK", "LGA"}


def test_a_relog_that_died_saves_a_newer_version_of_a_clock_that_was_ahead(place, tmp_path):
    """The log came back after the relog had begun, and is lost again after one more version."""
    place.log.rename(tmp_path / "away")
    failpoints.arm("stage.before_write=raise")
    died = run("relog", "--namespace=flights", "--yes")
    assert isinstance(died.exception, FailpointError), died.output
    failpoints.arm(None)
    (tmp_path / "away").rename(place.log)
    place.silence()
    ahead = Example(place.wal, place.store, options=Options(key_groups=8), clock=ClockAhead(3_540))
    ahead.write(MORE)
    ahead.close()
    with tidegate.connect(place.store, "flights") as gate:
        saved = gate.history()[-1]
    gone(place)
    refused = run("relog", "--namespace=flights", "--yes")
    assert "begun as a copy of another namespace or version" in refused.output
    assert run("drop", "--namespace=flights_2", "--force", "--yes").exit_code == 0
    assert place.relog()["version"] == saved.version
    with tidegate.connect(place.store, "flights_2") as gate:
        assert gate.history()[-1].decided_at > saved.decided_at
    assert rows_by_table(place.store, "flights_2") == rows_by_table(place.store)


@pytest.mark.parametrize("name", FAILPOINTS)
def test_a_relog_that_died_anywhere_is_run_again(place, name):
    gone(place)
    failpoints.arm(f"{name}=raise")
    died = run("relog", "--namespace=flights", "--yes")
    assert isinstance(died.exception, FailpointError), died.output
    failpoints.arm(None)
    assert place.relog()["to"] == "flights_2"
    assert rows_by_table(place.store, "flights_2") == place.rows
    again = place.relog()
    assert (again["new"], again["visible"]) == (False, 1)


def test_a_zombie_with_the_handles_of_the_old_log_publishes_nothing(place):
    """Its log is made again under it. It decides version 4 there, and its store refuses to show it."""
    content = {path: path.read_bytes() for path in place.log.rglob("*") if path.is_file()}
    gone(place)
    done = place.relog()
    for path, of_file in content.items():  # an old copy comes back
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(of_file)
    with pytest.raises(FencedError):
        place.old.write(MORE)
    assert rows_by_table(place.store) == place.rows
    assert rows_by_table(place.store, done["to"]) == place.rows


def test_what_is_not_gone_is_not_relogged(place, monkeypatch):
    assert "nothing is to be saved: `tidegate recover" in refused(2, "relog", "--namespace=flights", "--yes")
    gone(place)
    assert "--to flights is the namespace itself" in refused(
        2, "relog", "--namespace=flights", "--to=flights"
    )
    assert "nothing to save" in refused(2, "relog", "--namespace=other", "--yes")
    with contextlib.closing(Example(place.wal, place.store, "mine")) as example:
        example.write(BATCHES[0])
    place.silence("mine")
    taken = refused(2, "relog", "--namespace=flights", "--to=mine", "--yes")
    assert "give another name, `tidegate relog" in taken
    assert "add --yes" in run("relog", "--namespace=flights").stderr
    place.old.driver.store.heartbeat(place.old.driver.epoch)
    assert "seems to be running" in refused(2, "relog", "--namespace=flights", "--yes")

    def away(*_):
        raise WalUnavailableError("no broker answers")

    monkeypatch.setattr(FileLog, "decisions", away)
    assert "no broker answers" in refused(6, "relog", "--namespace=flights", "--yes")
    assert not (place.folder / "wal" / "flights__2").exists()


def test_aliases_and_stores_follow(place, tmp_path):
    main, copy = f"--store=main={place.store}", f"--store=copy=sqlite://{tmp_path}/copy"
    ended(0, "store", "add", f"copy=sqlite://{tmp_path}/copy", main, "--namespace=flights")
    for at in (main, copy):
        ended(0, "alias", "set", "live", "--namespace=flights", at.replace("main=", "").replace("copy=", ""))
    gone(place)
    done = place.relog(main, copy, "--to=green", "--force")
    assert done["aliases"] == {"main": ["live"], "copy": ["live"]}
    for store in (place.store, f"sqlite://{tmp_path}/copy"):
        assert rows_by_table(store, "live") == rows_by_table(store, "green") == place.rows
    assert done["rows"] == {name: len(rows) for name, rows in place.rows.items()}


# -- the checkpoint -----------------------------------------------------------------------------------


def checkpoint(folder, done, planned, lineage=LINEAGE):
    for name, last in (("offsets", planned), ("commits", done)):
        (folder / name).mkdir(parents=True)
        for number in range(last + 1):
            (folder / name / str(number)).write_text(f'v1\n{{}}\n{{"numbers":{{"0":{number}}}}}')
            (folder / name / f".{number}.crc").write_bytes(b"crc")
    (folder / "metadata").write_text(json.dumps({"id": lineage}))
    return folder


@pytest.mark.parametrize("done, planned", [(2, 2), (2, 3), (1, 2)])
def test_a_checkpoint_that_continues_after_the_last_batch_is_taken(place, done, planned):
    gone(place)
    folder = checkpoint(place.folder / "checkpoint", done, planned)
    assert place.relog("--checkpoint", folder)["last_batch"] == 2


@pytest.mark.parametrize(
    "done, planned, lineage, words",
    [
        (1, 1, LINEAGE, "ends with batch 1, the store has batch 2: the checkpoint is an older copy"),
        (2, 2, "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10", "is the checkpoint of query 0e9d3f5c"),
    ],
)
def test_another_checkpoint_is_refused_before_anything_is_written(place, done, planned, lineage, words):
    gone(place)
    folder = checkpoint(place.folder / "checkpoint", done, planned, lineage)
    assert words in refused(2, "relog", "--namespace=flights", "--yes", "--checkpoint", folder)
    assert not (place.folder / "store" / "flights__2").exists()


def test_batches_that_only_the_log_had_are_named_and_the_checkpoint_is_set_back(place):
    """Pipelined: Spark counts batches 3 and 4 as done, and the store ends with batch 2."""
    gone(place)
    folder = checkpoint(place.folder / "check point", 4, 5)
    words = ("relog", "--namespace=flights", "--yes", "--checkpoint", folder)
    message = refused(2, *words)
    assert "batches 3 to 4 are lost: Spark counts them as done" in message
    assert OFFSETS in message
    (set_back,) = re.findall("`(cd .*?)`", message)
    subprocess.run(["bash", "-c", set_back], check=True)
    assert sorted(path.name for path in (folder / "offsets").iterdir()) == [
        ".0.crc",
        ".1.crc",
        ".2.crc",
        *"012",
    ]
    ended(0, *words)
    (folder / "offsets" / "3").write_text("v1")
    (folder / "commits" / "3").write_text("v1")
    (folder / "offsets" / "2").unlink()
    assert "cannot be set back" in refused(2, *words)


def test_a_batch_that_spark_counts_until_the_fence_is_named(place, monkeypatch):
    """The query runs until the old namespace is fenced, for instance while the command asks."""
    gone(place)
    folder = checkpoint(place.folder / "checkpoint", 2, 2)

    def late(stores, writer):
        for name in ("offsets", "commits"):
            (folder / name / "3").write_text("v1")
        fence(stores, writer)

    monkeypatch.setattr("tidegate.cli.checkpoints.relog.fence", late)
    words = ("relog", "--namespace=flights", "--yes", "--checkpoint", folder)
    assert "batch 3 is lost: Spark counts them as done" in refused(2, *words)
    assert not (place.folder / "store" / "flights__2").exists()


def test_a_checkpoint_is_made_from_the_new_log(place):
    gone(place)
    place.relog()
    place.silence("flights_2")
    folder = place.folder / "again"
    assert "after batch 2" in ended(0, "rebuild-checkpoint", folder, "--namespace=flights_2").stdout
    assert '{"numbers":{"0":7}}' in (folder / "offsets" / "2").read_text()


# -- versions of loads alone --------------------------------------------------------------------------


def retired_up_to_loads(place, loads=3):
    """Let loads follow the batches, and retire all versions but the last two."""
    place.old.driver.options = dataclasses.replace(place.old.driver.options, keep_versions=2)
    driver = place.old.driver
    for number in range(loads):
        value = {"departures": number, "delay": 0.0}
        barrier = TypedBarrier(
            driver.log,
            {"airports": {place.old._key("airports", "SFO"): place.old._value("airports", value)}},
            LoadOrigin(f"load-{number}"),
            8,
            typed=place.old.schemas,
        )
        commit(driver, barrier)
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    assert all(isinstance(entry.origin, LoadOrigin) for entry in driver.store.catalog())
    place.rows = rows_by_table(place.store)
    place.silence()


@pytest.mark.parametrize("lose", [changes_gone, end_lost], ids=lambda lose: lose.__name__)
def test_a_last_batch_that_the_store_has_retired_is_found_in_the_log(place, lose):
    """Red before: the new namespace followed no query, and took the batch that Spark gives again."""
    retired_up_to_loads(place)
    lose(place)
    done = place.relog()
    assert (done["last_batch"], done["lineage"], done["last_batch_unknown"]) == (2, LINEAGE, False)
    with contextlib.closing(place.writer("flights_2")) as new:
        assert replay_of(new.driver.folded, batch(LINEAGE, 2)).version == 1
        new.write(MORE, batch_id=3)


def test_a_last_batch_that_nothing_knows_is_named_with_the_next_step(place):
    """Red before: not a word. With a checkpoint it is compared, before the copy or after it."""
    retired_up_to_loads(place)
    gone(place)
    unsure = checkpoint(place.folder / "unsure", 2, 3)
    words = ["relog", "--namespace=flights", "--yes"]
    assert "none of the versions that the store still has is a batch" in refused(
        2, *words, "--checkpoint", unsure
    )
    assert not (place.folder / "store" / "flights__2").exists()
    asked = run(*words[:2])
    assert "unknown: the last batch of the query" in asked.stderr
    text = ended(0, *words).stdout
    assert "A batch that Spark gives again counts twice" in text
    (command,) = re.findall("first: `tidegate ([^`]*)`", text)
    place.silence("flights_2")
    assert "none of the versions" in refused(2, *command.replace("FOLDER", str(unsure)).split(), "--yes")
    sure = checkpoint(place.folder / "sure", 3, 3)
    text = ended(0, *command.replace("FOLDER", str(sure)).split(), "--yes").stdout
    assert "was made before" in text
    assert "Spark gives none again" in text
    assert "first:" not in text
    assert place.relog("--checkpoint", sure)["last_batch_unknown"] is True


def test_a_namespace_of_loads_alone_needs_no_checkpoint(tmp_path, monkeypatch):
    place = Place(tmp_path, monkeypatch, batches=())
    driver = place.old.driver
    rows = {"notes": {place.old._key("notes", b"k"): b"v"}}
    commit(driver, TypedBarrier(driver.log, rows, LoadOrigin("load"), 8, typed=place.old.schemas))
    place.silence()
    gone(place)
    text = ended(0, "relog", "--namespace=flights", "--yes").stdout
    assert "unknown" not in text
    place.old.close()


@pytest.mark.parametrize("retired", [False, True])
def test_a_namespace_that_wrote_the_same_batches_is_no_copy(place, retired):
    """Red before: exit 0, nothing was copied, and the printed drop removed the only rows."""
    other = Example(place.wal, place.store, "other", options=Options(key_groups=8))
    for number in range(6):
        other.write({"airports": {f"Z{number}": {"departures": number, "delay": 9.0}}})
    driver = other.driver
    if retired:
        retire_up_to(driver.log, driver.store, driver.folded, Options(keep_versions=1), lambda: False)
    other.close()
    place.old.close()
    silence_writer(place.folder / "store", "other")
    silence_writer(place.folder / "store")
    gone(place)
    before = rows_by_table(place.store, "other")
    text = refused(2, "relog", "--namespace=flights", "--to=other", "--yes")
    assert "none is a copy of version 3 of namespace flights" in text
    (command,) = re.findall("`tidegate ([^`]*)`", text)
    ended(0, *command.split(), "--yes")
    assert rows_by_table(place.store, "other_2") == rows_by_table(place.store)
    assert rows_by_table(place.store, "other") == before


def test_an_empty_namespace_with_other_key_groups_is_told_with_another_name(place):
    """Red before: the advice was to leave out an option that relog does not have."""
    place.old.close()
    gone(place)
    ended(0, "init", "--namespace=other", "--key-groups=4")
    text = refused(2, "relog", "--namespace=flights", "--to=other", "--yes")
    assert "made with key_groups=4; the saved version of namespace flights has 8" in text
    (command,) = re.findall("`tidegate ([^`]*)`", text)
    ended(0, *command.split(), "--yes")
    assert rows_by_table(place.store, "other_2") == rows_by_table(place.store)


def test_a_copy_that_was_begun_of_another_namespace_is_removed_first(place):
    gone(place)
    silence_writer(place.folder / "store")
    failpoints.arm("open.after_append=raise@1")
    assert run("relog", "--namespace=flights", "--to=other", "--yes").exit_code
    failpoints.arm(None)
    second = Example(place.wal, place.store, "second", options=Options(key_groups=8))
    second.write(MORE)
    second.close()
    silence_writer(place.folder / "store", "second")
    shutil.rmtree(place.folder / "wal" / "second")
    text = refused(2, "relog", "--namespace=second", "--to=other", "--yes")
    assert "was begun as a copy of another namespace" in text
    ended(0, *re.findall("`tidegate ([^`]*)`", text)[0].split(), "--yes")
    ended(0, "relog", "--namespace=second", "--to=other", "--yes")
    assert rows_by_table(place.store, "other") == MORE


def test_a_copy_that_was_begun_with_more_stores_is_named_with_both_ways_out(place, tmp_path):
    """Red before: `store remove`, which was for the new namespace, was refused for the old one."""
    main, copy = f"--store=main={place.store}", f"--store=copy=sqlite://{tmp_path}/copy"
    ended(0, "store", "add", f"copy=sqlite://{tmp_path}/copy", main, "--namespace=flights")
    gone(place)
    failpoints.arm("decide.after_append=raise")
    died = run("relog", "--namespace=flights", "--to=other", "--yes", "--force", main, copy)
    assert isinstance(died.exception, FailpointError), died.output
    failpoints.arm(None)
    text = refused(2, "relog", "--namespace=flights", "--to=other", "--yes", "--force", main)
    assert "has store copy, too: give it as copy=URL" in text
    drop = re.findall("`tidegate ([^`]*)`", text)[0].split()
    ended(0, *drop, "--yes", copy)
    ended(0, "relog", "--namespace=flights", "--to=other", "--yes", "--force", main)
    assert rows_by_table(place.store, "other") == place.rows


def test_a_namespace_that_a_rekey_moved_is_told_where_its_query_goes_on(place):
    """Red before: `--to flights_2` and `status` sent to each other, and `--to flights_3` named no move."""
    place.old.close()
    place.silence()
    ended(0, "rekey", "--namespace=flights", "--to=flights_2", "--key-groups=16", "--finish", "--yes")
    gone(place)
    place.silence()
    place.silence("flights_2")
    text = refused(2, "relog", "--namespace=flights", "--yes")
    assert "namespace flights_2 was made of this one by a rekey, and its query continues there" in text
    (command,) = re.findall("`tidegate ([^`]*)`", text)
    assert command == "relog --namespace flights --to flights_3"
    asked = run(*command.split()).stderr
    assert "moved: a rekey made namespace flights_2 of this one, where its query continues" in asked
    ended(0, *command.split(), "--yes")
    assert rows_by_table(place.store, "flights_3") == rows_by_table(place.store, "flights_2")


@pytest.mark.parametrize("jobs", [(), ("--jobs", "8")])
def test_a_namespace_with_fewer_key_groups_than_processes_is_saved_and_moved(tmp_path, monkeypatch, jobs):
    """The processes that apply large versions were taken for tasks, each of which needs a key group."""
    place = Place(tmp_path, monkeypatch, batches=())
    place.old.close()
    with contextlib.closing(Example(place.wal, place.store, "one", options=Options(key_groups=1))) as example:
        example.write(BATCHES[0])
    place.silence("one")
    rows = rows_by_table(place.store, "one")
    shutil.rmtree(tmp_path / "wal" / "one")
    ended(0, "relog", "--namespace=one", "--to=two", "--yes", *jobs)
    assert rows_by_table(place.store, "two") == rows
    ended(0, "rekey", "--namespace=two", "--to=three", "--key-groups=3", "--finish", "--yes", *jobs)
    ended(0, "rekey", "--namespace=three", "--to=four", "--key-groups=1", "--finish", "--yes", *jobs)
    assert rows_by_table(place.store, "four") == rows
