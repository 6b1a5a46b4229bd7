"""Hostile tenants of a Cassandra cluster: every attack of the table, with exactly the rights of the page."""

import contextlib
import re
from pathlib import Path

import pytest
from cassandra import Unauthorized

from services.support.cassandra import hostile
from services.support.cassandra.query import query_on
from services.support.cassandra.server import CassandraServer

pytestmark = [pytest.mark.xdist_group("cassandra-rights"), pytest.mark.slow]  # a node of their own
FILE = (Path(__file__).parents[4] / "deploy" / "rights" / "cassandra.cql").read_text()
PASSWORD = "Pa55-of-all"
OWN, VICTIM = "tidegate", "tidegate_b"
ROLES = {
    hostile.VIEWER: "tidegate_viewer",
    hostile.READER: "tidegate_reader",
    hostile.WRITER: "tidegate_writer",
}
RIGHTS = re.findall(r"^GRANT (.*) TO (\w+);$", FILE, re.MULTILINE)
SETTINGS = {"authorizer": "CassandraAuthorizer", "permissions_validity": "0ms", "roles_validity": "0ms"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    users = dict.fromkeys(("tests", *ROLES.values()), PASSWORD)
    with CassandraServer(tmp_path_factory.mktemp("cassandra"), users=users, settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def queries(guarded, tmp_path_factory):
    """Makes namespaces in a keyspace. The roles have the rights of the page in the attacker's keyspace."""
    guarded.ask("GRANT ALL ON ALL KEYSPACES TO tests")
    with contextlib.ExitStack() as stack:

        def make(keyspace):
            url = f"cassandra://tests:{PASSWORD}@{guarded.address}:{guarded.port}/{keyspace}"
            query = stack.enter_context(query_on(url, tmp_path_factory.mktemp("query")))
            query.run(3)
            return query

        made = make(OWN), make(VICTIM)
        assert {role for _, role in RIGHTS} >= set(ROLES.values())
        for right, role in RIGHTS:
            if role in ROLES.values():
                guarded.ask(f"GRANT {right} TO {role}")
        yield made, make


def rows_of(guarded, keyspace):
    return {name: guarded.ask(f"SELECT JSON * FROM {keyspace}.tidegate_{name}") for name in hostile.TABLES}


@pytest.mark.parametrize("attack", hostile.ATTACKS, ids=lambda one: f"{one.by}: {one.name}")
def test_an_attack_ends_as_the_table_says(attack, guarded, queries):
    (own, _), make = queries
    if attack.ends != hostile.REFUSED:
        own = make(OWN)
    store, role = own.store(), ROLES[attack.by]
    before = rows_of(guarded, VICTIM), rows_of(guarded, OWN)
    with guarded.session(user=role) as session:
        world = hostile.World(session, OWN, VICTIM, role, store, store._space.made.space)
        if attack.ends == hostile.REFUSED:
            with pytest.raises(Unauthorized):
                attack.run(world)
            assert rows_of(guarded, OWN) == before[1]
        else:
            attack.run(world)
    assert rows_of(guarded, VICTIM) == before[0]


def test_the_victim_goes_on(queries):
    (_, victim), _ = queries
    victim.run(4)
    victim.check(4)
