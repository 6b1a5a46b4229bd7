"""A URL that means another kind of server than answers there: the error says what to write."""

import asyncio

import pytest

import tidegate
import tidegate.aio
from services.support.redis.server import RedisServer
from tidegate.errors import ConfigError, StoreUnavailableError

WRONG = [
    (
        "redis+sentinel://{at}/primary",
        {},
        ConfigError,
        r"this is no Sentinel; write redis://127\.0\.0\.1:\d+",
    ),
    ("redis+cluster://{at}", {}, ConfigError, r"is no Cluster: write redis://127\.0\.0\.1:\d+"),
    ("redis://{at}/99", {}, ConfigError, r"has no such database.*correct the number"),
    ("rediss://{at}", {"timeout_s": 0.5}, StoreUnavailableError, r"asks for TLS: does the server speak it"),
]


@pytest.mark.parametrize("url, options, kind, told", WRONG, ids=[url.partition("/")[0] for url, *_ in WRONG])
def test_another_kind_of_server_answers(redis: RedisServer, url, options, kind, told):
    url = url.format(at=redis.address)

    async def read():
        await tidegate.aio.connect(url, "flights", options)

    with pytest.raises(kind, match=told):
        tidegate.connect(url, "flights", options)
    with pytest.raises(kind, match=told):
        asyncio.run(read())


def test_a_server_that_speaks_tls_only(private_redis):
    server = private_redis(tls=True)
    with pytest.raises(StoreUnavailableError, match="if the server speaks TLS, the URL begins with rediss"):
        tidegate.connect(f"redis://{server.address}", "flights", {"timeout_s": 2})
