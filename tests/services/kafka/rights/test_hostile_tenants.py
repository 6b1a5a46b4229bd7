"""Hostile tenants of a Kafka cluster: every attack of the table, with exactly the rights of the page."""

import pytest

from services.support.kafka import hostile
from services.support.kafka.query import Query
from services.support.kafka.rights import PASSWORD, READER, WRITER, Users, guarded, rights_of

__all__ = ["guarded"]
pytestmark = [pytest.mark.xdist_group("kafka-rights"), pytest.mark.slow]  # a broker of their own
USERS = {hostile.READER: READER, hostile.WRITER: WRITER}


@pytest.fixture(scope="module")
def queries(guarded, tmp_path_factory):
    """The attacker's namespace, and the victim's."""
    known = {name: value for name, value in guarded.client_settings.items() if name != "bootstrap.servers"}
    made = [Query(guarded.bootstrap, tmp_path_factory.mktemp("query"), **known) for _ in range(2)]
    for query in made:
        query.run(2)
    for user in USERS.values():
        Users(guarded, made[0]).grant(user, rights_of(user))
    yield made
    for query in made:
        query.close()


@pytest.mark.parametrize("attack", hostile.ATTACKS, ids=lambda one: f"{one.by}: {one.name}")
def test_an_attack_ends_as_the_table_says(attack, guarded, queries):
    own, victim = queries
    login = {"sasl.username": USERS[attack.by], "sasl.password": PASSWORD}
    world = hostile.World({**guarded.client_settings, **login}, own, victim)
    before = [list(query.log().decisions()) for query in queries]
    if attack.ends == hostile.REFUSED:
        with pytest.raises(PermissionError):
            attack.run(world)
    else:
        attack.run(world)
    assert [list(query.log().decisions()) for query in queries] == before


def test_both_go_on(queries):
    for query in queries:
        query.run(3)
        query.check(3)
