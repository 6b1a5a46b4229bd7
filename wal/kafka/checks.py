"""Checks that the log's topics in Kafka have the settings on which its guarantees rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tidegate.base.checks import Check
from tidegate.wal.kafka.settings import PIECE_BYTES_MAX, REQUEST_BYTES
from tidegate.wal.kafka.topics import Names, Topic
from tidegate.wal.record import DECIDED_BYTES_MAX

DURABLE = "durable before acknowledged (I3)"
LOUD = "nothing decided is lost, or it is found out (I4, I10)"
ENVELOPE_BYTES = 1024
SUMMARY_BYTES = 1024 * 1024
NEEDED = {"READ": "fail", "WRITE": "fail", "DELETE": "warn"}
"""The rights a writer needs on the topics, and the result when one is missing. DELETE is for trimming."""

TopicSettings = Mapping[str, Mapping[str, str]]


Grant = Callable[[str, str], str]
"""``grant(right, topic)`` returns the command that grants a right (as ``kafka-acls`` names it)."""


def checks(
    names: Names, topics: Mapping[str, Topic], settings: TopicSettings, grant: Grant, saving: str = ""
) -> list[Check]:
    """Return one result per check, including one for each missing topic; ``saving`` is the advice for it."""
    results: list[Check] = []
    for name in names:
        topic = topics.get(name)
        if topic is None:
            lost = f"topic {name} does not exist, its records are lost; {saving}"
            results.append(Check(_short(names, name), "fail", lost, LOUD))
            continue
        of = settings[name]
        results += [
            check._replace(check=f"{_short(names, name)}: {check.check}", at=f"topic {name}")
            for check in (
                *_copies(topic, of),
                *_keeping(names, topic, of),
                *_rest(names, topic, of),
                _rights(topic, grant),
            )
        ]
    return results


def request_size(brokers: Mapping[str, int]) -> Check:
    """Check that every broker takes a request with the largest record. ``brokers``: their limits, by id."""
    promise = "whatever was staged can be decided"
    least = min(brokers, key=lambda broker: brokers[broker], default=None)
    if least is None:
        unknown = "not known: DescribeConfigs on brokers is barred; by default they take 104,857,600 bytes"
        return Check("request size", "pass", unknown, promise)
    if brokers[least] < REQUEST_BYTES:
        has = f"socket.request.max.bytes is {brokers[least]:,} at broker {least}"
        return Check("request size", "fail", f"{has}; it must be at least {REQUEST_BYTES:,}", promise)
    return Check("request size", "pass", f"{brokers[least]:,} bytes", promise)


def retention_s(settings: TopicSettings) -> float | None:
    """Return the shortest retention time of any topic, or None when no topic deletes by age."""
    kept_ms = [int(of["retention.ms"]) for of in settings.values() if _deletes(of)]
    return min((ms / 1000 for ms in kept_ms if ms >= 0), default=None)


def _short(names: Names, name: str) -> str:
    return "decisions" if name == names.decisions else "change-log"


def _copies(topic: Topic, of: Mapping[str, str]) -> Iterator[Check]:
    needed = int(of["min.insync.replicas"])
    if topic.replicas < 2:
        one = "1 replica: the disk of one broker is all there is; give it 3 (kafka-reassign-partitions)"
        yield Check("replication", "fail", one, DURABLE)
    else:
        yield Check("replication", "pass", f"{topic.replicas} replicas", DURABLE)
        if needed < 2:
            alone = "min.insync.replicas 1: acknowledged by one broker alone; set 2"
            yield Check("acknowledgement", "fail", alone, DURABLE)
        elif needed >= topic.replicas:
            every = f"min.insync.replicas {needed} of {topic.replicas}: one broker down stops every write"
            yield Check("acknowledgement", "warn", every, "the stream continues when a broker is down")
        else:
            yield Check("acknowledgement", "pass", f"min.insync.replicas {needed}", DURABLE)
    if topic.in_sync < needed:
        few = f"{topic.in_sync} replicas in sync now, {needed} are needed: writes fail until more are back"
        yield Check("in sync", "warn", few, "the stream continues when a broker is down")
    elif topic.in_sync < topic.replicas:
        away = (
            f"{topic.in_sync} of {topic.replicas} replicas are in sync: bring the broker of the others back"
        )
        yield Check("in sync", "warn", away, "the stream continues when a broker is down")
    unclean = of["unclean.leader.election.enable"] == "true"
    how = "on: a replica that lags may lead, and acknowledged records vanish; set it to false"
    yield Check("unclean leader election", "fail" if unclean else "pass", how if unclean else "off", DURABLE)


def _deletes(of: Mapping[str, str]) -> bool:
    return "delete" in of["cleanup.policy"]


def _keeping(names: Names, topic: Topic, of: Mapping[str, str]) -> Iterator[Check]:
    policy = of["cleanup.policy"]
    if policy == "delete":
        yield Check("cleanup", "pass", "delete", LOUD)
    else:
        wrong = f"cleanup.policy is {policy or 'empty'}: compaction drops records; set delete"
        # A compacted topic takes no record without a key: no decision could ever be appended.
        writable = topic.name != names.decisions or "compact" not in policy
        yield Check("cleanup", "fail", wrong, LOUD, may_be_allowed=writable)
    limits = [name for name in ("retention.ms", "retention.bytes") if int(of[name]) >= 0]
    if limits:
        finite = ", ".join(f"{name} {of[name]}" for name in limits)
        wrong = f"{finite}: the broker deletes what may still be needed; set -1, tidegate trims it"
        yield Check("retention", "fail", wrong, LOUD)
    else:
        yield Check("retention", "pass", "without limit; tidegate trims it", LOUD)


def _rest(names: Names, topic: Topic, of: Mapping[str, str]) -> Iterator[Check]:
    room = int(of["max.message.bytes"])
    is_decisions = topic.name == names.decisions
    needed = (DECIDED_BYTES_MAX if is_decisions else PIECE_BYTES_MAX) + ENVELOPE_BYTES
    promise = "whatever was staged can be decided"
    if room < needed:
        small = f"max.message.bytes is {room:,}; it must be at least {needed:,}"
        yield Check("message size", "fail", small, promise)
    elif is_decisions and room < SUMMARY_BYTES:
        small = f"max.message.bytes is {room:,}; a Summary may take {SUMMARY_BYTES:,}"
        yield Check("message size", "warn", small, "the log can be cut, so that opening stays fast (I11)")
    else:
        yield Check("message size", "pass", f"{room:,} bytes", promise)
    stamped = of["message.timestamp.type"]
    right = stamped == "LogAppendTime"
    detail = stamped if right else f"message.timestamp.type is {stamped}; set LogAppendTime"
    yield Check("time stamps", "pass" if right else "fail", detail, "only what is old enough is trimmed")
    if is_decisions:
        order = f"{topic.partitions} partitions: only the first is used, and tidegate makes one"
        one = topic.partitions == 1
        yield Check("partitions", "pass" if one else "warn", "1" if one else order, "one order of decisions")


def _rights(topic: Topic, grant: Grant) -> Check:
    missing = [name for name in NEEDED if name not in topic.may]
    if not missing or not topic.may:
        known = "read, write, trim" if topic.may else "the brokers list none"
        return Check("rights", "pass", known, "the writer can write")
    fails = any(NEEDED[name] == "fail" for name in missing)
    rights = [name.capitalize() for name in missing]
    commands = ", ".join(grant(right, topic.name) for right in rights)
    lack = f"this user lacks the right {' and '.join(rights)} on the topic; grant it: {commands}"
    # A writer without the right to write decides nothing, so ``--allow-unsafe`` would not help.
    return Check(
        "rights",
        "fail" if fails else "warn",
        lack,
        "the writer can write, and trim",
        may_be_allowed=not fails,
    )
