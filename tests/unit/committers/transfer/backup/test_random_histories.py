"""Random histories, backed up, lost and restored: rows equal a dictionary, and batches are taken once."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from support.committers.backups import place_in
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.transfer.backup.check import check
from tidegate.committers.transfer.backup.restore_from import Way
from tidegate.errors import ConfigError, LineageError
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import LINEAGE
from tidegate.wal.fold import replay_of

QUERIES = [LINEAGE, "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10", "0c0ffee0-0000-4000-8000-000000000000"]
TABLES = ("aircraft", "notes", "airports")


class History:
    """A namespace, and what it has to hold: the rows of each version, and the batches that these contain."""

    def __init__(self, tmp_path: Any, kind: str, seed: int) -> None:
        self.random, self.tmp_path = random.Random(seed), tmp_path
        self.place = place_in(tmp_path, kind, keep_versions=99, table_key_groups={"airports": 2})
        self.rows: dict[str, dict[Any, Any]] = {}
        self.held: dict[str, int] = {}
        """By query, the last batch that the rows contain."""
        self.decided: dict[str, tuple[int, int]] = {}
        """By query, generation and number of the last batch that was decided."""
        self.generation, self.tokens = 0, 0
        self.versions: dict[int, Any] = {}
        self.backed_up: list[int] = []

    def next_batch(self) -> int:
        generation, number = self.decided.get(self.place.lineage, (-1, -1))
        return (number if generation == self.generation else self.held.get(self.place.lineage, -1)) + 1

    def noted(self, version: int) -> None:
        self.versions[version] = copy.deepcopy((self.rows, self.held))

    def changes(self) -> Any:
        pick, some = self.random, {}
        for table in pick.sample(TABLES, pick.randint(1, 3)):
            keys = pick.sample("abcdef", pick.randint(0, 4))
            some[table] = {self.key(table, key): self.value(table) for key in keys}
        return some

    def key(self, table: str, letter: str) -> Any:
        return letter.encode() if table == "notes" else letter

    def value(self, table: str) -> Any:
        number = self.random.randint(0, 9)
        values = {
            "aircraft": {"carrier": "A", "flights": number},
            "notes": b"%d" % number,
            "airports": {"departures": number, "delay": 0.5},
        }
        return self.random.choice([None, values[table], values[table]])

    def take(self, changes: Any, starts: Any = (), drops: Any = ()) -> None:
        for table in (*starts, *drops):
            self.rows[table] = {}
        for table, rows in changes.items():
            self.rows.setdefault(table, {}).update(rows)
        self.rows = {
            table: {key: value for key, value in rows.items() if value is not None}
            for table, rows in self.rows.items()
        }

    def write(self, how: str) -> None:
        changes = self.changes()
        starts = frozenset(table for table in changes if self.random.random() < 0.4)
        drops = frozenset[str]()
        if how == "drop":
            made = sorted(self.place.driver.folded.tables)
            drops, starts = frozenset(self.random.sample(made, min(1, len(made)))), frozenset()
            changes = {table: rows for table, rows in changes.items() if table not in drops}
        if self.random.random() < 0.5 or not self.versions:
            number = self.next_batch()
            version = self.place.example.write(changes, starts, f"[{number}]", batch_id=number, drops=drops)
            self.decided[self.place.lineage] = (self.generation, number)
            self.held[self.place.lineage] = number
        else:
            self.tokens += 1
            version = self.place.load(f"load-{self.tokens}", changes, starts=starts, drops=drops)
        self.take(changes, starts, drops)
        self.noted(version)

    def load(self) -> None:
        self.write("load")

    def drop(self) -> None:
        self.write("drop")

    def imported(self) -> None:
        self.tokens += 1
        folder = self.tmp_path / f"export-{self.tokens}"
        if not self.place.driver.folded.tables:
            return
        self.place.export(folder)
        exported = copy.deepcopy(self.rows)
        self.write("load")
        version = self.place.imported(folder, f"import-{self.tokens}")
        tables = {path.name.removeprefix("table=") for path in folder.glob("table=*")}
        self.rows |= {table: exported.get(table, {}) for table in tables} | {
            table: {} for table in exported if table not in tables and not exported[table]
        }
        self.noted(version)

    def restore(self, *, reprocess: bool = False) -> None:
        version = self.random.choice(sorted(self.versions))
        try:
            made = self.place.restore_older(version, reprocess=reprocess)
        except ConfigError:
            return  # it is the visible one
        self.rows, self.held = copy.deepcopy(self.versions[version])
        self.generation = self.place.driver.folded.generation
        self.noted(made)

    def rewind(self) -> None:
        self.restore(reprocess=True)

    def adopt(self) -> None:
        self.place.adopt(self.random.choice(QUERIES))

    def backup(self) -> None:
        done = self.place.backup(full_every=self.random.choice([1, 3, 9]), keep=self.random.choice([1, 2]))
        if done.link is not None:
            self.backed_up.append(done.version)

    def play(self, actions: int) -> None:
        self.write("batch")
        known = [self.load, self.load, self.drop, self.imported, self.restore, self.rewind, self.adopt]
        for _ in range(actions):
            self.random.choice([*known, self.backup, self.backup])()
        self.backup()


def shown(place: Any) -> Any:
    return {table: rows for table, rows in place.rows().items() if rows}


def filled(rows: Any) -> Any:
    return {table: of_table for table, of_table in rows.items() if of_table}


def lose(history: History, way: Way) -> None:
    place = history.place
    if way is Way.AGAIN:
        place.load("lost", {"notes": {b"lost": b"1"}})
        place.trim(place.driver.folded.last_version)
    elif way is Way.NEW:
        place.lose_log()
    place.lose_store()


CASES = [("memory", seed) for seed in range(12)] + [("sqlite", 100), ("sqlite", 101)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No power is cut here, so nothing waits for a disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
@pytest.mark.parametrize("kind, seed", CASES)
def test_any_history_is_back_with_the_right_query_and_each_batch_once(tmp_path, kind, seed, way):
    history = History(tmp_path, kind, seed)
    history.play(12)
    place, to = history.place, seed % 2  # every second one to an older version
    version = history.backed_up[-1]
    assert filled(history.rows) == shown(place)
    check(place.folder)
    lose(history, way)
    if to:
        version = history.random.choice(place.versions_in_backup())
    plan = place.restore(version if to else None)
    restored_whole = plan.way is Way.CONTINUE
    newest = max(history.versions)
    rows, held = history.versions[newest if restored_whole else version]
    followed = place.lineage
    for other in QUERIES:
        if other != followed:
            with pytest.raises(LineageError, match=f"follows the checkpoint of query {followed}"):
                open_namespace(place.unopened(), other)
    driver = place.again().driver
    assert shown(place) == filled(rows)
    assert verify(driver.log, driver.store).findings == []
    check(place.folder)
    for query in [followed, *QUERIES]:  # each of them in turn, as if it were taken back
        state = place.adopt(query).driver.folded if query != place.lineage else driver.folded
        if query in held:
            again = replay_of(state, batch(query, held[query], generation=state.generation))
            assert again is not None, "a batch that the rows contain would count twice"
        generation, number = history.decided.get(query, (-1, -1))
        following = held.get(query, -1) + 1 if generation < state.generation else number + 1
        assert replay_of(state, batch(query, following, generation=state.generation)) is None
    place.adopt(followed)
    state = place.driver.folded
    generation, number = history.decided.get(followed, (-1, -1))
    following = held.get(followed, -1) + 1 if generation < state.generation else number + 1
    assert place.example.write({"notes": {b"next": b"1"}}, batch_id=following) == state.last_version + 1
    assert shown(place) == {**filled(rows), "notes": {**rows.get("notes", {}), b"next": b"1"}}
    place.example.close()
