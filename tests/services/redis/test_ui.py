"""``tidegate ui`` beside a Redis that is stalled or gone: every request is answered, and says since when.

The store's own time-outs are an hour here: nothing but the page's own deadline can end a request.
"""

import json
import time
import urllib.error
import urllib.request
from threading import Thread

import pytest

from services.support.workloads.random_versions import random_version, writer_on
from tidegate.options.endpoints import StoreRef
from tidegate.ui import lookups, polled
from tidegate.ui.facts import Facts
from tidegate.ui.server import Server

PATIENT = {"timeout_s": 3_600, "socket_timeout": 3_600}
ANSWER_S = 60


@pytest.fixture
def served(private_redis, tmp_path, monkeypatch):
    """A namespace in a server of its own; (the server, a function that asks the page)."""
    monkeypatch.setattr(polled, "KEPT_S", 2.0)
    monkeypatch.setattr(lookups, "WAIT_S", 2.0)
    redis = private_redis()
    writer = writer_on(redis.url, tmp_path)
    random_version(writer, 1)
    writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    writer.close()
    where = writer.driver.endpoints
    facts = Facts(where.namespace, (StoreRef("redis", redis.url, PATIENT),), where.wal)
    server = Server(facts, "127.0.0.1", 0)
    Thread(target=server.serve_forever, daemon=True).start()

    def ask(path):
        try:
            with urllib.request.urlopen(server.url + path, timeout=ANSWER_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    yield redis, ask
    redis.resume()
    server.shutdown()
    server.server_close()
    facts.close()


def look_until(ask, holds):
    end = time.monotonic() + ANSWER_S
    while True:
        status, facts = ask("api/namespace")
        assert status == 200
        if holds(facts):
            return facts
        assert time.monotonic() < end, facts


def test_a_stalled_primary_is_told_and_every_request_is_answered(served):
    redis, ask = served
    assert look_until(ask, lambda facts: facts["decided"] == 2)["visible"] == 2
    redis.pause()
    facts = look_until(ask, lambda facts: "visible" not in facts)
    assert facts["problems"][0].startswith("store: no answer since 20")
    assert facts["problems"][0].endswith("; it is still waited for")
    assert (facts["decided"], facts["lag"], facts["stores"][0]["visible"]) == (2, None, None)
    assert "no answer since 20" in facts["stores"][0]["stands"]
    status, told = ask("api/key?table=aircraft&key=N1")
    assert (status, "no answer within" in told["error"]) == (503, True)
    assert "no answer since 20" in told["error"]
    redis.resume()
    facts = look_until(ask, lambda facts: facts.get("visible") == 2 and not facts["problems"])
    assert facts["lag"] == 0
    assert ask("api/key?table=aircraft&key=N1")[0] == 200


def test_a_primary_that_was_killed_is_told_and_every_request_is_answered(served):
    redis, ask = served
    since = look_until(ask, lambda facts: facts.get("visible") == 2)["at"]
    redis.kill()
    facts = look_until(ask, lambda facts: "visible" not in facts)
    assert "no answer since 20" in facts["problems"][0]
    assert facts["at"] > since
    assert facts["decided"] == 2
    assert ask("api/key?table=aircraft&key=N1")[0] == 503
    redis.restart()
    facts = look_until(ask, lambda facts: facts.get("visible") == 2)
    assert "were not compared with the log since they restarted" in facts["problems"][0]
