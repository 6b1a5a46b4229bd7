"""A Redis whose certificate is of another host is refused: each kind of server, threads and event loops.

``redis-py`` before release 6 does not check the name by itself; these pass with the oldest admitted one, too.
"""

import asyncio
import contextlib
import select

import pytest

import tidegate.aio
from services.support.certificates import make_certificates, make_of_another
from services.support.redis.server import RedisServer
from tidegate.errors import ConfigError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.redis.client import servers as servers_module
from tidegate.sinks.redis.client.aio import channel
from tidegate.sinks.redis.client.settings import settings_of

KINDS = ("rediss://{}", "rediss+cluster://{}", "rediss+sentinel://{}/main")
MISMATCH = "certificate is for other names: connect by one of them"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A server and a Sentinel, by the start of the URL, with the certificate of another host."""
    root = tmp_path_factory.mktemp("tls")
    with contextlib.ExitStack() as started:
        found = {}
        for name in ("rediss", "sentinel"):
            folder = root / name
            make_certificates(folder / "tls")
            make_of_another(folder / "tls")
            server = RedisServer(folder, tls=True, sentinel=name == "sentinel")
            found[name] = started.enter_context(server)
        yield found


def url_and_options(servers, kind):
    server = servers["sentinel" if "sentinel" in kind else "rediss"]
    return kind.format(server.address), {**server.tls_settings, "timeout_s": 5}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_of_another_host_is_refused(servers, kind):
    url, options = url_and_options(servers, kind)
    with (
        contextlib.closing(open_store(url, "n", options)) as store,
        pytest.raises(ConfigError, match=MISMATCH),
    ):
        store.identity()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_of_another_host_is_refused_in_an_event_loop(servers, kind):
    url, options = url_and_options(servers, kind)
    with pytest.raises(ConfigError, match=MISMATCH):
        asyncio.run(tidegate.aio.connect(url, "n", options))


@pytest.mark.parametrize("off", [{"ssl_check_hostname": False}, {"ssl_cert_reqs": "none"}])
def test_the_check_can_be_switched_off_and_doctor_calls_that_unsafe(servers, off):
    url, options = url_and_options(servers, "rediss://{}")
    with contextlib.closing(open_store(url, "n", options | off)) as store:
        assert store.identity() is None
        (tls,) = [check for check in store.checks() if check.check == "TLS"]
    assert (tls.outcome, tls.found.partition(":")[0]) == ("warn", "unsafe")


@pytest.mark.parametrize("client", [servers_module.Opened, channel._Ended], ids=["threads", "event loop"])
def test_a_ticket_of_a_session_is_no_word_of_the_server(servers, monkeypatch, client):
    """Of TLS 1.3 it arrives once the connection is open, before any request: nobody logs in here."""
    url, options = url_and_options(servers, "rediss://{}")
    connect, arrived, is_loop = client.connect, [], client is channel._Ended

    def socket_of(connection):
        return (
            connection._sock
            if client is servers_module.Opened
            else connection._writer.get_extra_info("socket")
        )

    def wait_for_ticket(connection):
        poll = select.poll()
        poll.register(socket_of(connection).fileno(), select.POLLIN)
        arrived.extend(poll.poll(5_000))

    def connect_and_wait(self, *given, **named):
        made = connect(self, *given, **named)
        wait_for_ticket(self)
        return made

    async def connect_and_wait_in_loop(self, *given, **named):
        await connect(self, *given, **named)
        wait_for_ticket(self)

    monkeypatch.setattr(client, "connect", connect_and_wait_in_loop if is_loop else connect_and_wait)
    off = options | {"ssl_check_hostname": False}

    def connected():
        return (
            asyncio.run(tidegate.aio.connect(url, "n", off)) if is_loop else tidegate.connect(url, "n", off)
        )

    with pytest.raises(ConfigError, match="there is no namespace 'n'"):
        connected()
    assert arrived


@pytest.mark.parametrize("kind", KINDS)
def test_what_reaches_the_client(kind):
    """What does not hang on a release of redis-py: the setting itself, for Sentinels too."""
    found = settings_of(kind.format("h"), {})
    assert found.connection["ssl_check_hostname"] is found.sentinel["ssl_check_hostname"] is True
    plain = settings_of(kind.format("h").replace("rediss", "redis"), {})
    assert "ssl_check_hostname" not in {**plain.connection, **plain.sentinel}
