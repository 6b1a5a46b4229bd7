"""Random interleavings of repairs on a real Redis, call by call, against a dictionary.

    tools/run python tests/services/support/redis/repairs/random_repairs.py --schedules 20000 --seed 1

A schedule begins with a namespace that has visible versions, and decided ones that are still to come. Up to
two repairs, a writer that completes the decided versions, a retirement that merges, a late apply and a reader
run as greenlets: production's code, which gives way before each call to the server. At moments that chance
chooses a key is removed, the server fails over to what it had a while ago under another id, and a repair
dies. Every read is the dictionary's version or is refused. In the end one more repair runs alone: all is
back, or, where the log was trimmed and does not reach, nothing that was left is gone, reads of that key group
are refused, and a repair from a copy puts it back.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import greenlet

from services.support.redis.repairs.actors import REFUSALS, Actor, WrongError
from services.support.redis.repairs.starts import (
    KEY_GROUPS,
    KEYS,
    SETTINGS,
    TABLES,
    Copy,
    SharedNode,
    Start,
    in_group,
    scanned,
    small_steps,
    start_of,
)
from services.support.redis.server import RedisServer
from tidegate.committers.apply import apply
from tidegate.committers.commit import complete
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.lost_groups import Mended, Source
from tidegate.committers.repair.repair import repair
from tidegate.committers.steps.decided_versions import decided_versions_from
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import (
    IncompleteError,
    StoreNotVerifiedError,
    TidegateError,
    WalGapError,
)
from tidegate.sinks.records import CatalogEntry, ReadAt
from tidegate.sinks.redis.seals import headers
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import chunks_of
from tidegate.wal.memory_log import forget

STEPS_MAX = 3_000


# -- one schedule -------------------------------------------------------------------------------------------


class Lost(NamedTuple):
    """A key that was removed: ``kind`` is that of its name, h, b, d or r."""

    group: int
    kind: str
    version: int


class Schedule:
    """One interleaving, from one seed."""

    def __init__(self, start: Start, seed: str, counts: Counter[str]) -> None:
        self.start, self.seed, self.counts = start, seed, counts
        self.chance = random.Random(seed)
        self.hub = greenlet.getcurrent()
        self.wrong, self.destroyed, self.failovers = "", set[Lost](), 0
        self.told: list[str] = []
        self._replica: dict[bytes, bytes] | None = None
        self._client = start.server.client(decode_responses=False)

    def run(self) -> None:
        """Play it. WrongError: what must not happen, with what was done before."""
        self._restore(self.start.kept)
        actors = self._actors()
        try:
            self._play(actors)
            for actor in actors:
                actor.close()
            self._end()
            if self.wrong:
                raise WrongError(self.wrong)
        except Exception as error:
            told = "\n".join(self.told)
            raise WrongError(f"schedule {self.seed} of {self.start.name}:\n{told}\n{error}") from error
        finally:
            for actor in actors:
                with contextlib.suppress(TidegateError):
                    actor.close()
            self._client.close()

    def _actors(self) -> list[Actor]:
        chance = self.chance
        bodies: list[tuple[str, Callable[[Coordinator], None]]] = [("reader", self._read)]
        bodies += [("repair 1", self._repair)]
        if chance.random() < 0.8:
            bodies += [("repair 2", self._repair)]
        if chance.random() < 0.6:
            bodies += [("writer", self._write)]
        if chance.random() < 0.6:
            bodies += [("merger", self._merge)]
        if chance.random() < 0.2:
            bodies += [("late", self._late)]
        actors = [Actor(self, name, body) for name, body in bodies]
        for actor in actors:
            if "repair" in actor.name and chance.random() < 0.2:
                actor.dies_at = chance.randrange(1, 60)
        return actors

    def _play(self, actors: list[Actor]) -> None:
        chance = self.chance
        losses = sorted(chance.randrange(60) for _ in range(chance.choice([0, 1, 1, 1, 2, 2])))
        failover = chance.random() < 0.25
        replicates, fails = (chance.randrange(30), 0) if failover else (-1, -1)
        fails = replicates + chance.randrange(1, 40) if failover else -1
        sticky, last = chance.choice([0.0, 0.5, 0.9]), actors[0]
        for step in range(STEPS_MAX):
            while losses and losses[0] <= step:
                losses.pop(0)
                self._lose()
            if step == replicates:
                self._replica = self._dump()
            if step == fails:
                self._fail_over()
            going = [actor for actor in actors if not actor.greenlet.dead]
            if self.wrong or not [actor for actor in going if actor.name != "reader"]:
                break
            last = last if last in going and chance.random() < sticky else chance.choice(going)
            self.counts["calls"] += 1
            last.greenlet.switch()
        else:
            raise WrongError(f"{STEPS_MAX} steps did not end it: {[actor.name for actor in going]}")
        while losses:
            losses.pop()
            self._lose()

    # -- what goes wrong ------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Remove a key of a key group; headers are as likely as hashes."""
        keys = [key.decode() for key in self._client.keys(f"tg:{{{self.start.name}/*")]
        by_kind: dict[str, list[str]] = {}
        for key in sorted(keys):
            name = key.partition("}:")[2]
            by_kind.setdefault("h" if name == "h" else name.split(":")[1], []).append(key)
        if not by_kind:
            return
        kind = self.chance.choice(sorted(by_kind))
        key = self.chance.choice(by_kind[kind])
        self._client.delete(key)
        group = int(key.partition("/")[2].partition("}")[0])
        version = int(key.split(":d:")[1].split(":")[0]) if kind == "d" else 0
        self.destroyed.add(Lost(group, kind, version))
        self.counts[f"lost {kind}"] += 1
        self.told.append(f"lost {key}")

    def _fail_over(self) -> None:
        """The server has what it had a while ago, and another id."""
        self._restore(self._replica or {})
        self._client.execute_command("DEBUG", "CHANGE-REPL-ID")
        self.failovers += 1
        self.counts["failovers"] += 1
        self.told.append("failed over")

    def _dump(self) -> dict[bytes, bytes]:
        keys = self._client.keys(f"*{self.start.name}*")
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return dict(zip(keys, pipe.execute(), strict=True))

    def _restore(self, kept: Mapping[bytes, bytes]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.execute_command("FLUSHALL")
            for key, content in kept.items():
                pipe.restore(key, 0, content)
            pipe.execute()

    def note_gap(self, name: str, error: WalGapError) -> None:
        """Only what was destroyed may be out of the log's reach."""
        self.counts[f"{name}: WalGapError"] += 1
        if not self._may_gap():
            self.wrong = f"{name}: {error}"

    def _may_gap(self) -> bool:
        beyond = [one for one in self.destroyed if one.kind in "hb" or 0 < one.version < self.start.reach]
        return self.start.trimmed and bool(beyond)

    # -- who runs ------------------------------------------------------------------------------------------

    def _repair(self, driver: Coordinator) -> None:
        copy = Copy(self.start) if self.chance.random() < 0.1 else None
        visible = driver.store.pointer().visible
        for _ in range(4):
            try:
                self._judge_mended(repair(driver, copy), visible)
                return
            except (StoreNotVerifiedError, IncompleteError):
                self.counts["repairs repeated"] += 1

    def _judge_mended(self, mended: Sequence[Mended], visible: int) -> None:
        self.counts["put back"] += len(mended)
        strange = [one for one in mended if one.version <= visible]
        if strange and not self.destroyed and not self.failovers:
            raise WrongError(f"nothing was lost, and a repair put back {strange}")

    def _write(self, driver: Coordinator) -> None:
        for fact in decided_versions_from(
            driver.decisions, driver.store.pointer().visible + 1, driver.store.where
        ):
            complete(driver, fact)

    def _merge(self, driver: Coordinator) -> None:
        for _ in range(2):
            with contextlib.suppress(StoreNotVerifiedError):
                retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
            with contextlib.suppress(StoreNotVerifiedError):
                if self.chance.random() < 0.2:
                    driver.store.vacuum()

    def _late(self, driver: Coordinator) -> None:
        """The rows of a version arrive once more, as those of an executor that was thought dead."""
        version = self.chance.randrange(self.start.reach, self.start.last + 1)
        for fact in decided_versions_from(driver.decisions, version, driver.store.where):
            stamp = apply.stamp_of(fact)
            driver.store.apply(stamp, *chunks_of(self.start.changes[fact.version], KEY_GROUPS))
            return

    def _read(self, driver: Coordinator) -> None:
        while True:
            try:
                self._read_once(driver.store)
            except REFUSALS as refused:
                self.counts[f"read refused: {type(refused).__name__}"] += 1
            except WalGapError:
                raise WrongError("a reader met the log") from None

    def _read_once(self, store: RedisStore) -> None:
        pointer = store.pointer()
        for _ in range(self.chance.randrange(1, 4)):
            version = self.chance.randrange(max(pointer.horizon, 1), pointer.visible + 1)
            table = self.chance.choice(TABLES)
            rows, start = self.start.versions[version][table], start_of(table, version)
            if self.chance.random() < 0.7:
                some = [key for key in KEYS if self.chance.random() < 0.5] or KEYS[:1]
                found: Any = store.get_many(ReadAt(table, version, start), some).to_pylist()
                wanted: Any = [rows.get(key) for key in some]
            else:
                group = self.chance.randrange(KEY_GROUPS)
                found, wanted = scanned(store, table, group, version), in_group(rows, group)
            if found != wanted:
                raise WrongError(f"I1: version {version}, table {table}: {found}, not {wanted}")
            self.counts["reads"] += 1

    # -- the end -------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """One more repair, alone. The versions to come become visible, and all is compared."""
        driver = self.start.opened()
        try:
            before = self._hashes()
            gap = self._repaired(driver)
            self.counts["ended with a gap"] += gap
            if gap:
                if not self._may_gap():
                    raise WrongError("the log holds all that was lost, and the last repair met a gap")
                self._judge_gap(driver, before)
                if self._repaired(driver, Copy(self.start)):
                    raise WrongError("a repair from a copy did not put it back")
            for fact in decided_versions_from(
                driver.decisions, driver.store.pointer().visible + 1, driver.store.where
            ):
                complete(driver, fact)
            self._judge_all(driver)
        finally:
            driver.store.close()

    @staticmethod
    def _repaired(driver: Coordinator, copy: Source | None = None) -> bool:
        """Whether the log did not reach."""
        try:
            repair(driver, copy)
        except WalGapError:
            return True
        return False

    def _judge_gap(self, driver: Coordinator, before: Mapping[str, Any]) -> None:
        after = self._hashes()
        gone = {key: rows for key, rows in before.items() if after.get(key) != rows}
        if gone:
            raise WrongError(f"a repair that could not put all back took or changed {sorted(gone)}")
        store, marked = driver.store, 0
        pointer = store.pointer()
        (entry,) = store.catalog(pointer.visible, pointer.visible)
        for group, header in headers(store._space).items():
            marked += header.marked
            for table in entry.tables:
                try:
                    found: Any = scanned(store, table, group, entry.version)
                except StoreNotVerifiedError:
                    found = None
                wanted = None if header.marked else in_group(self.start.versions[entry.version][table], group)
                if found != wanted:
                    raise WrongError(f"after a gap key group {group}, table {table} is {found}, not {wanted}")
        if not marked or not store.unverified():
            raise WrongError("a repair met a gap, and no key group is marked")

    def _hashes(self) -> dict[str, Any]:
        """The rows of layers and bases that headers list."""
        found = {}
        for group in range(KEY_GROUPS):
            prefix = f"tg:{{{self.start.name}/{group}}}:"
            for field, value in self._client.hgetall(f"{prefix}h").items():
                kind, _, table = field.decode().partition(":")
                names = [f"{prefix}{table}:b"] if kind == "b" and table else []
                if kind == "l":
                    uuid = self._client.hget(f"{prefix}h", "u").decode().partition("!")[0]
                    names = [f"{prefix}{table}:d:{int(at)}:{uuid}" for at in value.split(b",")]
                found |= {name: rows for name in names if (rows := self._client.hgetall(name))}
        return found

    def _judge_all(self, driver: Coordinator) -> None:
        store, start = driver.store, self.start
        pointer = store.pointer()
        if pointer.visible != start.last:
            raise WrongError(f"version {pointer.visible} is visible, not {start.last}")
        found = headers(store._space)
        left = [group for group, at in found.items() if at.marked or at.since is not None]
        if left or store.unverified():
            raise WrongError(f"the end: key groups {left} are still marked")
        floor = max([1, pointer.horizon, *(header.floor for header in found.values())])
        for entry in store.catalog(floor, start.last):
            for table, rows in start.versions[entry.version].items():
                values = store.get_many(entry.read_at(table), KEYS).to_pylist()
                if values != [rows.get(key) for key in KEYS]:
                    raise WrongError(f"the end: version {entry.version}, table {table}: {values}, not {rows}")
        if self.chance.random() < 0.2:
            self._judge_again(driver, entry)

    def _judge_again(self, driver: Coordinator, entry: CatalogEntry) -> None:
        """Scans, ``verify`` and one repair more find all in order."""
        for table, group in itertools.product(TABLES, range(KEY_GROUPS)):
            rows = scanned(driver.store, table, group, entry.version)
            if rows != in_group(self.start.versions[entry.version][table], group):
                raise WrongError(f"the end: key group {group} of table {table} is scanned as {rows}")
        if mended := repair(driver):
            raise WrongError(f"the end: one repair more put back {mended}")
        if findings := verify(driver.log, driver.store).findings:
            raise WrongError(f"the end: {findings}")


# -- many of them --------------------------------------------------------------------------------------------


def play(server: RedisServer, seed: int, schedules: Iterable[int], starts: int = 8) -> Counter[str]:
    """Play schedules of a seed by their numbers. WrongError: at the first that breaks a promise."""
    counts: Counter[str] = Counter()
    with small_steps():
        made = [Start(server, number) for number in range(starts)]
        try:
            for number in schedules:
                Schedule(made[number % starts], f"{seed}-{number}", counts).run()
                counts["schedules"] += 1
        finally:
            for start in made:
                forget(start.name)
            while SharedNode.idle:
                SharedNode.idle.pop().disconnect()
    return counts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first schedule")
    args = parser.parse_args(argv)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-") as folder,
        RedisServer(Path(folder), settings=SETTINGS) as server,
    ):
        counts = play(server, args.seed, range(args.first, args.first + args.schedules))
    for name, count in sorted(counts.items()):
        print(f"{name:40} {count:>12,}")
    print(f"{time.monotonic() - began:,.0f} s; no promise was broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
