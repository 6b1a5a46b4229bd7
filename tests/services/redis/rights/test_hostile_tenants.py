"""Hostile tenants of a Redis: every attack of the table, with exactly the rights that the page lists."""

import contextlib

import pytest
from redis import exceptions

from services.support.redis import hostile
from services.support.redis.query import query_on
from services.support.redis.rights import Users, guarded, login_of

__all__ = ["guarded"]
pytestmark = pytest.mark.xdist_group("redis-hostile")
USERS = {
    hostile.READER: "tidegate-reader",
    hostile.WRITER: "tidegate-writer",
    hostile.NOBODY: "tidegate-reader",
}


@pytest.fixture(scope="module")
def namespaces(guarded, tmp_path_factory):
    """Makes namespaces of three versions each."""
    with contextlib.ExitStack() as stack:

        def make():
            query = query_on(guarded.url, tmp_path_factory.mktemp("query"), timeout_s=5.0)
            made = stack.enter_context(query)
            made.run(3)
            return made

        yield make


@pytest.fixture(scope="module")
def victim(namespaces):
    return namespaces()


@pytest.fixture(scope="module")
def unchanged(namespaces):
    """The namespace of those whose attacks are refused, and so change nothing."""
    return namespaces()


@pytest.fixture
def world(attack, guarded, namespaces, victim, unchanged):
    """The attacker has the login of the first of two namespaces."""
    own = unchanged if attack.ends == hostile.REFUSED else namespaces()
    url = Users(guarded, own).url(USERS[attack.by])
    with guarded.client(**login_of(url), socket_timeout=20) as client:
        yield hostile.World(client, guarded.ask, own, victim)


def keys_of(guarded, query) -> dict[bytes, bytes]:
    """All keys of a namespace, as they are."""
    with guarded.client(decode_responses=False) as client:
        return {key: client.dump(key) for key in client.scan_iter(f"*{query.namespace}*", count=1000)}


@pytest.mark.parametrize("attack", hostile.ATTACKS, ids=lambda one: f"{one.by}: {one.name}")
def test_an_attack_ends_as_the_table_says(attack, world, guarded):
    before = keys_of(guarded, world.victim)
    assert before
    if attack.ends == hostile.REFUSED:
        own = keys_of(guarded, world.own)
        with pytest.raises(exceptions.NoPermissionError):
            attack.run(world)
        assert keys_of(guarded, world.own) == own
    else:
        attack.run(world)
    assert keys_of(guarded, world.victim) == before


def test_the_victim_goes_on(victim):
    victim.check(3)
    victim.retire(victim.run(5))
    victim.check(5)
