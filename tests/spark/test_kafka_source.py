"""examples/cdc/customers.py as its page has it: Spark's own Kafka source in front, an API's producer, a kill.

The program runs under spark-submit in a process of its own, with the source's jars; what it wrote is read
here, by who waits for the offsets of what it sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tidegate
from services.support.kafka.server import KafkaCluster
from services.support.spark.jars import spark_source_jars
from tidegate.errors import ConfigError, WaitTimeoutError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
TOPIC, PARTITIONS = "customers", 3
VISIBLE_S = 300.0


def as_json(op, key, lsn, name):
    return json.dumps({"op": op, "id": key, "lsn": lsn, "name": name}).encode()


def as_avro(op, key, lsn, name):
    """By the Avro specification: numbers zigzag and 7 bits at a time, texts behind their length."""

    def number(value):
        left, out = (value << 1) ^ (value >> 63), bytearray()
        while left > 0x7F:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        return bytes([*out, left])

    def text(value):
        return number(len(value.encode())) + value.encode()

    return text(op) + number(key) + number(lsn) + (number(0) if name is None else number(1) + text(name))


class Api:
    """An API that writes to the topic and answers from the store."""

    def __init__(self, bootstrap, encode, store):
        self._encode, self._store, self._where = encode, store, {}
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(self, *changes):
        """The offsets of what was sent, as the producer is told them."""
        where = {}

        def delivered(error, message):
            assert error is None, error
            where[message.partition()] = max(message.offset(), where.get(message.partition(), 0))

        for op, key, lsn, name in changes:
            value = self._encode(op, key, lsn, name)
            self._producer.produce(TOPIC, value, str(key).encode(), key % PARTITIONS, on_delivery=delivered)
        assert self._producer.flush(60) == 0
        return {TOPIC: where}

    def connect(self):
        """A gate, once the first batch has made the namespace."""
        made = threading.Event()
        for _ in range(int(VISIBLE_S * 10)):
            with contextlib.suppress(ConfigError):
                return tidegate.connect(self._store, "customers")
            made.wait(0.1)
        pytest.fail("there is no namespace yet")


@contextlib.contextmanager
def running(folder, bootstrap, form):
    """The example under spark-submit; ended by a kill, as a machine would end it."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    words = [submit, "--master", "local[2]", "--jars", ",".join(map(str, spark_source_jars()))]
    words += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    words += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    words += [ROOT / "examples/cdc/customers.py", "--kafka", bootstrap, "--format", form]
    words += ["--wal", f"file://{folder}/wal", "--store", f"sqlite://{folder}/store"]
    words += ["--checkpoint", folder / "checkpoint"]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with (folder / "said").open("ab") as said:
        program = subprocess.Popen(
            list(map(str, words)), stdout=said, stderr=said, env=environment, start_new_session=True
        )
        try:
            yield program
        except BaseException:
            print((folder / "said").read_text()[-6000:])
            raise
        finally:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait(60)


@pytest.fixture
def bootstrap(tmp_path_factory):
    """A broker of its own: the example's topic has a name that others may use."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        yield cluster.bootstrap


@pytest.mark.parametrize("form, encode", [("json", as_json), ("avro", as_avro)])
def test_what_an_api_wrote_is_visible_when_its_offsets_are(tmp_path, bootstrap, form, encode):
    """Also behind a kill: what was sent while nobody ran is applied once, late changes lose as ever."""
    store = f"sqlite://{tmp_path}/store"
    api = Api(bootstrap, encode, store)
    with running(tmp_path, bootstrap, form):
        first = api.send(*(("c", key, 10 + key, f"name {key}") for key in range(20)))
        with api.connect() as gate:
            gate.wait_for(offsets=first, timeout=VISIBLE_S)
            table = gate.table("customers")
            assert table.get(7) == {"lsn": 17, "name": "name 7"}
            assert len(list(table.scan())) == 20
            own = api.send(
                ("u", 7, 100, "Ada"), ("d", 8, 101, None), ("u", 9, 3, "late"), ("u", 6, 102, None)
            )
            gate.wait_for(offsets=own, timeout=VISIBLE_S)
            assert table.get_many([6, 7, 8, 9]) == {
                6: {"lsn": 102, "name": None},
                7: {"lsn": 100, "name": "Ada"},
                9: {"lsn": 19, "name": "name 9"},
            }
            version = gate.version()
    while_away = api.send(
        ("u", 7, 99, "late again"), ("u", 8, 100, "late, it was deleted"), ("c", 21, 1, "new")
    )
    with tidegate.connect(store, "customers") as gate:
        with pytest.raises(WaitTimeoutError, match="customers-0@"):
            gate.wait_for(offsets=while_away, timeout=0)
        with running(tmp_path, bootstrap, form):
            assert gate.wait_for(offsets=while_away, timeout=VISIBLE_S) > version
            found = gate.table("customers").get_many([7, 8, 21])
            assert found == {7: {"lsn": 100, "name": "Ada"}, 21: {"lsn": 1, "name": "new"}}
        batches = [info.batch for info in gate.history()]
    assert batches == list(range(len(batches)))
