"""Where a stream's log is, a place of its own for each: a folder, or topics of a broker.

What is read here is read without the library's own log: a look from outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.wait import wait_until
from tidegate.base.names import escape
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log

DEADLINE_S = 60.0
AT_ONCE = 1_000


class Message(NamedTuple):
    """One message of a topic; its key is its segment's name, in a change-log."""

    partition: int
    offset: int
    key: str
    content: bytes


@dataclasses.dataclass
class FilePlace:
    """A log in files. ``keywords`` are what a ``VersionedSink`` is given, here or in another process."""

    folder: Path

    def __post_init__(self) -> None:
        self.wal, self.options = f"file://{self.folder}", dict[str, Any]()

    @property
    def keywords(self) -> dict[str, Any]:
        return {"wal": self.wal}

    @property
    def words(self) -> list[str]:
        """The same for a command."""
        return ["--wal", self.wal]

    def opened(self, namespace: str) -> contextlib.closing[Log]:
        return contextlib.closing(open_log(self.wal, namespace, self.options))

    def records(self, namespace: str) -> list[tuple[int, bytes]]:
        """All that stands in the decision log, as it stands there."""
        path = self.folder / namespace / "decisions.log"
        return [(0, path.read_bytes())] if path.exists() else []

    def segments(self, namespace: str) -> set[str]:
        """What was staged: a segment for each try of a task with rows, and one for each manifest."""
        return {path.name for path in (self.folder / namespace / "changelog").glob("*.seg")}

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile the log is not there. Nobody may make another in its place."""
        kept = self.folder.with_name(f"{self.folder.name}-kept")
        self.folder.rename(kept)
        yield
        assert not self.folder.exists()
        kept.rename(self.folder)

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclasses.dataclass
class KafkaPlace:
    """A log in topics whose names nobody else has. One broker holds one copy, hence ``allow_unsafe``."""

    bootstrap: str
    folder: Path
    prefix: str = dataclasses.field(default_factory=lambda: f"t{uuid.uuid4().hex[:12]}")
    partitions: int = 3

    @property
    def wal(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def options(self) -> dict[str, Any]:
        return {"topic_prefix": self.prefix, "partitions": self.partitions}

    @property
    def keywords(self) -> dict[str, Any]:
        return {"wal": self.wal, "wal_options": self.options, "allow_unsafe": True}

    @property
    def words(self) -> list[str]:
        config = self.folder.with_name("wal.properties")
        config.write_text("".join(f"{name}={value}\n" for name, value in self.options.items()))
        return ["--wal", self.wal, "--wal-config", str(config)]

    def opened(self, namespace: str) -> contextlib.closing[Log]:
        return contextlib.closing(open_log(self.wal, namespace, self.options))

    def records(self, namespace: str) -> list[tuple[int, bytes]]:
        return [(message.offset, message.content) for message in self.messages(namespace, "decisions")]

    def segments(self, namespace: str) -> set[str]:
        return {message.key for message in self.messages(namespace, "changelog")}

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        kept, self.prefix = self.prefix, f"t{uuid.uuid4().hex[:12]}"
        yield
        assert self._topics() == []
        self.prefix = kept

    def drop(self) -> None:
        if mine := self._topics():
            admin = self._admin()  # held: what it does ends with it
            for future in admin.delete_topics(mine, operation_timeout=DEADLINE_S).values():
                future.result(DEADLINE_S)
            wait_until(lambda: not self._topics(), "the topics are gone", DEADLINE_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def _topics(self) -> list[str]:
        return [
            name
            for name in self._admin().list_topics(timeout=DEADLINE_S).topics
            if name.startswith(f"{self.prefix}.")
        ]

    def messages(self, namespace: str, kind: str) -> Iterator[Message]:
        """Every message that a plain consumer finds in a topic of the log."""
        topic = f"{self.prefix}.{escape(namespace)}.{kind}"
        if topic not in self._topics():
            return
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "looking", "enable.auto.commit": False}
        with contextlib.closing(Consumer(settings)) as consumer:
            metadata = consumer.list_topics(topic, timeout=DEADLINE_S)
            for partition in metadata.topics[topic].partitions:
                place = TopicPartition(topic, partition)
                position, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
                consumer.assign([TopicPartition(topic, partition, position)])
                while position < end:
                    found = consumer.consume(min(end - position, AT_ONCE), timeout=DEADLINE_S)
                    assert found, f"{topic}: nothing at {position} within {DEADLINE_S} s"
                    for message in found:
                        assert message.error() is None, message.error()
                        position = message.offset() + 1
                        key, content = message.key() or b"", message.value() or b""
                        yield Message(partition, message.offset(), key.decode(), content)


LogPlace = FilePlace | KafkaPlace


def command(*words: str) -> str:
    """``tidegate WORDS`` in a process of its own; what it printed. It must succeed."""
    program = "from tidegate.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout
