"""What a reader or a writer of one namespace's log on Kafka tries against another one and the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from services.support.hostile import REFUSED, Attack

ANOTHER, OWN, SERVER = "another namespace", "its own namespace", "the cluster"
READER, WRITER = "a reader", "a writer"
WAIT_S = 20.0


class World:
    """``client`` has the attacker's login, for its ``own`` namespace."""

    def __init__(self, client: Mapping[str, Any], own: Any, victim: Any) -> None:
        self.client, self.own, self.victim = dict(client), own, victim
        self.admin = AdminClient(self.client)

    def topics(self, of: Any) -> list[str]:
        return [of.decisions, of.changelog]


def refused(futures: Mapping[Any, Any]) -> None:
    """Every one of these requests is refused for want of a right."""
    assert futures
    for future in futures.values():
        with pytest.raises(KafkaException) as told:
            future.result(WAIT_S)
        _check(told.value)
    raise PermissionError


def _check(error: KafkaException) -> None:
    said = str(error.args[0].name())
    # The client does not find the leaders of a topic that it may not describe.
    assert "AUTHORIZATION_FAILED" in said or (said == "_NOENT" and "leaders" in str(error)), error


def consume(world: World, topic: str, **more: Any) -> None:
    consumer = Consumer({**world.client, "group.id": uuid.uuid4().hex, **more})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.consume(1, WAIT_S)[0]
        assert message.error() is not None, "it was read"
        _check(KafkaException(message.error()))
        raise PermissionError
    finally:
        consumer.close()


def produce(world: World, topic: str, **more: Any) -> None:
    errors: list[Any] = []
    producer = Producer({**world.client, "message.timeout.ms": int(WAIT_S * 1e3), **more})
    producer.produce(topic, b"record", on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_S)
    assert errors, "no answer"
    assert errors[0] is not None, "it was written"
    _check(KafkaException(errors[0]))
    raise PermissionError


def on(whose: str, attack: Callable[[World, list[str]], None]) -> Callable[[World], None]:
    """The attack on both topics of a namespace."""
    return lambda world: attack(world, world.topics(world.own if whose == OWN else world.victim))


def each(attack: Callable[[World, str], None]) -> Callable[[World, list[str]], None]:
    def run(world: World, topics: list[str]) -> None:
        for topic in topics:
            with pytest.raises(PermissionError):
                attack(world, topic)
        raise PermissionError

    return run


def fence_producers(world: World) -> None:
    """A transactional producer of the victim's name would fence the victim's."""
    producer = Producer({**world.client, "transactional.id": f"{world.victim.decisions}"})
    with pytest.raises(KafkaException) as told:
        producer.init_transactions(WAIT_S)
    _check(told.value)
    raise PermissionError


def join_a_group(world: World) -> None:
    consumer = Consumer({**world.client, "group.id": "tidegate"})
    try:
        consumer.subscribe([world.own.decisions])
        message = consumer.poll(WAIT_S)
        assert message is not None
        _check(KafkaException(message.error()))
        raise PermissionError
    finally:
        consumer.close()


def set_configs(world: World, kind: Any, name: str, **values: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    refused(world.admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]))


def grant_itself(world: World) -> None:
    me = f"User:{world.client['sasl.username']}"
    allow = AclOperation.ALL, AclPermissionType.ALLOW
    for pattern in (ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED):
        binding = AclBinding(ResourceType.TOPIC, world.victim.decisions, pattern, me, "*", *allow)
        with pytest.raises(PermissionError):
            refused(world.admin.create_acls([binding]))
    raise PermissionError


ANY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def rights_of_all(world: World) -> None:
    """This client gives a refusal to list or to remove them as a list of none."""
    for future in (world.admin.describe_acls(ANY_ACL), *world.admin.delete_acls([ANY_ACL]).values()):
        try:
            assert future.result(WAIT_S) == []
        except KafkaException as error:
            _check(error)
    raise PermissionError


def broker_settings(world: World) -> None:
    for broker in world.admin.list_topics(timeout=WAIT_S).brokers:
        with pytest.raises(PermissionError):
            set_configs(world, ConfigResource.Type.BROKER, str(broker), message_max_bytes="1")
    raise PermissionError


