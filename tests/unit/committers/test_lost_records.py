"""A log that lost what was folded is noticed at the next append, and a new log begins with its own record."""

import msgspec
import pytest
from typer.testing import CliRunner

from crash.log_loss import trim
from support.places import driver_at
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.cli import app
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, CorruptError, FencedError, WalGapError
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.example import LINEAGE, Example
from tidegate.wal.file.log import FileLog
from tidegate.wal.log import Appended
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import Open, Summary, decode_record, encode_record


def write(driver, batch_id):
    rows = {"t": {b"%d" % key: b"%d" % batch_id for key in range(20)}}
    commit(driver, ArrowBarrier(driver.log, rows, batch("q", batch_id), driver.folded.key_groups))


@pytest.mark.parametrize("records", [1, 2, 3])
def test_an_append_below_what_was_folded_is_a_gap_and_nothing_is_applied(place, records):
    driver = driver_at(place, summary_every=1)
    open_namespace(driver, "q")
    for batch_id in range(2):
        write(driver, batch_id)
    del driver.log._content.records[-records:]
    with pytest.raises(WalGapError, match="lost records"):
        write(driver, 2)
    assert driver.store.pointer().visible == 2
    assert driver.store.begun() == []


def test_an_append_that_a_log_says_was_lower_is_a_gap_in_any_log(place, monkeypatch):
    driver = driver_at(place)
    open_namespace(driver, "q")
    monkeypatch.setattr(driver.log, "append_decision", lambda _: Appended(0, 1))
    with pytest.raises(WalGapError, match="landed at 0"):
        write(driver, 0)


# -- a log that lost the record by which a driver took its epoch ------------------------------------------


def cut(driver, records):
    del driver.log._content.records[-records:]


@pytest.mark.parametrize("first", ["older", "newer"])
def test_a_driver_whose_open_was_lost_is_fenced_by_the_next_one(place, first, caplog):
    """Its own next record lands exactly where it had folded up to, so the log itself does not betray it."""
    write_some = driver_at(place)
    open_namespace(write_some, "q")
    write(write_some, 0)
    older = driver_at(place)
    open_namespace(older, "q")
    cut(older, 1)
    newer = driver_at(place)
    open_namespace(newer, "q")
    assert newer.epoch > older.epoch
    assert "lost the record by which a driver took its epoch" in caplog.text
    if first == "newer":
        write(newer, 1)
    with pytest.raises(FencedError):
        write(older, 1)
    write(newer, 1)  # in the log once: where it was written already this is a replay
    write(newer, 2)
    again = driver_at(place)
    open_namespace(again, "q")
    assert again.store.pointer().visible == again.folded.last_version == 3


def test_two_drivers_that_claim_one_epoch_do_not_both_write(place):
    """The log lost the first one's Open before that one claimed, so the store does not know its epoch yet."""
    older, newer = driver_at(place), driver_at(place)

    def taken_over(name):
        if name == "open.after_append" and not newer.epoch:
            cut(older, 1)
            open_namespace(newer, "q")

    failpoints.listen(taken_over)
    try:
        with pytest.raises(FencedError, match="start this one again"):
            open_namespace(older, "q")
    finally:
        failpoints.listen(None)
    assert older.decisions.tried_epoch == newer.epoch
    write(newer, 0)
    open_namespace(older, "q")
    assert older.epoch > newer.epoch
    write(older, 1)
    assert older.store.pointer().visible == 2


def test_a_version_that_was_flipped_while_its_decision_was_lost_is_met_at_the_claim(place):
    """Between the first look at the pointer and the claim an older driver makes its version visible."""
    older, newer = driver_at(place), driver_at(place)
    open_namespace(older, "q")

    def flipped(name):
        if name == "open.after_append":
            failpoints.listen(None)
            rows = {"t": {b"lost": b"1"}}
            content = older.log._content
            opened = content.records.pop()
            commit(older, ArrowBarrier(older.log, rows, batch("q", 0), older.folded.key_groups))
            cut(older, 1)
            content.records.append(opened)

    failpoints.listen(flipped)
    try:
        with pytest.raises(WalGapError, match="version 1 is visible, the log ends at version 0"):
            open_namespace(newer, "q")
    finally:
        failpoints.listen(None)
    assert newer.folded.last_version == 0


# -- the first record of a new log ---------------------------------------------------------------------


class ZombieFirst(MemoryLog):
    """A log in which a record of an older driver lands as soon as it is made."""

    late: bytes

    def create(self):
        super().create()
        if not self._content.records:
            self.append_decision(self.late)


def older_records(place):
    driver = driver_at(place + "older", summary_every=1)
    open_namespace(driver, "q")
    write(driver, 0)
    state = driver.folded
    names = {"namespace": state.namespace, "writer": driver.writer, "epoch": 9, "prev_digest": state.digest}
    return Open(**names, lineage="q"), Summary(**names, state=state)


