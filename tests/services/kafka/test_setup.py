"""Topics that cannot keep a promise are refused by opening, each with what to set, and nothing is written."""

import logging

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from services.support.kafka.query import WAIT_S, Query
from services.support.kafka.world import NOT_YET
from support.wait import wait_until
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, OutcomeUnknownError, WalUnavailableError
from tidegate.wal.kafka.topics import Topics as TopicsOfLog

pytestmark = pytest.mark.xdist_group("kafka3")

BOTH = ("decisions", "change-log")


class Topics:
    """A log's topics, behind the log: altered, and looked at."""

    def __init__(self, brokers, query):
        self._brokers = brokers
        self._admin = AdminClient(brokers.client_settings)
        self.names = dict(zip(BOTH, (query.decisions, query.changelog), strict=True))

    def alter(self, kind, **settings):
        """Set, and wait until each broker says so: any of them may be asked."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in given.items()
        ]
        resource = ConfigResource("TOPIC", self.names[kind], incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        for n in range(self._brokers.brokers):
            wait_until(lambda n=n: given.items() <= self._settings(kind, n).items(), f"broker {n} knows it")

    def _settings(self, kind, broker):
        resource = ConfigResource("TOPIC", self.names[kind])
        found = self._admin.describe_configs([resource], broker=broker)[resource].result(WAIT_S)
        return {name: entry.value for name, entry in found.items()}

    def ends(self):
        """Asked for until the brokers agree who leads what was just made."""
        found = {}

        def known():
            try:
                found.update(self._ends())
            except KafkaException as error:
                if error.args[0].code() not in NOT_YET:
                    raise
                return False
            return True

        wait_until(known, "a leader of each partition")
        return found

    def _ends(self):
        consumer = Consumer(self._brokers.client_settings | {"group.id": "looking"})
        try:
            topics = self._admin.list_topics(timeout=WAIT_S).topics
            if not set(self.names.values()) <= set(topics):
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            return {
                (name, partition): consumer.get_watermark_offsets(TopicPartition(name, partition), WAIT_S)
                for name in self.names.values()
                for partition in topics[name].partitions
            }
        finally:
            consumer.close()


@pytest.fixture
def query(kafka3, tmp_path):
    made = Query(kafka3.bootstrap, tmp_path)
    yield made
    made.close()


def refused(query, topics, *told, safe=True):
    """Opening is refused, and says all of this; nothing was appended or made."""
    before = topics.ends()
    driver = query.driver(safe=safe)
    identity = driver.store.identity()
    with pytest.raises(ConfigError) as caught:
        open_namespace(driver, "lineage")
    for text in told:
        assert text in str(caught.value)
    assert topics.ends() == before
    assert driver.store.identity() == identity


def opened_with_a_warning(query, caplog, *told):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tidegate"):
        query.run(batches=1)
    for text in told:
        assert any(text in record.getMessage() for record in caplog.records)


# Setting, wrong value, right value, where, what is told: the setting, the value, what to set, the promise.
WRONG = [
    (
        "unclean.leader.election.enable",
        "true",
        "false",
        BOTH,
        ("unclean leader election: on", "to false", "(I3)"),
    ),
    ("retention.ms", "3600000", "-1", BOTH, ("retention.ms 3600000", "set -1", "I4")),
    ("retention.bytes", "1000000000", "-1", BOTH, ("retention.bytes 1000000000", "set -1", "I4")),
    ("cleanup.policy", "compact", "delete", BOTH, ("compact", "set delete", "I4")),
    ("cleanup.policy", "compact,delete", "delete", BOTH, ("compact,delete", "set delete", "I4")),
    ("max.message.bytes", "1000", "8388608", ("decisions",), ("max.message.bytes is 1,000", "at least")),
    ("max.message.bytes", "900000", "1048588", ("change-log",), ("max.message.bytes is 900,000", "951,024")),
    ("message.timestamp.type", "CreateTime", "LogAppendTime", BOTH, ("CreateTime", "set LogAppendTime")),
    ("min.insync.replicas", "1", "2", BOTH, ("min.insync.replicas 1", "set 2", "(I3)")),
]


REFUSED_BY_THE_BROKERS = {("decisions", "compact"), ("decisions", "compact,delete")}
"""A topic that is compacted takes no record without a key: refused at once, allowed or not."""


@pytest.fixture(scope="module")
def settled(kafka3, tmp_path_factory):
    """A log that is set up well: every test alters one thing, and puts it back."""
    made = Query(kafka3.bootstrap, tmp_path_factory.mktemp("settled"))
    made.run(batches=1)
    yield made
    made.close()


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "setting, wrong, right, kind, told",
    [
        pytest.param(setting, wrong, right, kind, told, id=f"{kind}-{setting}-{wrong}")
        for setting, wrong, right, kinds, told in WRONG
        for kind in kinds
    ],
)
def test_one_thing_is_wrong(kafka3, settled, caplog, setting, wrong, right, kind, told):
    topics = Topics(kafka3, settled)
    name = setting.replace(".", "_")
    topics.alter(kind, **{name: wrong})
    try:
        refused(settled, topics, f"{kind}: ", f"(topic {topics.names[kind]}; at stake", *told)
        if (kind, wrong) not in REFUSED_BY_THE_BROKERS:
            opened_with_a_warning(settled, caplog, told[0])
        else:
            refused(settled, topics, topics.names[kind], "cleanup.policy is", *told, safe=False)
    finally:
        topics.alter(kind, **{name: right})


def test_right_as_they_are_made(query, caplog):
    with caplog.at_level(logging.WARNING, "tidegate"):
        open_namespace(query.driver(safe=True), "lineage")
    assert not [record for record in caplog.records if record.name == "tidegate"]
    query.run()
    query.check()


@pytest.mark.parametrize(
    "given, told",
    [
        (
            {"replication_factor": 1},
            ("decisions and change-log: replication: 1 replica", "give it 3"),
        ),
        ({"min_insync_replicas": 1}, ("min.insync.replicas 1", "set 2")),
    ],
    ids=["one replica", "one in sync"],
)
def test_made_with_too_few_copies(kafka3, tmp_path, caplog, given, told):
    """The first open makes the topics, and then refuses to write to them."""
    query = Query(kafka3.bootstrap, tmp_path, **given)
    query.log().create()
    refused(query, Topics(kafka3, query), *told, "(I3)")
    opened_with_a_warning(query, caplog, told[0])
    query.close()


def test_altered_while_a_driver_runs(kafka3, query):
    """It is found at the next open; what runs goes on."""
    topics = Topics(kafka3, query)
    driver = query.driver(safe=True)
    open_namespace(driver, "lineage")
    query.commit(driver, 0)
    topics.alter("change-log", retention_ms="3600000")
    query.commit(driver, 1)
    refused(query, topics, "change-log: retention: retention.ms 3600000")
    query.commit(driver, 2)
    query.check()


def test_decisions_compacted_while_a_driver_runs(kafka3, query):
    """No record is taken any more: the error says which setting, and nothing is lost when it is set right."""
    topics = Topics(kafka3, query)
    driver = query.driver()
    open_namespace(driver, "lineage")
    query.commit(driver, 0)
    topics.alter("decisions", cleanup_policy="compact")
    query.impatient(driver)
    with pytest.raises(OutcomeUnknownError, match=r"last error: .*cleanup\.policy is compact.*set delete"):
        query.commit(driver, 1)
    topics.alter("decisions", cleanup_policy="delete")
    query.run(batches=3)
    query.check()


def test_too_few_brokers_for_the_replicas_is_an_outage_until_the_deadline(kafka3, tmp_path):
    """One of them may be away for a moment: it is tried again, and no option is called wrong."""
    query = Query(kafka3.bootstrap, tmp_path, replication_factor=4, timeout_s=2.0)
    log = query.log()
    with pytest.raises(WalUnavailableError, match=r"replication factor of 4 .* smaller replication_factor"):
        log.create()
    query.close()


def test_brokers_that_come_back_while_the_topics_are_made(kafka3, tmp_path, monkeypatch):
    query = Query(kafka3.bootstrap, tmp_path, timeout_s=20.0)
    log, asked = query.log(), []

    def one_away_at_first(self, brokers, wanted=TopicsOfLog._wanted):
        asked.append(brokers)
        topics = wanted(self, brokers)
        for topic in topics:
            topic.replication_factor = 4 if len(asked) < 3 else 3
        return topics

    monkeypatch.setattr(TopicsOfLog, "_wanted", one_away_at_first)
    log.create()
    assert len(asked) >= 3
    query.close()