def names_that_begin_alike(world: World) -> None:
    """Prefixed rights end with a dot, which no escaped name contains."""
    names = [f"{world.own.decisions.rpartition('.')[0]}{more}.decisions" for more in ("x", "_0x", "-x")]
    refused(world.admin.create_topics([NewTopic(name, 1, 1) for name in names]))


def names_of_others(world: World) -> None:
    """A list of topics shows those that the user may describe."""
    seen = set(world.admin.list_topics(timeout=WAIT_S).topics)
    assert not seen & set(world.topics(world.victim))
    for topic in world.topics(world.victim):
        found = world.admin.list_topics(topic, timeout=WAIT_S).topics[topic]
        _check(KafkaException(found.error))
    raise PermissionError


def large_record(world: World) -> None:
    producer = Producer({**world.client, "message.max.bytes": 200_000_000, "batch.size": 100_000_000})
    errors: list[Any] = []
    producer.produce(
        world.own.changelog, b"x" * 50_000_000, on_delivery=lambda error, _: errors.append(error)
    )
    producer.flush(WAIT_S)
    assert [error and error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]


def of_both(name: str, where: str, run: Any) -> list[Attack]:
    return [Attack(name, role, where, REFUSED, run) for role in (READER, WRITER)]


ATTACKS = [
    *of_both("read its decisions and its changes", ANOTHER, on(ANOTHER, each(consume))),
    *of_both("write into its decisions and its changes", ANOTHER, on(ANOTHER, each(produce))),
    *of_both(
        "delete its records",
        ANOTHER,
        on(
            ANOTHER,
            lambda world, topics: refused(
                world.admin.delete_records([TopicPartition(topic, 0, 1) for topic in topics])
            ),
        ),
    ),
    *of_both(
        "delete its topics",
        ANOTHER,
        on(ANOTHER, lambda world, topics: refused(world.admin.delete_topics(topics))),
    ),
    *of_both(
        "change how long its topics are kept",
        ANOTHER,
        on(
            ANOTHER,
            each(
                lambda world, topic: set_configs(
                    world, ConfigResource.Type.TOPIC, topic, retention_ms="1", cleanup_policy="delete"
                )
            ),
        ),
    ),
    *of_both("see that its topics exist", ANOTHER, names_of_others),
    *of_both("fence its producers by a transaction", ANOTHER, fence_producers),
    *of_both("grant itself rights on its topics", ANOTHER, grant_itself),
    *of_both(
        "make topics whose names begin like its own, outside its prefix", ANOTHER, names_that_begin_alike
    ),
    Attack("write into the log", READER, OWN, REFUSED, on(OWN, each(produce))),
    Attack(
        "delete records of the log",
        READER,
        OWN,
        REFUSED,
        on(
            OWN,
            lambda world, topics: refused(
                world.admin.delete_records([TopicPartition(topic, 0, 1) for topic in topics])
            ),
        ),
    ),
    Attack(
        "delete the log's topics, or add partitions",
        READER,
        OWN,
        REFUSED,
        on(
            OWN,
            lambda world, topics: refused(
                world.admin.delete_topics(topics)
                | world.admin.create_partitions([NewPartitions(topic, 9) for topic in topics])
            ),
        ),
    ),
    *of_both(
        "change how long the log is kept",
        OWN,
        on(
            OWN,
            each(lambda world, topic: set_configs(world, ConfigResource.Type.TOPIC, topic, retention_ms="1")),
        ),
    ),
    *of_both("join a consumer group", SERVER, join_a_group),
    *of_both("change a broker's settings", SERVER, broker_settings),
    *of_both("list or remove the rights of all", SERVER, rights_of_all),
    *of_both(
        "remove another user's login",
        SERVER,
        lambda world: refused(
            world.admin.alter_user_scram_credentials(
                [UserScramCredentialDeletion("admin", ScramMechanism.SCRAM_SHA_256)]
            )
        ),
    ),
    *of_both(
        "elect other leaders",
        SERVER,
        lambda world: refused({1: world.admin.elect_leaders(ElectionType.UNCLEAN, None)}),
    ),
    Attack("a record of 50 MB", WRITER, SERVER, "bounded: `message.max.bytes` of the broker", large_record),
]
