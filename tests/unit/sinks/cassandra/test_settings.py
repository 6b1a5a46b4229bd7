"""What a Cassandra URL and its options say. Connects to nothing."""

import pytest

pytest.importorskip("cassandra")

from tidegate.errors import ConfigError
from tidegate.sinks.cassandra.client.settings import READ_AT, read_level, settings_of

URL = "cassandra://u:secret@a,b/k"


@pytest.mark.parametrize(
    "url,hosts,port,keyspace",
    [
        ("cassandra://a/k", ("a",), 9042, "k"),
        ("cassandra://a,b,c/Keys_1", ("a", "b", "c"), 9042, "keys_1"),
        ("cassandra://a,b:9999/k", ("a", "b"), 9999, "k"),
        ("cassandra://a:9999,b:9999/k/", ("a", "b"), 9999, "k"),
        ("cassandra://[::1]:9999/k", ("::1",), 9999, "k"),
        ("cassandra:///k", ("localhost",), 9042, "k"),
    ],
)
def test_urls(url, hosts, port, keyspace):
    found = settings_of(url, {})
    assert (found.hosts, found.port, found.keyspace) == (hosts, port, keyspace)


def test_the_login_is_decoded_and_never_shown():
    found = settings_of("cassandra://us%40er:p%2Fw:x@a/k", {})
    assert (found.username, found.password) == ("us@er", "p/w:x")
    assert "p/w" not in repr(found)
    given = settings_of("cassandra://a/k", {"username": "ann", "password": "12345"})
    assert (given.username, given.password) == ("ann", "12345")
    assert "12345" not in repr(given)


@pytest.mark.parametrize(
    "url,options,why",
    [
        ("cassandra://u:secret@a", {}, "is no keyspace"),
        ("cassandra://u:secret@a/k-1", {}, "is no keyspace"),
        ("cassandra://u:secret@a/1k", {}, "is no keyspace"),
        (f"cassandra://u:secret@a/{'k' * 49}", {}, "at most 48"),
        ("cassandra://u:secret@a/k/t", {}, "is no keyspace"),
        ("cassandra://u:secret@a:port/k", {}, "host:port"),
        ("cassandra://u:secret/x@a/k", {}, "%2F %3F and %23"),
        ("cassandra://secret@a/k", {}, "which is ambiguous: write user:password@"),
        ("cassandra://u:secret@a:1,b:2/k", {}, "one port"),
        ("cassandra://u:secret@a/k?create=1", {}, "store_options"),
        (URL, {"tiemout_s": 1}, "unknown option tiemout_s; there are create, replication"),
        (URL, {"timeout_s": 0}, "timeout_s"),
        (URL, {"timeout_s": True}, "timeout_s"),
        (URL, {"create": "yes"}, "create"),
        (URL, {"tls": False, "ssl_ca_certs": "ca.pem"}, "ssl_ options need TLS"),
        (URL, {"consistency": "ONE"}, "consistency must be one of"),
        (URL, {"consistency": "ALL"}, "consistency must be one of"),
        (URL, {"read_consistency": "LOCAL_ONE"}, "a replica that missed a write"),
        (URL, {"read_consistency": "EACH_QUORUM"}, "read_consistency must be one of LOCAL_QUORUM, QUORUM"),
        *(
            (URL, {"replication": wrong}, "replication must be")
            for wrong in (0, True, {}, {"dc": 0}, {"dc": "3"})
        ),
        *(
            (URL, {"replication": wrong}, "replication must be")
            for wrong in ("", "dc1", "dc1:x", "dc1:3,", "0")
        ),
    ],
)
def test_what_does_not_fit_is_refused(url, options, why):
    with pytest.raises(ConfigError, match=why) as refused:
        settings_of(url, options)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "hosts,given,copies",
    [
        ("127.0.0.1,localhost", None, {"": 1}),
        ("[::1]", None, {"": 1}),
        ("127.0.0.1,node2", None, {}),
        ("node1", None, {}),
        ("node1", 3, {"": 3}),
        ("node1", {"dc1": 3, "dc2": 2}, {"dc1": 3, "dc2": 2}),
        ("node1", "3", {"": 3}),
        ("node1", "dc1:3, dc-2 : 2", {"dc1": 3, "dc-2": 2}),
    ],
)
def test_copies_are_guessed_on_one_machine_only(hosts, given, copies):
    options = {} if given is None else {"replication": given}
    assert settings_of(f"cassandra://{hosts}/k", options).replication == copies


def test_leases_are_taken_unless_told_otherwise():
    assert settings_of(URL, {}).leases is True
    assert settings_of(URL, {"leases": False}).leases is False
    with pytest.raises(ConfigError, match="leases must be True or False"):
        settings_of(URL, {"leases": "no"})


def test_tls_is_on_with_any_of_its_options():
    assert settings_of(URL, {}).tls is None
    assert settings_of(URL, {"tls": True}).tls == {}
    assert settings_of(URL, {"ssl_ca_certs": __file__}).tls == {"ssl_ca_certs": __file__}


def test_the_drivers_own_options_are_passed_on():
    found = settings_of(URL, {"protocol_version": 5, "password": "other", "timeout_s": 3})
    assert (found.passed, found.password, found.timeout_s) == ({"protocol_version": 5}, "other", 3.0)


@pytest.mark.parametrize("written_at", READ_AT)
def test_reads_overlap_with_writes(written_at):
    assert read_level(written_at, "", "here") == READ_AT[written_at][0]
    for asked in ("LOCAL_QUORUM", "QUORUM"):
        if asked in READ_AT[written_at]:
            assert read_level(written_at, asked, "here") == asked
        else:
            with pytest.raises(ConfigError, match=f"{asked} may miss what was written at {written_at}"):
                read_level(written_at, asked, "here")
