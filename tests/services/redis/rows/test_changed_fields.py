"""Fields in Redis that somebody changed, as commands meet them; no other namespace is hidden by it."""

from __future__ import annotations

import contextlib

import pytest
from typer.testing import CliRunner

import tidegate
from services.support.redis.server import RedisServer
from tidegate.cli import app
from tidegate.errors import CorruptError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.redis.seals import headers
from tidegate.testing.example import BATCHES, Example


@pytest.fixture
def place(redis: RedisServer, namespace: str, tmp_path):
    """Three versions of one key group: log, store and namespace as options of a command."""
    example = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=Options(key_groups=1))
    for rows in BATCHES:
        example.write(rows)
    example.close()
    redis.ask("HDEL", f"tg:{{{namespace}}}:meta", "heartbeat_us")
    return ["--wal", f"file://{tmp_path}/wal", "--store", redis.url, "--namespace", namespace]


POINTER = {
    "text": ("visible", "x"),
    "a sign": ("horizon", "-1"),
    "a fraction": ("epoch", "1.5"),
    "as Python writes numbers": ("epoch", "1_0"),
    "without end": ("visible", "inf"),
    "above all": ("visible", "9" * 20),
    "not text": ("writer", b"\xff\xfe"),
    "long": ("heartbeat_us", "9" * 5_000),
}


@pytest.mark.parametrize("how", POINTER)
def test_a_pointer_that_is_none_is_told_with_its_place(place, redis, namespace, how):
    redis.ask("HSET", f"tg:{{{namespace}}}:meta", *POINTER[how])
    told = pytest.raises(CorruptError, match=f"namespace {namespace}: the pointer")
    with tidegate.connect(redis.url, namespace) as gate, told as caught:
        gate.history()
    assert len(str(caught.value)) < 1_000
    for command in ("status", "doctor", "verify"):
        done = CliRunner().invoke(app, [command, *place])
        assert isinstance(done.exception, SystemExit), (command, done.exception)
        assert done.exit_code
        assert "the pointer" in done.output


@pytest.mark.parametrize("groups", [0, -1, 10**12])
def test_key_groups_that_cannot_be_are_told_with_their_place(place, redis, namespace, groups):
    meta = f"tg:{{{namespace}}}:meta"
    identity = redis.ask("HGET", meta, "identity")
    redis.ask("HSET", meta, "identity", identity.replace('"key_groups":1', f'"key_groups":{groups}'))
    with pytest.raises(CorruptError, match=f"namespace {namespace}: a stored Identity cannot be read"):
        tidegate.connect(redis.url, namespace)


HEADER = {"layers": ("l:aircraft", "3,x"), "floor": ("floor", "nan"), "base": ("b:legs", "")}


@pytest.mark.parametrize("what", HEADER)
def test_a_header_that_is_none_is_told_with_its_place(place, redis, namespace, what):
    redis.ask("HSET", f"tg:{{{namespace}/0}}:h", *HEADER[what])
    told = pytest.raises(CorruptError, match=r"key group 0: its header .* cannot be read")
    with contextlib.closing(open_store(redis.url, namespace)) as store, told:
        headers(store._space)
    done = CliRunner().invoke(app, ["doctor", *place])
    assert "key group 0: its header" in done.output


@pytest.mark.parametrize("note", ["x y", "1", "9" * 5_000 + " a"], ids=["text", "one word", "long"])
def test_a_note_of_an_attempt_that_is_none_is_told_with_its_place(place, redis, namespace, note):
    redis.ask("HSET", f"tg:{{{namespace}}}:meta", "begun:4", note)
    told = pytest.raises(CorruptError, match="a note of an attempt cannot be read")
    with contextlib.closing(open_store(redis.url, namespace)) as store, told:
        store.begun()


def test_what_a_header_says_is_not_repeated_in_full_length(place, redis, namespace):
    redis.ask("HSET", f"tg:{{{namespace}/0}}:h", "s", "x" * 200_000)
    done = CliRunner().invoke(app, ["get", "aircraft", "N14228", *place[2:]])
    assert done.exit_code
    assert len(done.output) < 2_000


@pytest.fixture
def aliases(place, redis, namespace):
    """An alias of the namespace, and how to call ``tidegate alias``."""

    def call(*words, code=0):
        done = CliRunner().invoke(app, ["alias", *words, "--store", redis.url])
        assert done.exit_code == code, done.output
        return done.output

    call("set", "live", "--namespace", namespace)
    yield call
    redis.forget("live")
    redis.forget("evil")


def test_an_alias_that_is_none_hides_no_other_one(aliases, redis, namespace, caplog):
    """A tenant may write one under the name of its own namespace, and all go through one list."""
    redis.ask("HSET", "tg:{evil}:alias", "namespace", "no name", "uuid", "x")
    redis.ask("SET", "tg:{evil-2}:alias", "of another kind")
    assert "live" in aliases("list")
    assert "tg:{evil}:alias is no alias" in caplog.text
    assert "tg:{evil-2}:alias" in caplog.text
    aliases("set", "evil", "--namespace", namespace)
    assert "evil" in aliases("list")
    aliases("drop", "live", "--yes")


@pytest.mark.parametrize("field", ["namespace", "uuid", "revision"])
def test_an_alias_without_a_field_can_be_dropped(aliases, redis, namespace, field):
    redis.ask("HDEL", "tg:{live}:alias", field)
    with contextlib.closing(open_store(redis.url, namespace)) as store:
        assert store.aliases().drop("live")
    assert not redis.ask("EXISTS", "tg:{live}:alias")


def test_an_alias_that_is_none_keeps_no_namespace_from_being_dropped(place, redis):
    redis.ask("HSET", "tg:{evil}:alias", "namespace", "no name", "uuid", "x")
    done = CliRunner().invoke(app, ["drop", "--yes", *place])
    redis.forget("evil")
    assert done.exit_code == 0, done.output


def test_a_namespace_that_cannot_be_read_hides_no_other_alias(aliases, redis, namespace, tmp_path, caplog):
    example = Example(f"file://{tmp_path}/wal", redis.url, "evil", options=Options(key_groups=1))
    example.write(BATCHES[0])
    example.close()
    aliases("set", "evil-2", "--namespace", "evil")
    redis.ask("HSET", "tg:{evil}:meta", "epoch", "x")
    told = aliases("list")
    assert "live" in told
    assert "cannot be read" in told
    assert "namespace evil: the pointer is" in caplog.text
