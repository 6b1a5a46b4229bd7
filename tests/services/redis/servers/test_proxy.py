"""What the proxy knows of the protocol; what it does with frames is proven with Kafka's (`kafka/servers`)."""

import contextlib
import socket

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from services.support.redis.proxy import RedisProxy
from services.support.redis.wire import words

pytestmark = pytest.mark.slow  # a tool of these tests, which they would miss soon enough

DEADLINE_S = 20.0
LIBRARY = """#!lua name=tests
redis.register_function('tests_add', function(keys, args) return redis.call('INCRBY', keys[1], args[1]) end)
redis.register_function('tests_get', function(keys, args) return redis.call('GET', keys[1]) end)
"""


@pytest.fixture
def proxy(redis):
    with RedisProxy(("127.0.0.1", redis.port)) as made:
        yield made


@pytest.fixture
def connect(proxy):
    """Makes clients of the proxy that try once, and over one connection."""
    with contextlib.ExitStack() as opened:

        def make(protocol=3, **settings):
            once = {"retry": Retry(NoBackoff(), 0), "decode_responses": True, "protocol": protocol}
            host, port = proxy.address
            client = Redis(host, port, **(once | {"socket_timeout": DEADLINE_S} | settings))
            return opened.enter_context(client)

        yield make


@pytest.fixture
def functions(redis):
    redis.ask("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    yield
    redis.ask("FUNCTION", "DELETE", "tests")


@pytest.fixture
def dial(proxy):
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(socket.create_connection(proxy.address, DEADLINE_S))


# -- transparent ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_all_kinds_of_replies_pass(proxy, connect, namespace, protocol):
    client = connect(protocol)
    client.mset({f"{namespace}:{n}": "x" * n for n in range(1, 50)})
    assert client.get(f"{namespace}:7") == "x" * 7
    assert client.get(f"{namespace}:none") is None
    client.hset(f"{namespace}:hash", mapping={"a": "1", "b": ""})
    assert client.hgetall(f"{namespace}:hash") == {"a": "1", "b": ""}
    client.zadd(f"{namespace}:sorted", {"m": 1.5})
    assert client.zscore(f"{namespace}:sorted", "m") == 1.5
    client.sadd(f"{namespace}:set", "a")
    assert client.smembers(f"{namespace}:set") == {"a"}
    nested = "return {1, {2, {'three', {}}}, false, redis.status_reply('fine')}"
    assert client.eval(nested, 0) == [1, [2, ["three", []]], None, "fine"]
    typed = "redis.setresp(3); return {{map={a=1}}, {double=2.5}, {set={x=true}}, true}"
    assert len(client.eval(typed, 0)) == 4
    assert client.info("server")["process_id"] > 0
    with pytest.raises(ResponseError, match="unknown command"):
        client.execute_command("NOSUCH")
    assert not proxy.plain.failures


def test_pushed_messages_are_no_replies(redis, connect, namespace):
    client = connect()
    pushed = client.pubsub()
    with pushed:
        pushed.subscribe(namespace)
        assert pushed.get_message(timeout=DEADLINE_S)["type"] == "subscribe"
        redis.ask("PUBLISH", namespace, "hello")
        assert pushed.get_message(timeout=DEADLINE_S)["data"] == "hello"
    assert client.ping()


def test_each_of_a_pipeline_is_a_frame_of_its_own(proxy, connect, namespace):
    client = connect()
    with client.pipeline(transaction=False) as pipeline:
        for n in range(100):
            pipeline.rpush(f"{namespace}:list", n)
        assert pipeline.execute() == list(range(1, 101))
    assert proxy.seen("RPUSH") == 100
    assert proxy.seen("rpush") == 100


def test_counted_by_what_is_asked_for(proxy, connect, namespace, functions):
    client = connect()
    client.fcall("tests_add", 1, f"{namespace}:n", 1)
    client.fcall("tests_get", 1, f"{namespace}:n")
    client.fcall("tests_get", 1, f"{namespace}:n")
    assert (proxy.seen("FCALL"), proxy.seen("FCALL", "tests_add"), proxy.seen("fcall", "tests_get")) == (
        3,
        1,
        2,
    )
    client.config_get("dir")
    assert proxy.seen("CONFIG", "get") == 1
    proxy.wait_seen(2, "FCALL", "tests_get")
    with pytest.raises(TimeoutError, match="FCALL tests_get"):
        proxy.wait_seen(3, "FCALL", "tests_get", timeout=0.05)


# -- lost -----------------------------------------------------------------------------------------


def test_the_nth_of_a_pipeline(proxy, redis, connect, namespace):
    """What stands before it is done, what stands behind it is not."""
    proxy.drop_request("SET", nth=3)
    with pytest.raises(RedisConnectionError), connect().pipeline(transaction=False) as pipeline:
        run(pipeline, namespace)
    assert [redis.ask("GET", f"{namespace}:{n}") for n in range(5)] == ["0", "1", None, None, None]


def run(pipeline, namespace):
    for n in range(5):
        pipeline.set(f"{namespace}:{n}", n)
    pipeline.execute()


def test_refused_with_an_error_in_order(proxy, redis, connect, namespace):
    rule = proxy.refuse_with("OOM command not allowed", "SET", nth=2, times=2)
    with connect().pipeline(transaction=False) as pipeline:
        for n in range(5):
            pipeline.set(f"{namespace}:{n}", n)
        done = pipeline.execute(raise_on_error=False)
    assert [type(each) for each in done] == [bool, OutOfMemoryError, OutOfMemoryError, bool, bool]
    assert [redis.ask("GET", f"{namespace}:{n}") for n in range(5)] == ["0", None, None, "3", "4"]
    assert rule.hits == 2


def test_where_is_told_words(proxy, connect, namespace):
    told = []
    rule = proxy.refuse_with(
        "ERR no", "SET", where=lambda said: told.append(said) or said[2] == b"two", times=None
    )
    client = connect()
    client.set(namespace, "one")
    with pytest.raises(ResponseError, match="no"):
        client.set(namespace, "two")
    assert told == [[b"SET", namespace.encode(), b"one"], [b"SET", namespace.encode(), b"two"]]
    rule.remove()
    assert client.set(namespace, "two")


# -- held -----------------------------------------------------------------------------------------


def test_a_late_request_logs_in_as_its_client_did(private_redis):
    server = private_redis(password="secret")
    with RedisProxy(("127.0.0.1", server.port)) as proxy:
        hold = proxy.hold_request("SET")
        with server.client(port=proxy.address[1], socket_timeout=0.3) as client:
            with pytest.raises(RedisTimeoutError):
                client.set("key", "late")
            hold.arrived()
            proxy.cut()
        assert hold.release() == 1
    assert server.ask("GET", "key") == "late"


# -- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"*2\r\n$3\r\nGET\r\n+x\r\n",
        b"*x\r\n",
        b"*1\r\n$-7\r\n",
        b"*999999999999\r\n",
        b"x" * 2_000_000,
        b"\r\n",
    ],
)
def test_what_is_no_request_ends_its_connection(proxy, connect, dial, sent):
    sock = dial()
    with contextlib.suppress(ConnectionError):
        sock.sendall(sent)
        assert sock.recv(1) == b""
    assert proxy.plain.hostile == 1
    assert connect().ping()


def test_words_of_a_request():
    assert words(b"*3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$0\r\n\r\n") == [b"SET", b"\r\n", b""]
    assert words(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", 1) == [b"GET"]
    assert words(b"get k\r\n") == [b"get", b"k"]
    assert words(b"*0\r\n") == []
