"""The store suite: aliases."""

from __future__ import annotations

import threading
import uuid

import pytest

from tidegate.errors import ConfigError
from tidegate.sinks.aliases import Target
from tidegate.sinks.store import Store
from tidegate.testing.concurrency import in_threads
from tidegate.testing.store.harness import KEY_GROUPS, StoreHarness, put

BLUE, GREEN = Target("suite.blue", "uuid-blue"), Target("suite-green", "uuid-green")
FLIPS = 20


def fresh_alias() -> str:
    return f"Alias.{uuid.uuid4().hex}"


class AliasTests(StoreHarness):
    def test_an_alias_names_what_it_was_set_to_last(self, store: Store) -> None:
        alias, aliases = fresh_alias(), store.aliases()
        assert aliases.get(alias) is None
        for target in (BLUE, BLUE, GREEN, BLUE):
            aliases.set(alias, target)
            assert aliases.get(alias) == target
            assert self.reopen(store).aliases().get(alias) == target

    def test_all_aliases_of_a_place_are_listed_whichever_namespace_it_is_opened_for(
        self, store: Store
    ) -> None:
        one, other, long = fresh_alias(), fresh_alias(), f"{'x' * 30}.{uuid.uuid4().hex}"
        for alias, target in ((one, BLUE), (other, GREEN), (long, BLUE)):
            store.aliases().set(alias, target)
        known = self.make_store().aliases().all()
        assert {name: known.get(name) for name in (one, other, long)} == {one: BLUE, other: GREEN, long: BLUE}
        for alias in (one, other, long):
            store.aliases().drop(alias)
        assert not {one, other, long} & set(store.aliases().all())

    def test_a_dropped_alias_is_none_and_may_be_set_again(self, store: Store) -> None:
        alias, aliases = fresh_alias(), store.aliases()
        assert aliases.drop(alias) is False
        aliases.set(alias, BLUE)
        assert aliases.drop(alias) is True
        assert (aliases.drop(alias), aliases.get(alias)) == (False, None)
        aliases.set(alias, GREEN)
        assert aliases.get(alias) == GREEN

    def test_an_alias_is_no_namespace(self, store: Store) -> None:
        put(store, 1, {"t": {b"k": b"v"}})
        alias = fresh_alias()
        store.aliases().set(alias, BLUE)
        identity = store.identity()
        assert identity is not None
        assert (identity.uuid, identity.key_groups) == ("uuid-1", KEY_GROUPS)
        assert store.pointer().visible == 1

    def test_a_name_that_does_not_fit_is_refused(self, store: Store) -> None:
        for name in ("", "a b", "a/b", "x" * 65):
            with pytest.raises(ConfigError, match="name"):
                store.aliases().set(name, BLUE)

    def test_whoever_looks_while_it_flips_sees_one_or_the_other_whole(self, store: Store) -> None:
        alias, done = fresh_alias(), threading.Event()
        store.aliases().set(alias, BLUE)
        seen: list[Target | None] = []

        def flip() -> None:
            try:
                for turn in range(FLIPS):
                    store.aliases().set(alias, (GREEN, BLUE)[turn % 2])
            finally:
                done.set()

        def look() -> None:
            aliases = self.reopen(store).aliases()
            seen.append(aliases.get(alias))
            while not done.is_set():
                seen.append(aliases.get(alias))

        in_threads(flip, look, look)
        assert set(seen) <= {BLUE, GREEN}
        assert store.aliases().get(alias) == BLUE

    def test_of_two_that_set_it_at_once_one_stands_whole(self, store: Store) -> None:
        alias = fresh_alias()

        def set_it(target: Target) -> None:
            self.reopen(store).aliases().set(alias, target)

        in_threads(*(lambda target=target: set_it(target) for target in (BLUE, GREEN, BLUE, GREEN)))
        assert store.aliases().get(alias) in (BLUE, GREEN)
