"""The log on Kafka passes the suite that every log passes, on a real broker."""

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.testing.log.suite import LogSuite, Place
from tidegate.wal.kafka.address import parse_address
from tidegate.wal.open_log import open_log


class TestKafkaLog(LogSuite):
    refuses_used_segments = False
    batches_share_a_checksum = True
    large_blob_bytes = 20_000_000

    @pytest.fixture(autouse=True)
    def _broker(self, kafka):
        self.kafka = kafka
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self.made = []
        yield
        for log in self.made:
            log.drop()
            log.close()

    def make_log(self):
        log = self._instance(f"n{len(self.made)}")
        self.made.append(log)
        return log

    def reopen(self, log):
        return self._instance(log.test_namespace)

    def place(self, log):
        return Place(f"kafka://{self.kafka.bootstrap}", log.test_namespace, self._options())

    def _options(self):
        return {"topic_prefix": self.prefix, "partitions": 3, "timeout_s": 60}

    def _instance(self, namespace):
        log = open_log(f"kafka://{self.kafka.bootstrap}", namespace, self._options())
        log.test_namespace = namespace
        return log

    # -- behind the log, with clients of our own and the broker's files -------------------------------

    def _topic(self, log, kind):
        return f"{self.prefix}.{log.test_namespace}.{kind}"

    def _segment_file(self, topic, partition):
        (path,) = Path(self.kafka.data_folder(0)).glob(f"{topic}-{partition}/*.log")
        return path

    def _flip(self, path, marker, nth=0):
        content = path.read_bytes()
        at = -1
        for _ in range(nth + 1):
            at = content.index(marker, at + 1)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 4]))

    def damage_decision(self, log, nth):
        self._flip(self._segment_file(self._topic(log, "decisions"), 0), b"record", nth)

    def damage_blob(self, log, address):
        place = parse_address(address, "")
        content = next(iter(log.read([address]))).content
        self._flip(self._segment_file(self._topic(log, "changelog"), place.partition), content)

    def lose_segment(self, log, segment):
        admin, topic = self._admin(), self._topic(log, "changelog")
        consumer = self._consumer()
        for partition in range(3):
            end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
            if self._keys(consumer, topic, partition, end)[-1:] == [segment.encode()]:
                for future in admin.delete_records([TopicPartition(topic, partition, end)]).values():
                    future.result()
        consumer.close()

    def lose_last_decision(self, log):
        """An older copy: the topic again, with all its records but the last."""
        admin, topic = self._admin(), self._topic(log, "decisions")
        consumer = self._consumer()
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = [message.value() for message in consumer.consume(end, 10)]
        consumer.close()
        for future in admin.delete_topics([topic], operation_timeout=10).values():
            future.result()
        for future in admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=10).values():
            future.result()
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for record in records[:-1]:
            producer.produce(topic, record, partition=0)
        assert producer.flush(10) == 0

    def _keys(self, consumer, topic, partition, end):
        if not end:
            return []
        consumer.assign([TopicPartition(topic, partition, 0)])
        return [message.key() for message in consumer.consume(end, 5)]

    def _admin(self):
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap})

    def _consumer(self):
        return Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": "looking"})
