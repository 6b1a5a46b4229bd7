"""A namespace whose log is gone, whole or in part: the first advice of its error, followed, saves it."""

import contextlib
import json
import re
import shutil
import types

import pytest

from support.cli import ended, refused, run
from support.places import rows_by_table, silence_writer
from tidegate.base import failpoints
from tidegate.errors import FencedError, TidegateError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import BATCHES, LINEAGE, SCHEMAS, Example
from tidegate.wal.fold import replay_of
from tidegate.wal.open_log import open_log

OFFSETS = '[{"numbers":{"0":7}}]'
MORE = {"airports": {"LGA": {"departures": 2, "delay": 3.0}}}


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm(None)


class Place:
    """Namespace ``flights`` in files, with three batches; its log is then damaged."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.wal, self.store = folder, f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.log = folder / "wal" / "flights"
        monkeypatch.setenv("TIDEGATE_STORE", self.store)
        monkeypatch.setenv("TIDEGATE_WAL", self.wal)
        self.old = self.writer()
        for rows in BATCHES:
            self.old.write(rows, source_offsets=OFFSETS)
        self.rows = rows_by_table(self.store)
        self.silence()

    def writer(self, namespace="flights"):
        return Example(self.wal, self.store, namespace, options=Options(key_groups=8, apply_deadline_s=0.01))

    def silence(self, namespace="flights"):
        silence_writer(self.folder / "store", namespace)

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
    failpoints.arm(lambda name: _raise() if name == "apply.before_chunk" else None)
    with pytest.raises(RuntimeError):
        place.old.write(MORE)
    failpoints.arm(None)
    for segment in (place.log / "changelog").iterdir():
        segment.unlink()
    place.silence()


def _raise():
    raise RuntimeError("killed")


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
