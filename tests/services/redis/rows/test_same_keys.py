"""Versions that write the keys which are there already: their layer becomes the base, and no other does.

Random histories of one key group with few keys, so that versions often have the same ones and often nearly
the same, against a dictionary. Merges and what drops expired rows go a step at a time, in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from services.support.redis.server import RedisServer
from tidegate.sinks.records import Identity, ReadAt
from tidegate.sinks.redis.store import RedisStore
from tidegate.sinks.redis.upkeep import merge as upkeep
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.testing.store.harness import binary, entry, stamp
from tidegate.wal.frame import Chunk, Run

KEYS = [b"a", b"b", b"c", b"d"]
names = itertools.count()

value = st.sampled_from(["stays", "stays", "stays", "stays", "expires", None])
step = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), value, min_size=1),
    st.lists(st.sampled_from(["merge", "merge", "merge", "expire"]), min_size=1, max_size=6),
)
ALL = ["merge"] * 12


def of(keys: str, kind: str = "stays") -> dict[bytes, str]:
    return {key.encode(): kind for key in keys}


def expired_half_way(before: str, keys: str) -> list[object]:
    """One row of a layer is in the base, expires and is dropped; then the rest comes: as many as it had."""
    return [of(before), ALL, of(keys, "expires"), of(keys), of("a"), ["merge", "expire", *ALL]]


@pytest.fixture(scope="module")
def stepping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Its hashes are never small, so that a merge has many steps."""
    told = {"appendonly": "no", "hash-max-listpack-entries": "0"}
    with RedisServer(tmp_path_factory.mktemp("stepping"), settings=told) as server:
        yield server


class History:
    """What was written, by version; a row that expires does so two versions later."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.versions: list[dict[bytes, tuple[bytes, int]]] = [{}]

    def write(self, changes: dict[bytes, str | None]) -> None:
        version = len(self.versions)
        rows = dict(self.versions[-1])
        stored: dict[bytes, bytes | None] = {}
        for key, kind in changes.items():
            rows.pop(key, None)
            text = b"%d" % version
            if kind is not None:
                rows[key] = text, version + 2 if kind == "expires" else 2**40
            expiry = stamp(version + 2).decided_at_us.to_bytes(8, "big")
            stored[key] = None if kind is None else b"e" + expiry + text if kind == "expires" else b"+" + text
        self._put(version, stored)
        self.versions.append(rows)
        self.store.announce(version)

    def _put(self, version: int, stored: dict[bytes, bytes | None]) -> None:
        keys = sorted(stored)
        chunk = Chunk(0, [Run(0, "t", binary(keys), binary(stored[key] or b"-" for key in keys))])
        sets = KeySets({0: {"t": len(keys)}}, least=1)
        sets.add([chunk])
        self.store.apply_and_seal(stamp(version), {0: {"t": len(keys)}}, chunk, sets=sets)
        assert self.store.publish(entry(version, {"t": stored}), 1)

    def merge(self) -> None:
        """One step of the oldest layer."""
        space, upto = self.store._space, len(self.versions) - 1
        space.asked([space.of_group(0, "merge", b"t", b"%d" % upto, b"0", b"1", b"0")])

    def expire(self) -> None:
        version = len(self.versions) - 1
        if version:
            upkeep.expire(self.store._space, "t", 0, b"0", 2, version, stamp(version).decided_at_us)

    def check(self) -> None:
        version = len(self.versions) - 1
        wanted = {key: text for key, (text, until) in self.versions[-1].items() if version < until}
        found = self.store.get_many(
            ReadAt("t", version, at_us=stamp(version).decided_at_us), KEYS
        ).to_pylist()
        assert {key: text for key, text in zip(KEYS, found, strict=True) if text is not None} == wanted


@example([of("ab"), ALL, of("bc"), ALL, of("ab"), ALL])
@example(expired_half_way("a", "bc"))
@example(expired_half_way("a", "bd"))
@example(expired_half_way("a", "cd"))
@example(expired_half_way("b", "ac"))
@example(expired_half_way("b", "ad"))
@example(expired_half_way("c", "ab"))
@given(st.lists(step, min_size=6, max_size=30))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_base_holds_what_was_written_whatever_keys_versions_share(stepping, steps):
    name = f"same{next(names)}"
    store = RedisStore(stepping.url, name)
    store.create(Identity("uuid", name, 1))
    store.claim(1, "writer")
    history = History(store)
    try:
        for one in steps:
            if isinstance(one, dict):
                history.write(one)
            else:
                for act in one:
                    getattr(history, act)()
            history.check()
    finally:
        store.drop()
        store.close()