@pytest.mark.parametrize("which, error", [(0, CorruptError), (1, ConfigError)])
def test_a_new_log_that_an_older_driver_began_is_refused_with_the_safe_way_out(place, which, error):
    log = ZombieFirst(place, "n")
    log.late = encode_record(older_records(place)[which])
    driver = driver_at(place, log=log)
    with pytest.raises(error, match="`tidegate drop --force"):
        open_namespace(driver, "q")
    assert driver.store.identity() is None
    log.drop()
    again = driver_at(place)
    open_namespace(again, "q")
    write(again, 0)
    assert again.store.pointer().visible == 1


def test_a_namespace_that_another_driver_made_and_trimmed_meanwhile_is_taken_over(place, monkeypatch):
    """Its log begins with a Summary, too, and nothing of it may be dropped."""
    log = MemoryLog(place, "n")
    create = log.create

    def slowly():
        other = driver_at(place, summary_every=1)
        open_namespace(other, "q")
        for batch_id in range(3):
            write(other, batch_id)
        trim(other)
        assert isinstance(decode_record(next(other.log.decisions()).content, "log"), Summary)
        create()

    monkeypatch.setattr(log, "create", slowly)
    driver = driver_at(place, log=log)
    open_namespace(driver, "q")
    assert driver.store.pointer().visible == driver.folded.last_version == 3


def test_a_new_log_begins_before_anything_else_is_asked_of_it(place, monkeypatch):
    """Checks take long on a server; an older driver may append meanwhile."""
    log, asked = MemoryLog(place, "n"), []
    for name in ("create", "append_decision", "checks"):
        method = getattr(log, name)
        monkeypatch.setattr(log, name, lambda *a, n=name, m=method: asked.append(n) or m(*a))
    open_namespace(driver_at(place, log=log), "q")
    made = asked.index("create")
    assert asked[made : made + 2] == ["create", "append_decision"]
    assert "checks" in asked[made + 2 :]


# -- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def lost(tmp_path):
    """The options of a namespace in files whose log lost the decision of version 2, which was sealed."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    example = Example(wal, store)
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    (decisions,) = (tmp_path / "wal").rglob("decisions.log")
    before = decisions.read_bytes()
    failpoints.arm("publish.before=raise")
    with pytest.raises(FailpointError):
        example.write({"aircraft": {"LOST": {"carrier": "UA", "flights": 9}}})
    failpoints.arm(None)
    decisions.write_bytes(before)
    example.close()
    return [f"--store={store}", f"--wal={wal}", "--namespace=flights"]


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="tidegate")


def test_recover_says_what_the_log_lost_and_discards_it_when_told_to(lost, tmp_path):
    refused = run("recover", *lost)
    assert refused.exit_code == 10, refused.output
    assert "has begun attempt" in refused.stderr
    assert "tidegate recover --discard-lost" in refused.stderr
    done = run("recover", *lost, "--discard-lost")
    assert done.exit_code == 0, done.output
    assert "of version 2, which the log lacks" in done.stdout
    again = run("recover", *lost, "--discard-lost", "--json")
    assert msgspec.json.decode(again.stdout) == {
        "namespace": "flights", "recovered": [], "visible": 1, "discarded": []
    }  # fmt: skip
    assert run("verify", *lost).exit_code == 0
    example = Example(lost[1].removeprefix("--wal="), lost[0].removeprefix("--store="))
    example.write({"aircraft": {"N2": {"carrier": "UA", "flights": 2}}}, batch_id=1)
    read = run("scan", "aircraft", *(lost[0], lost[2]))
    assert "LOST" not in read.stdout
    assert "N2" in read.stdout
    example.close()


def test_a_running_writer_is_not_discarded_from(lost):
    store = SqliteStore(lost[0].removeprefix("--store=sqlite://"), "flights")
    store.heartbeat(store.pointer().epoch)
    refused = run("recover", *lost, "--discard-lost")
    assert refused.exit_code == 2, refused.output
    assert "seems to be running" in refused.stderr
    assert [one.version for one in store.begun()] == [2]
    store.close()


def test_the_log_that_is_put_back_after_all_goes_on(tmp_path):
    """Restoring the newest copy is the better way out."""
    wal = tmp_path / "wal"
    example = Example(f"file://{wal}", f"sqlite://{tmp_path}/store")
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    (decisions,) = wal.rglob("decisions.log")
    before = decisions.read_bytes()
    failpoints.arm("publish.before=raise")
    with pytest.raises(FailpointError):
        example.write({"aircraft": {"N2": {"carrier": "UA", "flights": 9}}})
    failpoints.arm(None)
    whole = decisions.read_bytes()
    decisions.write_bytes(before)
    with pytest.raises(WalGapError):
        Example(f"file://{wal}", f"sqlite://{tmp_path}/store")
    decisions.write_bytes(whole)
    again = Example(f"file://{wal}", f"sqlite://{tmp_path}/store")
    assert again.driver.store.pointer().visible == 2
    assert isinstance(again.driver.log, FileLog)
    assert again.lineage == LINEAGE
    again.close()
    example.close()
