"""Readers in every language, while versions go by and slots move: no answer mixes two versions.

``TIDEGATE_TORN_SNAPSHOTS`` is the number of answers that each reader has to give.
docs/records/torture-runs.md has a run.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from services.redis.cluster.test_moving_slots import MOVES
from services.support.go import BUILD_S, built
from services.support.java_reader import PROGRAM, command_of
from services.support.java_reader import built as built_java
from services.support.redis.cluster import refused_calls, slot_of
from services.support.redis.query import Query, query_on
from services.support.servers import ROOT
from services.support.workloads.query import KEY_GROUPS, ROWS, SEED
from support.driver_process import CLEARED, KEPT, MARKER, MARKER_KEYS, rows_of
from support.wait import wait_until
from tidegate.committers.repair.repair import repair
from tidegate.keys.groups import key_group
from tidegate.testing.conformance.program import Reader

SNAPSHOTS = int(os.environ.get("TIDEGATE_TORN_SNAPSHOTS", "20000"))
TIMES, THREADS = 2_000, 4
"""The reads of one request to a reader, and the threads that they come from."""
ALLOWED = {"StoreNotVerifiedError", "StoreUnavailableError", "SnapshotExpiredError", "VersionRegressedError"}
"""The errors that a reader may raise while slots move."""
RECONNECT = {"VersionRegressedError"}
GROUPS = (0, 2)
COUNTS = {(KEPT, b"N"): 2 * ROWS, (CLEARED, b"a"): ROWS, (MARKER, b"m"): MARKER_KEYS}
KEYS = {
    table: [key for at in range(count) if key_group(key := letter + b"%d" % at, KEY_GROUPS) in GROUPS]
    for (table, letter), count in COUNTS.items()
}
"""All keys in two key groups: a read of the three tables takes six function calls."""
ASKED = {table: [[key.hex()] for key in keys] for table, keys in KEYS.items()}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * BUILD_S + SNAPSHOTS // 200)]


ANSWERS: list[dict[str, list[str | None]]] = [{table: [None] * len(keys) for table, keys in KEYS.items()}]
"""The answer at each version."""
EXTENDING = threading.Lock()


def rows_at(version: int) -> dict[str, list[str | None]]:
    """Compute the answer at a version, from the batches alone: each from the one before it."""
    with EXTENDING:
        while len(ANSWERS) <= version:
            changes, before = rows_of(SEED, len(ANSWERS) - 1, ROWS), ANSWERS[-1]
            ANSWERS.append(
                {table: _after(changes[table], keys, before[table]) for table, keys in KEYS.items()}
            )
        return ANSWERS[version]


def _after(
    changes: Mapping[bytes, bytes | None], keys: list[bytes], before: list[str | None]
) -> list[str | None]:
    given = {key: None if value is None else value.hex() for key, value in changes.items()}
    return [given.get(key, value) for key, value in zip(keys, before, strict=True)]


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> dict[str, str]:
    """The conformance program of each language."""
    built_java()
    return {
        "python": f"{sys.executable} -m tidegate.testing.conformance.reader",
        "go": str(built(ROOT / "readers" / "go", "./cmd/conformance", tmp_path_factory.mktemp("go"))),
        "java": command_of(PROGRAM),
    }


class Asking:
    """A reader that is asked for keys of three tables again and again, on a thread of its own.

    It counts equal answers itself: this process compares each version's once.
    """

    def __init__(self, command: str, query: Query, errors: Path) -> None:
        self.answers: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.torn: list[object] = []
        self.ended = threading.Event()
        self._failure: BaseException | None = None
        self._where = {"url": query.url, "namespace": query.namespace, "options": {"timeout_s": 15.0}}
        self._reader = Reader(command, errors)
        self._thread = threading.Thread(target=self._run, name="asking")
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._reader as reader:
                reader.ask("connect", **self._where)
                while self.answers.total() < SNAPSHOTS and not self.torn:
                    self._ask(reader)
        except BaseException as failure:  # noqa: BLE001 - it is raised where the thread is joined
            self._failure = failure
        finally:
            self.ended.set()

    def _ask(self, reader: Reader) -> None:
        given = reader.ask("repeat", keys=ASKED, times=TIMES, threads=THREADS)
        for answer in given["answers"]:
            if answer["rows"] != rows_at(answer["version"]):
                self.torn.append(answer)
            self.answers[answer["version"]] += answer["count"]
        self.refused.update(given["refused"])
        assert self.refused.keys() <= ALLOWED
        if RECONNECT & given["refused"].keys():
            reader.ask("connect", **self._where)

    def join(self) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def asked(asking: Asking, language: str, what: str) -> None:
    """End the test: nothing was torn, and many versions were seen."""
    asking.join()
    seen = f"{language}, {what}: {asking.answers.total()} answers of {len(asking.answers)} versions"
    print(f"{seen}, refused {dict(asking.refused)}, torn {len(asking.torn)}")
    assert asking.torn == []
    assert len(asking.answers) > min(20, SNAPSHOTS // 5_000)


@pytest.mark.parametrize("language", ["python", "go", "java"])
def test_no_answer_is_torn_on_one_server(redis, commands, tmp_path, language):
    with query_on(redis.url, tmp_path) as query:
        driver = query.run(4, keep_versions=2)
        asking = Asking(commands[language], query, tmp_path / "errors")
        for batch_id in itertools.count(4):
            if asking.ended.is_set():
                break
            query.commit(driver, batch_id)
            query.retire(driver)
        asked(asking, language, "one server")


@pytest.mark.xdist_group("redis_cluster")
@pytest.mark.parametrize("language", ["python", "go", "java"])
def test_no_answer_is_torn_while_slots_move(redis_cluster, commands, tmp_path, meanwhile, language):
    try:
        with query_on(redis_cluster.url, tmp_path) as query:
            driver = query.run(4, keep_versions=2)
            asking = Asking(commands[language], query, tmp_path / "errors")
            for batch_id, tag, way in zip(itertools.count(4, 2), tags_of(query), itertools.cycle(MOVES)):
                if asking.ended.is_set():
                    break
                old = redis_cluster.primary_of(tag)
                to = next(each for each in redis_cluster.primaries() if each is not old)
                before = refused_calls(old)
                with MOVES[way](redis_cluster, slot_of(tag), to):
                    retiring = meanwhile.start(query.retire, driver)
                    committing = meanwhile.start(query.commit, driver, batch_id, batch_id + 1)
                    met = lambda: refused_calls(old) > before or committing.done()  # noqa: B023, E731
                    wait_until(met, "a write met the slot")
                retiring.result(60)
                committing.result(60)
                if driver.store.unverified():
                    assert repair(driver) == []
            asked(asking, language, "slots that move")
    finally:
        redis_cluster.heal()


def tags_of(query: Query) -> Iterator[str]:
    """Yield the hash tags of the pointer and of all key groups, again and again."""
    return itertools.cycle([query.meta, *(query.keys_of(group) for group in range(KEY_GROUPS))])
