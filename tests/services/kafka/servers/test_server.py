"""The servers that other tests rely on: they keep what they acknowledged, and they end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from services.support import jars
from services.support.kafka import foreign as foreign_kafka
from services.support.kafka import jars as kafka_jars
from services.support.kafka import server as kafka_server
from services.support.kafka.server import KafkaCluster
from support.wait import wait_until

WAIT_S = 30
QUIET = {"log_level": 0}
HERE = Path(__file__).parents[2]


def make_topic(settings, copies=1, **config):
    name = f"t-{uuid.uuid4().hex}"
    topic = NewTopic(name, 1, replication_factor=copies, config=config)
    admin = AdminClient(settings)
    admin.create_topics([topic])[name].result(WAIT_S)
    return name


def produce(settings, topic, *values, timeout_s=WAIT_S):
    """Send, and return once all are acknowledged."""
    reports = []
    producer = Producer(settings | {"acks": "all", "delivery.timeout.ms": int(timeout_s * 1000)})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(WAIT_S) == 0
    for error in reports:
        if error is not None:
            raise KafkaException(error)
    assert len(reports) == len(values)


def consume(settings, topic, count):
    consumer = Consumer(settings | {"group.id": "tests", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, WAIT_S)]
    finally:
        consumer.close()


def settings_of(kafka):
    return kafka.client_settings | QUIET


def gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


# -- one broker -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_paused_stopped(private_kafka):
    kafka = private_kafka()
    settings = settings_of(kafka)
    topic = make_topic(settings)
    produce(settings, topic, b"before the kill")
    first = kafka.pid(0)
    kafka.kill(0)
    assert gone(first)

    kafka.restart(0)
    produce(settings, topic, b"after it")
    kafka.pause(0)
    with pytest.raises(KafkaException, match="_MSG_TIMED_OUT"):
        produce(settings, topic, b"to nobody", timeout_s=1)
    kafka.resume(0)
    assert consume(settings, topic, 2) == [b"before the kill", b"after it"]

    second = kafka.pid(0)
    kafka.stop()
    assert gone(second)
    kafka.start()
    assert consume(settings, topic, 2) == [b"before the kill", b"after it"]


def test_deleted_data_is_gone_soon(kafka):
    settings = {"bootstrap.servers": kafka.bootstrap} | QUIET
    topic = make_topic(settings, **{"segment.bytes": "1048576"})
    produce(settings, topic, *[os.urandom(500_000)] * 8)

    def size():
        total = 0
        for path in kafka.data_folder(0).glob(f"{topic}-0*/*.log*"):
            with contextlib.suppress(FileNotFoundError):  # renamed or deleted since it was listed
                total += path.stat().st_size
        return total

    assert size() > 4_000_000
    admin = AdminClient(settings)
    partition = TopicPartition(topic, 0, 8)
    admin.delete_records([partition])[partition].result(WAIT_S)
    wait_until(lambda: size() < 1_048_576, "segments without records are deleted", WAIT_S)
    admin.delete_topics([topic])[topic].result(WAIT_S)
    wait_until(lambda: size() == 0, "the topic's files are deleted", WAIT_S)


@pytest.mark.slow
def test_clients_of_the_proxied_listener_are_told_the_proxys_address(private_kafka):
    kafka = private_kafka(proxied=True)
    target = "{}:{}".format(*kafka.proxied_target(0))
    (told,) = AdminClient({"bootstrap.servers": target} | QUIET).list_topics(timeout=WAIT_S).brokers.values()
    assert (told.host, told.port) == kafka.proxied_address(0)
    assert kafka.proxied_bootstrap == f"{told.host}:{told.port}" != target


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile(tmp_path, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free_ports, asked = kafka_server.free_ports, []

        def first_taken(count):
            asked.append(count)
            return [taken, *free_ports(count - 1)] if len(asked) == 1 else free_ports(count)

        monkeypatch.setattr(kafka_server, "free_ports", first_taken)
        with KafkaCluster(tmp_path / "kafka") as kafka:
            assert len(asked) == 2
            assert kafka.bootstrap != f"127.0.0.1:{taken}"


# -- they end -------------------------------------------------------------------------------------------


RUN = [sys.executable, HERE / "run.py", "kafka", "--", sys.executable, "-c"]


@pytest.mark.slow
def test_run_ends_all_when_it_is_told_to_end():
    with subprocess.Popen([*RUN, "import time; print(1, flush=True); time.sleep(600)"], stdout=-1) as runner:
        assert runner.stdout.readline() == b"1\n"
        processes = psutil.Process(runner.pid).children(recursive=True)
        assert len(processes) == 3  # the command, the guard, the broker
        runner.terminate()
        assert runner.wait(WAIT_S) == 128 + signal.SIGTERM
    wait_until(lambda: all(gone(process.pid) for process in processes), "all end", WAIT_S)


# -- where they come from -------------------------------------------------------------------------------

FAKE_MAVEN = """#!/bin/sh
for last; do :; done
mkdir "${last#*=}" && touch "${last#*=}/kafka_2.13-4.1.1.jar" && echo once >>"$(dirname "$0")/calls"
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder that is searched first for programs, and a place of its own for the jars."""
    monkeypatch.setattr(jars, "ROOT", tmp_path)
    monkeypatch.setattr(foreign_kafka, "ROOT", tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name, text):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    return write


def test_jars_are_fetched_once_whoever_asks(programs, tmp_path):
    programs("mvn", FAKE_MAVEN)
    askers = [threading.Thread(target=kafka_jars.kafka_jars) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert (tmp_path / "bin/calls").read_text() == "once\n"
    kept = kafka_jars.kafka_jars()
    assert (kept / "kafka_2.13-4.1.1.jar").is_file()
    assert sorted(path.name for path in kept.parent.iterdir()) == ["kafka-4.1.1", "lock"]

    (kept / kafka_jars.POM.name).write_text("made from something else")
    kafka_jars.kafka_jars()
    assert (tmp_path / "bin/calls").read_text() == "once\nonce\n"


def test_without_maven_it_is_said_what_to_install(programs, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install -y maven"):
        kafka_jars.kafka_jars()


def test_what_maven_said_is_told(programs, tmp_path):
    programs("mvn", "#!/bin/sh\necho no network\nexit 1\n")
    with pytest.raises(RuntimeError, match="no network"):
        kafka_jars.kafka_jars()
    assert [path.name for path in (tmp_path / ".services").iterdir()] == ["lock"]


def test_every_way_gives_the_same_version():
    assert f"<version>{kafka_jars.VERSION}</version>" in kafka_jars.POM.read_text()
    assert f"apache/kafka:{kafka_jars.VERSION}\n" in (jars.ROOT / "docker-compose.yml").read_text()


def test_a_broker_that_is_there_is_used(monkeypatch):
    monkeypatch.setenv("TIDEGATE_TEST_KAFKA", "somewhere:9092")
    assert foreign_kafka.foreign_kafka().bootstrap == "somewhere:9092"


def test_containers_are_used_where_their_engine_runs(programs, monkeypatch, tmp_path):
    monkeypatch.delenv("TIDEGATE_TEST_KAFKA", raising=False)
    programs("docker", f'#!/bin/sh\necho "$PWD $*" >>{tmp_path}/calls\n')
    assert foreign_kafka.foreign_kafka().bootstrap == "127.0.0.1:9092"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-1] == f"{tmp_path} compose up -d --wait kafka"
    programs("docker", "#!/bin/sh\nexit 1\n")
    assert foreign_kafka.foreign_kafka() is None
