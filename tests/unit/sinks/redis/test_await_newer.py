"""How long a reader sleeps on Redis until a version comes. No server."""

from __future__ import annotations

import re

import pytest
from redis import exceptions

from tidegate.sinks.redis.client.replies import NextAction, Refused, answer_of, why_again
from tidegate.sinks.redis.reads import BLOCK_S, newer_call, refusal
from tidegate.sinks.redis.store import RedisStore


@pytest.mark.parametrize(
    "options, blocked_s",
    [
        ({}, BLOCK_S),
        ({"timeout_s": 1.0}, 0.5),
        ({"timeout_s": 0.2}, 0.1),
        ({"socket_timeout": 0.5}, 0.25),
    ],
)
def test_a_sleep_ends_before_its_answer_would_be_given_up(options, blocked_s, monkeypatch):
    store = RedisStore("redis://nowhere", "n", **options)
    sent = []
    monkeypatch.setattr(store._space.calls, "run", sent.extend)
    assert store.await_newer(7, 60.0)
    block = re.search(rb"BLOCK\r\n\$\d+\r\n(\d+)\r\n", sent[0].args[0])
    assert int(block.group(1)) == blocked_s * 1_000


def test_who_sleeps_on_a_server_that_becomes_a_replica_looks_again_where_the_primary_is():
    said = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
    call = newer_call("n", 7, 60.0)
    answer = answer_of(exceptions.ResponseError(said), call, "store", "host:6379")
    assert answer is NextAction.LEAVE


@pytest.mark.parametrize(
    "error",
    [exceptions.ReadOnlyError("You can't write against a read only replica"), "TGSERVER replica script: f"],
)
def test_a_server_that_is_a_replica_now_is_named_as_one(error):
    error = exceptions.ResponseError(error) if isinstance(error, str) else error
    assert why_again("host:6379", error).startswith("host:6379: it is a replica now")
    other = exceptions.ResponseError("TGSERVER 0123456789abcdef")
    assert why_again("host:6379", other) == "host:6379: TGSERVER 0123456789abcdef"


def test_a_fenced_driver_reads_what_to_do():
    assert "a newer driver runs; stop this one" in str(
        refusal("store", Refused("TGFENCED", "3"), opened=True)
    )
